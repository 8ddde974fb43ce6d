"""What the agent's history says of a workload, against what all its samples say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.codec.values import decode
from partage.edges.files.catalogue import load_catalogue
from partage.model.ids import DeviceUuid, GpuUuid, MigUuid
from partage.model.samples import DeviceMemory, GpuSample, MigSample, Samples
from partage.model.share import Guarantee
from partage.model.usage_day import GpuSeen, RunNow, UsageDay, WorkloadDay
from partage.plan.history.evidence import (
    Evidence,
    JobName,
    Run,
    UsePoint,
    gather,
    grows,
    use_points,
    workload_of,
    workload_of_job,
)
from partage.plan.history.fitting import LIMIT_BYTES, RUNNING_LIMIT_BYTES, fitting
from partage.plan.history.keeper import (
    ENDED_AFTER_S,
    MOST_PARTS,
    MOST_RUNS,
    MOST_WORKLOADS,
    Curve,
    HistoryKeeper,
)
from partage.plan.serve.ledger_entry import Holder
from partage.plan.usage import ContainerUse, DeviceUse, JobUse, NodeUse
from partage.rightsize.decide import Confidence, Doubt, GpuSize, gather_days, recommend
from partage.units import GIB, MIB
from partage.values import Frozen

STEP_S = 30
DAY_S = 86_400
START_S = 20_000 * DAY_S
"""A midnight."""
H100_BYTES = 81_559 * MIB
MODEL = load_catalogue().by_id("h100-sxm5-80gb")
assert MODEL is not None
H100 = GpuSize("H100", H100_BYTES, 500 * MIB, MODEL.geometry)


class Trace(Frozen):
    """One container: its memory at each step, in GiB, and what is the same all the time.

    spike_gib: seen by the exporter between two samples.
    """

    gib: tuple[float, ...]
    begins: int = 0
    sm: tuple[float, ...] = ()
    share_gib: float | None = None
    limited: bool = False
    processes: int = 1
    spike_gib: float = 0.0

    def at(self, step: int) -> int | None:
        """Bytes at a step of the node; None: it does not run."""
        mine = step - self.begins
        return int(self.gib[mine] * GIB) if 0 <= mine < len(self.gib) else None

    def peak(self, step: int) -> int:
        """The exporter's, since the container began."""
        until = self.gib[: step - self.begins + 1]
        return int(max(*until, self.spike_gib if len(until) * 2 > len(self.gib) else 0) * GIB)

    @property
    def share_bytes(self) -> int | None:
        return None if self.share_gib is None else int(self.share_gib * GIB)


def day_of(at_s: float) -> str:
    return f"day-{int(at_s) // DAY_S:06}"


def kept(
    traces: Sequence[Trace], start_s: int = START_S, restarts: Sequence[int] = ()
) -> tuple[UsageDay, ...]:
    """The days that a node keeps of them. restarts: steps before which the agent is replaced."""
    days: dict[str, UsageDay] = {}
    keeper = HistoryKeeper("node-a", STEP_S)
    for step in range(max(one.begins + len(one.gib) for one in traces)):
        now_s = start_s + step * STEP_S
        if step in restarts:
            days[keeper.date] = keeper.day()
            keeper = HistoryKeeper("node-a", STEP_S)
            keeper.begin(day_of(now_s), decode(UsageDay, fitting(days[max(days)])))
        if keeper.date != day_of(now_s):
            if keeper.date:
                days[keeper.date] = keeper.day(closed=True)
            keeper.begin(day_of(now_s))
        points = [
            UsePoint(
                run=f"GPU-1 team/train-{number}/main",
                workload="team/train/main",
                share_bytes=one.share_bytes,
                visible_bytes=one.share_bytes if one.limited and one.share_bytes else H100_BYTES,
                amount=DeviceUse(
                    used_bytes=used,
                    peak_bytes=one.peak(step),
                    sm=one.sm[step - one.begins] if one.sm else None,
                    processes=one.processes,
                ),
            )
            for number, one in enumerate(traces)
            if (used := one.at(step)) is not None
        ]
        keeper.add(now_s, points, NodeUse(), Samples())
    days[keeper.date] = keeper.day()
    return tuple(decode(UsageDay, fitting(day)) for day in days.values())


