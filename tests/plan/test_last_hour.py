"""The last hour of each GPU: one row a minute, bounded, and nothing where nobody sampled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model.ids import GpuUuid, MigUuid
from partage.model.samples import Activity, DeviceMemory, GpuSample, MigSample, Samples
from partage.plan.usage import MINUTES, LastHour, UseMinute, busy_of, with_samples

GPU, OTHER = GpuUuid("GPU-0"), GpuUuid("GPU-1")


def sample(gpu: GpuUuid = GPU, busy: float | None = 0.5, used: int = 10, **more: float) -> GpuSample:
    return GpuSample(gpu=gpu, memory=DeviceMemory(100, used, 100 - used), utilisation=busy, **more)  # type: ignore[arg-type]


def after(*seen: tuple[float, GpuSample]) -> LastHour:
    hour: LastHour = {}
    for at_s, one in seen:
        hour = with_samples(hour, Samples(gpus=(one,)), at_s)
    return hour


def test_a_minute_has_the_highest_of_its_samples() -> None:
    hour = after(
        (60.0, sample(busy=0.2, used=40, temperature_c=50.0)),
        (119.0, sample(busy=0.9, used=10, power_w=300.0)),
        (120.0, sample(busy=0.1)),
    )
    assert hour[GPU] == (UseMinute(1, 0.9, 40, 50.0, 300.0), UseMinute(2, 0.1, 10))


def test_a_minute_without_a_sample_has_no_row() -> None:
    assert [row.minute for row in after((0.0, sample()), (600.0, sample()))[GPU]] == [0, 10]


def test_what_is_older_than_an_hour_goes_and_a_gpu_that_has_left_goes_with_it() -> None:
    hour = after((0.0, sample(OTHER)), (30.0, sample()), (60.0 * MINUTES, sample()))
    assert [row.minute for row in hour[GPU]] == [MINUTES]
    assert OTHER not in hour


@given(st.lists(st.floats(0, 20_000), max_size=300))
def test_it_is_bounded_whenever_samples_come(times: list[float]) -> None:
    hour = after(*((at_s, sample()) for at_s in sorted(times)))
    rows = hour.get(GPU, ())
    assert len(rows) <= MINUTES
    assert [row.minute for row in rows] == sorted({row.minute for row in rows})
    if times:
        assert {row.minute for row in rows} == {
            int(at_s // 60) for at_s in times if int(at_s // 60) > int(max(times) // 60) - MINUTES
        }


@pytest.mark.parametrize(
    ("instances", "busy"),
    [((), None), ((0.1, 0.7), 0.7), ((None, None), None), ((0.0, None), 0.0)],
)
def test_a_gpu_in_mig_mode_is_as_busy_as_its_busiest_instance(
    instances: tuple[float | None, ...], busy: float | None
) -> None:
    migs = tuple(
        MigSample(
            GPU, device=MigUuid(f"MIG-{number}"), gi_id=number, ci_id=0, activity=Activity(graphics=part)
        )
        for number, part in enumerate(instances)
    )
    unmeasured = MigSample(GPU, device=MigUuid("MIG-y"), gi_id=9, ci_id=0)
    other = MigSample(OTHER, device=MigUuid("MIG-x"), gi_id=1, ci_id=0, activity=Activity(graphics=1.0))
    assert busy_of(sample(busy=None), Samples(migs=(*migs, unmeasured, other))) == busy


def test_what_is_not_measured_stays_unknown() -> None:
    assert after((0.0, GpuSample(gpu=GPU)))[GPU] == (UseMinute(0),)
