"""Daemons with a named server: namespaces with limits of their own, and what goes wrong with those."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from partage.edges.mps.control_v3 import configuration_file
from partage.edges.mps.paths import DriverFiles
from partage.errors import DaemonError, GpuInUse, NotFound
from partage.model.ids import GpuUuid
from partage.model.mps import (
    SERVER,
    ClientLimits,
    DaemonPhase,
    DaemonSpec,
    DaemonState,
    MpsNamespace,
    closed_slot,
)
from partage.sim.mps.node import MpsNode
from partage.units import GIB, MIB
from tests.edges.mps.conftest import simulated_subject
from tests.edges.mps.subjects import GPUS, LIMIT, NOBODY, ROOT, SHARE, Subject, Tenant, ending, until

BIG, SMALL = MpsNamespace("share0", 8 * GIB, 60), MpsNamespace("share1", 2 * GIB, 20)
UNEQUAL = DaemonSpec(GPUS[0], GPUS[0], 2 * GIB, 20, namespaces=(BIG, SMALL))


async def only(subject: Subject) -> DaemonState:
    (state,) = await subject.keeper().states()
    return state


async def joins(subject: Subject, below: str, **env: str) -> Tenant:
    """A client of this directory below the daemon's pipe directory."""
    pipe = str(subject.home() / "pipe" / below)
    return await subject.tenant(0, uid=None, CUDA_MPS_PIPE_DIRECTORY=pipe, **env)


# --- limits ------------------------------------------------------------------------------------------


async def test_each_namespace_holds_its_own_clients(named: Subject):
    """Whatever variables they bring, or drop; and the largest share is no loophole for the small one."""
    state = await named.keeper().start(UNEQUAL)
    assert state.limits == ClientLimits(2 * GIB, 20, (BIG, SMALL))

    big, small = await joins(named, "gpu/share0"), await joins(named, "gpu/share1")
    raised = await joins(
        named, "gpu/share1", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=8G", CUDA_VISIBLE_DEVICES="0"
    )
    assert await big.says(f"allocate {8 * GIB}") == "ok"
    for tenant in (small, raised):
        assert await tenant.says(f"allocate {2 * GIB + 1}") == "CUDA_ERROR_OUT_OF_MEMORY"
        assert await tenant.says(f"allocate {2 * GIB}") == "ok"


async def test_who_is_in_no_namespace_gets_what_the_smallest_share_has(named: Subject):
    await named.keeper().start(UNEQUAL)
    stray = await joins(named, SERVER)
    assert await stray.says(f"allocate {2 * GIB + 1}") == "CUDA_ERROR_OUT_OF_MEMORY"


async def test_a_namespaces_directory_leads_to_no_other(named: Subject):
    """It is all that a container is given of the daemon."""
    await named.keeper().start(UNEQUAL)
    pipe = named.home() / "pipe"
    for name in ("share0", "share1"):
        assert [path.name for path in (pipe / SERVER / name).iterdir()] == ["control"]
        assert (pipe / SERVER / name).stat().st_mode & 0o777 == 0o755
    assert {path.name for path in (pipe / SERVER).iterdir()} == {"control", "default", "share0", "share1"}


async def test_a_limit_that_the_daemon_does_not_have_is_found_out(short_dir: Path):
    node = MpsNode(dict.fromkeys(GPUS, 80 * GIB), ignores_limits=True)
    async with ending(simulated_subject(short_dir, node, protocol=3)) as subject:
        with pytest.raises(DaemonError, match=r"told 2 GiB and 25% of the SMs in share0.*allows any memory"):
            await subject.keeper().start(subject.spec())
        assert [state.phase for state in await subject.keeper().states()] == [DaemonPhase.DEAD]


async def test_a_client_is_of_its_server_and_has_a_name(named: Subject):
    await named.keeper().start(named.spec())
    tenant = await named.tenant()
    (server,) = (await only(named)).servers
    assert (server.name, server.uid, [one.pid for one in server.clients]) == (
        "gpu",
        os.geteuid(),
        [tenant.pid],
    )
    assert server.clients[0].command
    assert server.clients[0].namespace_pid == tenant.pid


# --- slots -------------------------------------------------------------------------------------------

SLOTS = DaemonSpec(GPUS[0], GPUS[0], GIB, 100, slots=2)