def sampled(traces: Sequence[Trace], start_s: int = START_S) -> Evidence:
    """The evidence of all samples."""
    (found,) = gather(
        [
            Run(
                workload="team/train/main",
                at_s=tuple(float(start_s + (one.begins + step) * STEP_S) for step in range(len(one.gib))),
                used_bytes=tuple(int(value * GIB) for value in one.gib),
                device_bytes=H100_BYTES,
                peak_bytes=one.peak(one.begins + len(one.gib) - 1),
                sm=one.sm,
                share_bytes=one.share_bytes,
                limited=one.limited,
                processes=one.processes,
            )
            for one in traces
        ],
        STEP_S,
    )
    return found


def wave(low: float, high: float, samples: int) -> tuple[float, ...]:
    return tuple(low if number % 2 else high for number in range(samples))


TRACES: dict[str, tuple[Trace, ...]] = {
    "batch": tuple(Trace(wave(4, 8, 60), begins=n * 100, sm=(0.2,) * 60, share_gib=40) for n in range(3)),
    "spike between samples": tuple(
        Trace(wave(4, 5, 60), begins=n * 100, spike_gib=12) for n in range(3)
    ),
    "several processes": (Trace(wave(4, 8, 200), processes=4, share_gib=20, limited=True),),
    "takes it in advance": (Trace((*([2.0] * 5), *([0.9 * 79.6] * 300))),),
    "takes most of its share": (Trace((1.0, *([18.5] * 90)), share_gib=20, limited=True),),
    "still grows": (Trace(tuple(1 + n / 20 for n in range(200))),),
    "grew, and is flat": (Trace((*(n / 10 for n in range(100)), *([10.0] * 300))),),
    "two at a time": tuple(Trace(wave(4, 8, 60), begins=n * 30, share_gib=10) for n in range(4)),
    "unused": (Trace((0.0,) * 50, share_gib=10),),
    "shorter than a step": tuple(Trace((3.0,), begins=n * 40) for n in range(12)),
    "few samples": (Trace(wave(4, 8, 6)),),
    "over midnight": (Trace(wave(4, 8, 3 * DAY_S // STEP_S), sm=(0.05,) * (3 * DAY_S // STEP_S)),),
}  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("restarted", [False, True], ids=["one agent", "agent replaced"])
def test_the_history_says_what_all_samples_say(name: str, restarted: bool) -> None:
    traces = TRACES[name]
    start_s = START_S + DAY_S - 20 * STEP_S
    last = max(one.begins + len(one.gib) for one in traces)
    restarts = range(7, last, 31 if last < 1000 else 997) if restarted else ()
    full, (history,) = sampled(traces, start_s), gather_days(kept(traces, start_s, restarts))
    assert history.coarse
    assert full.steady - 0.25 < history.steady < full.steady + 0.05, "parts are left out, not samples"
    assert history.sm_p95 == full.sm_p95, "these are ends of classes"
    assert history.full == pytest.approx(full.full, abs=1e-4)
    assert history.coverage == pytest.approx(full.coverage, abs=0.01)
    same = (
        "runs",
        "samples",
        "span_s",
        "peak_bytes",
        "exact",
        "growing",
        "share_bytes",
        "processes",
        "at_once",
    )
    assert {key: getattr(history, key) for key in same} == {key: getattr(full, key) for key in same}
    one, other = recommend(history, H100), recommend(full, H100)
    assert (one.doubt, one.need_bytes, one.mps, one.time_slicing, one.profile) == (
        other.doubt,
        other.need_bytes,
        other.mps,
        other.time_slicing,
        other.profile,
    )
    assert one.confidence is not Confidence.HIGH
    if one.doubt is None:
        assert any("coarse" in risk for risk in one.risks)


def test_the_traces_have_the_answers_that_they_are_named_for() -> None:
    found = {name: recommend(sampled(traces), H100) for name, traces in TRACES.items()}
    assert {name: one.doubt for name, one in found.items() if one.doubt} == {
        "takes it in advance": Doubt.PREALLOCATES,
        "takes most of its share": Doubt.PREALLOCATES,
        "unused": Doubt.UNUSED,
        "few samples": Doubt.TOO_FEW_SAMPLES,
    }
    assert found["still grows"].evidence.growing
    assert found["two at a time"].evidence.at_once == 2
    assert found["spike between samples"].evidence.peak_bytes == 12 * GIB


def test_a_container_on_two_gpus_is_one_run_of_several_devices() -> None:
    keeper = HistoryKeeper("node-a", STEP_S)
    keeper.begin(day_of(START_S))
    for step in range(20):
        points = [
            UsePoint(
                run=f"GPU-{gpu} team/ddp/main",
                workload="team/ddp/main",
                container="team/ddp/main",
                visible_bytes=H100_BYTES,
                amount=DeviceUse(used_bytes=4 * GIB, peak_bytes=4 * GIB),
            )
            for gpu in (1, 2)
        ]
        idle = UsePoint(
            run="GPU-3 team/ddp/main",
            workload="team/ddp/main",
            container="team/ddp/main",
            amount=DeviceUse(used_bytes=0, peak_bytes=0),
        )
        keeper.add(START_S + step * STEP_S, [*points, idle], NodeUse(), Samples())
    (found,) = gather_days([keeper.day()])
    assert found.devices == 2, "a share that it holds and does not use is none of them"
    assert recommend(found, H100).doubt is Doubt.SEVERAL_DEVICES


def test_nodes_and_days_are_added_up() -> None:
    here = kept([Trace(wave(4, 8, 60))])
    there = tuple(replace(day, node="node-b") for day in kept([Trace(wave(2, 12, 60), begins=3)]))
    (found,) = gather_days([*here, *there, *here])
    assert (found.runs, found.samples, found.peak_bytes) == (2, 120, 12 * GIB)


def test_a_container_that_was_away_is_another_run_and_one_that_was_not_looked_at_is_the_same() -> None:
    used = UsePoint(run="r", workload="team/web/main", amount=DeviceUse(used_bytes=GIB, peak_bytes=GIB))
    keeper = HistoryKeeper("node-a", STEP_S)
    keeper.begin("d")
    keeper.add(START_S, [used], NodeUse(), Samples())
    last = round(ENDED_AFTER_S / STEP_S)
    for step in range(1, last + 1):
        keeper.add(START_S + step * STEP_S, [], NodeUse(), Samples())
    assert keeper.running
    keeper.add(START_S + (last + 1) * STEP_S, [], NodeUse(), Samples())
    assert not keeper.running
    keeper.add(START_S + 7200, [used], NodeUse(), Samples())
    keeper.add(START_S + 14_400, [used], NodeUse(), Samples())
    (found,) = gather_days([keeper.day()])
    assert (found.runs, found.samples) == (2, 3)
    assert found.coverage == pytest.approx((3 * STEP_S + STEP_S / 2) / (2 * STEP_S + 7200))


def test_an_ended_container_that_was_never_seen_alive_counts_with_its_peak() -> None:
    ended = UsePoint(run="r", workload="team/web/main", amount=DeviceUse(peak_bytes=5 * GIB))
    keeper = HistoryKeeper("node-a", STEP_S)
    keeper.begin("d")
    for step in range(3):
        keeper.add(START_S + step * STEP_S, [ended], NodeUse(), Samples())
    (found,) = gather_days([keeper.day()])
    assert (found.runs, found.samples, found.peak_bytes) == (1, 1, 5 * GIB)


def test_the_peak_of_one_that_has_just_ended_still_counts() -> None:
    alive = UsePoint(run="r", workload="team/web/main", amount=DeviceUse(used_bytes=GIB, peak_bytes=GIB))
    keeper = HistoryKeeper("node-a", STEP_S)
    keeper.begin("d")
    keeper.add(START_S, [alive], NodeUse(), Samples())
    keeper.add(START_S + STEP_S, [replace(alive, amount=DeviceUse(peak_bytes=9 * GIB))], NodeUse(), Samples())
    (found,) = gather_days([keeper.day()])
    assert (found.peak_bytes, found.samples) == (9 * GIB, 1)


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=400))
def test_a_curve_is_short_and_loses_no_end(samples: list[int]) -> None:
    curve = Curve.of()
    for one in samples:
        curve.add(one)
    assert len(curve.lows) == len(curve.highs) <= MOST_PARTS
    assert (min(curve.lows), max(curve.highs)) == (min(samples), max(samples))
    assert (len(curve.highs) - 1) * curve.width + curve.last == len(samples)
    if len(samples) <= MOST_PARTS:
        assert list(curve.highs) == list(curve.lows) == samples


names = st.one_of(st.text(max_size=330), st.integers(0, 2000).map(lambda n: "x" * 300 + str(n)))


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-100_000, 100_000), st.lists(names, max_size=30), st.integers(0, 2**50)),
        max_size=30,
    )
)
def test_whatever_comes_the_day_and_its_file_stay_small(steps: list[tuple[int, list[str], int]]) -> None:
    keeper = HistoryKeeper("node-a", STEP_S)
    keeper.begin("d")
    for after_s, workloads, used in steps:
        points = [
            UsePoint(
                run=f"r{number} {name}",
                workload=name,
                amount=DeviceUse(used_bytes=used, peak_bytes=used, sm=1.0),
            )
            for number, name in enumerate(workloads)
        ]
        keeper.add(START_S + after_s, points, NodeUse(), Samples())
    check_bounds(keeper)


