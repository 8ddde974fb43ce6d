"""What holds for the daemons of a node: simulated by driver branch; with NVIDIA's control programs of three
branches and a process in the server's place (``stand_in``); with a driver where there is a GPU (``-m gpu``).

On a real GPU nothing of its settings is changed: the compute mode stays as it is.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from msgspec.structs import replace

from partage.edges.host.procfs import boot_id, start_of
from partage.edges.mps.processes import connected
from partage.edges.mps.record import DaemonIdentity
from partage.errors import DaemonError, GpuInUse, NotFound
from partage.lab.daemon import MpsDaemon
from partage.model.ids import GpuUuid
from partage.model.mps import DaemonPhase, DaemonState, ServerStatus
from tests.edges.mps.subjects import LIMIT, NOBODY, ROOT, Subject, until

PROC = Path("/proc")
needs_root = pytest.mark.skipif(not ROOT, reason="other users' processes can be started by root only")


async def only(subject: Subject) -> DaemonState:
    (state,) = await subject.keeper().states()
    return state


async def phases(subject: Subject) -> list[DaemonPhase]:
    return [state.phase for state in await subject.keeper().states()]


# --- start, find, stop ------------------------------------------------------------------------------


async def test_a_started_daemon_serves_with_its_limits_read_back(subject: Subject):
    state = await subject.keeper().start(subject.spec())

    assert (state.phase, state.reason) == (DaemonPhase.SERVING, "")
    assert (state.limits.memory_bytes, state.limits.threads_percent) == (LIMIT, 25)
    assert [server.status for server in state.servers] == [ServerStatus.ACTIVE]
    assert state.pid is not None
    assert state == await only(subject)


async def test_to_start_it_again_sets_the_same_limits_and_changes_nothing_else(subject: Subject):
    first = await subject.keeper().start(subject.spec())
    again = await subject.keeper().start(subject.spec())
    assert again.set_ns >= first.set_ns
    assert replace(again, set_ns=first.set_ns) == first


async def test_two_who_start_it_at_once_get_one_daemon(subject: Subject):
    one, other = await asyncio.gather(*(subject.keeper().start(subject.spec()) for _ in range(2)))
    assert replace(one, set_ns=other.set_ns) == other


async def test_a_stopped_daemon_leaves_nothing(subject: Subject):
    keeper = subject.keeper()
    pid = (await keeper.start(subject.spec())).pid
    await keeper.stop(subject.devices[0])

    assert await keeper.states() == ()
    assert not subject.home().exists()
    assert not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/cmdline").read_bytes() == b""


async def test_to_stop_what_is_not_there_is_no_error(subject: Subject):
    await subject.keeper().stop(subject.devices[0])
    await subject.keeper().stop(GpuUuid("../../etc"), force=True)


async def test_another_spec_replaces_an_idle_daemon(subject: Subject):
    first = await subject.keeper().start(subject.spec())
    second = await subject.keeper().start(subject.spec(threads_percent=50))

    assert second.pid != first.pid
    assert second.limits.threads_percent == 50


async def test_another_spec_waits_for_the_clients_of_the_old_one(subject: Subject):
    first = await subject.keeper().start(subject.spec())
    tenant = await subject.tenant()

    with pytest.raises(GpuInUse, match=str(tenant.pid)):
        await subject.keeper().start(subject.spec(threads_percent=50))
    assert (await only(subject)).pid == first.pid
    assert await tenant.says("launch") == "ok"


async def test_without_limits_none_are_set(subject: Subject):
    state = await subject.keeper().start(subject.spec(memory_bytes=None, threads_percent=None))
    assert (state.phase, state.limits.memory_bytes, state.limits.threads_percent) == (
        DaemonPhase.SERVING,
        None,
        None,
    )


# --- clients ----------------------------------------------------------------------------------------


async def test_a_client_is_listed_and_limited_and_its_neighbour_lives(subject: Subject):
    await subject.keeper().start(subject.spec())
    greedy, neighbour = await subject.tenant(), await subject.tenant()

    assert {client.pid for client in (await only(subject)).clients} == {greedy.pid, neighbour.pid}
    assert await greedy.says(f"allocate {LIMIT + 1}") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert await greedy.says(f"allocate {LIMIT // 2}") == "ok"
    assert await greedy.says(f"allocate {LIMIT // 2 + 1}") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert await neighbour.says("launch") == "ok"


async def test_a_client_is_told_apart_by_name_and_namespace(subject: Subject):
    await subject.keeper().start(subject.spec())
    tenant = await subject.tenant()
    (client,) = (await only(subject)).clients

    assert client.namespace in (None, Path("/proc/self/ns/pid").stat().st_ino)
    assert client.namespace_pid == tenant.pid
    assert client.command


async def test_a_daemon_with_clients_is_not_stopped(subject: Subject):
    await subject.keeper().start(subject.spec())
    tenant = await subject.tenant()

    with pytest.raises(GpuInUse) as refusal:
        await subject.keeper().stop(subject.devices[0])
    assert any(str(tenant.pid) in use for use in refusal.value.uses)
    assert await tenant.says("launch") == "ok"


async def test_by_force_it_is_stopped_all_the_same(subject: Subject):
    await subject.keeper().start(subject.spec())
    tenant = await subject.tenant()
    await subject.keeper().stop(subject.devices[0], force=True)

    assert await subject.keeper().states() == ()
    assert await tenant.says("launch") != "ok"


async def test_a_terminated_client_is_gone_and_its_neighbour_lives(subject: Subject):
    state = await subject.keeper().start(subject.spec())
    victim, neighbour = await subject.tenant(), await subject.tenant()
    await subject.keeper().terminate(subject.devices[0], state.servers[0].pid, victim.pid)

    assert [client.pid for client in (await only(subject)).clients] == [neighbour.pid]
    assert await victim.says("launch") != "ok"
    assert await neighbour.says("launch") == "ok"


async def test_only_a_client_of_that_server_can_be_terminated(subject: Subject):
    state = await subject.keeper().start(subject.spec())
    tenant = await subject.tenant()
    keeper = subject.keeper()

    with pytest.raises(NotFound):
        await keeper.terminate(subject.devices[0], state.servers[0].pid, os.getpid())
    with pytest.raises(NotFound):
        await keeper.terminate(subject.devices[0], os.getpid(), tenant.pid)
    with pytest.raises(NotFound):
        await keeper.terminate(GpuUuid("GPU-of-nobody"), state.servers[0].pid, tenant.pid)
    assert await tenant.says("launch") == "ok"


# --- faults -----------------------------------------------------------------------------------------


async def test_a_fault_hits_all_clients_and_ends_with_the_last_of_them(subject: Subject):
    if not subject.says_faults:
        pytest.skip("535 has no command for a server's status")
    await subject.keeper().start(subject.spec())
    culprit, victim = await subject.tenant(), await subject.tenant()
    await culprit.says("fault")

    assert await victim.says("launch") != "ok"
    state = await only(subject)
    assert state.phase is DaemonPhase.FAULT
    assert "no new ones" in state.reason
    assert await (await subject.begins()).hears() == "CUDA_ERROR_MPS_SERVER_NOT_READY"

    await culprit.leaves()
    assert (await only(subject)).phase is DaemonPhase.FAULT
    await victim.leaves()

    async def serves() -> bool:
        return await phases(subject) == [DaemonPhase.SERVING]

    await until(serves)
    assert await (await subject.tenant()).says("launch") == "ok"


async def test_a_fault_on_one_gpu_leaves_the_other_serving(subject: Subject):
    if not subject.says_faults:
        pytest.skip("535 has no command for a server's status")
    if len(subject.devices) < 2:
        pytest.skip("needs two GPUs")
    keeper = subject.keeper()
    await asyncio.gather(keeper.start(subject.spec(0)), keeper.start(subject.spec(1)))
    culprit, neighbour = await subject.tenant(0), await subject.tenant(1)
    await culprit.says("fault")

    assert sorted(await phases(subject)) == sorted([DaemonPhase.FAULT, DaemonPhase.SERVING])
    assert await neighbour.says("launch") == "ok"
    assert await (await subject.tenant(1)).says("launch") == "ok"


# --- users ------------------------------------------------------------------------------------------


@needs_root
async def test_a_client_without_privileges_is_served(subject: Subject):
    if not subject.queues_users:
        pytest.skip("the daemon does not see the clients of a process in the server's place")
    if subject.protocol == 3:
        pytest.skip("a server with a name has one owner")
    await subject.keeper().start(subject.spec(multi_user=False))
    tenant = await subject.tenant(uid=NOBODY)

    assert await tenant.says("launch") == "ok"
    assert [server.uid for server in (await only(subject)).servers] == [NOBODY]


@needs_root
async def test_clients_of_two_users_share_one_server_where_it_serves_several_users(subject: Subject):
    if subject.node is not None and not subject.node.multi_user:
        with pytest.raises(DaemonError):
            await subject.keeper().start(subject.spec(multi_user=True))
        return
    state = await subject.keeper().start(subject.spec(multi_user=True))
    assert state.multi_user
    root, other = await subject.tenant(uid=0), await subject.tenant(uid=NOBODY)

    assert await root.says("launch") == await other.says("launch") == "ok"
    (server,) = (await only(subject)).servers
    assert len(server.clients) == 2


@needs_root
async def test_otherwise_the_second_user_waits_until_the_first_has_gone(subject: Subject):
    if not subject.queues_users:
        pytest.skip("the daemon does not see the clients of a process in the server's place")
    if subject.protocol == 3:
        pytest.skip("a server with a name has one owner")
    await subject.keeper().start(subject.spec(multi_user=False))
    first, second = await subject.tenant(uid=0), await subject.begins(uid=NOBODY)
    waits = asyncio.create_task(second.hears())

    assert await first.says("launch") == "ok"
    assert [server.uid for server in (await only(subject)).servers] == [0]
    assert not waits.done()
    await first.leaves()
    assert await waits == "ok"
    assert [server.uid for server in (await only(subject)).servers] == [NOBODY]


# --- death and silence ------------------------------------------------------------------------------

STARTER = """
import asyncio, sys
from pathlib import Path
from partage.edges.mps.keeper import MpsKeeper
from partage.model.mps import DaemonSpec, MpsNamespace

