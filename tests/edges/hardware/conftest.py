"""What the tests run on: the simulation, a C stand-in for NVML, real helper processes, a real GPU."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from partage.cli.hardware import helper_argv
from partage.edges.hardware.helper_client import RemoteHardware
from partage.edges.hardware.helper_server import HelperServer
from partage.edges.hardware.nvml import NvmlHardware
from partage.edges.hardware.port import Hardware
from partage.model.ids import ContainerId
from partage.sim.node.faults import DriverGone, DriverLoaded, Fault, LoseGpu, Occupy, RaiseXid
from partage.sim.node.hardware import SimulatedHardware
from partage.sim.node.machine_names import parse_machine
from tests.compiled import compiled
from tests.edges.hardware.stub import StubNode

SOURCE = Path(__file__).with_name("nvml_stub.c")
MACHINE = "4xh100-sxm5-80gb"
NO_CONTAINER = ContainerId("")


def compiled_stub(folder: Path) -> Path:
    """The stand-in for libnvidia-ml.so.1, compiled into a folder."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    flags = ["-shared", "-fPIC", "-Wl,-Bsymbolic", "-O1", "-Wall", "-Wextra", "-Werror"]
    return compiled(
        folder / "libnvidia-ml.so.1",
        [SOURCE, Path(__file__)],  # the flags stand here
        lambda library: subprocess.run([compiler, *flags, SOURCE, "-o", library], check=True),
    )


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, compiled once."""
    return compiled_stub(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def node(stub_library: Path, short_dir: Path) -> StubNode:
    """A node with the stand-in's driver and no GPU yet."""
    return StubNode(short_dir / "root", stub_library)


@contextlib.asynccontextmanager
async def serving(
    hardware: Hardware, path: Path, **options: object
) -> AsyncIterator[tuple[HelperServer, asyncio.Task[bool]]]:
    """The helper's server, in this process."""
    server, stop = HelperServer(hardware, **options), asyncio.Event()  # type: ignore[arg-type]
    task = asyncio.create_task(server.run(path, stop))
    while not path.exists() and not task.done():
        await asyncio.sleep(0.001)
    try:
        yield server, task
    finally:
        stop.set()
        await task


@dataclass(frozen=True, slots=True)
class Work:
    """A process with a context on a GPU, by index. container: the id in its cgroup; mps: a client of MPS."""

    gpu: int
    pid: int
    name: str = "python"
    used_bytes: int | None = None
    container: ContainerId = NO_CONTAINER
    mps: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """One implementation of the port, and how its node is made to suffer; None where nothing can do that."""

    hardware: Hardware
    raise_xid: Callable[[int, int], Awaitable[None]] | None = None
    lose: Callable[[int], Awaitable[None]] | None = None
    driver_gone: Callable[[], Awaitable[None]] | None = None
    driver_loaded: Callable[[], Awaitable[None]] | None = None
    work: Callable[[Work], Awaitable[None]] | None = None
    leave: Callable[[int], Awaitable[None]] | None = None
    """After a process has ended: takes it off the list of a driver that only knows what is written down."""


def _simulated(simulation: SimulatedHardware, hardware: Hardware) -> Subject:
    def misbehave(fault: Fault) -> Awaitable[None]:
        return simulation.inject(fault)

    return Subject(
        hardware,
        raise_xid=lambda gpu, code: misbehave(RaiseXid(gpu, code)),
        lose=lambda gpu: misbehave(LoseGpu(gpu)),
        driver_gone=lambda: misbehave(DriverGone()),
        driver_loaded=lambda: misbehave(DriverLoaded()),
        work=lambda one: misbehave(
            Occupy(
                one.gpu,
                one.name,
                pid=one.pid,
                memory_bytes=one.used_bytes,
                container=one.container,
                mps=one.mps,
            )
        ),
        leave=lambda pid: asyncio.sleep(0),
    )


