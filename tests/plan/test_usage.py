"""Who uses how much: samples joined with names and shares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.edges.hardware.peaks import KEEP_ENDED_S, MOST_OWNERS, WINDOW_S, PeakKeeper
from partage.model.driver_limit import LimitAt
from partage.model.gpu_use import GpuProcess, Processes, ProcessKind
from partage.model.ids import ContainerId, DeviceUuid, GpuUuid, MigUuid, ResourceName
from partage.model.samples import DeviceMemory, GpuSample, MigSample, ProcessActivity, Samples
from partage.model.share import DeviceOffer, Guarantee
from partage.model.strategy import Strategy
from partage.plan.serve.ledger_entry import Holder
from partage.plan.serve.watchdog import GrantKind, ShareGrants
from partage.plan.usage import MOST_ROWS, DeviceUse, NodeUse, OtherMemory, usage_of
from partage.units import GIB

GPU = GpuUuid("GPU-00000000-0000-0000-0000-000000000000")
MIG = MigUuid("MIG-00000000-0000-0000-0000-000000000000")
TRAIN, OTHER = ContainerId("3f" * 32), ContainerId("a0" * 32)
WHO = Holder("team", "train", "main")
POD = "0b5a1e0c-6f1e-4d3c-9b42-000000000001"
V2 = f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{{}}.scope"
V1 = f"4:memory:/kubepods/burstable/pod{POD}/{{}}"
JOB = "0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0"
SLUID = "0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0"


def row(
    pid: int,
    used: int | None,
    cgroup: str = "0::/",
    kind: ProcessKind = ProcessKind.COMPUTE,
    device: MigUuid | None = None,
) -> GpuProcess:
    return GpuProcess(GPU, pid, used, kind, device=device, cgroups=(cgroup,), start=1)


def offer(count: int = 1, guarantee: Guarantee = Guarantee.GUARDED) -> tuple[DeviceOffer, ...]:
    one = DeviceOffer(
        GPU,
        GPU,
        "0",
        0,
        ResourceName("nvidia.com/gpu.shared"),
        Strategy.MPS,
        Strategy.MPS,
        4,
        20 * GIB,
        guarantee,
    )
    return (one,) * count


def grants(**held: int) -> ShareGrants:
    by: dict[tuple[DeviceUuid, Holder], tuple[DeviceOffer, ...]] = {
        (GPU, Holder("team", pod, "main")): offer(count) for pod, count in held.items()
    }
    return ShareGrants(by, frozenset((GPU, holder) for _, holder in by), frozenset())


def samples(*rows: GpuProcess, used: int | None = None, hidden: str = "", **more: object) -> Samples:
    total = sum(one.used_bytes or 0 for one in rows) if used is None else used
    keeper = PeakKeeper()
    keeper.add(rows, {GPU: total}, 0.0)
    given = {
        "gpus": (GpuSample(GPU, DeviceMemory(80 * GIB, total, 80 * GIB - total)),),
        "processes": Processes(rows, (), hidden),
        "peaks": keeper.owners(),
        **more,
    }
    return Samples(**given)  # type: ignore[arg-type]


def rest_of(use: NodeUse) -> dict[OtherMemory, int]:
    return {one.reason: one.used_bytes for one in use.rest if one.used_bytes}


def test_cgroups_v1_and_v2_of_one_container_are_one_row() -> None:
    found = usage_of(
        samples(row(1, GIB, V1.format(TRAIN)), row(2, 2 * GIB, V2.format(TRAIN))),
        {TRAIN: WHO},
        grants(train=2),
    )
    (use,) = found.containers
    assert (use.holder, use.grant, use.shares) == (WHO, GrantKind.HELD, 2)
    assert (use.share_bytes, use.guarantee) == (40 * GIB, Guarantee.GUARDED)
    assert use.amount == DeviceUse(3 * GIB, 3 * GIB, processes=2)
    assert rest_of(found) == {}


def test_what_belongs_to_nobody_is_listed_with_the_reason() -> None:
    found = usage_of(
        samples(
            row(1, GIB),
            row(2, 2 * GIB, V2.format(OTHER)),
            row(3, 3 * GIB, kind=ProcessKind.MPS_SERVER),
            row(4, 4 * GIB, JOB),
            used=15 * GIB,
        ),
        {TRAIN: WHO},
        grants(),
    )
    assert rest_of(found) == {
        OtherMemory.HOST: GIB,
        OtherMemory.UNNAMED: 2 * GIB,
        OtherMemory.MPS_SERVER: 3 * GIB,
        OtherMemory.NO_PROCESS: 5 * GIB,
    }
    assert [(job.job, job.amount.used_bytes) for job in found.jobs] == [("77", 4 * GIB)]
    assert found.containers == ()


def test_a_job_has_its_sluid_where_slurm_names_directories_so() -> None:
    (job,) = usage_of(samples(row(1, GIB, SLUID)), {}, grants()).jobs
    assert job.job == "s5K1KKYAYG5D00"


def test_what_is_counted_for_the_cgroup_of_a_job_needs_no_process() -> None:
    amounts = {"s5K1KKYAYG5D00": 5 * GIB, "78": GIB, "79": 0}
    counted = {LimitAt(ContainerId(name), GPU): amount for name, amount in amounts.items()}
    found = usage_of(samples(row(1, GIB, SLUID)), {}, grants(), counted=counted)
    used = {job.job: (job.amount.used_bytes, job.amount.processes) for job in found.jobs}
    assert used == {"s5K1KKYAYG5D00": (5 * GIB, 1), "78": (GIB, 0)}
    nothing = {LimitAt(ContainerId("s5K1KKYAYG5D00"), GPU): 0}
    (job,) = usage_of(samples(row(1, GIB, SLUID)), {}, grants(), counted=nothing).jobs
    assert job.amount.used_bytes == 0, "the driver's figure counts"
    assert found.containers == ()


def test_the_peak_of_a_job_is_that_of_its_own_processes() -> None:
    ended = samples(row(1, 3 * GIB, JOB)).peaks
    (job,) = usage_of(replace(samples(), peaks=ended), {}, grants()).jobs
    assert (job.job, job.amount.used_bytes, job.amount.peak_bytes) == ("77", None, 3 * GIB)
    for other in ({"pod": POD}, {"container": TRAIN}):
        of_other = tuple(replace(peak, **other) for peak in ended)
        assert usage_of(replace(samples(), peaks=of_other), {}, grants()).jobs == ()


def test_a_holder_without_processes_uses_nothing_only_where_all_of_them_are_visible() -> None:
    (seen,) = usage_of(samples(active=(GPU,)), {}, grants(train=1)).containers
    assert (seen.amount.used_bytes, seen.amount.sm, seen.share_bytes) == (0, 0.0, 20 * GIB)
    (idle,) = usage_of(samples(), {}, grants(train=1)).containers
    assert (idle.amount.used_bytes, idle.amount.sm) == (0, None), "nothing measures the GPU's activity"
    (hidden,) = usage_of(samples(hidden="no hostPID"), {}, grants(train=1)).containers
    assert hidden.amount == DeviceUse()


def test_a_process_without_a_figure_is_not_a_process_without_memory() -> None:
    (use,) = usage_of(samples(row(1, None, V2.format(TRAIN))), {TRAIN: WHO}, grants(train=1)).containers
    assert (use.amount.used_bytes, use.amount.peak_bytes, use.amount.partly) == (None, None, True)
    assert use.amount.processes == 1


def test_a_container_without_a_share_is_told_apart_where_holders_are_known() -> None:
    given = samples(row(1, GIB, V2.format(TRAIN)))
    (use,) = usage_of(given, {TRAIN: WHO}, grants()).containers
    assert (use.grant, use.share_bytes) == (GrantKind.NONE, None)
    (use,) = usage_of(given, {TRAIN: WHO}, grants(), holders_known=False).containers
    assert use.grant is GrantKind.UNKNOWN
    (use,) = usage_of(given, {TRAIN: WHO}, grants(train=1), holders_known=False).containers
    assert use.grant is GrantKind.HELD


def test_activity_is_absent_where_nothing_measures_it() -> None:
    rows = (row(1, GIB, V2.format(TRAIN)), row(2, GIB, V2.format(TRAIN)))
    done = (ProcessActivity(GPU, 1, 0.7, 0.2), ProcessActivity(GPU, 2, 0.5, 0.1))
    (use,) = usage_of(samples(*rows, activities=done, active=(GPU,)), {TRAIN: WHO}, grants()).containers
    assert use.amount.sm == 1.0  # rows of single processes may add up to more than the GPU
    (use,) = usage_of(samples(*rows), {TRAIN: WHO}, grants()).containers
    assert use.amount.sm is None


def test_the_activity_of_a_gpu_says_nothing_of_its_mig_devices() -> None:
    held: dict[tuple[DeviceUuid, Holder], tuple[DeviceOffer, ...]] = {
        (MIG, WHO): (replace(offer()[0], device=MIG),)
    }
    granted = ShareGrants(held, frozenset([(GPU, WHO)]), frozenset())
    (idle,) = usage_of(samples(active=(GPU,)), {}, granted).containers
    assert (idle.amount.used_bytes, idle.amount.sm) == (0, None)
    busy = samples(row(1, GIB, V2.format(TRAIN), device=MIG), active=(GPU,))
    (use,) = usage_of(busy, {TRAIN: WHO}, granted).containers
    assert (use.amount.used_bytes, use.amount.sm) == (GIB, None)


def test_what_belongs_to_jobs_and_to_nobody_is_told_by_mig_device() -> None:
    found = usage_of(samples(row(1, GIB, JOB, device=MIG), row(2, 2 * GIB, device=MIG)), {}, grants())
    assert [(job.device, job.job) for job in found.jobs] == [(MIG, "77")]
    of_host = [(one.device, one.used_bytes) for one in found.rest if one.reason is OtherMemory.HOST]
    assert of_host == [(MIG, 2 * GIB)]


def test_a_process_of_the_host_without_a_figure_has_no_memory() -> None:
    found = usage_of(samples(row(1, None), row(2, GIB)), {}, grants())
    assert rest_of(found) == {OtherMemory.HOST: GIB}
    assert {one.device for one in found.rest} == {GPU}


def test_what_is_in_the_cgroup_of_a_pod_is_of_no_job() -> None:
    in_pod = f"0::/kubepods/pod{POD}/system.slice/slurmstepd.scope/job_77/step_0"
    found = usage_of(samples(row(1, GIB, in_pod)), {}, grants())
    assert (found.jobs, rest_of(found)) == ((), {OtherMemory.UNNAMED: GIB})


def test_what_is_used_now_can_be_more_than_the_last_peak() -> None:
    lower = samples(row(1, GIB, V2.format(TRAIN))).peaks
    given = replace(samples(row(1, 3 * GIB, V2.format(TRAIN))), peaks=lower)
    (use,) = usage_of(given, {TRAIN: WHO}, grants(train=1)).containers
    assert (use.amount.used_bytes, use.amount.peak_bytes) == (3 * GIB, 3 * GIB)


def test_of_a_gpu_in_mig_mode_the_rest_is_that_of_its_mig_devices() -> None:
    mig = MigSample(GPU, DeviceMemory(10 * GIB, 6 * GIB, 4 * GIB), device=MIG, gi_id=1, ci_id=0)
    found = usage_of(
        samples(row(1, 5 * GIB, V2.format(TRAIN), device=MIG), migs=(mig,)), {TRAIN: WHO}, grants()
    )
    assert [(one.device, one.reason, one.used_bytes) for one in found.rest] == [
        (MIG, OtherMemory.NO_PROCESS, GIB)
    ]


def test_a_container_that_ended_is_told_of_with_its_peak() -> None:
    keeper = PeakKeeper()
    keeper.add([row(1, 5 * GIB, V2.format(TRAIN))], {}, 0.0)
    keeper.add([], {}, 1.0)
    (use,) = usage_of(Samples(peaks=keeper.owners()), {TRAIN: WHO}, grants()).containers
    assert (use.grant, use.amount) == (None, DeviceUse(None, 5 * GIB))


# --- peaks ---------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 80 * GIB), max_size=4), min_size=1, max_size=60))
def test_the_peak_of_a_container_is_the_highest_sum_of_its_processes(curve: list[list[int]]) -> None:
    keeper = PeakKeeper()
    for second, amounts in enumerate(curve):
        rows = [row(pid, used, V2.format(TRAIN)) for pid, used in enumerate(amounts)]
        keeper.add(rows, {GPU: sum(amounts)}, float(second))
    owners = keeper.owners()
    if not any(curve):
        assert owners == ()
        return
    (peak,) = owners
    assert peak.peak_bytes == max(sum(amounts) for amounts in curve)
    assert (peak.used_bytes, peak.ended) == (sum(curve[-1]), not curve[-1])
    assert keeper.device(GPU) == max(sum(amounts) for amounts in curve)


def test_the_peak_of_a_device_is_that_of_the_last_minutes() -> None:
    keeper = PeakKeeper()
    for second in range(400):
        keeper.add([], {GPU: 9 if second == 100 else 1}, float(second))
        seen = keeper.device(GPU) == 9
        assert seen or not 100 <= second <= 100 + WINDOW_S
        assert not seen or second <= 100 + 2 * WINDOW_S


def test_ended_owners_are_forgotten_and_there_are_never_too_many() -> None:
    keeper = PeakKeeper()
    keeper.add([row(1, 1, V2.format(TRAIN))], {}, 0.0)
    keeper.add([], {}, KEEP_ENDED_S)
    assert len(keeper.owners()) == 1
    keeper.add([], {}, KEEP_ENDED_S + 1)
    assert keeper.owners() == ()
    for number in range(MOST_OWNERS + 10):
        keeper.add([row(1, 1, V2.format(f"{number:064x}"))], {}, KEEP_ENDED_S + 2 + number / 1000)
    assert len(keeper.owners()) == MOST_OWNERS


@pytest.mark.parametrize(
    ("ending", "new", "used", "partly"),
    [
        (GIB, 2 * GIB, 3 * GIB, False),
        (None, 2 * GIB, 2 * GIB, True),
        (GIB, None, GIB, True),
        (None, None, None, True),
    ],
)
def test_of_two_containers_of_one_name_all_that_is_known_is_added_up(
    ending: int | None, new: int | None, used: int | None, partly: bool
) -> None:
    given = samples(row(1, ending, V2.format(TRAIN)), row(2, new, V2.format(OTHER)))
    given = replace(given, peaks=())
    (use,) = usage_of(given, {TRAIN: WHO, OTHER: WHO}, grants(train=1)).containers
    assert use.amount == DeviceUse(used, used, partly=partly, processes=2)


def test_where_there_are_too_many_containers_those_with_shares_stay() -> None:
    few = [row(pid, GIB, V2.format(f"{pid:064x}")) for pid in range(MOST_ROWS)]
    names = {ContainerId(f"{pid:064x}"): Holder("team", f"a-{pid}", "main") for pid in range(MOST_ROWS)}
    found = usage_of(samples(*few), names, grants(train=1))
    assert found.containers[0].holder == WHO
    assert (len(found.containers), found.left_out) == (MOST_ROWS, 1)
