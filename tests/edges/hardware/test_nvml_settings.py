"""Compute mode and time slice through the driver's stand-in, and what it may answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from partage.edges.hardware import nvidia_smi
from partage.edges.hardware.gpu_settings import parse_interval
from partage.edges.hardware.nvidia_smi import SmiOutput
from partage.edges.hardware.nvml import NvmlHardware
from partage.errors import (
    GpuInUse,
    HardwareError,
    HardwareTimeout,
    NotPermitted,
    StateMismatch,
    Unsupported,
)
from partage.model.gpu import ComputeMode
from partage.model.step import Reset, SetComputeMode, SetTimeSlice, TimeSlice
from partage.model.strategy import Interval
from tests.edges.hardware.stub import StubNode

GPU, OTHER = StubNode.uuid(0), StubNode.uuid(1)
EXCLUSIVE = SetComputeMode(GPU, ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT)
LIMIT_S = 10.0
SHORT = SetTimeSlice(GPU, Interval.SHORT, Interval.DEFAULT)


@pytest.fixture
async def card(node: StubNode) -> AsyncIterator[NvmlHardware]:
    """A node of two H100s."""
    node.add_h100s(2).with_live_mig(0).with_live_mig(1).see_all()
    hardware = NvmlHardware(host=node.host)
    yield hardware
    await hardware.close()


async def mode_of(hardware: NvmlHardware) -> ComputeMode:
    return (await hardware.observe()).gpus[0].compute_mode


@pytest.mark.parametrize(("code", "kind"), [(4, NotPermitted), (3, Unsupported), (999, HardwareError)])
async def test_a_mode_that_the_driver_refuses_stays_and_the_reason_is_its_own(
    node: StubNode, card: NvmlHardware, code: int, kind: type[HardwareError]
) -> None:
    node.write(**{"fail.nvmlDeviceSetComputeMode": code})
    with pytest.raises(
        kind, match=r"cannot set the compute mode to exclusive-process: .*; the GPU is unchanged"
    ) as e:
        await card.perform(EXCLUSIVE)
    assert type(e.value) is kind
    assert await mode_of(card) is ComputeMode.DEFAULT


async def test_a_mode_that_was_set_although_the_driver_said_no_is_set(
    node: StubNode, card: NvmlHardware
) -> None:
    node.write(**{"lie.nvmlDeviceSetComputeMode": 999})
    await card.perform(EXCLUSIVE)
    assert await mode_of(card) is ComputeMode.EXCLUSIVE_PROCESS


async def test_who_only_draws_or_only_looks_is_not_in_the_way(node: StubNode, card: NvmlHardware) -> None:
    node.works(70, "Xorg", kinds="G")
    node.process(71, "nv-hostengine", "/dev/nvidia1")
    await card.perform(EXCLUSIVE)
    assert await mode_of(card) is ComputeMode.EXCLUSIVE_PROCESS


async def test_all_blocking_processes_are_named(node: StubNode, card: NvmlHardware) -> None:
    node.works(70, "train")
    node.works(71, "notebook", kinds="CG")
    with pytest.raises(GpuInUse, match=r"train \(pid 70\), process notebook \(pid 71\)") as caught:
        await card.perform(EXCLUSIVE)
    assert len(caught.value.uses) == 2
    assert "exclusive-process: false" in str(caught.value)


async def test_who_opens_a_context_just_before_the_mode_is_set_has_it_given_back(
    node: StubNode, card: NvmlHardware
) -> None:
    # The driver is slow to set the mode, and meanwhile a process starts.
    node.write(**{"hang.nvmlDeviceSetComputeMode": 300})
    act = asyncio.create_task(card.perform(EXCLUSIVE))
    async with asyncio.timeout(LIMIT_S):
        while node.hangs_in() != "nvmlDeviceSetComputeMode":
            await asyncio.sleep(0.005)
        node.works(70, "quick")
        with pytest.raises(GpuInUse, match=r"quick \(pid 70\)"):
            await act
    assert await mode_of(card) is ComputeMode.DEFAULT


async def test_a_reset_forgets_the_mode_and_the_slice(node: StubNode, card: NvmlHardware) -> None:
    node.add_nvidia_smi()
    await card.perform(EXCLUSIVE)
    await card.perform(SHORT)
    await card.perform(Reset((GPU,), ()))
    assert await mode_of(card) is ComputeMode.DEFAULT
    assert (await card.time_slices())[0].interval is Interval.DEFAULT


# --- time slices -----------------------------------------------------------------------------------


async def test_the_slice_is_set_with_one_call_and_read_before_and_after(
    node: StubNode, card: NvmlHardware
) -> None:
    log = node.add_nvidia_smi()
    await card.perform(SHORT)
    assert log.read_text().splitlines() == [
        f"compute-policy -i {GPU} --list",
        f"compute-policy -i {GPU} --set-timeslice 1",
        f"compute-policy -i {GPU} --list",
    ]


async def test_a_gpu_that_keeps_its_slice_says_so_before_and_when_it_is_asked(
    node: StubNode, card: NvmlHardware
) -> None:
    node.add_nvidia_smi()
    node.write(**{"gpu.0.slice": None})
    first, second = await card.time_slices()
    assert (first.gpu, first.interval) == (GPU, None)
    assert "Not Supported" in first.reason
    assert second == TimeSlice(OTHER, Interval.DEFAULT)
    with pytest.raises(Unsupported, match=r"Not Supported.*leave interval out"):
        await card.perform(SHORT)


async def test_without_nvidia_smi_the_slice_cannot_be_read_and_the_reason_says_why(
    card: NvmlHardware,
) -> None:
    slices = await card.time_slices()
    assert [one.interval for one in slices] == [None, None]
    assert "needs nvidia-smi" in slices[0].reason
    with pytest.raises(Unsupported, match="needs nvidia-smi"):
        await card.perform(SHORT)


SETS_NOTHING = "if '--set-timeslice' in sys.argv: {}"


@pytest.mark.parametrize(
    ("act", "kind", "words"),
    [
        ("sys.exit(0)", StateMismatch, "reported success for: set the time slice to short; read again"),
        ("print('Insufficient Permissions'); sys.exit(4)", NotPermitted, "Insufficient Permissions"),
        ("sys.exit(9)", StateMismatch, "code 9"),
        ("print('Failed to set timeslice : Not Supported'); sys.exit(3)", Unsupported, "Not Supported"),
    ],
)
async def test_what_nvidia_smi_says_decides_the_error(
    node: StubNode, card: NvmlHardware, act: str, kind: type[HardwareError], words: str
) -> None:
    node.add_nvidia_smi(SETS_NOTHING.format(act))
    with pytest.raises(kind, match=words) as caught:
        await card.perform(SHORT)
    assert type(caught.value) is kind


async def test_a_slice_that_was_set_although_nvidia_smi_failed_is_set(
    node: StubNode, card: NvmlHardware
) -> None:
    doing = f"ctypes.CDLL({str(node.library)!r}).stubSlice({GPU.encode()!r}, 1); sys.exit(1)"
    node.add_nvidia_smi(SETS_NOTHING.format(doing))
    await card.perform(SHORT)
    assert (await card.time_slices())[0].interval is Interval.SHORT


async def test_an_nvidia_smi_that_hangs_is_given_up(node: StubNode) -> None:
    node.add_nvidia_smi("import time; time.sleep(60)")
    with pytest.raises(HardwareTimeout, match=r"did not end the test within 0\.5 s"):
        await nvidia_smi.run_nvidia_smi(node.host, "the test", "--list", deadline_s=0.5)


@pytest.mark.parametrize(
    ("words", "interval"),
    [
        ("GPU 0: Timeslice: Default", Interval.DEFAULT),
        ("| GPU compute policies: | GPU Timeslice | |=====| | 0 LONG |", Interval.LONG),
        ("Compute Policy Timeslice : medium", Interval.MEDIUM),
        ("Short, and once more: short", Interval.SHORT),
    ],
)
def test_the_one_word_of_the_list_counts_however_it_is_laid_out(words: str, interval: Interval) -> None:
    assert parse_interval(GPU, SmiOutput(0, words)) is interval


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (SmiOutput(0, ""), StateMismatch),
        (SmiOutput(0, "Timeslice: 2"), StateMismatch),
        (SmiOutput(0, "0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG"), StateMismatch),
        (SmiOutput(0, "Defaults and belongings"), StateMismatch),
        (SmiOutput(1, "Timeslice: Default"), StateMismatch),
        (SmiOutput(0, "Timeslice: N/A"), Unsupported),
        (SmiOutput(3, "Failed to list : Not Supported"), Unsupported),
        (SmiOutput(4, "Insufficient Permissions"), NotPermitted),
    ],
)
def test_a_list_that_names_no_slice_or_several_is_not_guessed_at(
    said: SmiOutput, kind: type[HardwareError]
) -> None:
    with pytest.raises(kind) as caught:
        parse_interval(GPU, said)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("persistent", "after"), [(0, ComputeMode.DEFAULT), (1, ComputeMode.EXCLUSIVE_PROCESS)]
)
async def test_without_persistence_mode_a_new_session_finds_the_default_mode(
    node: StubNode, persistent: int, after: ComputeMode
) -> None:
    node.add_h100s(1).with_live_mig(0)
    first = NvmlHardware(host=node.host)
    gpu = node.uuid(0)
    await first.observe()
    nvml = first._nvml
    nvml.call("nvmlDeviceSetPersistenceMode", nvml.handle(0), persistent)
    step = SetComputeMode(gpu, ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT)
    await first.perform(step)
    await first.close()
    second = NvmlHardware(host=node.host)
    assert (await second.observe()).gpus[0].compute_mode is after
    await second.perform(step)
    assert (await second.observe()).gpus[0].compute_mode is ComputeMode.EXCLUSIVE_PROCESS
    await second.close()
