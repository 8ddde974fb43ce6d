"""What was measured on a node at one moment: GPUs, MIG devices, processes. Unknown is None, never 0.

Ratios are between 0 and 1. What a GPU or driver does not measure stays None: a GPU in MIG mode has no
utilisation, and only Hopper and later have ``Activity`` without DCGM.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import field

from partage.model.cgroup import SlurmStep
from partage.model.gpu_use import Processes
from partage.model.ids import ContainerId, DeviceUuid, GpuUuid, MigUuid, PodUid
from partage.values import Frozen


class DeviceMemory(Frozen):
    """Memory of a GPU or MIG device. used + free + reserved = total. reserved_bytes: None on drivers before
    R510, which count the driver's own part as used.
    """

    total_bytes: int
    used_bytes: int
    free_bytes: int
    reserved_bytes: int | None = None


class Throttle(StrEnum):
    """Why clocks are lower than they could be (NVML: clocks event reasons), in DCGM's words."""

    GPU_IDLE = "gpu_idle"
    CLOCKS_SETTING = "clocks_setting"
    POWER_CAP = "power_cap"
    HW_SLOWDOWN = "hw_slowdown"
    SYNC_BOOST = "sync_boost"
    SW_THERMAL = "sw_thermal"
    HW_THERMAL = "hw_thermal"
    HW_POWER_BRAKE = "hw_power_brake"
    DISPLAY_CLOCKS = "display_clocks"


class ThrottleTime(StrEnum):
    """Causes whose time the driver counts."""

    POWER = "power"
    THERMAL = "thermal"
    SYNC_BOOST = "sync_boost"
    BOARD_LIMIT = "board_limit"
    LOW_UTILISATION = "low_utilisation"
    RELIABILITY = "reliability"


class EccCounts(Frozen, omit_defaults=True):
    """Errors of memory. volatile: since the driver was loaded; aggregate: since the board was made."""

    corrected_volatile: int | None = None
    uncorrected_volatile: int | None = None
    corrected_aggregate: int | None = None
    uncorrected_aggregate: int | None = None


class RemappedRows(Frozen):
    """Rows of memory that were replaced by spare ones, after corrected and after uncorrected errors.

    pending: a reset has to follow. failed: there are no spare rows left.
    """

    corrected: int
    uncorrected: int
    pending: bool
    failed: bool


class Activity(Frozen, omit_defaults=True):
    """How much of the time units of a GPU or GPU instance were active, relative to that part of the GPU,
    since
    the sample before. Measured by GPM, on Hopper and later. pcie: bytes per second.
    """

    graphics: float | None = None
    sm: float | None = None
    sm_occupancy: float | None = None
    tensor: float | None = None
    dram: float | None = None
    fp64: float | None = None
    fp32: float | None = None
    fp16: float | None = None
    pcie_tx: float | None = None
    pcie_rx: float | None = None


class DeviceSample(Frozen, omit_defaults=True):
    """What is measured of GPUs and of MIG devices. gpu: of the GPU that it is, or is part of.

    peak_bytes: highest use of the last one to two minutes, of samples one second apart. activity: of the GPU,
    or of the GPU instance, relative to that.
    """

    gpu: GpuUuid
    memory: DeviceMemory | None = None
    peak_bytes: int | None = None
    activity: Activity | None = None


class GpuSample(DeviceSample, omit_defaults=True):
    """One GPU.

    utilisation: part of the time in which a kernel ran; memory_utilisation: in which its memory was read or
    written. energy_j: since the driver was loaded. throttle: empty: nothing lowers the clocks.
    throttled_s: time so far, by cause. pcie_replays: since the driver was loaded.
    """

    utilisation: float | None = None
    memory_utilisation: float | None = None
    encoder: float | None = None
    decoder: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    sm_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    throttle: tuple[Throttle, ...] | None = None
    throttled_s: Mapping[ThrottleTime, float] = field(default_factory=dict)
    ecc: EccCounts = EccCounts()
    rows: RemappedRows | None = None
    pcie_replays: int | None = None


class MigSample(DeviceSample, omit_defaults=True, kw_only=True):
    """One MIG device."""

    device: MigUuid
    gi_id: int
    ci_id: int


class ProcessActivity(Frozen, omit_defaults=True):
    """What one process did on one GPU in the last seconds. Parts of the whole GPU's time; under MPS the
    driver
    may count clients for the server. Absent for MIG devices.
    """

    gpu: GpuUuid
    pid: int
    sm: float
    memory: float
    encoder: float = 0.0
    decoder: float = 0.0


class OwnerPeak(Frozen, omit_defaults=True):
    """The highest memory that one container or Slurm job had on one device, of samples one second apart,
    since
    its first process there. MPS servers are not counted.

    container, pod, job: as in ``model.cgroup.Owner``; all empty: processes of the host.
    used_bytes: now. ended: it has no process there any more; it is listed for some minutes.
    """

    gpu: GpuUuid
    device: DeviceUuid
    container: ContainerId
    pod: PodUid
    used_bytes: int
    peak_bytes: int
    job: SlurmStep | None = None
    ended: bool = False


class Samples(Frozen, omit_defaults=True):
    """A node. Lost GPUs are missing. active: GPUs whose processes' activity is known: there, a process
    without a row did nothing.
    """

    gpus: tuple[GpuSample, ...] = ()
    migs: tuple[MigSample, ...] = ()
    processes: Processes = Processes()
    activities: tuple[ProcessActivity, ...] = ()
    active: tuple[GpuUuid, ...] = ()
    peaks: tuple[OwnerPeak, ...] = ()
