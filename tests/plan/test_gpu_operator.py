"""What is said of the label that asks for a MIG layout."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.errors import Problem
from partage.model.gpu import MigMode
from partage.model.policy import AllDevices, DesiredMig, GpuEntry, NodeLayouts, Policy
from partage.plan.gpu_operator import VALIDATIONS, mig_config_report, not_validated, paused_by
from partage.plan.offer.desired import DesiredState, resolve
from partage.plan.reconcile.node_plan import GpuPlan, NodePlan, Phase
from partage.plan.report import MigConfigReport, MigConfigState
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware

NAME = "all-1g.10gb"
PENDING, SUCCESS = MigConfigState.PENDING, MigConfigState.SUCCESS
FAILED, REBOOTING = MigConfigState.FAILED, MigConfigState.REBOOTING
INVENTORY = asyncio.run(SimulatedHardware(load_machine("2xh100-sxm5-80gb")).observe())
UUIDS = [gpu.uuid for gpu in INVENTORY]


def desired(name: str = NAME) -> DesiredState:
    entry = GpuEntry("label nvidia.com/mig.config", AllDevices(), mig=DesiredMig(named=name))
    return resolve(Policy(layouts=NodeLayouts(name, (entry,))), INVENTORY, geometry_of)


def plan(*phases: Phase) -> NodePlan:
    return NodePlan({uuid: GpuPlan(phase, "because") for uuid, phase in zip(UUIDS, phases, strict=False)})


def said(
    *phases: Phase, before: MigConfigState | None = None, wanted: DesiredState | None = None
) -> MigConfigState | None:
    last = MigConfigReport(NAME, before)
    found = mig_config_report(NAME, (), wanted or desired(), plan(*phases), last)
    assert found is not None
    return found.state


def test_without_the_label_nothing_is_said() -> None:
    assert mig_config_report("", (), desired(), plan(), MigConfigReport(NAME, SUCCESS)) is None


def test_the_operators_pause_is_a_label_of_its_own_with_a_value_of_its_own() -> None:
    deploy = "nvidia.com/gpu.deploy.dcgm"
    paused = {"other/label": "paused-for-lunch", deploy: "paused-for-driver-upgrade"}
    assert paused_by(paused) == f"the Node's label {deploy} says paused-for-driver-upgrade"
    assert paused_by({"other/label": "paused-for-lunch", deploy: "true"}) == ""


@pytest.mark.parametrize(
    ("files", "missing"),
    [(None, ""), ([], "driver-ready"), (["driver-ready"], "toolkit-ready"), (VALIDATIONS, "")],
)
def test_the_first_validation_that_is_missing_is_named(files: list[str] | None, missing: str) -> None:
    said = not_validated("/run/nvidia/validations", files)
    assert said == (
        f"the GPU Operator has not written /run/nvidia/validations/{missing} yet" if missing else ""
    )


def test_a_gpu_without_a_reason_says_its_phase() -> None:
    silent = NodePlan({UUIDS[0]: GpuPlan(Phase.READY), UUIDS[1]: GpuPlan(Phase.SETTLED)})
    found = mig_config_report(NAME, (), desired(), silent, None)
    assert found == MigConfigReport(NAME, PENDING, "GPU 0: ready")


def test_a_layout_that_a_rollout_holds_back_is_pending() -> None:
    last = MigConfigReport("all-balanced", SUCCESS)
    found = mig_config_report(
        NAME, (), desired("all-balanced"), plan(Phase.SETTLED), last, held_back="its turn"
    )
    assert found == MigConfigReport(NAME, PENDING, "its turn")


def test_a_label_that_is_refused_has_failed_with_the_reason() -> None:
    problem = Problem("mig", "", "error", "nobody knows it")
    found = mig_config_report("thirds", (problem,), desired(), plan(Phase.SETTLED, Phase.SETTLED), None)
    assert found == MigConfigReport("thirds", FAILED, "mig: nobody knows it")


@pytest.mark.parametrize(
    ("phases", "before", "state"),
    [
        ((Phase.SETTLED, Phase.SETTLED), None, SUCCESS),
        ((Phase.SETTLED, Phase.SETTLED), FAILED, SUCCESS),
        ((Phase.SETTLED, Phase.WAITING), None, PENDING),
        ((Phase.SETTLED, Phase.WAITING), SUCCESS, PENDING),
        ((Phase.CHANGING, Phase.VERIFYING), PENDING, PENDING),
        ((Phase.FAILED, Phase.SETTLED), PENDING, FAILED),
        ((Phase.BLOCKED, Phase.CHANGING), PENDING, FAILED),
        # What has failed is tried again, and has failed until it succeeds.
        ((Phase.READY, Phase.SETTLED), FAILED, FAILED),
        ((Phase.CHANGING, Phase.SETTLED), FAILED, FAILED),
        # After a start, holders are not known at once.
        ((Phase.UNKNOWN, Phase.SETTLED), None, None),
        ((Phase.UNKNOWN, Phase.FAILED), SUCCESS, SUCCESS),
        ((Phase.SETTLED,), SUCCESS, SUCCESS),
    ],
)
def test_the_phases_of_the_gpus_say_it(
    phases: tuple[Phase, ...], before: MigConfigState | None, state: MigConfigState | None
) -> None:
    assert said(*phases, before=before) is state


def test_what_has_failed_before_is_forgotten_with_another_label() -> None:
    last = MigConfigReport("thirds", FAILED)
    found = mig_config_report(NAME, (), desired(), plan(Phase.WAITING, Phase.READY), last)
    assert found is not None
    assert (found.state, found.reason) == (PENDING, "GPU 0: because; GPU 1: because")


def test_a_label_that_is_not_resolved_yet_keeps_what_was_said() -> None:
    last = MigConfigReport(NAME, SUCCESS)
    assert mig_config_report(NAME, (), None, plan(), last) == last
    assert mig_config_report(NAME, (), desired("all-2g.20gb"), plan(), last) == last
    assert mig_config_report(NAME, (), resolve(Policy(), INVENTORY, geometry_of), plan(), last) == last
    assert mig_config_report(NAME, (), None, plan(), None) == MigConfigReport(NAME, None)


@pytest.mark.parametrize(("virtual", "state"), [(True, REBOOTING), (False, FAILED), (None, FAILED)])
def test_a_mode_that_only_a_reboot_activates_is_called_rebooting(
    virtual: bool | None, state: MigConfigState
) -> None:
    gpus = (replace(INVENTORY.gpus[0], mig_mode=MigMode(False, True)), INVENTORY.gpus[1])
    wanted = replace(desired(), inventory=replace(INVENTORY, gpus=gpus, virtual=virtual))
    assert said(Phase.FAILED, Phase.SETTLED, wanted=wanted) is state
    without = replace(desired(), inventory=replace(INVENTORY, virtual=True))
    gone = replace(
        without,
        inventory=replace(without.inventory, gpus=tuple(replace(gpu, mig_mode=None) for gpu in INVENTORY)),
    )
    assert said(Phase.FAILED, Phase.SETTLED, wanted=without) is FAILED
    assert said(Phase.FAILED, Phase.SETTLED, wanted=gone) is FAILED