spec, run_dir, root = sys.argv[1:]
async def main():
    await MpsKeeper(Path(run_dir), Path(root)).start(eval(spec))
    print("started", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_a_daemon_outlives_who_started_it_and_is_taken_over(subject: Subject):
    starter = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", STARTER, repr(subject.spec()), str(subject.run_dir), str(subject.root)),
        stdout=PIPE,
        start_new_session=True,
    )
    assert starter.stdout is not None
    assert await starter.stdout.readline() == b"started\n"
    tenant = await subject.tenant()
    before = await only(subject)
    os.killpg(starter.pid, signal.SIGKILL)
    await starter.wait()

    assert await only(subject) == before
    again = await subject.keeper().start(subject.spec())
    assert replace(again, set_ns=before.set_ns) == before
    assert await tenant.says("launch") == "ok"


async def test_a_killed_daemon_is_dead_until_it_is_started_again(subject: Subject):
    keeper = subject.keeper()
    pid = (await keeper.start(subject.spec())).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    async def is_dead() -> bool:
        return await phases(subject) == [DaemonPhase.DEAD]

    await until(is_dead)
    dead = await only(subject)
    assert (dead.pid, dead.servers, dead.device) == (None, (), subject.devices[0])
    assert f"(pid {pid}) is gone" in dead.reason

    again = await keeper.start(subject.spec())
    assert again.phase is DaemonPhase.SERVING
    assert again.pid != pid
    assert await (await subject.tenant()).says("launch") == "ok"


