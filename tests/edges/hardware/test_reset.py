"""A GPU reset: nvidia-smi is a script that resets the stand-in's GPUs, unless they are in use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from partage.edges.hardware import reset
from partage.edges.hardware.nvml import NvmlHardware
from partage.edges.hardware.port import Events
from partage.edges.hardware.reset import running_reset
from partage.errors import (
    GpuInUse,
    GpuLost,
    HardwareError,
    HardwareTimeout,
    NotFound,
    NotPermitted,
    Unsupported,
)
from partage.model.gpu import MigMode
from partage.model.ids import GpuUuid
from partage.model.step import Reset, SetMigMode
from tests.edges.hardware.stub import StubNode

BOTH = (StubNode.uuid(0), StubNode.uuid(1))
STEP = Reset(BOTH, BOTH[:1])
ON = MigMode(current=True, pending=True)
LIMIT_S = 10.0


@pytest.fixture
async def pair(node: StubNode) -> AsyncIterator[NvmlHardware]:
    """Two GPUs; the MIG mode of the first waits for a reset."""
    node.add_h100s(2).with_live_mig(0, direct=False).with_live_mig(1, direct=False)
    hardware = NvmlHardware(host=node.host)
    await hardware.perform(SetMigMode(BOTH[0], enabled=True))
    yield hardware
    await hardware.close()


async def modes(hardware: NvmlHardware) -> list[MigMode | None]:
    return [gpu.mig_mode for gpu in (await hardware.observe()).gpus]


async def test_a_reset_brings_the_mode_into_force_and_names_all_gpus_in_one_call(
    node: StubNode, pair: NvmlHardware
) -> None:
    log = node.add_nvidia_smi()
    assert await pair.perform(STEP) is None
    assert log.read_text() == f"--gpu-reset -i {','.join(BOTH)}\n"
    assert (await modes(pair))[0] == ON


async def test_our_own_session_and_watch_are_closed_for_the_reset_and_opened_again(
    node: StubNode, pair: NvmlHardware
) -> None:
    # The stand-in refuses a reset while any session is open.
    node.add_nvidia_smi()
    while await pair.events(0.0) != Events():
        pass
    waiting = asyncio.create_task(pair.events(LIMIT_S))
    await pair.observe()
    async with asyncio.timeout(LIMIT_S):
        await pair.perform(STEP)
        assert (await waiting) == Events(changed=True)
    assert (await modes(pair))[0] == ON


async def test_who_looks_while_the_reset_goes_on_waits_and_does_not_disturb_it(
    node: StubNode, pair: NvmlHardware
) -> None:
    started, go = node.root / "started", node.root / "go"
    node.add_nvidia_smi(
        f"import os, time\nopen({str(started)!r}, 'w')\nend = time.monotonic() + {LIMIT_S}\n"
        f"while not os.path.exists({str(go)!r}) and time.monotonic() < end: time.sleep(0.005)"
    )
    act = asyncio.create_task(pair.perform(STEP))
    async with asyncio.timeout(LIMIT_S):
        while not started.exists():
            await asyncio.sleep(0.005)
        look = asyncio.create_task(modes(pair))
        await asyncio.sleep(0.05)
        assert not look.done()
        go.touch()
        await act
        assert (await look)[0] == ON


async def test_persistence_mode_is_off_for_the_reset_and_on_again_after_it(
    node: StubNode, pair: NvmlHardware
) -> None:
    node.add_nvidia_smi()
    nvml = pair._nvml
    for handle in nvml.handles().values():
        nvml.call("nvmlDeviceSetPersistenceMode", handle, 1)
    await pair.perform(STEP)
    assert (await modes(pair))[0] == ON
    assert [nvml.call("nvmlDeviceGetPersistenceMode", handle) for handle in nvml.handles().values()] == [1, 1]


async def test_a_gpu_in_use_is_not_reset(node: StubNode, pair: NvmlHardware) -> None:
    node.add_nvidia_smi()
    node.file("sys/module/nvidia_drm/refcnt", "1\n")
    node.write(**{"gpu.1.monitor": 1})
    with pytest.raises(GpuInUse, match=r"In use by another client.*modprobe -r nvidia_drm"):
        await pair.perform(STEP)
    assert (await modes(pair))[0] == MigMode(current=False, pending=True)


async def test_a_reset_that_succeeded_although_nvidia_smi_failed_has_succeeded(
    node: StubNode, pair: NvmlHardware
) -> None:
    node.add_nvidia_smi(
        f"ctypes.CDLL({str(node.library)!r}).stubReset({','.join(BOTH).encode()!r}); sys.exit(1)"
    )
    await pair.perform(STEP)
    assert (await modes(pair))[0] == ON


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Resetting GPU 00000000:1A:00.0 is not supported.", Unsupported),
        ("Unable to reset this GPU because it is NVLink connected.", Unsupported),
        ("Unable to reset this GPU: Insufficient Permissions", NotPermitted),
        ("Unknown Error", HardwareError),
        ("", HardwareError),
    ],
)
async def test_what_nvidia_smi_says_decides_the_error(
    node: StubNode, pair: NvmlHardware, words: str, kind: type[HardwareError]
) -> None:
    node.add_nvidia_smi(f"print({words!r}); sys.exit(3)")
    with pytest.raises(kind, match=words or "code 3") as caught:
        await pair.perform(STEP)
    assert type(caught.value) is kind


async def test_a_reset_that_changed_nothing_is_an_error_even_if_nvidia_smi_is_content(
    node: StubNode, pair: NvmlHardware
) -> None:
    node.add_nvidia_smi("sys.exit(0)")
    with pytest.raises(HardwareError, match="still waits for it"):
        await pair.perform(STEP)


async def test_a_reset_for_another_reason_than_a_mode_has_nvidia_smis_word_alone(
    node: StubNode, pair: NvmlHardware
) -> None:
    await pair.perform(SetMigMode(BOTH[0], enabled=False))
    node.add_nvidia_smi("print('no'); sys.exit(1)")
    with pytest.raises(HardwareError, match="did not succeed: no"):
        await pair.perform(Reset(BOTH, ()))


async def test_a_reset_without_nvidia_smi_says_what_is_missing(pair: NvmlHardware) -> None:
    with pytest.raises(Unsupported, match=r"needs nvidia-smi.*install the driver's tools"):
        await pair.perform(STEP)


async def test_a_reset_that_does_not_end_is_given_up_and_nvidia_smi_goes_on(
    node: StubNode, pair: NvmlHardware
) -> None:
    """Ended in the middle of a reset it can leave a GPU that no longer answers."""
    go, done = node.root / "go", node.root / "done"
    node.add_nvidia_smi(
        f"import os, time\n\n"
        f"while os.path.exists({str(node.root)!r}) and not os.path.exists({str(go)!r}): time.sleep(0.005)\n"
        f"print('a line that nobody reads'); open({str(done)!r}, 'w'); sys.exit(0)"
    )
    with pytest.raises(HardwareTimeout, match="within 1 s"):
        await reset.reset_gpus(node.host, BOTH, deadline_s=1.0)
    go.touch()
    async with asyncio.timeout(LIMIT_S):
        while not done.exists() or running_reset(node.host):
            await asyncio.sleep(0.005)
    assert (await modes(pair))[0] == MigMode(current=False, pending=True)


async def test_a_mode_that_is_in_force_already_needs_no_reset(node: StubNode, pair: NvmlHardware) -> None:
    """As where the driver of an Ampere board resets it when the mode is set."""
    log = node.add_nvidia_smi("print('not supported'); sys.exit(1)")
    node.write(**{"gpu.0.live": "direct", "gpu.0.arch": 7, "gpu.0.field.184": 0})
    await pair.perform(SetMigMode(BOTH[0], enabled=True))
    assert (await modes(pair))[0] == ON
    await pair.perform(STEP)
    assert not log.exists()


async def test_a_gpu_that_is_not_there_or_does_not_come_back_is_named(
    node: StubNode, pair: NvmlHardware
) -> None:
    node.add_nvidia_smi()
    with pytest.raises(NotFound, match="no GPU GPU-9"):
        await pair.perform(Reset((GpuUuid("GPU-9"),), ()))
    machine = node.library.with_name("machine.txt")
    node.add_nvidia_smi(f"open({str(machine)!r}, 'a').write('gpu.1.code 15' + chr(10))")
    with pytest.raises(GpuLost, match=f"{BOTH[1]} did not come back"):
        await pair.perform(STEP)
    with pytest.raises(GpuLost, match="not among those that answer"):
        await pair.perform(STEP)
