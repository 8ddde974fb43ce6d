"""The helper's side of its socket, against peers that mean no good."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partage.edges.hardware import frames
from partage.edges.hardware.frames import PROTOCOL
from partage.edges.hardware.helper_server import VERBS, HelperServer, listen
from partage.edges.hardware.port import Events
from partage.errors import HardwareTimeout, InputError
from partage.model.driver_limit import LimitAt, SeenLimit
from partage.model.gpu import Inventory
from partage.model.gpu_use import GpuUse, Left, Processes
from partage.model.health import GpuCondition
from partage.model.ids import PodUid
from partage.model.mps import DaemonState, PipeTenants
from partage.model.samples import Samples
from partage.model.step import Created, Step, TimeSlice
from partage.sim.node.faults import HangCall
from partage.sim.node.hardware import SimulatedHardware
from partage.sim.node.machine_names import parse_machine
from tests.edges.hardware.conftest import serving
from tests.examples import examples


@pytest.fixture
def simulation() -> SimulatedHardware:
    return SimulatedHardware(parse_machine("2xa100-40gb"))


class Peer:
    """Speaks the protocol by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def at(cls, path: Path) -> Peer:
        return cls(*await asyncio.open_unix_connection(str(path)))

    def say(self, **message: Any) -> None:
        self.writer.write(frames.pack_message(message))

    async def hear(self) -> dict[str, Any] | None:
        async with asyncio.timeout(10):
            return await frames.read_message(self.reader, dict, frames.MOST_ANSWER_BYTES)

    async def ask(self, **message: Any) -> dict[str, Any] | None:
        self.say(**message)
        return await self.hear()

    async def leave(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def test_the_list_of_verbs_is_closed(simulation: SimulatedHardware, short_dir: Path) -> None:
    assert set(VERBS) == {
        "hello",
        "observe",
        "conditions",
        "events",
        "perform",
        "uses",
        "processes",
        "samples",
        "left",
        "time-slices",
        "daemons",
        "limits",
        "tenants",
    }
    async with serving(simulation, short_dir / "s"):
        peer = await Peer.at(short_dir / "s")
        for verb in ("close", "inject", "__class__", "", "x" * 1000):
            answer = await peer.ask(id=1, verb=verb)
            assert answer is not None
            assert answer["error"]["type"] == "Unsupported"
        assert await peer.ask(id=2, verb="hello") == {
            "id": 2,
            "result": {"protocol": PROTOCOL, "pid": os.getpid(), "coldSeconds": 0.0},
        }
        await peer.leave()


async def test_a_long_wait_for_events_holds_up_nothing(
    simulation: SimulatedHardware, short_dir: Path
) -> None:
    async with serving(simulation, short_dir / "s"):
        peer = await Peer.at(short_dir / "s")
        peer.say(id=1, verb="events", arguments=60)
        answer = await peer.ask(id=2, verb="observe")
        assert answer is not None
        assert answer["id"] == 2
        await peer.leave()


async def test_a_peer_cannot_pile_up_requests_without_end(
    simulation: SimulatedHardware, short_dir: Path
) -> None:
    async with serving(simulation, short_dir / "s"):
        peer = await Peer.at(short_dir / "s")
        for number in range(33):
            peer.say(id=number, verb="events", arguments=60)
        answer = await peer.hear()
        assert answer is not None
        assert answer["id"] == 32
        assert "too many" in answer["error"]["problems"][0]["message"]
        await peer.leave()


@pytest.mark.parametrize("timeout_s", [-1, 61, 1e9, "5", None, [5], {"a": 5}])
async def test_a_wait_that_is_no_reasonable_number_is_refused(
    simulation: SimulatedHardware, short_dir: Path, timeout_s: Any
) -> None:
    async with serving(simulation, short_dir / "s"):
        peer = await Peer.at(short_dir / "s")
        answer = await peer.ask(id=1, verb="events", arguments=timeout_s)
        assert answer is not None
        assert answer["error"]["type"] == "InputError"
        await peer.leave()


@pytest.mark.parametrize(
    "step",
    [
        None,
        "SetMigMode",
        {},
        {"type": "set-mig-mode"},
        {"type": "gpu-use"},
        {"type": "set-mig-mode", "gpu": ["x"], "enabled": True},
    ],
)
async def test_what_is_no_act_is_not_performed(
    simulation: SimulatedHardware, short_dir: Path, step: Any
) -> None:
    async with serving(simulation, short_dir / "s"):
        peer = await Peer.at(short_dir / "s")
        answer = await peer.ask(id=1, verb="perform", arguments=step)
        assert answer is not None
        assert answer["error"]["type"] == "InputError"
        await peer.leave()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", 2**32 - 1),
        struct.pack(">I", frames.MOST_REQUEST_BYTES + 1) + b"{",
        struct.pack(">I", 4) + b"null",
        struct.pack(">I", 2) + b"{}",
        frames.pack_message({"id": "1", "verb": "hello"}),
        frames.pack_message({"id": True, "verb": "hello"}),
        frames.pack_message({"id": 1, "verb": ["hello"]}),
        struct.pack(">I", 60_000) + b"[" * 60_000,
    ],
)
async def test_what_is_no_request_ends_its_connection_and_nothing_else(
    simulation: SimulatedHardware, short_dir: Path, garbage: bytes
) -> None:
    async with serving(simulation, short_dir / "s"):
        friend, enemy = await Peer.at(short_dir / "s"), await Peer.at(short_dir / "s")
        enemy.writer.write(garbage)
        assert await enemy.hear() is None
        assert await friend.ask(id=7, verb="hello") is not None
        await enemy.leave()
        await friend.leave()


