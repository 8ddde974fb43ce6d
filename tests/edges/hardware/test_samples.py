"""Samples through NVML's code: figures, absence, peaks between two calls, MIG devices, GPM."""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import AsyncIterator

import pytest

from partage.edges.hardware.nvml import NvmlHardware
from partage.errors import DriverUnavailable
from partage.model.gpu import NoDriver
from partage.model.ids import ContainerId, MigUuid
from partage.model.samples import Activity, EccCounts, RemappedRows, Throttle, ThrottleTime
from partage.units import MIB
from tests.edges.hardware.stub import H100_MEMORY_BYTES, StubNode

CID = ContainerId("3f" * 32)
CGROUP = f"0::/docker/{CID}"
MIG = MigUuid("MIG-00000001-0000-4000-8000-000000000000")


@pytest.fixture
async def hardware(node: StubNode) -> AsyncIterator[NvmlHardware]:
    node.add_h100s(2).see_all()
    made = NvmlHardware(host=node.host)
    yield made
    await made.close()


def set_sensors(node: StubNode) -> None:
    node.write(
        gpu__0__used=3 * MIB,
        gpu__0__reserved=5 * MIB,
        gpu__0__util="40 20",
        gpu__0__encoder=5,
        gpu__0__decoder=0,
        gpu__0__power=312_500,
        gpu__0__limit=700_000,
        gpu__0__energy=5_000_000_000_123,
        gpu__0__celsius=61,
        gpu__0__throttle=0x24,
        **{
            "gpu.0.clock.1": 1980,
            "gpu.0.clock.2": 2619,
            "gpu.0.field.82": 70,
            "gpu.0.field.94": 4,
            "gpu.0.field.3": 7,
            "gpu.0.field.3.type": 3,
            "gpu.0.field.4": 1,
            "gpu.0.field.142": 2,
            "gpu.0.field.143": 1,
            "gpu.0.field.144": 1,
            "gpu.0.field.145": 0,
            "gpu.0.field.75": 5_000_000_000_000,
            "gpu.0.field.75.type": 3,
        },
    )


async def test_every_sensor_is_read_in_its_unit(node: StubNode, hardware: NvmlHardware) -> None:
    set_sensors(node)
    gpu, _ = (await hardware.samples()).gpus
    assert gpu.memory is not None
    assert (gpu.memory.total_bytes, gpu.memory.used_bytes) == (H100_MEMORY_BYTES, 3 * MIB)
    assert (gpu.memory.reserved_bytes, gpu.memory.free_bytes) == (5 * MIB, H100_MEMORY_BYTES - 8 * MIB)
    assert (gpu.utilisation, gpu.memory_utilisation, gpu.encoder, gpu.decoder) == (0.4, 0.2, 0.05, 0.0)
    assert (gpu.power_w, gpu.power_limit_w, gpu.energy_j) == (312.5, 700.0, 5_000_000_000.123)
    assert (gpu.temperature_c, gpu.memory_temperature_c) == (61.0, 70.0)
    assert (gpu.sm_clock_hz, gpu.memory_clock_hz) == (1_980_000_000, 2_619_000_000)
    assert gpu.throttle == (Throttle.POWER_CAP, Throttle.SW_THERMAL)
    assert gpu.throttled_s == {ThrottleTime.THERMAL: 5000.0}
    assert gpu.ecc == EccCounts(corrected_volatile=7, uncorrected_volatile=1)
    assert gpu.rows == RemappedRows(2, 1, pending=True, failed=False)
    assert gpu.pcie_replays == 4


async def test_what_a_gpu_does_not_measure_is_none_and_not_zero(hardware: NvmlHardware) -> None:
    _, gpu = (await hardware.samples()).gpus
    absent = (gpu.utilisation, gpu.encoder, gpu.power_w, gpu.energy_j, gpu.temperature_c, gpu.sm_clock_hz)
    assert absent == (None,) * 6
    assert (gpu.throttle, gpu.rows, gpu.pcie_replays, gpu.activity) == (None,) * 4
    assert gpu.ecc == EccCounts()
    assert (gpu.throttled_s, gpu.memory_temperature_c) == ({}, None)


async def test_a_lost_gpu_is_missing_and_takes_no_other_with_it(
    node: StubNode, hardware: NvmlHardware
) -> None:
    await hardware.samples()
    node.lose(0)
    assert [one.gpu for one in (await hardware.samples()).gpus] == [node.uuid(1)]


async def test_without_a_driver_it_is_said(node: StubNode, hardware: NvmlHardware) -> None:
    node.driver_gone()
    with pytest.raises(DriverUnavailable):
        await hardware.samples()
    assert isinstance((await hardware.observe()).driver, NoDriver)