def check_bounds(keeper: HistoryKeeper) -> UsageDay:
    day = keeper.day()
    assert len(day.workloads) <= MOST_WORKLOADS
    assert len(fitting(replace(day, running=()))) <= LIMIT_BYTES
    content = fitting(day)
    assert len(content) <= LIMIT_BYTES + RUNNING_LIMIT_BYTES
    written = decode(UsageDay, content)
    assert written.left_out - day.left_out == len(day.workloads) - len(written.workloads)
    again = HistoryKeeper("node-a", STEP_S)
    again.begin(day.date, written)
    assert again.day() == written, "what was written is read back as it was"
    return written


def test_the_workloads_that_were_seen_longest_ago_leave_first_and_are_counted() -> None:
    keeper = HistoryKeeper("node-a", STEP_S)
    keeper.begin("d")
    many = 3 * MOST_WORKLOADS
    for number in range(many):
        point = UsePoint(
            run=f"r{number}",
            workload=f"team/{number:0200}/main",
            amount=DeviceUse(used_bytes=1, peak_bytes=1),
        )
        keeper.add(START_S + number * STEP_S, [point], NodeUse(), Samples())
    written = check_bounds(keeper)
    assert written.left_out + len(written.workloads) == many
    assert written.workloads[-1].workload == f"team/{many - 1:0200}/main"
    assert len(written.workloads) > 150


