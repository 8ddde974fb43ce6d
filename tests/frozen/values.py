"""What was written into the files of each release beside this. Each step that a journal can have is in it."""

from __future__ import annotations

from partage.edges.files.journal import JournalHeader
from partage.edges.mps.record import DaemonIdentity, DaemonRecord
from partage.model.geometry import Placement
from partage.model.gpu import ComputeMode
from partage.model.ids import DeviceUuid, GpuUuid, MigUuid
from partage.model.mps import DaemonSpec, MpsNamespace
from partage.model.policy import DesiredMig
from partage.model.share import Guarantee
from partage.model.step import (
    CreateCompute,
    Created,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    EndClient,
    Reset,
    SetComputeMode,
    SetMigMode,
    SetTimeSlice,
    StartDaemon,
    Step,
    StopDaemon,
    Verify,
)
from partage.model.strategy import Interval, Strategy
from partage.model.usage_day import RunNow, UsageDay, WorkloadDay
from partage.slurm.model import GresName, JobDevice, JobId, JobRecord
from partage.units import GIB

GPU = GpuUuid("GPU-11111111-2222-3333-4444-000000000000")
DEVICE: DeviceUuid = GPU
SPEC = DaemonSpec(GPU, DEVICE, 20 * GIB, 25, namespaces=(MpsNamespace("share0", 3 * GIB, 50),))
PLACED = Placement(4, 4)
STEPS: tuple[tuple[Step, Created | None], ...] = (
    (SetMigMode(GPU, enabled=True), None),
    (Reset((GPU,), (GPU,)), None),
    (DestroyCompute(GPU, "3g.40gb", PLACED, "3g.40gb", 1, 0), None),
    (DestroyInstance(GPU, "3g.40gb", PLACED, 1), None),
    (CreateInstance(GPU, "3g.40gb", PLACED), Created(2)),
    (CreateCompute(GPU, "3g.40gb", PLACED, "3g.40gb"), Created(2, 0, MigUuid("MIG-1"))),
    (Verify(GPU, enabled=True, devices=("3g.40gb@4",)), None),
    (SetComputeMode(GPU, ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT), None),
    (SetTimeSlice(GPU, Interval.LONG, Interval.DEFAULT), None),
    (StartDaemon(GPU, SPEC), None),
    (StopDaemon(GPU, DEVICE, SPEC), None),
    (EndClient(GPU, DEVICE, 7, 8), None),
)
HEADER = JournalHeader("boot", "digest", {GPU: DesiredMig(())})
DAEMON = DaemonRecord(SPEC, DaemonIdentity(12, 345, "boot"), "a remark", "ns")
ROW = WorkloadDay(
    workload="team/train/main", first_s=1_795_000_000, last_s=1_795_003_600, seen_s=3600, run_s=3600,
    samples=120, runs=1, started=1, at_once=1, peak_bytes=8 * GIB, peak_at_s=1_795_000_000, spread=0.5,
    longest_s=3600, growing=False, full=0.1, exact=True, processes=1, share_bytes=None, busy=(0, 0, 120),
)  # fmt: skip
RUN = RunNow(
    "GPU-1 team/train-0/main", "team/train/main", 1, 2, 3, 4, 1, 1, (1,), (1,), has_peak=True, is_longest=True
)
DAY = UsageDay("2026-11-22", "node-a", 30.0, workloads=(ROW,), running=(RUN,), samples=120, used_bytes=9)
JOB = JobRecord(
    JobId(41),
    1000,
    (
        JobDevice(
            index=2,
            name="3",
            uuid=DEVICE,
            gpu=GPU,
            type="h100_shared",
            strategy=Strategy.MPS,
            gres=GresName.MPS,
            memory_bytes=20 * GIB,
            total_bytes=80 * GIB,
            guarantee=Guarantee.ADVISORY,
            units=25,
            units_of=100,
        ),
    ),
    "alice",
)