async def test_activity_of_processes_is_of_those_that_are_there(
    node: StubNode, hardware: NvmlHardware
) -> None:
    node.works(41, used=5 * MIB)
    node.works(42, used=5 * MIB)
    node.write(
        gpu__0__util="90 50",
        gpu__0__stale=1,
        **{
            "gpu.0.busy.0": "41 30 10 0 0 1000",
            "gpu.0.busy.1": "41 60 20 0 0 0",  # newer
            "gpu.0.busy.2": "42 2147483632 0 0 0",  # DCGM issue 83
            "gpu.0.busy.3": "43 80 0 0 0",  # has ended
            "gpu.0.busy.4": "42 50 0 0 0 60000",  # is old
        },
    )
    samples = await hardware.samples()
    assert [(one.pid, one.sm, one.memory) for one in samples.activities] == [(41, 0.6, 0.2)]
    assert samples.active == (node.uuid(0),)  # the driver measures no process of the other GPU


async def test_a_gpu_whose_processes_rest_is_active_without_rows(
    node: StubNode, hardware: NvmlHardware
) -> None:
    node.write(gpu__0__util="0 0")
    samples = await hardware.samples()
    assert not samples.activities
    assert samples.active == (node.uuid(0),)


async def test_the_peak_between_two_calls_is_not_missed(node: StubNode, hardware: NvmlHardware) -> None:
    node.works(41, used=5 * MIB, cgroup=CGROUP)
    await hardware.samples()
    node.write(**{"gpu.0.process.0": f"41 -1 -1 {90 * MIB} C", "gpu.0.used": 95 * MIB})
    seen = node.calls("nvmlDeviceGetMPSComputeRunningProcesses_v3")
    until_s = time.monotonic() + 10
    while node.calls("nvmlDeviceGetMPSComputeRunningProcesses_v3") < seen + 4:  # two GPUs, twice
        assert time.monotonic() < until_s
        await asyncio.sleep(0.02)
    node.write(**{"gpu.0.process.0": f"41 -1 -1 {7 * MIB} C", "gpu.0.used": 12 * MIB})
    samples = await hardware.samples()
    (peak,) = samples.peaks
    assert (peak.container, peak.used_bytes, peak.peak_bytes) == (CID, 7 * MIB, 90 * MIB)
    assert samples.gpus[0].peak_bytes == 95 * MIB


async def test_the_driver_is_left_alone_while_nobody_asks(node: StubNode, hardware: NvmlHardware) -> None:
    await hardware.observe()
    before = node.calls()
    await asyncio.sleep(1.2)
    assert node.calls() == before


async def test_mig_devices_have_memory_and_activity_of_their_own(
    node: StubNode, hardware: NvmlHardware
) -> None:
    node.write(
        gpu__0__mig="1 1",
        gpu__0__util="99 99",
        gpu__0__gpm=1,
        **{
            "gpu.0.mig.0.uuid": MIG,
            "gpu.0.mig.0.gi": 2,
            "gpu.0.mig.0.ci": 0,
            "gpu.0.mig.0.attributes": "3 40448",
            "gpu.0.mig.0.used": 9 * MIB,
            "gpu.0.gi.2": "9 0 4",
            "gpu.0.gi.2.gpm.2": 75.0,
        },
    )
    node.works(41, used=9 * MIB, part="2 0", cgroup=CGROUP)
    first = await hardware.samples()
    (mig,) = first.migs
    assert (mig.device, mig.gi_id, mig.ci_id) == (MIG, 2, 0)
    assert mig.memory is not None
    assert (mig.memory.total_bytes, mig.memory.used_bytes) == (40448 * MIB, 9 * MIB)
    assert mig.activity is None  # one sample says nothing
    assert first.gpus[0].utilisation is None  # NVML answers for no GPU in MIG mode; 99 would be a guess
    assert (first.peaks[0].device, first.active) == (MIG, ())
    await asyncio.sleep(0.6)
    (mig,) = (await hardware.samples()).migs
    assert mig.activity == Activity(sm=0.75)


async def test_gpm_gives_ratios_and_frees_what_it_keeps(node: StubNode, hardware: NvmlHardware) -> None:
    node.write(
        gpu__0__gpm=1,
        **{"gpu.0.gpm.1": 100.0, "gpu.0.gpm.2": 50.0, "gpu.0.gpm.10": 12.5, "gpu.0.gpm.20": 3.0},
    )
    first = await hardware.samples()
    assert first.gpus[0].activity is None
    await asyncio.sleep(0.6)
    second = await hardware.samples()
    assert second.gpus[0].activity == Activity(graphics=1.0, sm=0.5, dram=0.125, pcie_tx=3.0 * MIB)
    assert second.gpus[1].activity is None
    again = await hardware.samples()  # at once: too close to measure anew
    assert again.gpus[0].activity == second.gpus[0].activity
    library = ctypes.CDLL(str(node.library))
    assert library.stubGpmSamples() == 1
    await hardware.close()
    assert library.stubGpmSamples() == 0


async def test_calls_of_the_driver_do_not_grow_with_the_processes(
    node: StubNode, hardware: NvmlHardware
) -> None:
    async def calls() -> int:
        before = node.calls()
        await hardware.samples()
        return node.calls() - before

    for pid in (90, 91):
        node.works(pid, used=MIB, cgroup=CGROUP, gpu=pid % 2)  # a list that is not empty takes a call more
    await hardware.samples()
    few = await calls()
    for pid in range(100, 200):
        node.works(pid, used=MIB, cgroup=CGROUP, gpu=pid % 2)
    assert await calls() <= few
    assert few <= 2 * 30 + 5
