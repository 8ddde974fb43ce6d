"""Right sizes of traces with known answers, and honest refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.edges.files.catalogue import load_catalogue
from partage.model.geometry import instance_memory
from partage.plan.history.evidence import Evidence, Run, gather, workload_of
from partage.rightsize.decide import (
    MOST_MPS,
    Confidence,
    Doubt,
    GpuSize,
    gpus_needed,
    preallocates,
    recommend,
    whole_gib,
)
from partage.units import GIB, MIB

H100_BYTES = 81_559 * MIB
MODEL = load_catalogue().by_id("h100-sxm5-80gb")
assert MODEL is not None
GEOMETRY = MODEL.geometry
assert GEOMETRY is not None
H100 = GpuSize("H100", H100_BYTES, 500 * MIB, GEOMETRY)


@pytest.mark.parametrize(
    ("pod", "workload"),
    [
        ("train-7d4b9c6f5d-x2x4k", "train"),
        ("train-x2x4k", "train"),
        ("nightly-29384756-x2x4k", "nightly"),
        ("serve-0", "serve"),
        ("serve-llama-12", "serve-llama"),
        ("notebook", "notebook"),
        ("my-house", "my-house"),  # "house" has letters that Kubernetes does not use
        ("x2x4k", "x2x4k"),
        ("-0", "-0"),
    ],
)
def test_the_workload_of_a_pod(pod: str, workload: str) -> None:
    assert workload_of(pod) == workload


def run(*gib: float, step_s: float = 60.0, **more: Any) -> Run:
    fields: dict[str, Any] = {
        "workload": "team/train/main",
        "at_s": tuple(number * step_s for number in range(len(gib))),
        "used_bytes": tuple(int(value * GIB) for value in gib),
        "device_bytes": H100_BYTES,
    }
    return Run(**{**fields, **more})


def wave(low: float, high: float, samples: int = 40) -> list[float]:
    return [low if number % 2 else high for number in range(samples)]


def evidence(*runs: Run) -> Evidence:
    (one,) = gather(runs)
    return one


def test_a_batch_job_of_three_runs_gets_its_highest_use_and_a_fifth_more() -> None:
    found = recommend(evidence(*(run(*wave(4, 8), sm=(0.2,) * 40) for _ in range(3))), H100)
    assert (found.need_bytes, found.headroom) == (int(9.75 * GIB), 0.2)  # 9.6 GiB, rounded up to 256 MiB
    assert found.mps == 4, "0.9 / 0.2: it keeps a fifth of the GPU busy"
    assert found.by_compute
    assert found.time_slicing == 4
    assert (found.profile, found.instances) == ("2g.20gb", 3), (
        "a seventh of the GPU is too little for a fifth of its time"
    )
    assert found.doubt is None


def test_without_its_activity_memory_decides_and_that_is_said() -> None:
    found = recommend(evidence(*(run(*wave(1, 2)) for _ in range(3))), H100)
    assert found.mps == (H100_BYTES - 500 * MIB - 512 * MIB) // found.need_bytes == 31
    assert found.time_slicing == 10
    assert any("not known" in risk for risk in found.risks)


def test_a_spike_between_two_samples_counts_where_the_exporter_has_seen_it() -> None:
    calm = [run(*wave(4, 5)) for _ in range(3)]
    spiked = [replace(one, peak_bytes=12 * GIB) for one in calm]
    assert recommend(evidence(*calm), H100).need_bytes == 6 * GIB
    found = recommend(evidence(*spiked), H100)
    assert found.need_bytes == int(14.5 * GIB)
    assert any("may be missing" in risk for risk in recommend(evidence(*calm), H100).risks)
    assert not any("may be missing" in risk for risk in found.risks)


@pytest.mark.parametrize(
    ("part", "more"),
    [
        (0.92, {}),  # vLLM from 0.33
        (0.9, {}),  # vLLM before
        (0.75, {}),  # JAX
        (0.95, {"share_bytes": 20 * GIB, "limited": True}),  # TensorFlow takes what it sees
    ],
)
def test_memory_that_is_taken_in_advance_tells_nothing(part: float, more: dict[str, Any]) -> None:
    visible = float(str(more.get("share_bytes", H100_BYTES))) / GIB
    flat = [0.5 * visible * part] * 2 + [visible * part] * 38
    found = recommend(evidence(run(*flat, **more)), H100)
    assert found.doubt is Doubt.PREALLOCATES
    assert "advance" in found.reason
    assert "vLLM" in found.advice
    assert found.need_bytes == 0


@pytest.mark.parametrize(
    ("gib", "more"),
    [
        ([*(72 * n / 10 for n in range(10)), *[72.0] * 30], {}),  # loads for a quarter of what was seen
        ([0.0, 5.0, *[36.0] * 12] * 3, {"share_bytes": 40 * GIB, "limited": True}),  # was restarted twice
        ([40.0] * 40, {"device_bytes": 80 * GIB}),  # a pool of RAPIDS
    ],
    ids=["loads long", "restarts", "half"],
)
def test_loading_and_restarts_do_not_hide_that_memory_is_taken_in_advance(
    gib: list[float], more: dict[str, Any]
) -> None:
    assert recommend(evidence(run(*gib, **more)), H100).doubt is Doubt.PREALLOCATES


def test_a_container_on_several_gpus_is_one_run_and_gets_no_share() -> None:
    sides = [run(*wave(4, 8), container="node/team/ddp-0/main") for _ in range(2)]
    found = evidence(*sides)
    assert (found.runs, found.devices, found.at_once) == (1, 2, 1)
    refused = recommend(found, H100)
    assert refused.doubt is Doubt.SEVERAL_DEVICES
    assert "8 GiB" in refused.advice
    idle = run(*[0.0] * 40, container="node/team/ddp-0/main")
    assert recommend(evidence(sides[0], idle), H100).doubt is None, (
        "it holds a second share and does not use it"
    )
    later = replace(sides[1], at_s=tuple(at + 1e6 for at in sides[1].at_s))
    moved = evidence(sides[0], later)
    assert (moved.runs, moved.devices) == (2, 1), "the pod came back on another GPU"


def test_a_steady_service_far_below_what_it_sees_is_sized() -> None:
    found = recommend(evidence(run(*[10.0] * 40)), H100)
    assert found.doubt is None
    assert found.need_bytes == 13 * GIB, "one short run: 30 % headroom"
    assert found.confidence is Confidence.LOW


def test_memory_that_grows_is_said_and_has_more_headroom() -> None:
    found = recommend(evidence(*(run(*[1 + number / 10 for number in range(40)]) for _ in range(3))), H100)
    assert found.headroom == 0.3
    assert found.confidence is Confidence.LOW
    assert "still grows" in found.risks[0]


def test_too_few_samples_strangers_and_giants_are_refused() -> None:
    assert recommend(evidence(run(1, 2, 1)), H100).doubt is Doubt.TOO_FEW_SAMPLES
    assert recommend(evidence(run(*wave(1, 2))), H100, unattributed=0.4).doubt is Doubt.UNATTRIBUTED
    giant = recommend(evidence(run(*wave(50, 75))), H100)
    assert giant.doubt is Doubt.TOO_BIG
    assert giant.need_bytes > H100_BYTES


def test_several_processes_are_named_and_many_stable_runs_need_less_headroom() -> None:
    runs = [run(*wave(4, 8), peak_bytes=8 * GIB, processes=4) for _ in range(20)]
    found = recommend(evidence(*runs), H100)
    assert found.headroom == 0.1
    assert found.confidence is Confidence.HIGH
    assert any("4 processes" in risk for risk in found.risks)


def test_gaps_lower_the_coverage() -> None:
    gappy = run(
        *wave(4, 8, 20), at_s=(*(60.0 * n for n in range(10)), *(36_000 + 60.0 * n for n in range(10)))
    )
    one = evidence(gappy)
    assert one.coverage < 0.1
    assert recommend(one, H100).confidence is Confidence.LOW
    assert evidence(run(*wave(4, 8))).coverage == 1.0


def test_how_many_gpus_a_mix_takes() -> None:
    assert gpus_needed([40 * GIB, 40 * GIB], H100) == 2, "the driver keeps some of it"
    assert gpus_needed([39 * GIB, 39 * GIB, 1 * GIB], H100) == 2
    assert gpus_needed([20 * GIB] * 3 + [15 * GIB], H100) == 1
    assert gpus_needed([], H100) == 0
    assert gpus_needed([80 * GIB], H100) is None
    assert (whole_gib(6 * GIB), whole_gib(int(6.25 * GIB))) == ("6Gi", "6400Mi")


@given(
    st.lists(st.floats(0.1, 90, allow_nan=False), min_size=1, max_size=60),
    st.integers(1, 4),
    st.one_of(st.none(), st.floats(0, 1)),
)
def test_whatever_is_recommended_holds_what_was_used(gib: list[float], runs: int, busy: float | None) -> None:
    sm = () if busy is None else (busy,) * len(gib)
    seen = evidence(*(run(*gib, sm=sm) for _ in range(runs)))
    found = recommend(seen, H100)
    if found.doubt is not None:
        assert found.reason
        assert found.advice
        assert found.doubt is Doubt.TOO_BIG or found.need_bytes == 0
        return
    assert not preallocates(seen)
    assert found.need_bytes >= seen.peak_bytes * 1.1
    assert found.mps <= MOST_MPS
    for shares in (found.mps, found.time_slicing):
        if shares > 1:
            assert H100_BYTES // shares >= found.need_bytes
            assert busy is None or shares * busy <= 0.9 + 1e-9
    if found.profile:
        assert GEOMETRY is not None
        spec = next(one for one in GEOMETRY.profiles if str(one.profile) == found.profile)
        assert instance_memory(spec, GEOMETRY, H100_BYTES) >= found.need_bytes
        assert spec.compute_slices / GEOMETRY.compute_slices >= (busy or 0)
