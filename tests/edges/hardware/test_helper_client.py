"""The helper process: killed, stopped, replaced; nothing of it keeps running."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from partage.cli.hardware import helper_argv
from partage.codec.values import from_error
from partage.edges.hardware import frames
from partage.edges.hardware.frames import PROTOCOL
from partage.edges.hardware.helper_client import RemoteHardware
from partage.edges.hardware.port import Events
from partage.edges.hardware.supervisor import HelperPauses, HelperSupervisor
from partage.errors import DriverUnavailable, GpuInUse, HardwareTimeout, InputError, NotFound, Unsupported
from partage.model.gpu import Driver
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.health import Xid
from partage.model.ids import GpuUuid, PodUid
from partage.model.step import SetMigMode
from partage.sim.node.faults import HangCall, Occupy, RaiseXid
from partage.sim.node.files.load import load_machine
from partage.sim.node.files.machine_writer import machine_text
from partage.sim.node.hardware import SimulatedHardware
from partage.sim.node.machine import Machine
from partage.sim.node.machine_names import parse_machine
from tests.edges.hardware.conftest import serving
from tests.edges.hardware.stub import StubNode

LIMIT_S = 15.0


@pytest.fixture
async def remote(short_dir: Path) -> AsyncIterator[RemoteHardware]:
    """A helper process that serves a simulated node, connected."""
    path = short_dir / "h.sock"
    hardware = RemoteHardware(path, helper_argv(path, machine="2xa100-40gb"), deadline_s=2.0)
    await hardware.observe()
    yield hardware
    await hardware.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def test_cold_gpus_cost_no_helper(node: StubNode, short_dir: Path) -> None:
    """The first calls may take as long as all GPUs need, one after the other."""
    node.add_h100s(4).write(**{f"gpu.{index}.cold": 400 for index in range(4)})
    path = short_dir / "h.sock"
    hardware = RemoteHardware(path, helper_argv(path, driver_root=node.root), deadline_s=0.5)
    try:
        observed, conditions = await asyncio.gather(hardware.observe(), hardware.conditions())
        assert (len(observed.gpus), len(conditions), hardware.state.restarts) == (4, 4, 0)
    finally:
        await hardware.close()


def pid_of(hardware: RemoteHardware) -> int:
    assert hardware.state.pid is not None
    return hardware.state.pid


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_helper_that_is_killed_in_the_middle_of_a_call_is_replaced(remote: RemoteHardware) -> None:
    before = await remote.observe()
    waiting = asyncio.create_task(remote.events(LIMIT_S))
    await asyncio.sleep(0)
    first = pid_of(remote)
    os.kill(first, signal.SIGSTOP)
    calls = [asyncio.create_task(remote.observe()) for _ in range(3)]
    await asyncio.sleep(0.05)
    os.kill(first, signal.SIGKILL)
    outcomes = await asyncio.gather(*calls, waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [DriverUnavailable] * 4, "told, and not at a deadline"
    assert (await remote.events(LIMIT_S)).changed
    assert remote.state.up
    assert (remote.state.restarts, bool(remote.state.last_error)) == (1, True)
    assert pid_of(remote) != first
    assert await remote.observe() == before


async def test_a_helper_that_hangs_is_killed_and_replaced(remote: RemoteHardware) -> None:
    first = pid_of(remote)
    os.kill(first, signal.SIGSTOP)
    with pytest.raises(HardwareTimeout, match="observe"):
        await remote.observe()
    with pytest.raises(DriverUnavailable, match="away"):
        await remote.conditions()
    assert (await remote.events(LIMIT_S)).changed
    assert pid_of(remote) != first
    assert not runs(first)
    assert await remote.conditions()


# --- acts ------------------------------------------------------------------------------------------

NODE = "gpus: [{name: h100-sxm5-80gb}]\nfaults: [{call: perform, after-calls: 1, "


async def failing(short_dir: Path, fault: str, step_deadline_s: float = LIMIT_S) -> RemoteHardware:
    """A helper whose second question, an act, ends badly."""
    machine = short_dir / "machine.yaml"
    machine.write_text(f"{NODE}{fault}}}]\n")
    argv = helper_argv(short_dir / "h.sock", machine=str(machine))
    return RemoteHardware(short_dir / "h.sock", argv, step_deadline_s=step_deadline_s)


async def serves_again(hardware: RemoteHardware) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not (hardware.state.up and hardware.state.restarts):
            with contextlib.suppress(DriverUnavailable):
                await hardware.observe()
            await asyncio.sleep(0.01)


async def test_a_helper_that_is_killed_in_the_middle_of_an_act_is_known_at_once(short_dir: Path) -> None:
    hardware = await failing(short_dir, "hang: true")
    before = await hardware.observe()
    act = asyncio.create_task(hardware.perform(SetMigMode(before.gpus[0].uuid, enabled=True)))
    await asyncio.sleep(0.2)
    assert not act.done()
    began = time.monotonic()
    os.kill(pid_of(hardware), signal.SIGKILL)
    with pytest.raises(DriverUnavailable):
        await act
    assert time.monotonic() - began < LIMIT_S / 3
    await serves_again(hardware)
    assert await hardware.observe() == before  # what the act did is read, not guessed
    await hardware.close()


async def test_an_act_that_hangs_costs_a_helper_and_nothing_else(short_dir: Path) -> None:
    hardware = await failing(short_dir, "hang: true", step_deadline_s=0.5)
    gpu = (await hardware.observe()).gpus[0].uuid
    first = pid_of(hardware)
    with pytest.raises(HardwareTimeout, match="perform"):
        await hardware.perform(SetMigMode(gpu, enabled=True))
    await serves_again(hardware)
    assert await hardware.observe()
    assert not runs(first)
    await hardware.close()


async def test_an_act_that_was_done_before_its_answer_was_lost_shows_in_what_is_read(short_dir: Path) -> None:
    hardware = await failing(short_dir, "fail: driver-unavailable, done: true")
    gpu = (await hardware.observe()).gpus[0].uuid
    with pytest.raises(DriverUnavailable, match="simulated"):
        await hardware.perform(SetMigMode(gpu, enabled=True))
    assert (await hardware.observe()).gpus[0].mig_enabled
    await hardware.close()


async def test_a_look_during_a_long_act_is_no_helper_that_hangs(short_dir: Path) -> None:
    simulation = SimulatedHardware(parse_machine("h100-sxm5-80gb"))
    await simulation.inject(HangCall("perform", seconds=2.5))
    await simulation.inject(HangCall("observe", seconds=0.8, times=2))
    async with serving(simulation, short_dir / "s", deadline_s=0.3):
        hardware = RemoteHardware(short_dir / "s", deadline_s=0.3)
        act = asyncio.create_task(hardware.perform(SetMigMode(GpuUuid("GPU-x"), enabled=True)))
        await asyncio.sleep(0.05)
        assert (await hardware.observe()).gpus
        with pytest.raises(NotFound):
            await act
        await hardware.close()


async def test_who_is_in_the_way_is_said_by_name(short_dir: Path) -> None:
    simulation = SimulatedHardware(parse_machine("h100-sxm5-80gb"))
    await simulation.inject(Occupy(0, "nv-hostengine", UseKind.MONITOR, pid=812))
    async with serving(simulation, short_dir / "s"):
        hardware = RemoteHardware(short_dir / "s")
        gpu = (await hardware.observe()).gpus[0].uuid
        assert await hardware.uses() == (GpuUse(gpu, UseKind.MONITOR, "nv-hostengine", 812),)
        with pytest.raises(GpuInUse) as caught:
            await hardware.perform(SetMigMode(gpu, enabled=True))
        assert caught.value.uses == ("monitor nv-hostengine (pid 812)",)
        await hardware.close()


# --- the driver ------------------------------------------------------------------------------------


async def test_a_driver_call_that_hangs_costs_a_helper_and_nothing_else(
    node: StubNode, short_dir: Path
) -> None:
    node.add_h100s(2)
    path = short_dir / "h.sock"
    hardware = RemoteHardware(path, helper_argv(path, driver_root=node.root), deadline_s=1.0)
    before = await hardware.observe()
    first = pid_of(hardware)
    node.write(**{"hang.nvmlDeviceGetCount_v2": 60_000})
    with pytest.raises(HardwareTimeout):
        await hardware.observe()
    node.write(**{"hang.nvmlDeviceGetCount_v2": None})
    assert (await hardware.events(LIMIT_S)).changed
    assert await hardware.observe() == before
    assert not runs(first)
    await hardware.close()


async def test_a_new_helper_notices_a_new_driver(node: StubNode, short_dir: Path) -> None:
    node.add_h100s(1)
    path = short_dir / "h.sock"
    hardware = RemoteHardware(path, helper_argv(path, driver_root=node.root))
    assert (await hardware.observe()).driver == Driver("550.163.01", "12.4")
    node.driver_loaded("580.95.05")
    os.kill(pid_of(hardware), signal.SIGKILL)
    await until(lambda: not hardware.state.up)
    assert (await hardware.events(LIMIT_S)).changed
    assert (await hardware.observe()).driver == Driver("580.95.05", "12.4")
    await hardware.close()


async def test_a_cancelled_call_leaves_the_helper_alone(remote: RemoteHardware) -> None:
    first = pid_of(remote)
    os.kill(first, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await remote.observe()
    os.kill(first, signal.SIGCONT)
    await remote.observe()
    assert (pid_of(remote), remote.state.restarts) == (first, 0)


async def test_an_older_helper_does_not_look_for_processes_and_is_kept(short_dir: Path) -> None:
    unknown = from_error(Unsupported("the helper has no such verb"))
    answers = [frames.pack_message(frames.HelperAnswer(number, error=unknown)) for number in (2, 3)]
    server = await answering(short_dir / "s", HELLO, *answers)
    hardware = RemoteHardware(short_dir / "s")
    assert "older than the agent" in (await hardware.left_of([PodUid("u")])).unseen
    assert "older than the agent" in (await hardware.tenants()).unseen
    assert hardware.state.up
    assert not hardware.state.restarts
    await hardware.close()
    server.close()


async def test_the_helper_has_a_session_of_its_own_and_ends_with_close(short_dir: Path) -> None:
    path = short_dir / "h.sock"
    hardware = RemoteHardware(path, helper_argv(path, machine="l4"))
    await hardware.observe()
    pid = pid_of(hardware)
    assert os.getsid(pid) == pid
    await hardware.close()
    assert not runs(pid)
    assert not path.exists()
    with pytest.raises(DriverUnavailable, match="closed"):
        await hardware.observe()


AGENT = """
import asyncio, sys
from partage.edges.hardware.helper_client import RemoteHardware
from partage.cli.hardware import helper_argv

