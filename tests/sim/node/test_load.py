"""What simulated processes do over time, from files and as values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.errors import InputError
from partage.model.samples import Throttle, ThrottleTime
from partage.sim.node.faults import Occupy, SetSensors
from partage.sim.node.files.machine_file import read_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.sim.node.load import Load, LoadPoint, LoadShape, Sensors, load_at
from partage.units import GIB

SPIKES = Load(LoadShape.SPIKES, to_bytes=9 * GIB, idle=0.1, busy=0.8, every_s=30.0, for_s=2.0)
TRACE = Load(points=(LoadPoint(0.0, GIB), LoadPoint(5.0, 3 * GIB, 0.5, 0.2), LoadPoint(10.0, 2 * GIB)))


@pytest.mark.parametrize(
    ("load", "age_s", "gib", "sm"),
    [
        (Load(busy=0.5), 7.0, 1.0, 0.5),
        (Load(LoadShape.RAMP, to_bytes=5 * GIB, every_s=40.0), 10.0, 2.0, 0.0),
        (Load(LoadShape.RAMP, to_bytes=5 * GIB, every_s=40.0), 99.0, 5.0, 0.0),
        (Load(LoadShape.WAVE, to_bytes=3 * GIB, every_s=8.0, busy=1.0), 4.0, 3.0, 1.0),
        (Load(LoadShape.WAVE, to_bytes=3 * GIB, every_s=8.0, busy=1.0), 8.0, 1.0, 0.0),
        (SPIKES, 27.9, 1.0, 0.1),
        (SPIKES, 28.0, 9.0, 0.8),
        (SPIKES, 30.0, 1.0, 0.1),
        (TRACE, 0.0, 1.0, 0.0),
        (TRACE, 7.0, 3.0, 0.5),
        (TRACE, 99.0, 2.0, 0.0),
    ],
)
def test_shapes(load: Load, age_s: float, gib: float, sm: float) -> None:
    now = load_at(load, GIB, age_s)
    assert now.memory_bytes == pytest.approx(gib * GIB)
    assert now.sm == pytest.approx(sm)


@given(st.sampled_from(LoadShape), st.integers(0, 99), st.floats(0, 1e6), st.floats(0, 1))
def test_the_same_seed_and_second_give_the_same_values_and_ratios_stay_ratios(
    shape: LoadShape, seed: int, age_s: float, noise: float
) -> None:
    load = Load(shape, to_bytes=4 * GIB, busy=1.0, noise=noise, seed=seed)
    now = load_at(load, GIB, age_s)
    assert now == load_at(load, GIB, age_s)
    assert 0 <= now.sm <= 1
    assert now.memory_bytes is not None
    assert 0 <= now.memory_bytes <= 8 * GIB


def test_without_a_figure_there_is_none() -> None:
    assert load_at(Load(busy=0.5), None, 1.0).memory_bytes is None


def fault(text: str) -> object:
    data = f"gpus: [{{name: NVIDIA L4}}]\nfaults: [{{after-s: 1, gpu: 0, {text}}}]\n".encode()
    return read_machine(data, "m.yaml").faults[0].fault


def test_loads_and_sensors_stand_in_files() -> None:
    shape = "shape: spikes, to: 9Gi, idle: 10%, busy: 80%, every-s: 30, for-s: 2"
    occupy = fault(f"used-by: a, pid: 4, memory: 1Gi, load: {{{shape}}}")
    assert isinstance(occupy, Occupy)
    assert occupy.load == SPIKES
    rows = "{at-s: 0, memory: 1Gi}, {at-s: 5, memory: 3Gi, busy: 50%, reading: 20%}, {at-s: 10, memory: 2Gi}"
    occupy = fault(f"used-by: a, pid: 4, load: {{points: [{rows}]}}")
    assert isinstance(occupy, Occupy)
    assert occupy.load == TRACE
    shown = "temperature: 90, throttle: [sw_thermal], throttled-s: {thermal: 30}, ecc-uncorrected: 1"
    assert fault(f"sensors: {{{shown}}}") == SetSensors(
        0,
        Sensors(
            temperature_c=90.0,
            throttle=(Throttle.SW_THERMAL,),
            throttled_s={ThrottleTime.THERMAL: 30.0},
            uncorrected=1,
        ),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("used-by: a, load: 3", "has to be a mapping"),
        ("used-by: a, load: {shape: square}", "steady, ramp, wave or spikes"),
        ("used-by: a, load: {busy: 0.4}", "a percentage from 0% to 100%"),
        ("used-by: a, load: {busy: 101%}", "a percentage from 0% to 100%"),
        ("used-by: a, load: {every-s: 0}", "more than 0"),
        ("used-by: a, load: {points: [{at-s: 5, memory: 1}, {at-s: 5, memory: 2}]}", "order of their times"),
        ("used-by: a, load: {points: [{memory: 1}]}", "at-s"),
        ("sensors: {throttle: [hot]}", "gpu_idle"),
        ("sensors: {heat: 9}", "unknown key"),
    ],
)
def test_what_is_wrong_is_named(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        fault(text)


async def test_the_processes_of_the_watchdog_follow_the_load() -> None:
    load = b"load: {shape: ramp, to: 3Gi, every-s: 20}"
    machine = read_machine(
        b"gpus: [{name: NVIDIA L4}]\n"
        b"faults: [{after-s: 10, gpu: 0, used-by: a, pid: 4, memory: 1Gi, " + load + b"}]\n",
        "m.yaml",
    )
    now_s = [100.0]
    hardware = SimulatedHardware(machine, clock=lambda: now_s[0])
    assert (await hardware.processes()).rows == ()
    now_s[0] = 110.0
    assert [row.used_bytes for row in (await hardware.processes()).rows] == [GIB]
    now_s[0] = 120.0
    assert [row.used_bytes for row in (await hardware.processes()).rows] == [2 * GIB]
    now_s[0] = 200.0
    assert [row.used_bytes for row in (await hardware.processes()).rows] == [3 * GIB]