def _stubbed(node: StubNode, hardware: Hardware) -> Subject:
    def later(act: Callable[..., None]) -> Callable[..., Awaitable[None]]:
        async def call(*arguments: Any) -> None:
            act(*arguments)

        return call

    return Subject(
        hardware,
        raise_xid=later(node.raise_xid),
        lose=later(node.lose),
        driver_gone=later(node.driver_gone),
        driver_loaded=later(node.driver_loaded),
        work=later(lambda one: _work_on(node, one)),
        leave=later(node.leaves),
    )


def _work_on(node: StubNode, one: Work) -> None:
    used = -1 if one.used_bytes is None else one.used_bytes
    cgroup = f"0::/docker/{one.container}" if one.container else "0::/"
    kinds = "M" if one.mps else "C"
    node.works(one.pid, one.name[:15], gpu=one.gpu, used=used, kinds=kinds, cgroup=cgroup)


def _h100s(request: pytest.FixtureRequest) -> StubNode:
    """Four GPUs of the stand-in that keep MIG mode and instances themselves."""
    node: StubNode = request.getfixturevalue("node")
    node.add_h100s(4)
    for index in range(4):
        node.with_live_mig(index)
    node.add_nvidia_smi()
    node.see_all()
    return node


def _real_library() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _real_library(), reason="this machine has no NVIDIA driver"),
]

_OURS = [
    "simulation",
    "simulation behind a socket",
    # What only a process can do is in ``test_helper_client.py``.
    pytest.param("simulation in a helper process", marks=pytest.mark.real),
    "NVML stand-in",
]
SUBJECTS = [
    *_OURS,
    "NVML stand-in in a helper process",
    pytest.param("NVML", marks=needs_gpu),
    pytest.param("NVML in a helper process", marks=needs_gpu),
]
ACTING_SUBJECTS = [*_OURS, pytest.param("NVML stand-in in a helper process", marks=pytest.mark.real)]
"""Those on which MIG is changed. Never real GPUs, which may be in use."""


@pytest.fixture(params=SUBJECTS)
async def subject(request: pytest.FixtureRequest, short_dir: Path) -> AsyncIterator[Subject]:
    """Every implementation in turn, on a node of four GPUs (the real ones: on whatever there is)."""
    async with _subject(request, short_dir / "h.sock") as one:
        yield one


@pytest.fixture(params=ACTING_SUBJECTS)
async def acting(request: pytest.FixtureRequest, short_dir: Path) -> AsyncIterator[Subject]:
    """Every implementation whose MIG can be changed, on a node of four GPUs with MIG mode off."""
    async with _subject(request, short_dir / "h.sock") as one:
        yield one


@contextlib.asynccontextmanager
async def _subject(request: pytest.FixtureRequest, socket_path: Path) -> AsyncIterator[Subject]:
    kind = request.param
    async with contextlib.AsyncExitStack() as stack:

        def closing(hardware: Hardware) -> Hardware:
            stack.push_async_callback(hardware.close)
            return hardware

        match kind:
            case "simulation":
                simulation = SimulatedHardware(parse_machine(MACHINE))
                yield _simulated(simulation, closing(simulation))
            case "simulation behind a socket":
                simulation = SimulatedHardware(parse_machine(MACHINE))
                await stack.enter_async_context(serving(simulation, socket_path))
                yield _simulated(simulation, closing(RemoteHardware(socket_path)))
            case "simulation in a helper process":
                argv = helper_argv(socket_path, machine=MACHINE)
                yield Subject(closing(RemoteHardware(socket_path, argv)))
            case "NVML stand-in":
                node = _h100s(request)
                yield _stubbed(node, closing(NvmlHardware(host=node.host)))
            case "NVML stand-in in a helper process":
                node = _h100s(request)
                argv = helper_argv(socket_path, driver_root=node.root)
                # The helper looks into the real /proc: what it should see cannot be written there.
                yield replace(_stubbed(node, closing(RemoteHardware(socket_path, argv))), work=None)
            case "NVML":
                yield Subject(closing(NvmlHardware()))
            case "NVML in a helper process":
                yield Subject(closing(RemoteHardware(socket_path, helper_argv(socket_path))))
