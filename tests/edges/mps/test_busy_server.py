"""Servers that are not ready, or never will be, with NVIDIA's control programs and a process in the server's
place (``stand_in``).

A daemon prints nothing for every question about a server that starts, as if it had no limits, and ``quit``
does not return while there is one.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from partage.edges.mps.access import DaemonAccess, DaemonDeadlines
from partage.edges.mps.control_v2 import ControlV2
from partage.edges.mps.home import DaemonHost
from partage.edges.mps.paths import DaemonPaths, DriverFiles
from partage.errors import DaemonError
from partage.model.gpu_use import nobody
from partage.model.mps import DaemonPhase, DaemonState, ServerStatus
from tests.edges.mps.conftest import standing_in
from tests.edges.mps.stand_in import set_mode
from tests.edges.mps.subjects import LIMIT, Subject, ending, until
from tests.nvidia.packages import BRANCHES

pytestmark = pytest.mark.real


@pytest.fixture(params=BRANCHES)
async def real(request: pytest.FixtureRequest, short_dir: Path) -> AsyncIterator[Subject]:
    async with ending(standing_in(short_dir, request.param)) as subject:
        yield subject


async def only(subject: Subject) -> DaemonState:
    (state,) = await subject.keeper().states()
    return state


async def control(subject: Subject) -> ControlV2:
    access = DaemonAccess(subject.run_dir, DriverFiles(subject.root), DaemonHost(), DaemonDeadlines())
    found = await access.find(DaemonPaths.of(subject.run_dir, subject.devices[0]))
    control = access.control(found)
    assert isinstance(control, ControlV2)
    return control


async def lose_server(subject: Subject) -> None:
    """End the server of a daemon, and wait until the daemon has seen it."""
    (server,) = (await only(subject)).servers
    os.kill(server.pid, signal.SIGKILL)

    async def is_gone() -> bool:
        return not (await only(subject)).servers

    await until(is_gone, 60)


async def test_a_server_that_ends_at_its_start_is_said_at_once_and_the_logs_stay(real: Subject):
    set_mode(real.root, "fails")
    keeper = real.keeper(probe_s=300.0)
    with pytest.raises(DaemonError, match=r"started: Server \d+ exited with status 1") as error:
        async with asyncio.timeout(100):
            await keeper.start(real.spec())
    assert "UI closed" not in str(error.value)
    state = await only(real)
    assert (state.phase, state.servers) == (DaemonPhase.DEAD, ())
    assert "exited with status 1" in state.reason
    assert str(real.home() / "log") in str(error.value)
    assert "exited with status 1" in (real.home() / "log/control.log").read_text()

    set_mode(real.root, "")
    assert (await keeper.start(real.spec())).phase is DaemonPhase.SERVING, "in the directories that are there"


async def test_a_server_that_never_is_ready_is_no_server_and_nothing_is_left_running(real: Subject):
    set_mode(real.root, "busy")
    with pytest.raises(DaemonError, match=r"no MPS server .* started: server \d+ is initializing"):
        await real.keeper(probe_s=2.0).start(real.spec())
    assert (await only(real)).phase is DaemonPhase.DEAD


async def test_a_server_that_starts_later_is_not_one_without_a_limit(real: Subject):
    started = await real.keeper().start(real.spec())
    await lose_server(real)
    set_mode(real.root, "busy")
    await (await control(real)).start_server(0)
    busy = await only(real)
    assert busy.phase is DaemonPhase.SERVING, busy.reason
    assert [server.status for server in busy.servers] == [ServerStatus.INITIALIZING]
    assert (busy.pid, busy.limits.memory_bytes) == (started.pid, LIMIT)

    with pytest.raises(DaemonError, match="is not ready, so nobody knows whether it has clients"):
        await real.keeper(stop_s=1.0).start(real.spec(threads_percent=50))
    assert (await only(real)).pid == started.pid, "and it was not told to quit: it still takes clients"
    await real.keeper(stop_s=1.0).stop(real.devices[0], users=nobody)
    assert await real.keeper().states() == ()


async def test_a_server_that_was_killed_costs_nothing_else(real: Subject):
    started = await real.keeper().start(real.spec())
    await lose_server(real)
    after = await only(real)
    assert (after.phase, after.pid, after.limits) == (DaemonPhase.SERVING, started.pid, started.limits)
    again = await real.keeper().start(real.spec())
    assert again.pid == started.pid
    assert [server.status for server in again.servers] == [ServerStatus.ACTIVE]


async def test_an_amount_is_told_in_whole_mib(real: Subject):
    """``1.5G`` would become 1 MiB."""
    wanted = 3 * 2**29
    state = await real.keeper().start(real.spec(memory_bytes=wanted))
    assert (state.phase, state.limits.memory_bytes) == (DaemonPhase.SERVING, wanted)
    assert (
        "Cmd:set_default_device_pinned_mem_limit 0 1536M\n" in (real.home() / "log/control.log").read_text()
    )


async def test_only_555_has_one_server_for_all_users(real: Subject):
    assert real.node is not None
    state = await real.keeper().start(real.spec())
    assert state.multi_user is real.node.multi_user
