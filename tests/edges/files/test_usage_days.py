"""Histories that come from anywhere: a clear error, or figures with which rightsize can go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.codec.values import encode
from partage.edges.files.usage_days import UsageDays, read_usage_days
from partage.errors import InputError
from partage.model.samples import Samples
from partage.model.usage_day import RunNow, UsageDay, WorkloadDay
from partage.plan.history.evidence import UsePoint
from partage.plan.history.keeper import HistoryKeeper
from partage.plan.usage import DeviceUse, NodeUse
from partage.rightsize.decide import GpuSize, gather_days, recommend, unattributed_part
from partage.rightsize.document import rightsize_document
from partage.units import GIB

ROW = WorkloadDay(
    workload="team/train/main", first_s=1_795_000_000, last_s=1_795_003_600, seen_s=3600, run_s=3600,
    samples=120, runs=1, started=1, at_once=1, peak_bytes=8 * GIB, peak_at_s=1_795_000_000, spread=0.5,
    longest_s=3600, growing=False, full=0.1, exact=True, processes=1, share_bytes=None, busy=(0, 0, 120),
)  # fmt: skip
RUN = RunNow(
    "GPU-1 team/train-0/main", "team/train/main", 1, 2, 3, 4, 1, 1, (1,), (1,), has_peak=True, is_longest=True
)
DAY = UsageDay("2026-11-22", "node-a", 30.0, workloads=(ROW,), running=(RUN,), samples=120, used_bytes=9)
GPU = GpuSize("H100", 80 * GIB)


def test_a_day_is_read_back_from_a_file_a_folder_a_state_directory_and_an_answer(tmp_path: Path) -> None:
    assert UsageDays(tmp_path / "state", 14).write(DAY) == ""
    (tmp_path / "fleet" / "b").mkdir(parents=True)
    answer = {"apiVersion": "partage/v1", "kind": "History", "days": [json.loads(encode(DAY))], "later": 1}
    (tmp_path / "fleet" / "b" / "history.json").write_text(json.dumps(answer))
    (tmp_path / "fleet" / ".b").mkdir()
    for name in (".b/history.json", "b/.history.json"):
        (tmp_path / "fleet" / name).write_text("of a tool, and no history")
    for path in ("state", "state/history", "state/history/2026-11-22.json", "fleet"):
        assert read_usage_days(tmp_path / path) == (DAY,), path
    assert (tmp_path / "state" / "history").stat().st_mode & 0o777 == 0o700, "names of workloads are in it"
    assert (tmp_path / "state" / "history" / "2026-11-22.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no history of use"),
        ('{"date": 1}', "is no history of use"),
        (encode(DAY).decode().replace('"version":1', '"version":2'), "is no history of use"),
        (encode(DAY).decode().replace("3600,3600", "3600,-1"), "is no history of use"),
        (encode(DAY).decode().replace("1795003600", "1795003600000000"), "is no history of use"),
    ],
)
def test_what_is_no_history_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_usage_days(path)


@pytest.mark.parametrize("lows", [(), (1, 2), (1,) * 100])
def test_a_course_that_cannot_be_is_begun_anew(lows: tuple[int, ...]) -> None:
    keeper = HistoryKeeper("node-a", 30.0)
    running = replace(RUN, lows=lows, highs=(1,) * max(1, len(lows) - 1))
    keeper.begin(DAY.date, replace(DAY, running=(running,)))
    point = UsePoint(run=RUN.run, workload=ROW.workload, amount=DeviceUse(used_bytes=5, peak_bytes=GIB))
    keeper.add(1_795_000_000.0, [point], NodeUse(), Samples())
    (now,) = keeper.day().running
    assert (now.lows, now.highs) == ((5,), (5,))


scalars = st.one_of(
    st.none(),
    st.lists(st.integers(-1, 2**61), max_size=30),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=5),
)


def test_more_containers_than_can_be_are_not_packed() -> None:
    days = [replace(DAY, workloads=(replace(ROW, at_once=2**60),))]
    found = [recommend(one, GPU) for one in gather_days(days)]
    fleet = rightsize_document(found, GPU, "A file.", 0.0).fleet
    assert (fleet.containers, fleet.gpus_then) == (2**60, None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 40), scalars), max_size=3))
def test_whatever_is_in_a_file_rightsize_answers_or_says_what_is_wrong(
    tmp_path: Path, changes: list[tuple[int, Any]]
) -> None:
    document = json.loads(encode(DAY))
    places = [(document, key) for key in document]
    places += [(document["workloads"][0], number) for number in range(len(document["workloads"][0]))]
    places += [(document["running"][0], number) for number in range(len(document["running"][0]))]
    for number, value in changes:
        where, key = places[number % len(places)]
        where[key] = value
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    try:
        days = read_usage_days(path)
    except InputError:
        return
    for day in days:  # an agent goes on with it, too
        keeper = HistoryKeeper("node-a", 30.0)
        keeper.begin(day.date, day)
        for step in range(3):
            point = UsePoint(
                run=RUN.run, workload=ROW.workload, amount=DeviceUse(used_bytes=step, peak_bytes=GIB)
            )
            keeper.add(1_795_000_000.0 + step * 30, [point], NodeUse(), Samples())
        assert encode(keeper.day())
    found = [recommend(one, GPU, unattributed_part(days)) for one in gather_days(days)]
    assert encode(rightsize_document(found, GPU, "A file.", 0.0))