async def main():
    hardware = RemoteHardware(sys.argv[1], helper_argv(sys.argv[1], machine="l4"))
    await hardware.observe()
    print(hardware.state.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_the_helper_ends_when_its_agent_is_killed(short_dir: Path) -> None:
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(short_dir / "h.sock")], stdout=subprocess.PIPE, text=True
    )
    assert agent.stdout is not None
    pid = int(agent.stdout.readline())
    assert runs(pid)
    agent.kill()
    agent.wait()
    agent.stdout.close()
    await until(lambda: not runs(pid))


async def test_a_helper_that_refuses_its_options_is_not_tried_again(short_dir: Path) -> None:
    path, count = short_dir / "h.sock", short_dir / "starts"
    hardware = RemoteHardware(path, ["/bin/sh", "-c", f"echo >> {count}; exit 2"])
    for _ in range(2):
        with pytest.raises(InputError, match="refuses its options"):
            await hardware.observe()
    assert count.read_text() == "\n"
    await hardware.close()


async def test_options_that_were_right_once_do_not_end_the_agent(short_dir: Path) -> None:
    """A machine file or a run directory that is gone when the helper has to be replaced may come back."""
    path, machine = short_dir / "h.sock", short_dir / "machine.yaml"
    simulated = SimulatedHardware(load_machine("2xa100-40gb"))
    machine.write_text(machine_text(Machine("", await simulated.observe()), as_yaml=False))
    hardware = RemoteHardware(path, helper_argv(path, machine=str(machine)))
    before = await hardware.observe()
    machine.rename(short_dir / "elsewhere.yaml")
    os.kill(pid_of(hardware), signal.SIGKILL)
    await until(lambda: "refuses its options" in hardware.state.trouble)
    with pytest.raises(DriverUnavailable):
        await hardware.observe()
    (short_dir / "elsewhere.yaml").rename(machine)
    await until(lambda: hardware.state.up)
    assert (await hardware.observe(), hardware.state.trouble) == (before, "")
    await hardware.close()


