"""Memory limits that the driver holds, one for each cgroup and GPU, from driver branch 615 on.

Source: NVIDIA's guide "MPS v3 Memory Partitioning" (CUDA 13.4). An allocation beyond a hard limit fails with
out-of-memory; nothing is killed. Managed memory is not counted. Only hard limits are used here: a soft one is
a reservation that outlives its cgroup unless it is taken back first.
"""

from __future__ import annotations

from enum import StrEnum

from partage.model.ids import ContainerId, GpuUuid
from partage.units import MIB
from partage.values import Frozen

SMALLEST_USABLE_BYTES = 1024 * MIB
"""With less, the context of a process may leave nothing for its data."""

SMALLEST_CONTEXT_BYTES, LARGEST_CONTEXT_BYTES = 250 * MIB, 820 * MIB
"""What the context of a process takes of a limit. Measured by others (RTX PRO 6000, driver 615.71), not by
us."""

STEP_BYTES = 256 * MIB
"""Programs get memory under a limit in steps of so much. Measured by the same."""

NO_LIMIT_BYTES = 2**64 - 1
"""What the driver takes, and answers, for no hard limit: all ones."""


NO_CGROUP = "it has no cgroup any more, or not yet"
"""Why nothing was read of a container or a job, a clause."""


class LimitBackend(StrEnum):
    """What counts the memory of a cgroup.

    dmem: the kernel's controller, whose limits nest. misc: the driver itself, flat: of a cgroup and those
    above it only the nearest limit counts. off: nothing.
    """

    DMEM = "dmem"
    MISC = "misc"
    OFF = "off"


class LimitObstacle(StrEnum):
    """Why a GPU cannot have such limits.

    driver: its library has no function for it. cgroup-v1: the node has no cgroup v2 at /sys/fs/cgroup.
    mig: the GPU is in MIG mode. mode: the kernel module's RmMemacctMode is 0. kernel: RmMemacctMode is 2, and
    the kernel has no dmem controller. silent: nothing of this, but neither a get for the node's own cgroup
    nor the kernel's dmem.capacity knows the GPU.
    """

    DRIVER = "driver"
    CGROUP_V1 = "cgroup-v1"
    MIG = "mig"
    MODE = "mode"
    KERNEL = "kernel"
    SILENT = "silent"


class LimitSupport(Frozen):
    """What a look at the node found about limits on one GPU. obstacle: None: it can have them."""

    backend: LimitBackend = LimitBackend.OFF
    obstacle: LimitObstacle | None = None


class LimitWay(StrEnum):
    """Who sets limits before the first instruction.

    hook: ours, with a value for each GPU. nvidia: NVIDIA's, by variables of which a tenant's own can count.
    spank: our plugin of slurmd.
    """

    HOOK = "hook"
    NVIDIA = "nvidia"
    SPANK = "spank"


class LimitSetter(Frozen):
    """What sets limits on a node. why: why ours does not, a clause with what to change; empty: it does.

    way: None: nothing does.
    """

    way: LimitWay | None = None
    why: str = ""


class DriverLimit(Frozen, order=True):
    """The hard limit of a container on one GPU. gpu: its UUID. limit_bytes: whole MiB.

    Raises ValueError for an amount that the driver would refuse or round.
    """

    gpu: GpuUuid
    limit_bytes: int

    def __post_init__(self) -> None:
        if self.limit_bytes < MIB or self.limit_bytes % MIB:
            raise ValueError(f"a limit of {self.limit_bytes} bytes is not in whole MiB")

    def __str__(self) -> str:
        """As an argument of the hook: ``GPU-...=1073741824``."""
        return f"{self.gpu}={self.limit_bytes}"


class LimitState(Frozen):
    """What the driver says of one cgroup and GPU.

    hard_bytes: None: no limit. soft_bytes: 0: no reservation. used_bytes: of all processes in the cgroup,
    without managed memory; None: it does not say.
    """

    hard_bytes: int | None = None
    soft_bytes: int = 0
    used_bytes: int | None = None


class LimitAt(Frozen, order=True):
    """The place of a limit: the cgroup of a container, or of a Slurm job (``JobCgroup``), and one GPU."""

    container: ContainerId
    gpu: GpuUuid


class SeenLimit(Frozen, omit_defaults=True):
    """What was read there. state: None: nothing, and ``why`` says why, a clause. cgroup: its directory, as
    seen from the helper; empty: none was found.
    """

    at: LimitAt
    state: LimitState | None = None
    cgroup: str = ""
    why: str = ""

    @property
    def hard_bytes(self) -> int | None:
        """The hard limit that is in force; None: none was read."""
        return None if self.state is None else self.state.hard_bytes


def usable_bytes(limit_bytes: int) -> tuple[int, int]:
    """The least and the most that one process has for its data under such a limit: without its context, in
    whole steps.
    """
    return (
        max(0, limit_bytes - LARGEST_CONTEXT_BYTES) // STEP_BYTES * STEP_BYTES,
        max(0, limit_bytes - SMALLEST_CONTEXT_BYTES) // STEP_BYTES * STEP_BYTES,
    )