async def test_a_slot_gives_nothing_until_a_claim_has_it_and_nothing_afterwards(named: Subject):
    keeper = named.keeper()
    state = await keeper.start(SLOTS)
    assert (state.limits.slots, state.open_slots) == (2, ())
    early = await joins(named, "gpu/slot1")
    assert await early.says(f"allocate {2 * MIB}") == "CUDA_ERROR_OUT_OF_MEMORY"

    await keeper.limit(GPUS[0], MpsNamespace("slot1", 8 * GIB, 25))
    assert (await only(named)).open_slots == ("slot1",)
    assert (await only(named)).phase is DaemonPhase.SERVING
    owner, other = await joins(named, "gpu/slot1"), await joins(named, "gpu/slot0")
    assert await owner.says(f"allocate {8 * GIB + 1}") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert await owner.says(f"allocate {8 * GIB}") == "ok"
    assert await other.says(f"allocate {2 * MIB}") == "CUDA_ERROR_OUT_OF_MEMORY"

    await keeper.limit(GPUS[0], closed_slot("slot1"))
    late = await joins(named, "gpu/slot1")
    assert await late.says(f"allocate {2 * MIB}") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert (await only(named)).open_slots == ()


async def test_a_daemon_with_open_slots_is_left_alone_and_the_next_one_has_them_closed(named: Subject):
    keeper = named.keeper()
    pid = (await keeper.start(SLOTS)).pid
    await keeper.limit(GPUS[0], MpsNamespace("slot0", 8 * GIB, 25))
    again = await keeper.start(SLOTS)
    assert (again.pid, (await only(named)).open_slots) == (pid, ("slot0",))
    os.kill(pid or 0, signal.SIGKILL)

    async def is_dead() -> bool:
        return (await only(named)).phase is DaemonPhase.DEAD

    await until(is_dead)
    with pytest.raises(NotFound, match="does not run"):
        await keeper.limit(GPUS[0], MpsNamespace("slot0", 8 * GIB, 25))
    await keeper.start(SLOTS)
    assert (await only(named)).open_slots == ()


async def test_a_slot_that_is_not_there_is_not_limited(named: Subject):
    with pytest.raises(NotFound, match="there is no MPS daemon"):
        await named.keeper().limit(GPUS[0], MpsNamespace("slot0", GIB, 25))
    await named.keeper().start(SLOTS)
    with pytest.raises(NotFound, match="has no namespace slot2"):
        await named.keeper().limit(GPUS[0], MpsNamespace("slot2", GIB, 25))


async def test_a_slot_whose_socket_was_exchanged_is_given_to_nobody(named: Subject):
    """Its former owner had the directory, and may be root there."""
    keeper = named.keeper()
    await keeper.start(SLOTS)
    assert (await only(named)).changed_slots == ()
    own = named.home() / "pipe" / SERVER / "slot0" / "control"
    own.unlink()
    with socket.socket(socket.AF_UNIX) as hostile:
        hostile.bind(str(own))
        state = await only(named)
        assert (state.changed_slots, state.renewable) == (("slot0",), True)
        with pytest.raises(DaemonError, match="was changed by who had it"):
            await keeper.limit(GPUS[0], MpsNamespace("slot0", GIB, 25))
        await keeper.limit(GPUS[0], MpsNamespace("slot1", GIB, 25))
        await keeper.limit(GPUS[0], closed_slot("slot0"))
    await keeper.stop(GPUS[0])
    await keeper.start(SLOTS)
    assert (await only(named)).changed_slots == ()


async def test_a_limit_of_a_slot_that_the_daemon_ignores_is_found_out(named: Subject):
    await named.keeper().start(SLOTS)
    program = DriverFiles(named.root).program()
    deaf = program.with_name("deaf")
    program.rename(deaf)
    program.write_text(f'#!/bin/sh\n[ "$2" = set ] || exec {deaf} "$@"\n')
    program.chmod(0o755)
    with pytest.raises(DaemonError, match=r"was told 8 GiB and 25% of the SMs in slot0, and allows 1 MiB"):
        await named.keeper().limit(GPUS[0], MpsNamespace("slot0", 8 * GIB, 25))


# --- versions ----------------------------------------------------------------------------------------


async def test_another_version_of_the_language_replaces_an_idle_daemon(named: Subject):
    keeper, plain = named.keeper(), DaemonSpec(GPUS[0], GPUS[0], LIMIT, 25)
    old = await keeper.start(plain)
    new = await keeper.start(named.spec())
    assert new.pid != old.pid
    assert [server.name for server in new.servers] == ["gpu"]
    back = await keeper.start(plain)
    assert [server.name for server in back.servers] == [""]
    assert back.limits == ClientLimits(LIMIT, 25)


async def test_another_version_waits_for_the_clients_of_the_one_that_is_there(named: Subject):
    first = await named.keeper().start(named.spec())
    tenant = await named.tenant()
    with pytest.raises(GpuInUse, match=str(tenant.pid)):
        await named.keeper().start(DaemonSpec(GPUS[0], GPUS[0], LIMIT, 25))
    assert (await only(named)).pid == first.pid
    assert await tenant.says("launch") == "ok"


