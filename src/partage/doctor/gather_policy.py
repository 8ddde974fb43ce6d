"""The policy of the node, and how the GPUs differ from it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from partage.doctor.decide.observation import GpuDifference, ObservedPolicy, Unseen
from partage.doctor.host.root import DoctorPlace
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.state import read_state
from partage.errors import InputError, PartageError, Problem, Unsatisfiable, wrong_input
from partage.model.gpu import Driver, Inventory
from partage.model.health import GpuCondition
from partage.model.ids import ResourceName
from partage.model.policy import Policy
from partage.model.share import NodeOffer, plugin_resources
from partage.plan.offer.desired import DesiredState, resolve
from partage.plan.reconcile.node_plan import Phase
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.answers.documents.report import ReportDocument
    from partage.edges.hardware.port import Hardware

_STUCK = frozenset({Phase.WAITING, Phase.FAILED, Phase.BLOCKED, Phase.UNKNOWN})
"""Phases of a GPU that does not change within seconds by itself."""
_UNKNOWN = Unseen("no policy is known: no agent has served one here; name it with --policy FILE")
_ELSEWHERE = Unseen(
    "the node's daemons cannot be asked through --root: run partage doctor on the node itself"
)


class GivenPolicy(Frozen):
    """The policy of ``--policy``; file None: it was not given."""

    file: str | None = None
    config: str | None = None


class Looked(Frozen):
    """What the GPUs say, and the policy for them. desired: the policy resolved; None: it does not hold."""

    inventory: Inventory
    policy: ObservedPolicy | Unseen
    conditions: tuple[GpuCondition, ...] | Unseen | None = None
    desired: DesiredState | None = None
    offer: NodeOffer | None = None

    @property
    def resources(self) -> tuple[ResourceName, ...]:
        """Names of what is offered, or is to be."""
        return () if self.offer is None else tuple(plugin_resources(self.offer))

    async def planned(self, hardware: Hardware, place: DoctorPlace) -> Looked:
        """With the differences between GPUs and policy, where no agent has said them."""
        if self.desired is None or not isinstance(self.policy, ObservedPolicy):
            return self
        if place.machine is None and place.elsewhere:
            return replace(self, policy=replace(self.policy, differs=_ELSEWHERE))
        return replace(self, policy=replace(self.policy, differs=await _differences(self, hardware, place)))


def look(
    conditions: tuple[GpuCondition, ...] | None,
    inventory: Inventory,
    place: DoctorPlace,
    given: GivenPolicy,
    report: ReportDocument | None,
) -> Looked:
    """The policy, as far as it is known without asking the GPUs again. Raises InputError for a file that is
    not there.
    """
    policy = _known_policy(place, given, report)
    if isinstance(policy, Unseen) or policy.policy is None or not isinstance(inventory.driver, Driver):
        return Looked(inventory, policy, conditions)
    if report is not None and given.file is None:
        told = replace(_with_offer(policy, policy.policy, inventory, report.offer), differs=_reported(report))
        return Looked(inventory, told, conditions, offer=report.offer)
    try:
        desired = resolve(policy.policy, inventory, geometry_of)
    except (InputError, Unsatisfiable) as error:
        return Looked(inventory, replace(policy, problems=error.problems), conditions)
    judged = _with_offer(policy, policy.policy, inventory, desired.offer)
    mps = [gpu for gpu, settings in desired.settings.items() if settings.daemons]
    sockets = _socket_problems(place, desired)
    return Looked(
        inventory, replace(judged, mps=tuple(mps), sockets=sockets), conditions, desired, desired.offer
    )


def _known_policy(
    place: DoctorPlace, given: GivenPolicy, report: ReportDocument | None
) -> ObservedPolicy | Unseen:
    """The one that was given, that of the running agent, or the last one that an agent served."""
    if given.file is not None:
        return _given(given, report)
    if report is not None:
        planned = report.planner_input
        if planned is not None:
            return ObservedPolicy(report.policy.source or "the running agent's", planned.policy)
        return Unseen(
            "the running agent is of another version of Partage; name the policy with --policy FILE"
        )
    if not place.files:
        return _UNKNOWN
    saved = read_state(place.state_path)
    if saved is None or saved.policy is None:
        return _UNKNOWN
    from partage.agent.node_policy import restored

    source = f"the last policy of the agent ({saved.policy.source})"
    try:
        made = restored(saved.policy, os.environ)
    except InputError as error:
        return ObservedPolicy(source, None, error.problems)
    return ObservedPolicy(source, made.policy(made.layouts))


def _given(given: GivenPolicy, report: ReportDocument | None) -> ObservedPolicy:
    from partage.answers import common_node

    assert given.file is not None
    if given.file != "-" and not Path(given.file).exists():
        raise wrong_input(given.file, "does not exist", "--policy FILE or DIR")
    try:
        loaded = common_node.read_policy(given.file, given.config, report)
    except InputError as error:
        return ObservedPolicy(given.file, None, error.problems)
    return ObservedPolicy(given.file, loaded.policy)


def _with_offer(
    known: ObservedPolicy, policy: Policy, inventory: Inventory, offer: NodeOffer
) -> ObservedPolicy:
    from partage.plan.labels import node_labels

    shares = any(row.traits.in_shares for rows in offer.values() for row in rows)
    labels: Mapping[str, str] = node_labels(inventory, offer, policy.options, geometry_of)
    mps = tuple(gpu for gpu, rows in offer.items() if any(row.traits.through_daemon for row in rows))
    return replace(known, shares=shares, labels=labels, mps=mps, unlimited=_unlimited(policy, inventory))


def _unlimited(policy: Policy, inventory: Inventory) -> tuple[Problem, ...]:
    """GPUs where the policy wants memory limits that the driver cannot set, each with what to change."""
    from partage.plan.offer.assign import assign
    from partage.plan.offer.driver_limits import warn_unlimited
    from partage.plan.offer.findings import Findings

    findings = Findings(policy.source)
    try:
        warn_unlimited(assign(policy, inventory, geometry_of).targets, inventory, findings)
    except (InputError, Unsatisfiable):
        return ()  # ``policy-refused`` says it
    return findings.warnings()


def _reported(report: ReportDocument) -> tuple[GpuDifference, ...]:
    """GPUs that the agent does not have where the policy wants them."""
    return tuple(
        GpuDifference(gpu.index, gpu.reason or str(gpu.phase), waits=gpu.phase is Phase.WAITING)
        for gpu in report.gpus
        if gpu.phase in _STUCK
    )


def _socket_problems(place: DoctorPlace, desired: DesiredState) -> tuple[Problem, ...]:
    from partage.edges.kubelet.sockets import check_plugin_sockets
    from partage.edges.mps.paths import DaemonPaths

    problems: list[Problem] = []
    checks: list[Callable[[], object]] = [
        partial(check_plugin_sockets, Path(place.kubelet_dir), plugin_resources(desired.offer))
    ]
    for settings in desired.settings.values():
        checks += [partial(DaemonPaths.of, Path(place.run_dir), daemon.device) for daemon in settings.daemons]
    for check in checks:
        try:
            check()
        except InputError as error:
            problems += error.problems
    return tuple(problems)


async def _differences(
    looked: Looked, hardware: Hardware, place: DoctorPlace
) -> tuple[GpuDifference, ...] | Unseen:
    """What ``partage assert`` would say."""
    from partage.agent.observers.once import observe_input
    from partage.answers.documents.assertion import difference_rows
    from partage.plan.reconcile.planner import plan_node

    assert looked.desired is not None
    desired = looked.desired
    saved = read_state(place.state_path) if place.files else None
    try:
        found = await observe_input(
            hardware,
            lambda _: desired,
            original_in=lambda boot_id: {} if saved is None else saved.original_in(boot_id),
        )
    except PartageError as error:
        return Unseen(str(error))
    plan = plan_node(found.desired, found.now, geometry_of)
    rows = difference_rows(found, plan)
    return tuple(
        GpuDifference(row.index, row.detail, plan.gpus[row.uuid].phase is Phase.WAITING)
        for row in rows
        if row.uuid is not None and row.uuid in plan.gpus  # the check of lost GPUs has the others
    )