def test_while_all_run_no_other_workload_comes_in_and_it_is_counted_once() -> None:
    keeper = HistoryKeeper("node-a", STEP_S)
    keeper.begin("d")
    points = [
        UsePoint(
            run=f"r{number}", workload=f"team/{number}/main", amount=DeviceUse(used_bytes=1, peak_bytes=1)
        )
        for number in range(MOST_WORKLOADS + 7)
    ]
    for step in range(5):
        keeper.add(START_S + step * STEP_S, points, NodeUse(), Samples())
    day = keeper.day()
    assert day.left_out == 7
    assert {(row.runs, row.samples) for row in day.workloads} == {(1, 5)}
    keeper.add(START_S + 4 * STEP_S + ENDED_AFTER_S, points[-7:], NodeUse(), Samples())
    assert keeper.day().workloads[-1].workload == f"team/{MOST_WORKLOADS - 1}/main", "all may still run"
    late = START_S + ENDED_AFTER_S + 10 * STEP_S
    keeper.add(late, points[-7:], NodeUse(), Samples())
    assert f"team/{MOST_WORKLOADS + 6}/main" in {row.workload for row in keeper.day().workloads}


@pytest.mark.parametrize(
    ("highs", "growing"),
    [
        ([1, 1, 2, 2, 3, 3, 4, 4], True),
        ([1, 1, 2, 2, 3, 3, 4], False),  # too few to say
        ([1, 1, 4, 4, 4, 4, 5, 5], False),
        ([1, 1, 2, 2, 4, 4, 4, 4], False),
        ([50, 50, 100, 100, 200, 200, 202, 202], False),  # by one percent is not
        ([50, 50, 100, 100, 101, 101, 200, 200], False),
    ],
)
def test_a_run_grows_if_each_of_its_last_quarters_is_higher(highs: list[int], growing: bool) -> None:
    assert grows(highs) is growing


def point(run: str, used_gib: float, peak_gib: float | None = None, *, partly: bool = False) -> UsePoint:
    peak_bytes = None if peak_gib is None else int(peak_gib * GIB)
    amount = DeviceUse(used_bytes=int(used_gib * GIB), peak_bytes=peak_bytes, partly=partly)
    return UsePoint(run=run, workload="team/web/main", amount=amount)


