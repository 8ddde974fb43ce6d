"""The planner: the steps of a node, their order, and what may be offered meanwhile. Pure.

All changes of a node are decided here: ``plan``, ``apply``, ``assert``, ``simulate`` and the agent print,
compare or carry out the same ``NodePlan``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from partage.model.gpu import NoDriver, gpu_of_mig_devices
from partage.model.gpu_use import GpuUse
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.step import PlannedStep, Step, Transaction, gpus_of
from partage.plan.offer.desired import DesiredState, existing_offer
from partage.plan.offer.select import GeometryOf
from partage.plan.reconcile.blocked import Blocked, BlockKind
from partage.plan.reconcile.conflicts import conflicts
from partage.plan.reconcile.draft import GpuDraft, NodeDraft, draft_node, without_files
from partage.plan.reconcile.mig_plan import MigPlan
from partage.plan.reconcile.node_plan import GpuPlan, NodePlan, Phase, Snapshot
from partage.plan.reconcile.pod_uses import entry_uses
from partage.plan.reconcile.recognised import recognised, unknown_terms
from partage.plan.reconcile.settings_steps import WithIntervals
from partage.plan.reconcile.transition import GpuServing, awaited_entries, next_due_s, transition
from partage.plan.serve.ledger_entry import Certainty, LedgerEntry
from partage.text import listed

WITHDRAW_S = 1.0
"""How long ids are withdrawn before a GPU changes. The kubelet applies a ListAndWatch message at once; an
Allocate that was under way when it arrived is over within milliseconds."""


def plan_node(desired: DesiredState, now: Snapshot, geometry_of: GeometryOf) -> NodePlan:
    """The plan of a node, once. The agent uses a ``Planner``, which saves repeated work."""
    return Planner(geometry_of).plan(desired, now)


class Planner(Struct):
    """Plans a node again and again. It caches the last draft, which never changes a result.

    withdraw_s: how long ids are withdrawn before a GPU changes.
    """

    geometry_of: GeometryOf
    withdraw_s: float = WITHDRAW_S
    _intervals: WithIntervals = field(default_factory=WithIntervals)
    _last: tuple[DesiredState, tuple[object, object], NodeDraft] | None = None

    def plan(self, desired: DesiredState | None, now: Snapshot) -> NodePlan:
        """The next steps, and what each GPU serves meanwhile.

        Without a policy or a driver there are no steps, and what is served does not change.
        """
        if desired is None or isinstance(now.observed.node.inventory.driver, NoDriver):
            waits = awaited_entries(now.served, now.entries, _gpu_of(now))
            return NodePlan(serving=dict(now.served), waiting=waits)
        desired = self.with_claims(desired, now.entries)
        gpu_of, known = _gpu_of(now), now.observed.node.known
        seen = recognised(desired, now, gpu_of)
        draft = self._draft(desired, replace(now, served={**now.served, **seen}) if seen else now)
        conflict = conflicts(now.served, now.held, now.entries, known, checkpoint=now.checkpoint)
        serving = _next_serving(draft, now, self.withdraw_s, gpu_of, conflict.found, seen=seen)
        waits = awaited_entries(serving, now.entries, gpu_of)
        gpus = {
            uuid: _gpu_plan(uuid, gpu_draft, now, waits, conflict.found.get(uuid, ""))
            for uuid, gpu_draft in draft.gpus.items()
        }
        ready = tuple(
            transaction for transaction in draft.transactions if _is_ready(transaction, draft, now, serving)
        )
        return NodePlan(
            gpus=gpus,
            transactions=draft.transactions,
            ready=ready,
            serving=serving,
            waiting=waits,
            unusable=draft.unusable,
            mig=draft.mig,
            suspected=conflict.suspected,
            due_s=next_due_s(serving, self.withdraw_s),
        )

    def with_claims(self, desired: DesiredState, entries: tuple[LedgerEntry, ...]) -> DesiredState:
        """What the policy wants, and what claims ask for that hold GPUs: the length of time slices."""
        return self._intervals.of(desired, entries)

    def slices_asked(self, entries: tuple[LedgerEntry, ...]) -> bool:
        """Whether claims ask for any."""
        return bool(self._intervals.asked(entries))

    def _draft(self, desired: DesiredState, now: Snapshot) -> NodeDraft:
        """The cached draft if its inputs have not changed.

        While the node is settled, uses of GPUs do not matter, unless a daemon waits for their end.
        """
        renew = {gpu: attempt.renew for gpu, attempt in now.attempts.items() if attempt.renew}
        observed = now.observed
        key = (
            observed.node.lost,
            observed.daemons,
            observed.slices,
            observed.fixed_slices,
            now.served,
            now.original,
            renew,
        )
        last = self._last
        if last is not None and (last[0] is not desired or last[1][0] != key):
            last = None
        waits = any(daemon.renewable for daemon in observed.daemons or ())
        if last and last[2].settled and not waits:
            return last[2]
        uses = (*observed.uses, *entry_uses(now.entries, desired.inventory))
        if last and last[1][1] == uses:
            return last[2]
        draft = _draft(desired, now, self.geometry_of, uses, renew)
        self._last = desired, (key, uses), draft
        return draft


def _draft(
    desired: DesiredState,
    now: Snapshot,
    geometry_of: GeometryOf,
    uses: tuple[GpuUse, ...],
    renew: Mapping[GpuUuid, frozenset[int]],
) -> NodeDraft:
    observed = now.observed
    if not (desired.layouts or desired.settings or observed.daemons or now.original or observed.node.lost):
        offer = existing_offer(desired.offer)
        drafts = {gpu.uuid: GpuDraft(offer.get(gpu.uuid, ())) for gpu in desired.inventory}
        return NodeDraft(drafts, MigPlan(), without_files(desired.inventory))
    return draft_node(
        desired, observed, now.served, geometry_of, uses=uses, original=now.original, renew=renew
    )


# --- what is served next -------------------------------------------------------------------------


def _gpu_of(now: Snapshot) -> dict[DeviceUuid, GpuUuid]:
    """MIG device UUID to GPU UUID, for all GPUs ever observed."""
    return gpu_of_mig_devices(now.observed.node.known.values())


def _next_serving(
    draft: NodeDraft,
    now: Snapshot,
    withdraw_s: float,
    gpu_of: Mapping[DeviceUuid, GpuUuid],
    in_conflict: Collection[GpuUuid],
    *,
    seen: Mapping[GpuUuid, GpuServing],
) -> dict[GpuUuid, GpuServing]:
    """What every GPU serves next.

    A GPU that is not observed, whose holders are not known yet, or that is being changed keeps what it
    serves; that is nothing for a GPU that was never served. One that has left the node is withdrawn, and
    dropped once no share of it is held. One that is recognised (seen) starts with its offer, unless something
    has to end first. One that serves nothing yet, and of which shares are held that may have been given as
    something else, waits for their end.
    """
    unseen = {gpu for gpu in now.served if gpu not in draft.gpus}
    still = (unseen - now.departed) | {gpu for gpu in (*now.unknown, *now.in_hand) if gpu in now.served}
    starts = {gpu for gpu, serving in seen.items() if draft.gpus[gpu].offer == serving.offer}
    moving = {gpu: serving for gpu, serving in now.served.items() if gpu not in still | starts}
    wanted = {gpu: gpu_draft.offer for gpu, gpu_draft in draft.gpus.items() if gpu not in now.unknown}
    new = {gpu: offer for gpu, offer in wanted.items() if gpu not in now.served and gpu not in starts}
    doubtful = unknown_terms(new, now.held, now.listed_before, gpu_of)
    moved = transition(
        moving,
        wanted,
        now.held,
        now.now_s,
        withdraw_s,
        gpu_of=gpu_of,
        in_conflict=[*in_conflict, *doubtful],
        gave_up=now.gave_up,
    )
    both = {**moved, **{gpu: now.served[gpu] for gpu in still}}
    return {gpu: both[gpu] for gpu in (*draft.gpus, *sorted(unseen)) if gpu in both}


# --- phases --------------------------------------------------------------------------------------


def _gpu_plan(
    uuid: GpuUuid,
    draft: GpuDraft,
    now: Snapshot,
    waiting_gpus: Mapping[GpuUuid, tuple[LedgerEntry, ...]],
    conflict: str,
) -> GpuPlan:
    steps = () if draft.transaction is None else _steps_of(uuid, draft.transaction)
    phase, reason = _phase(uuid, draft, now, waiting_gpus)
    if conflict and uuid not in now.in_hand:
        phase, reason = Phase.WAITING, conflict
    elif phase is Phase.WAITING:
        reason += _why_held(waiting_gpus.get(uuid, ()))
    if uuid in now.spared and phase is Phase.WAITING and not conflict:
        reason += f"; {now.spared[uuid]}"
    if now.other_plugin and phase in _NOT_BEGUN:
        return _held_back(uuid, draft, steps, now.other_plugin, conflict)
    attempt = now.attempts.get(uuid)
    return GpuPlan(
        phase=phase,
        reason=reason,
        steps=(*steps, *draft.later),
        offer=draft.offer,
        waiting_for=waiting_gpus.get(uuid, ()),
        blocked=draft.blocked,
        again_s=attempt.again_s if attempt and phase is Phase.FAILED else None,
        conflict=conflict,
    )


_NOT_BEGUN = frozenset({Phase.WAITING, Phase.WITHDRAWING, Phase.READY, Phase.FAILED})
"""Phases of GPUs that would be changed, now or later, and are not in hand."""


def _held_back(
    uuid: GpuUuid, draft: GpuDraft, steps: tuple[PlannedStep, ...], other: str, conflict: str
) -> GpuPlan:
    """A GPU that is not changed while another plugin offers GPUs. Its holders are not what it waits for:
    nobody is asked to leave.
    """
    reason = f"{other}; no GPU is changed before that has ended"
    return GpuPlan(
        phase=Phase.WAITING,
        reason=reason,
        steps=(*steps, *draft.later),
        offer=draft.offer,
        blocked=Blocked(uuid, BlockKind.OTHER_PLUGIN, reason),
        conflict=conflict,
    )


def _steps_of(uuid: GpuUuid, transaction: Transaction) -> tuple[Step, ...]:
    return tuple(step for step in transaction.steps if uuid in gpus_of(step))


def _phase(
    uuid: GpuUuid, draft: GpuDraft, now: Snapshot, waiting_gpus: Mapping[GpuUuid, tuple[LedgerEntry, ...]]
) -> tuple[Phase, str]:
    """The first phase that applies, and why."""
    waits = waiting_gpus.get(uuid)
    if uuid in now.in_hand:
        return now.in_hand[uuid], "it is being changed"
    if uuid in now.gave_up and _would_wait(uuid, draft, now):
        return Phase.FAILED, now.gave_up[uuid]
    if draft.stuck is not None:
        return draft.stuck, draft.reason
    if uuid in now.attempts and draft.reason:
        return Phase.FAILED, now.attempts[uuid].reason
    if uuid in now.unknown and (waits is not None or uuid not in now.served):
        return Phase.UNKNOWN, "it is not known yet who holds its shares"
    if waits:
        unknown = uuid in now.served and not (now.served[uuid].offer or now.served[uuid].leaving)
        known_as = ", and it is not known as what they were given" if unknown else ""
        return Phase.WAITING, draft.reason or f"shares of it are held{known_as}"
    if waits is not None:
        return Phase.WITHDRAWING, draft.reason or "its shares are withdrawn"
    if draft.transaction is not None:
        waits_for_others = any(gpu in waiting_gpus for gpu in draft.transaction.gpus)
        return (Phase.WAITING if waits_for_others else Phase.READY), draft.reason
    return Phase.SETTLED, ""


def _would_wait(uuid: GpuUuid, draft: GpuDraft, now: Snapshot) -> bool:
    """Whether it is not as the policy wants it, for nothing but its holders."""
    differs = uuid in now.served and now.served[uuid] != GpuServing(draft.offer)
    return draft.stuck is Phase.WAITING or (draft.stuck is None and differs)


def _why_held(entries: Collection[LedgerEntry]) -> str:
    """What else is to be said of shares that no container seems to hold; empty for others."""
    if left := [str(process) for entry in entries for process in entry.left]:
        runs = "runs" if len(set(left)) == 1 else "run"
        return f"; {listed(sorted(set(left)), 4)} of pods that the kubelet has forgotten still {runs}"
    if unseen := sorted({entry.unseen for entry in entries if entry.unseen}):
        return (
            f"; nobody has looked for processes of pods that the kubelet has forgotten: {listed(unseen, 2)}"
        )
    if any(entry.certainty is Certainty.UNCONFIRMED for entry in entries):
        return "; the kubelet's checkpoint has holds that PodResources does not name now"
    return ""


def _is_ready(
    transaction: Transaction, draft: NodeDraft, now: Snapshot, serving: Mapping[GpuUuid, GpuServing]
) -> bool:
    """Whether it can be carried out: no share that it destroys or stops can be held or allocated any more.

    ``now.served`` is published; ``serving`` is not yet.
    """
    if now.observed.daemons is None or now.other_plugin:
        return False  # it is not known which daemons have to stop first, or who else gets GPUs
    return all(
        gpu not in now.in_hand
        and _is_due(gpu, now)
        and (draft.gpus[gpu].at_once or _may_change(gpu, draft, now, serving))
        for gpu in transaction.gpus
    )


def _is_due(gpu: GpuUuid, now: Snapshot) -> bool:
    return gpu not in now.attempts or now.attempts[gpu].again_s <= now.now_s


def _may_change(gpu: GpuUuid, draft: NodeDraft, now: Snapshot, serving: Mapping[GpuUuid, GpuServing]) -> bool:
    """Nothing blocks it, and it serves now and next only what its steps do not touch."""
    if draft.gpus[gpu].stuck is not None or gpu in now.unknown:
        return False
    wanted = GpuServing(draft.gpus[gpu].offer)
    return now.served.get(gpu, wanted) == wanted == serving.get(gpu, wanted)