async def test_a_helper_that_cannot_begin_is_tried_again_and_again_with_growing_pauses(
    short_dir: Path,
) -> None:
    path, count = short_dir / "h.sock", short_dir / "starts"
    hardware = RemoteHardware(path, ["/bin/sh", "-c", f"echo >> {count}; exit 7"])
    with pytest.raises(DriverUnavailable, match="exit code 7"):
        await hardware.observe()
    await until(lambda: hardware.state.restarts == 2)
    assert not hardware.state.up
    assert "exit code 7" in hardware.state.last_error
    with pytest.raises(DriverUnavailable):
        await hardware.events(0.01)
    await until(lambda: count.read_text().count("\n") == 3)
    await hardware.close()


@pytest.mark.parametrize(
    ("in_a_row", "ended_itself", "elsewhere", "pause"),
    [
        (1, True, False, 0.2),
        (4, True, False, 1.6),
        (5, True, False, 2.0),
        (10**6, True, False, 2.0),
        (1, False, False, 0.2),
        (5, False, False, 3.2),
        (10**6, False, False, 30.0),
        (1, True, True, 0.2),
        (10**6, True, True, 1.0),
        (10**6, False, True, 1.0),
    ],
)
def test_a_pause_is_long_only_where_helpers_hang_or_cannot_begin(
    in_a_row: int, ended_itself: bool, elsewhere: bool, pause: float
) -> None:
    said = HelperPauses().next_s(in_a_row, ended_itself=ended_itself, elsewhere=elsewhere)
    assert said == pytest.approx(pause)