async def test_a_dead_daemon_can_be_stopped(subject: Subject):
    pid = (await subject.keeper().start(subject.spec())).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await subject.keeper().stop(subject.devices[0])
    assert await subject.keeper().states() == ()


async def test_a_daemon_that_hangs_is_silent_and_callers_do_not_wait_long(subject: Subject):
    pid = (await subject.keeper().start(subject.spec())).pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    keeper = subject.keeper(answer_s=0.3, stop_s=0.3)

    (state,) = await keeper.states()
    assert (state.phase, state.pid) == (DaemonPhase.SILENT, pid)
    assert "did not answer" in state.reason
    with pytest.raises(DaemonError, match="did not answer"):
        await keeper.start(subject.spec())

    os.kill(pid, signal.SIGCONT)
    assert await phases(subject) == [DaemonPhase.SERVING]


async def test_a_daemon_is_silent_while_somebody_keeps_its_connection_without_a_word(subject: Subject):
    await _kept_from_others(subject, MpsDaemon(subject.pipe()).held(NOBODY if ROOT else None))


async def test_a_daemon_is_silent_while_somebody_keeps_it_for_commands_and_gives_none(subject: Subject):
    await _kept_from_others(subject, subject.commander())


async def _kept_from_others(subject: Subject, held: AbstractAsyncContextManager[int]) -> None:
    """Silent is not: without servers, clients and limits. The reason names the process, if it may be seen."""
    if subject.protocol == 3:
        pytest.skip("it is not known of version 3")
    started = await subject.keeper().start(subject.spec())
    assert started.pid is not None
    start = start_of(PROC, started.pid)
    assert start is not None
    daemon = DaemonIdentity(started.pid, start, boot_id(PROC))
    async with held as pid:

        async def has_it() -> bool:
            return pid in connected(PROC, daemon) or not ROOT

        await until(has_it)  # before others ask: a control program that is refused then does not try again

        async def is_silent() -> bool:
            (state,) = await subject.keeper(answer_s=0.5).states()
            assert (state.pid, state.servers) == (started.pid, started.servers * (not is_held(state)))
            named = re.search(rf"end it if nobody needs it: kill.* {pid}\b", state.reason) or not ROOT
            return is_held(state) and bool(named)

        await until(is_silent)
        with pytest.raises(DaemonError):
            await subject.keeper(answer_s=0.3).start(subject.spec())
        (state,) = await subject.keeper(answer_s=0.5).states()
        assert is_held(state)
    assert await only(subject) == started


def is_held(state: DaemonState) -> bool:
    return state.phase is DaemonPhase.SILENT


async def test_a_daemon_that_hangs_can_be_stopped_by_force(subject: Subject):
    pid = (await subject.keeper().start(subject.spec())).pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    await subject.keeper(answer_s=0.3, stop_s=0.3).stop(subject.devices[0], force=True)
    assert await subject.keeper().states() == ()
