"""What became of the MIG layout that the label of the Node asks for, in mig-manager's words."""

from __future__ import annotations

from collections.abc import Sequence

from partage.errors import Problem
from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid
from partage.plan.offer.desired import DesiredState
from partage.plan.reconcile.node_plan import GpuPlan, NodePlan, Phase
from partage.plan.report import MigConfigReport, MigConfigState

_PENDING, _SUCCESS = MigConfigState.PENDING, MigConfigState.SUCCESS
_FAILED, _REBOOTING = MigConfigState.FAILED, MigConfigState.REBOOTING


def mig_config_report(
    asked: str,
    problems: Sequence[Problem],
    desired: DesiredState | None,
    plan: NodePlan,
    before: MigConfigReport | None,
    *,
    held_back: str = "",
) -> MigConfigReport | None:
    """asked: value of the label, empty for none. problems: why it is refused. held_back: why it has to wait
    before anything is done.

    A state that has failed stays so while it is tried again: the label does not go to and fro.
    """
    if not asked:
        return None
    if problems:
        return MigConfigReport(asked, _FAILED, str(problems[0]))
    last = before if before is not None and before.name == asked else MigConfigReport(asked, None)
    layouts = desired.policy.layouts if desired else None
    if desired is None or layouts is None or layouts.name != asked:
        # It is not resolved on the node yet: there is no driver, or it is not this node's turn to change.
        return MigConfigReport(asked, _PENDING, held_back) if held_back else last
    inventory = desired.inventory
    named = [gpu.uuid for gpu in inventory if gpu.uuid in desired.labelled]
    plans = [(uuid, plan.gpus.get(uuid, GpuPlan(Phase.UNKNOWN))) for uuid in named]
    unsettled = [(uuid, gpu_plan) for uuid, gpu_plan in plans if gpu_plan.phase is not Phase.SETTLED]
    if not unsettled:
        return MigConfigReport(asked, _SUCCESS)
    if any(gpu_plan.phase is Phase.UNKNOWN for _, gpu_plan in unsettled):
        return last
    reason = "; ".join(_sentence(inventory, uuid, gpu_plan) for uuid, gpu_plan in unsettled)
    if any(_needs_reboot(inventory, uuid) for uuid, _ in unsettled):
        return MigConfigReport(asked, _REBOOTING, reason)
    if (
        any(gpu_plan.phase in (Phase.FAILED, Phase.BLOCKED) for _, gpu_plan in unsettled)
        or last.state is _FAILED
    ):
        return MigConfigReport(asked, _FAILED, reason)
    return MigConfigReport(asked, _PENDING, reason)


def _sentence(inventory: Inventory, uuid: GpuUuid, plan: GpuPlan) -> str:
    gpu = inventory.gpu(uuid)
    return f"GPU {gpu.index if gpu else uuid}: {plan.reason or plan.phase}"


def _needs_reboot(inventory: Inventory, uuid: GpuUuid) -> bool:
    """Its new MIG mode is noted, and in a virtual machine only a reboot makes it the current one."""
    gpu = inventory.gpu(uuid)
    mode = gpu.mig_mode if gpu else None
    return inventory.virtual is True and mode is not None and mode.current != mode.pending