def row_of(*samples: Sequence[UsePoint]) -> WorkloadDay:
    """The day of ``point``'s workload."""
    keeper = HistoryKeeper("node-a", STEP_S)
    keeper.begin("d")
    for step, points in enumerate(samples):
        keeper.add(START_S + step * STEP_S, points, NodeUse(), Samples())
    (row,) = keeper.day().workloads
    return row


@pytest.mark.parametrize("between", [point("r", 1), point("r", 1, 1, partly=True)], ids=["sampled", "partly"])
def test_one_sample_without_all_figures_makes_a_day_inexact(between: UsePoint) -> None:
    known = [point("r", 1, 1)]
    assert row_of(known, known, known).exact
    assert not row_of(known, [between], known).exact


@pytest.mark.parametrize("grows_long", [True, False])
def test_the_longest_run_says_whether_a_workload_grows(grows_long: bool) -> None:
    def samples(step: int) -> Iterator[UsePoint]:
        yield point("long", 1 + step if grows_long else 30)
        if 20 <= step < 36:
            yield point("short", 30 if grows_long else 1 + step - 20)

    assert row_of(*(list(samples(step)) for step in range(40))).growing is grows_long


def test_a_run_whose_workload_had_no_room_in_the_file_goes_on() -> None:
    keeper = HistoryKeeper("node-a", STEP_S)
    keeper.begin("d")
    keeper.add(START_S, [point("r", 1)], NodeUse(), Samples())
    again = HistoryKeeper("node-a", STEP_S)
    again.begin("d", replace(keeper.day(), workloads=()))
    again.add(START_S + STEP_S, [point("r", 1)], NodeUse(), Samples())
    (row,) = again.day().workloads
    assert (row.samples, row.started, row.runs) == (1, 0, 1), "it is not seen for the first time"


def test_a_container_that_uses_two_devices_is_one_run_in_samples_too() -> None:
    run = Run(
        workload="team/ddp/main",
        at_s=(0.0, 30.0),
        used_bytes=(GIB, GIB),
        device_bytes=H100_BYTES,
        container="c",
    )
    (found,) = gather([run, run, replace(run, used_bytes=(0, 0))])
    assert (found.runs, found.devices) == (1, 2)


def test_jobs_of_a_user_whose_names_are_not_known_are_one_workload() -> None:
    assert workload_of_job("alice", "train") == "slurm:alice/train"
    assert workload_of_job("alice", "") == "slurm:alice/*"


def test_while_the_clock_is_set_back_the_longest_run_still_says_whether_it_grows() -> None:
    keeper = HistoryKeeper("node-a", STEP_S)
    keeper.begin("d")
    for step in range(20):
        keeper.add(START_S + STEP_S if step else START_S, [point("r", 1 + step)], NodeUse(), Samples())
    (row,) = keeper.day().workloads
    assert row.growing


def test_the_highest_run_has_the_peak_and_the_first_of_the_longest_says_how_it_grows() -> None:
    row = row_of(*([point("a", 1 + step), point("b", 30)] for step in range(20)))
    assert (row.peak_bytes, row.growing) == (30 * GIB, True)
    assert row.peak_at_s == START_S


@pytest.mark.parametrize("peak_bytes", [None, GIB, 9 * GIB])
def test_no_higher_figure_after_a_run_has_ended_is_no_peak(peak_bytes: int | None) -> None:
    ended = UsePoint(run="r", workload="team/web/main", amount=DeviceUse(peak_bytes=peak_bytes))
    row = row_of([point("r", 9, 9)], [ended])
    assert (row.peak_bytes, row.peak_at_s) == (9 * GIB, START_S)


def test_of_more_containers_than_can_be_at_a_time_the_first_have_figures() -> None:
    row = row_of([point(f"r{number}", 1) for number in range(MOST_RUNS + 3)])
    assert (row.runs, row.at_once) == (MOST_RUNS, MOST_RUNS)


def test_a_day_whose_head_alone_is_too_long_has_no_workloads() -> None:
    gpus = tuple(GpuSeen("x" * 300, number) for number in range(400))
    day = UsageDay("d", "node-a", STEP_S, gpus=gpus, workloads=(row_of([point("r", 1)]),))
    assert decode(UsageDay, fitting(day)).workloads == ()


