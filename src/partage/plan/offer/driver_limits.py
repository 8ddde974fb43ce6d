"""Whether shares of a time-sliced GPU can have memory limits of the driver's, and why not. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from partage.model.driver_limit import SMALLEST_USABLE_BYTES, LimitObstacle, LimitSetter, LimitWay
from partage.model.gpu import Driver, Gpu, Inventory, NoDriver
from partage.model.policy import Policy, TimeSlicing
from partage.model.share import Guarantee
from partage.plan.offer.findings import Findings
from partage.plan.offer.mps_command import branch_of
from partage.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partage.model.share import DeviceOffer
    from partage.plan.offer.gpu_devices import Target

LIMITS_SINCE: Final = 615
"""First driver branch with limits for cgroups. Source: NVIDIA's guide "MPS v3 Memory Partitioning"."""

_WHY: Final[Mapping[LimitObstacle, str]] = {
    LimitObstacle.CGROUP_V1: (
        "the node has no cgroup v2 at /sys/fs/cgroup: boot it with systemd.unified_cgroup_hierarchy=1"
    ),
    LimitObstacle.MIG: (
        "the GPU is in MIG mode, where the driver takes no limits: write mig: {layout: all-disabled}, or "
        "share MIG devices by their size"
    ),
    LimitObstacle.MODE: (
        "the kernel module's parameter RmMemacctMode is 0, which switches limits off: leave it out, which "
        "means auto, and load the module again"
    ),
    LimitObstacle.KERNEL: (
        "the kernel module's parameter RmMemacctMode is 2, dmem, and the kernel has no dmem controller: take "
        "kernel 6.14 or newer without cgroup_disable=dmem, or leave RmMemacctMode out"
    ),
    LimitObstacle.SILENT: (
        "the driver does not answer for the node's own cgroup, and dmem.capacity of the kernel does not name "
        "the GPU: see what the kernel's log says of nvidia, and 'nvidia-smi memory-limits'"
    ),
}


_GUARANTEE: Final = {
    LimitWay.HOOK: Guarantee.HARD,
    LimitWay.SPANK: Guarantee.HARD,
    LimitWay.NVIDIA: Guarantee.ADVISORY,  # a tenant's own variables may be what it sets (ADR 151)
}


def why_unlimited(gpu: Gpu, inventory: Inventory) -> str:
    """Why containers have no limits of the driver's on this GPU, with what to change; empty if they have."""
    return _why_not_able(gpu, inventory.driver) or _why_not_set(inventory.limits_by)


def able(inventory: Inventory) -> bool:
    """Whether the driver can limit containers on a GPU of this node, whoever may set that."""
    return any(not _why_not_able(gpu, inventory.driver) for gpu in inventory)


def wants_limits(policy: Policy) -> bool:
    """Whether the policy wants such limits on any GPU that is not in MIG mode."""
    found = (entry.sharing for entry in policy.entries)
    return any(isinstance(sharing, TimeSlicing) and sharing.limited for sharing in found)


def _why_not_set(by: LimitSetter | None) -> str:
    if by is None or by.way is not None:
        return ""
    return f"nothing can set it before a container or job starts: {by.why}"


def _why_not_able(gpu: Gpu, driver: Driver | NoDriver) -> str:
    if 0 < branch_of(driver) < LIMITS_SINCE:
        return _old_driver(driver)
    if gpu.limits is None:
        return "it is not known whether the driver can limit the memory of a cgroup on this GPU"
    if gpu.limits.obstacle is None:
        return ""
    if gpu.limits.obstacle is LimitObstacle.DRIVER:
        return _old_driver(driver)
    return _WHY[gpu.limits.obstacle]


def _old_driver(driver: Driver | NoDriver) -> str:
    branch = branch_of(driver)
    known = f"driver branch {branch}" if branch else "the driver, whose branch is not known,"
    return f"{known} has no memory limits for cgroups: take branch {LIMITS_SINCE} or newer"


def check_limits(target: Target, rows: Iterable[DeviceOffer], path: str, findings: Findings) -> bool:
    """Whether each share has enough for a limit. rows: of one device. path: in the policy."""
    smallest = min((row.memory_bytes for row in rows), default=SMALLEST_USABLE_BYTES)
    if smallest >= SMALLEST_USABLE_BYTES:
        return True
    message = (
        f"a share of {format_bytes(smallest)} is too small for 'memory: hard': a process's context takes 250 "
        "to 820 MiB of the limit"
    )
    findings.add("impossible", path, message, "give each share 1Gi or more", [target.gpu.index])
    return False


def warn_unlimited(targets: Iterable[Target], inventory: Inventory, findings: Findings) -> None:
    """Say of which GPUs the policy wants limits that the driver cannot set, and what to change."""
    for target in targets:
        if not isinstance(target.sharing, TimeSlicing) or not target.sharing.limited:
            continue
        why = why_unlimited(target.gpu, inventory)
        if target.mig is not None:
            why = _WHY[LimitObstacle.MIG]
        if why:
            message = f"no limit holds containers to their shares, which guarantee less than 'hard': {why}"
            findings.add("doubtful", f"{target.origin}.time-slicing.memory", message, "", [target.gpu.index])


def limits_of_gpu(target: Target, inventory: Inventory) -> Guarantee | None:
    """What limits of the driver's guarantee the shares of this device, if the policy wants them. None: they
    have no limit.

    Where nobody looked at what sets limits, it is taken for granted: the agent looks.
    """
    if target.mig is not None or why_unlimited(target.gpu, inventory):
        return None
    way = inventory.limits_by.way if inventory.limits_by else None
    return _GUARANTEE[way or LimitWay.HOOK]