async def test_after_one_that_served_the_next_helper_is_there_soon(short_dir: Path) -> None:
    """However many have died: a claim that waits gets its answer."""
    path, pauses = short_dir / "h.sock", HelperPauses(first_s=2 * LIMIT_S, after_service_s=0.01)
    keeper = HelperSupervisor(path, helper_argv(path, machine="l4"), lambda: None, pauses=pauses)
    await keeper.connection()
    assert keeper.state.pid is not None
    os.kill(keeper.state.pid, signal.SIGKILL)
    await until(lambda: keeper.state.restarts == 1 and keeper.state.up)
    await keeper.close()


async def test_a_helper_that_does_not_exist_is_a_state_and_no_crash(short_dir: Path) -> None:
    hardware = RemoteHardware(short_dir / "h.sock", [str(short_dir / "no-such-program")])
    with pytest.raises(DriverUnavailable, match="no-such-program"):
        await hardware.observe()
    await hardware.close()


def test_a_path_that_no_socket_can_have_is_the_operators_mistake() -> None:
    with pytest.raises(InputError, match="107"):
        RemoteHardware("/run/" + "x" * 103)


# --- a helper that is started elsewhere --------------------------------------------------------------


async def test_a_helper_that_is_started_elsewhere_is_found_when_it_comes(short_dir: Path) -> None:
    path = short_dir / "h.sock"
    hardware = RemoteHardware(path)
    with pytest.raises(DriverUnavailable, match="no helper listens"):
        await hardware.observe()
    async with serving(SimulatedHardware(parse_machine("l4")), path):
        assert (await hardware.events(LIMIT_S)).changed
        assert len((await hardware.observe()).gpus) == 1
    await hardware.close()


async def test_a_helper_that_is_started_elsewhere_is_found_soon_however_often_it_died(
    short_dir: Path,
) -> None:
    """Its pauses would be minutes after 15 deaths; and a try that finds nobody is no restart."""
    path, deaths = short_dir / "h.sock", 15
    pauses = HelperPauses(first_s=0.01, longest_s=1000.0, elsewhere_s=0.02)
    keeper = HelperSupervisor(path, None, lambda: None, pauses=pauses)
    with pytest.raises(DriverUnavailable, match="no helper listens"):
        await keeper.connection()
    for _ in range(deaths):
        async with serving(SimulatedHardware(parse_machine("l4")), path):
            await until(lambda: keeper.state.up)
        await until(lambda: not keeper.state.up)
    await until(lambda: "no helper listens" in keeper.state.trouble)
    assert keeper.state.restarts == deaths
    await keeper.close()