def test_of_runs_with_one_peak_and_one_length_the_first_has_them() -> None:
    keeper = HistoryKeeper("node-a", STEP_S)
    keeper.begin("d")
    for step in range(3):
        keeper.add(START_S + step * STEP_S, [point("a", 9), point("b", 9)], NodeUse(), Samples())
    keeper.add(START_S + 3 * STEP_S, [point("a", 8), point("c", 9)], NodeUse(), Samples())
    day = keeper.day()
    assert {run.run: (run.has_peak, run.is_longest) for run in day.running} == {
        "a": (True, True),
        "b": (False, False),
        "c": (False, False),
    }
    assert day.workloads[0].peak_at_s == START_S


def test_a_new_day_has_nothing_of_the_day_before_but_what_runs() -> None:
    keeper = HistoryKeeper("node-a", STEP_S)
    keeper.begin("d")
    keeper.add(START_S, [point("r", 1)], NodeUse(), Samples())
    before = keeper.day()
    for again in (HistoryKeeper("node-a", STEP_S), keeper):
        again.begin("e", before)
        assert (again.day().workloads, again.samples) == ((), 0)
        assert [run.run for run in again.day().running] == ["r"]


def test_runs_of_an_earlier_agent_are_taken_over_at_its_start_only() -> None:
    keeper = HistoryKeeper("node-a", STEP_S)
    keeper.begin("d")
    keeper.add(START_S, [point("r", 1)], NodeUse(), Samples())
    other = HistoryKeeper("node-a", STEP_S)
    other.begin("d")
    other.add(START_S, [point("other", 1)], NodeUse(), Samples())
    keeper.begin("e", other.day())
    assert [run.run for run in keeper.day().running] == ["r"]


def test_what_the_figures_of_a_container_leave_open_is_not_used() -> None:
    amounts = [DeviceUse(used_bytes=GIB), DeviceUse(used_bytes=0, peak_bytes=GIB), DeviceUse(used_bytes=0)]
    points = [
        UsePoint(run=f"{number} r", workload="team/web/main", container="r", amount=amount)
        for number, amount in enumerate([*amounts, DeviceUse()])
    ]
    row = row_of(points)
    assert (row.devices, row.runs) == (2, 3)


def test_the_mean_of_a_node_is_of_gpus_that_have_a_figure() -> None:
    memory = DeviceMemory(80 * GIB, 6 * GIB, 74 * GIB)
    samples = Samples(gpus=(GpuSample(GpuUuid("GPU-1"), memory), GpuSample(GpuUuid("GPU-2"))))
    keeper = HistoryKeeper("node-a", STEP_S)
    keeper.begin("d")
    keeper.know_gpus([GpuSeen("L4", 1)])
    keeper.know_gpus([GpuSeen("H100", 2), GpuSeen("L4", 1)])
    keeper.add(START_S, [], NodeUse(), samples)
    assert keeper.day().used_bytes == 6 * GIB
    assert keeper.day().gpus == (GpuSeen("L4", 1), GpuSeen("H100", 2))


COURSE = RunNow("r", "team/web/main", START_S, START_S, GIB, START_S, 2, 1, (1, 2), (3, 4), True, True)


@pytest.mark.parametrize(
    ("course", "known"),
    [
        (COURSE, True),
        (replace(COURSE, last=2), True),
        (replace(COURSE, lows=(1,) * MOST_PARTS, highs=(2,) * MOST_PARTS), True),
        (replace(COURSE, lows=(1,) * (MOST_PARTS + 1), highs=(2,) * (MOST_PARTS + 1)), False),
        (replace(COURSE, lows=(1,)), False),
        (replace(COURSE, lows=(), highs=()), False),
        (replace(COURSE, last=3), False),
        (replace(COURSE, last=0), False),
    ],
)
def test_a_course_that_cannot_be_is_begun_anew(course: RunNow, known: bool) -> None:
    keeper = HistoryKeeper("node-a", STEP_S)
    keeper.begin("e", UsageDay("d", "node-a", STEP_S, running=(course,)))
    (run,) = keeper.day().running
    assert (run.lows, run.highs) == ((course.lows, course.highs) if known else ((), ()))


