"""What the GPU Operator says and asks by labels of the Node and by its files: to let go of the driver, and
another MIG layout, of which it is told what became of it, in mig-manager's words. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from partage.errors import Problem
from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid
from partage.plan.offer.desired import DesiredState
from partage.plan.reconcile.node_plan import GpuPlan, NodePlan, Phase
from partage.plan.report import MigConfigReport, MigConfigState

VALIDATIONS = ("driver-ready", "toolkit-ready")
"""Files that the GPU Operator's validator writes, in this order, once the driver and then the container
toolkit work."""

_DEPLOY = "nvidia.com/gpu.deploy."
_PAUSED = "paused-for-"


def paused_by(labels: Mapping[str, str]) -> str:
    """Why the users of the driver have to let go of it; empty if they need not.

    Before an upgrade of the driver, and before a change of MIG layouts by NVIDIA's manager, the Operator
    gives its labels ``nvidia.com/gpu.deploy.*`` a value such as ``paused-for-driver-upgrade``, except those
    that an admin has set to ``false``.
    """
    for key in sorted(labels):
        if key.startswith(_DEPLOY) and labels[key].startswith(_PAUSED):
            return f"the Node's label {key} says {labels[key]}"
    return ""


def not_validated(directory: str, files: Collection[str] | None) -> str:
    """Which validation of the GPU Operator is still to come; empty if none is.

    files: names in its directory; None: there is no such directory, so no Operator.
    """
    if files is None:
        return ""
    missing = [name for name in VALIDATIONS if name not in files]
    return f"the GPU Operator has not written {directory}/{missing[0]} yet" if missing else ""


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
    resolved = desired if layouts and layouts.name == asked else None
    if resolved is None:
        # It is not resolved on the node yet: there is no driver, or it is not this node's turn to change.
        return MigConfigReport(asked, _PENDING, held_back) if held_back else last
    inventory = resolved.inventory
    named = [gpu.uuid for gpu in inventory if gpu.uuid in resolved.labelled]
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