async def test_a_program_that_knows_no_version_3_says_so_and_nothing_runs(short_dir: Path):
    node = MpsNode(dict.fromkeys(GPUS, 80 * GIB), protocol=2)
    async with ending(simulated_subject(short_dir, node, protocol=3)) as subject:
        with pytest.raises(DaemonError, match="Unknown option: -p 3"):
            await subject.keeper().start(subject.spec())
        assert await subject.keeper().states() == ()


async def test_a_record_of_before_there_were_namespaces_is_understood(simulated: Subject):
    first = await simulated.keeper().start(simulated.spec())
    record = simulated.home() / "daemon.json"
    written = json.loads(record.read_text())
    del written["spec"]["namespaces"]
    record.write_text(json.dumps(written))
    again = await simulated.keeper().start(simulated.spec())
    assert replace(again, set_ns=first.set_ns) == first


# --- a server that is not there -----------------------------------------------------------------------


async def test_a_server_for_a_gpu_that_is_not_there_is_found_out_at_once(named: Subject):
    """The daemon takes it without a word; its clients would have no MPS and no limits."""
    absent = GpuUuid("GPU-99999999-0000-0000-0000-000000000000")
    spec = DaemonSpec(absent, absent, LIMIT, 25, namespaces=(MpsNamespace(SHARE, LIMIT, 25),))
    with pytest.raises(DaemonError, match=r"no MPS server .* started: no CUDA-capable device is detected"):
        await named.keeper(probe_s=1.0).start(spec)
    assert [state.phase for state in await named.keeper().states()] == [DaemonPhase.DEAD]


async def test_a_daemon_whose_server_has_gone_does_not_serve_until_it_is_started_again(named: Subject):
    keeper = named.keeper()
    before = await keeper.start(named.spec())
    os.kill(before.servers[0].pid, signal.SIGKILL)

    async def is_gone() -> bool:
        return (await only(named)).servers == ()

    await until(is_gone)
    state = await only(named)
    assert (state.phase, state.pid) == (DaemonPhase.STARTING, before.pid)
    assert "its server is gone" in state.reason

    again = await keeper.start(named.spec())
    assert (again.phase, again.limits) == (DaemonPhase.SERVING, before.limits)
    assert await (await named.tenant()).says("launch") == "ok"


async def test_a_container_that_has_its_namespace_mounted_finds_the_next_daemon_there(named: Subject):
    """A mount is of the directory, not of its path."""
    keeper = named.keeper()
    pid = (await keeper.start(named.spec())).pid
    mounted = os.open(named.pipe(), os.O_PATH | os.O_DIRECTORY)
    os.kill(pid or 0, signal.SIGKILL)

    async def is_dead() -> bool:
        return (await only(named)).phase is DaemonPhase.DEAD

    try:
        await until(is_dead)
        await keeper.start(named.spec())
        assert os.path.samestat(os.fstat(mounted), named.pipe().stat())
        seen = f"/proc/{os.getpid()}/fd/{mounted}"
        assert await (await named.tenant(CUDA_MPS_PIPE_DIRECTORY=seen)).says("launch") == "ok"
    finally:
        os.close(mounted)


async def test_a_starter_that_was_ended_in_the_middle_leaves_a_daemon_to_be_finished(named: Subject):
    keeper = named.keeper()
    state = await keeper.start(named.spec())
    record = named.home() / "daemon.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"identity": None}))
    assert (await keeper.start(named.spec())).pid == state.pid
    assert json.loads(record.read_text())["identity"]["pid"] == state.pid


# --- users -------------------------------------------------------------------------------------------


@pytest.mark.skipif(not ROOT, reason="other users' processes can be started by root only")
async def test_a_server_with_one_owner_refuses_other_users(named: Subject):
    """So ``users: single`` is no choice for a policy in version 3."""
    await named.keeper().start(named.spec(multi_user=False))
    stranger = await named.begins(uid=NOBODY)
    assert await stranger.hears() == "CUDA_ERROR_NOT_PERMITTED"


# --- what is written ---------------------------------------------------------------------------------


def test_the_file_has_a_limit_for_the_server_and_each_namespace():
    assert (
        configuration_file(UNEQUAL)
        == """schema_version = "1.0"
[servers.gpu]
pinned_memory_limit = "2048M"
active_thread_percentage = "20"
[servers.gpu.namespaces.share0]
pinned_memory_limit = "8192M"
active_thread_percentage = "60"
[servers.gpu.namespaces.share1]
pinned_memory_limit = "2048M"
active_thread_percentage = "20"
"""
    )