def test_a_day_as_long_as_its_file_may_be_stays_whole() -> None:
    day = UsageDay("d", "", STEP_S, workloads=(row_of([point("r", 1)]),))
    full = replace(day, node="x" * (LIMIT_BYTES - len(fitting(day))))
    assert len(fitting(full)) == LIMIT_BYTES
    assert decode(UsageDay, fitting(full)).workloads == day.workloads
    assert decode(UsageDay, fitting(replace(full, node=full.node + "x"))).workloads == ()

    running = replace(day, running=(replace(COURSE, run=""),))
    room = RUNNING_LIMIT_BYTES - (len(fitting(running)) - len(fitting(day)))
    longest = replace(COURSE, run="x" * room)
    assert decode(UsageDay, fitting(replace(day, running=(longest,)))).running == (longest,)
    assert decode(UsageDay, fitting(replace(day, running=(replace(longest, run="x" * (room + 1)),)))) == day


HOLDER = Holder("team", "web-7d4b9c6f5d-x2x4k", "main")
SIZES = Samples(
    gpus=(GpuSample(GpuUuid("GPU-1"), DeviceMemory(80, 0, 80)), GpuSample(GpuUuid("GPU-2"))),
    migs=(
        MigSample(GpuUuid("GPU-1"), DeviceMemory(10, 0, 10), device=MigUuid("MIG-1"), gi_id=1, ci_id=0),
        MigSample(GpuUuid("GPU-1"), device=MigUuid("MIG-2"), gi_id=2, ci_id=0),
    ),
)


@pytest.mark.parametrize(
    ("device", "guarantee", "share_bytes", "visible"),
    [
        (GpuUuid("GPU-1"), Guarantee.HARD, 20, 20),
        (GpuUuid("GPU-1"), Guarantee.ADVISORY, 20, 20),
        (GpuUuid("GPU-1"), Guarantee.NONE, 20, 80),
        (GpuUuid("GPU-1"), Guarantee.GUARDED, None, 80),
        (GpuUuid("GPU-1"), None, None, 80),
        (GpuUuid("GPU-2"), None, None, 0),
        (MigUuid("MIG-1"), Guarantee.NONE, 5, 10),
        (MigUuid("MIG-2"), Guarantee.NONE, 5, 0),
    ],
)
def test_a_program_takes_its_share_for_the_whole_memory_where_it_is_kept_to_it(
    device: DeviceUuid, guarantee: Guarantee | None, share_bytes: int | None, visible: int
) -> None:
    use = DeviceUse(used_bytes=1)
    held = ContainerUse(GpuUuid("GPU-1"), device, HOLDER, use, share_bytes=share_bytes, guarantee=guarantee)
    (found,) = use_points(NodeUse(containers=(held,)), SIZES, {})
    assert (found.workload, found.visible_bytes) == ("team/web/main", visible)


def test_jobs_are_told_by_the_names_that_people_know() -> None:
    gpu = GpuUuid("GPU-1")
    use = NodeUse(jobs=(JobUse(gpu, gpu, "7", DeviceUse()), JobUse(gpu, gpu, "8", DeviceUse())))
    (found,) = use_points(use, SIZES, {"8": JobName("alice", "train")})
    assert (found.workload, found.container, found.visible_bytes) == ("slurm:alice/train", "job 8", 80)


def test_without_a_share_a_limited_run_sees_the_whole_device() -> None:
    run = Run(workload="w", at_s=(0.0,), used_bytes=(1,), device_bytes=80, limited=True)
    assert (run.visible_bytes, replace(run, share_bytes=20).visible_bytes) == (80, 20)
    assert replace(run, share_bytes=20, limited=False).visible_bytes == 80


def test_a_usual_distance_that_is_known_overrules_that_of_the_samples() -> None:
    run = Run(workload="w", at_s=(0.0, 30.0, 60.0), used_bytes=(1, 1, 1), device_bytes=80)
    assert gather([run])[0].coverage == 1.0
    assert gather([run], 10.0)[0].coverage == pytest.approx((2 * 15 + 10) / (60 + 10))


@pytest.mark.parametrize(
    ("pod", "workload"), [("train-7d4b9c6f5d-x2x4k", "train"), ("web-0", "web"), ("-7", "-7")]
)
def test_a_pod_is_of_the_controller_that_its_name_tells(pod: str, workload: str) -> None:
    assert workload_of(pod) == workload