async def test_events_reach_a_waiter_across_the_socket_and_survive_between_two_waiters(
    short_dir: Path,
) -> None:
    simulation = SimulatedHardware(parse_machine("2xl4"))
    async with serving(simulation, short_dir / "s"):
        hardware = RemoteHardware(short_dir / "s")
        uuids = [gpu.uuid for gpu in (await hardware.observe()).gpus]
        assert await hardware.events(0.01) == Events()
        await simulation.inject(RaiseXid(0, 13))
        await asyncio.sleep(0.05)
        await simulation.inject(RaiseXid(1, 31))
        xids: tuple[Xid, ...] = ()
        async with asyncio.timeout(LIMIT_S):
            while len(xids) < 2:
                xids += (await hardware.events(1)).xids
        assert xids == (Xid(uuids[0], 13, resets=0), Xid(uuids[1], 31, resets=0))
        await hardware.close()


async def test_a_hang_of_a_simulated_call_is_a_timeout_here(short_dir: Path) -> None:
    simulation = SimulatedHardware(parse_machine("l4"), deadline_s=0.05)
    await simulation.inject(HangCall("observe"))
    async with serving(simulation, short_dir / "s"):
        hardware = RemoteHardware(short_dir / "s")
        with pytest.raises(HardwareTimeout, match="observe"):
            await hardware.observe()
        await hardware.close()


async def answering(path: Path, *answers: bytes) -> asyncio.Server:
    """A helper that reads one request for each answer, and says that."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await frames.read_message(reader, frames.HelperRequest, frames.MOST_REQUEST_BYTES)
            writer.write(answer)
        await reader.read()
        writer.close()

    return await asyncio.start_unix_server(converse, str(path))


HELLO = frames.pack_message({"id": 1, "result": {"protocol": PROTOCOL, "pid": 4711}})


@pytest.mark.parametrize(
    "answers",
    [
        [frames.pack_message({"id": 1, "result": {"protocol": PROTOCOL + 1, "pid": 1}})],
        [frames.pack_message({"id": 1, "result": None})],
        [b"\xff\xff\xff\xff"],
        [b"\x00\x00\x00\x02[]"],
        [HELLO, frames.pack_message({"id": 2, "result": {"driver": {"type": "driver"}}})],
        [HELLO, frames.pack_message({"id": 2, "error": {"type": "SystemExit", "problems": []}})],
        [HELLO, frames.pack_message({"id": 2})],
    ],
)
async def test_a_helper_that_talks_nonsense_is_unavailable(short_dir: Path, answers: list[bytes]) -> None:
    server = await answering(short_dir / "s", *answers)
    hardware = RemoteHardware(short_dir / "s")
    with pytest.raises(DriverUnavailable):
        await hardware.observe()
    await until(lambda: bool(hardware.state.last_error))
    await hardware.close()
    server.close()


async def test_an_answer_without_a_waiting_caller_is_ignored(short_dir: Path) -> None:
    stray = frames.pack_message({"id": 99, "result": 1}) + frames.pack_message({"id": None, "result": 1})
    empty = frames.pack_message({"id": 2, "result": []})
    server = await answering(short_dir / "s", stray + HELLO, stray + empty)
    hardware = RemoteHardware(short_dir / "s")
    assert await hardware.conditions() == ()
    await hardware.close()
    server.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen as another user")
async def test_a_socket_served_by_a_stranger_is_not_trusted(short_dir: Path) -> None:
    short_dir.chmod(0o777)
    os.seteuid(65534)  # the kernel tells who it was that began to listen
    try:
        server = await answering(short_dir / "s", HELLO)
    finally:
        os.seteuid(0)
    hardware = RemoteHardware(short_dir / "s")
    with pytest.raises(DriverUnavailable, match="65534"):
        await hardware.observe()
    await hardware.close()
    server.close()
