"""Whether shares of a time-sliced GPU can have memory limits of the driver's, and why not. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from partage.model.driver_limit import SMALLEST_USABLE_BYTES, LimitObstacle
from partage.model.gpu import Driver, Gpu, Inventory, NoDriver
from partage.model.policy import TimeSlicing
from partage.plan.offer.findings import Findings
from partage.plan.offer.mps_command import branch_of
from partage.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partage.model.share import DeviceOffer
    from partage.plan.offer.target import Target

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
    LimitObstacle.SLURM: (
        "this is a node of Slurm, where nothing sets the limit of a job: add 'required "
        "/usr/lib/partage/partage_limits.so' to plugstack.conf, with CgroupPlugin=cgroup/v2 and "
        "ProctrackType=proctrack/cgroup; 'partage slurm check --here' says what is missing"
    ),
}


def why_unlimited(gpu: Gpu, driver: Driver | NoDriver) -> str:
    """Why the driver cannot limit containers on this GPU, with what to change; empty if it can."""
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
        why = why_unlimited(target.gpu, inventory.driver)
        if target.mig is not None:
            why = _WHY[LimitObstacle.MIG]
        if why:
            message = f"no limit holds containers to their shares, which guarantee less than 'hard': {why}"
            findings.add("doubtful", f"{target.origin}.time-slicing.memory", message, "", [target.gpu.index])


def limits_of_gpu(target: Target, inventory: Inventory) -> bool:
    """Whether the shares of this device get limits of the driver's: the policy wants it, and it can."""
    return target.mig is None and not why_unlimited(target.gpu, inventory.driver)