async def test_a_peer_that_leaves_in_the_middle_of_a_message_is_forgotten(
    simulation: SimulatedHardware, short_dir: Path
) -> None:
    async with serving(simulation, short_dir / "s"):
        peer = await Peer.at(short_dir / "s")
        peer.writer.write(struct.pack(">I", 100) + b'{"id"')
        await peer.leave()
        peer = await Peer.at(short_dir / "s")
        assert await peer.ask(id=1, verb="hello") is not None
        await peer.leave()


@pytest.fixture(scope="module")
def standing_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One server on a thread, for many examples."""
    path = Path("/tmp") / f"partage-{os.getpid()}-fuzz.sock"
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    ready = threading.Event()

    async def serve() -> None:
        event = asyncio.Event()
        stop.append((asyncio.get_running_loop(), event))
        async with serving(SimulatedHardware(parse_machine("l4")), path):
            ready.set()
            await event.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait(10)
    yield path
    loop, event = stop[0]
    loop.call_soon_threadsafe(event.set)
    thread.join(10)


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=200))
def test_no_bytes_whatever_end_the_helper(standing_server: Path, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as enemy:
        enemy.settimeout(10)
        enemy.connect(str(standing_server))
        enemy.sendall(data)
    with socket.socket(socket.AF_UNIX) as friend:
        friend.settimeout(10)
        friend.connect(str(standing_server))
        friend.sendall(frames.pack_message({"id": 1, "verb": "hello"}))
        assert json.loads(friend.recv(65536)[4:])["result"]["protocol"] == PROTOCOL


# --- who may ask -----------------------------------------------------------------------------------

CONNECT = """
import json, socket, sys
peer = socket.socket(socket.AF_UNIX); peer.settimeout(10); peer.connect(sys.argv[1])
data = b''
while chunk := peer.recv(65536): data += chunk
print(data[4:].decode())
"""


def test_only_root_the_owner_and_allowed_users_may_ask(simulation: SimulatedHardware) -> None:
    server = HelperServer(simulation, allowed_uids=frozenset({4242}))
    assert [server.permits(uid) for uid in (0, os.geteuid(), 4242)] == [True] * 3
    assert not server.permits(4243)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
async def test_another_user_is_refused_and_told_so(simulation: SimulatedHardware, short_dir: Path) -> None:
    short_dir.chmod(0o755)
    async with serving(simulation, short_dir / "s", allowed_uids=frozenset({4242})):
        stranger = await asyncio.create_subprocess_exec(
            "/usr/bin/env", "-i", _system_python(), "-c", CONNECT, str(short_dir / "s"), user=65534, stdout=-1
        )
        output, _ = await stranger.communicate()
    answer = json.loads(output)
    assert answer["error"]["type"] == "NotPermitted"
    assert "65534" in answer["error"]["problems"][0]["message"]


async def test_a_process_that_the_rule_does_not_allow_is_refused_and_told_why(
    simulation: SimulatedHardware, short_dir: Path
) -> None:
    asked: list[int] = []

    def why_not(pid: int) -> str:
        asked.append(pid)
        return "" if pid == os.getpid() else f"process {pid} is in another container"

    async with serving(simulation, short_dir / "s", why_not_allowed=why_not):
        stranger = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CONNECT, str(short_dir / "s"), stdout=-1
        )
        output, _ = await stranger.communicate()
        peer = await Peer.at(short_dir / "s")
        answer = await peer.ask(id=1, verb="hello")
        await peer.leave()
    assert answer is not None
    assert answer["result"]["protocol"] == PROTOCOL
    assert "another container" in json.loads(output)["error"]["problems"][0]["message"]
    assert asked == [stranger.pid, os.getpid()]


def _system_python() -> str:
    """An interpreter that a stranger can execute: ours may lie in a home directory."""
    for candidate in ("/usr/bin/python3", sys.executable):
        able = subprocess.run([candidate, "-c", ""], user=65534, check=False, capture_output=True, cwd="/")
        if able.returncode == 0:
            return candidate
    pytest.skip("no Python that another user can run")


@pytest.mark.parametrize(("guests", "mode"), [(frozenset(), 0o600), (frozenset({4242}), 0o666)])
async def test_the_sockets_file_is_as_open_as_it_has_to_be(
    simulation: SimulatedHardware, short_dir: Path, guests: frozenset[int], mode: int
) -> None:
    async with serving(simulation, short_dir / "s", allowed_uids=guests):
        assert (short_dir / "s").stat().st_mode & 0o777 == mode


# --- the socket's file -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x" * 108, "missing/s"])
def test_a_path_that_cannot_be_listened_on_is_an_input_error(short_dir: Path, name: str) -> None:
    with pytest.raises(InputError):
        listen(short_dir / name, open_to_all=False)


async def test_the_newest_helper_has_the_path_and_an_old_one_does_not_take_it_along(
    simulation: SimulatedHardware, short_dir: Path
) -> None:
    path = short_dir / "s"
    async with serving(simulation, path):
        old, stop = HelperServer(simulation), asyncio.Event()
        running = asyncio.create_task(old.run(path, stop))
        while path.stat().st_ino == 0 or not (peer := await Peer.at(path)):
            await asyncio.sleep(0.01)
        await peer.leave()
    assert path.exists()
    stop.set()
    assert await running
    assert not path.exists()


# --- calls that hang, and bugs ---------------------------------------------------------------------


async def test_a_call_that_hangs_is_answered_and_ends_the_helper(
    simulation: SimulatedHardware, short_dir: Path
) -> None:
    await simulation.inject(HangCall("observe"))
    async with serving(simulation, short_dir / "s", deadline_s=0.05) as (_, task):
        peer = await Peer.at(short_dir / "s")
        answer = await peer.ask(id=1, verb="observe")
        assert answer is not None
        assert answer["error"]["type"] == "HardwareTimeout"
        async with asyncio.timeout(10):
            assert await task is False
        await peer.leave()


async def test_a_look_for_processes_that_hangs_ends_no_helper(
    simulation: SimulatedHardware, short_dir: Path
) -> None:
    """The next one would hang, too, and meanwhile nobody would look at the GPUs."""
    await simulation.inject(HangCall("left", times=None))
    async with serving(simulation, short_dir / "s", deadline_s=0.05) as (_, task):
        peer = await Peer.at(short_dir / "s")
        answer = await peer.ask(id=1, verb="left", arguments=[])
        assert answer is not None
        assert answer["error"]["type"] == "HardwareTimeout"
        answer = await peer.ask(id=2, verb="observe")
        assert answer is not None
        assert "error" not in answer or answer["error"] is None
        assert not task.done()
        await peer.leave()


class Broken:
    """Hardware with a bug."""

    async def observe(self) -> Inventory:
        raise ZeroDivisionError("a bug")

    async def conditions(self) -> tuple[GpuCondition, ...]:
        raise HardwareTimeout("hangs")

    async def events(self, timeout_s: float) -> Events:
        return Events()

    async def perform(self, step: Step) -> Created | None:
        raise ZeroDivisionError(str(step))

    async def uses(self) -> tuple[GpuUse, ...]:
        return ()

    async def processes(self) -> Processes:
        return Processes()

    async def left_of(self, pods: Collection[PodUid]) -> Left:
        return Left()

    async def samples(self) -> Samples:
        return Samples()

    async def time_slices(self) -> tuple[TimeSlice, ...]:
        return ()

    async def daemons(self) -> tuple[DaemonState, ...]:
        return ()

    async def limits(self, asked: Collection[LimitAt]) -> tuple[SeenLimit, ...]:
        del asked
        return ()

    async def tenants(self) -> PipeTenants:
        return PipeTenants()

    async def close(self) -> None:
        return


async def test_a_bug_is_not_hidden(short_dir: Path) -> None:
    task = asyncio.create_task(HelperServer(Broken()).run(short_dir / "s", asyncio.Event()))
    while not (short_dir / "s").exists():
        await asyncio.sleep(0.001)
    peer = await Peer.at(short_dir / "s")
    assert await peer.ask(id=1, verb="observe") is None
    with pytest.raises(ZeroDivisionError):
        await task
    await peer.leave()
