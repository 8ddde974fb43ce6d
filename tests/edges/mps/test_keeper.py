"""What needs no real GPU, or no real one would do: refusals, leftovers, directories, how it is started."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest

from partage.codec.values import decode, encode
from partage.edges.host import procfs
from partage.edges.mps.control_v2 import ControlV2
from partage.edges.mps.home import DaemonHost
from partage.edges.mps.paths import DaemonPaths, DriverFiles
from partage.errors import DaemonError, GpuInUse, InputError, NotPermitted, Unsupported
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.mps import DaemonPhase, DaemonState, HomeKind
from partage.sim.mps.node import MpsNode
from partage.units import GIB, MIB
from tests.edges.mps.conftest import simulated_subject
from tests.edges.mps.subjects import GPUS, LIMIT, ROOT, Subject, Tenant, ending, until

needs_root = pytest.mark.skipif(not ROOT, reason="mounts, cgroups, labels and systemd take root")


@pytest.fixture
async def peculiar(short_dir: Path) -> AsyncIterator[Subject]:
    """A control program of a driver without multi-user servers, that ignores limits."""
    node = MpsNode(dict.fromkeys(GPUS, 80 * GIB), multi_user=False, ignores_limits=True)
    async with ending(simulated_subject(short_dir, node)) as subject:
        yield subject


async def only(subject: Subject) -> DaemonState:
    (state,) = await subject.keeper().states()
    return state


def edited(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# --- refusals ---------------------------------------------------------------------------------------


async def test_a_daemon_that_ignores_its_limit_is_not_left_running(peculiar: Subject):
    with pytest.raises(DaemonError, match=r"was told 2 GiB .* allows any memory and 100%"):
        await peculiar.keeper().start(peculiar.spec())
    assert [state.phase for state in await peculiar.keeper().states()] == [DaemonPhase.DEAD]


async def test_a_limit_counts_as_read_back_where_the_daemon_prints_whole_gib(simulated: Subject):
    state = await simulated.keeper().start(simulated.spec(memory_bytes=3840 * MIB))
    assert state.limits.memory_bytes == 3840 * MIB


async def test_a_program_without_multi_user_serves_one_user_unless_several_are_asked_for(peculiar: Subject):
    unlimited = peculiar.spec(memory_bytes=None, threads_percent=None)
    state = await peculiar.keeper().start(unlimited)
    assert (state.phase, state.multi_user) == (DaemonPhase.SERVING, False)

    with pytest.raises(DaemonError, match="Cannot find MPS control daemon process"):
        await peculiar.keeper().start(peculiar.spec(multi_user=True))


async def test_a_gpu_on_which_no_server_starts_is_found_out_at_once(simulated: Subject):
    keeper, absent = simulated.keeper(probe_s=60.0), GpuUuid("GPU-99999999-0000-0000-0000-000000000000")
    lost = simulated.spec()
    with pytest.raises(
        DaemonError, match=r"no MPS server .* started: Server \d+ exited with status 1"
    ) as error:
        async with asyncio.timeout(30):  # before probe_s
            await keeper.start(type(lost)(absent, absent))
    (state,) = await keeper.states()
    assert (state.phase, state.pid) == (DaemonPhase.DEAD, None)
    logs = simulated.run_dir / "mps" / absent / "log"
    assert str(logs) in str(error.value)
    assert "exited with status 1" in (logs / "control.log").read_text(), "they stay until it is stopped"
    await keeper.stop(absent)
    assert await keeper.states() == ()


async def test_without_a_control_program_it_says_so(simulated: Subject):
    await simulated.keeper().start(simulated.spec(0))
    shutil.rmtree(simulated.root / "usr/bin")

    with pytest.raises(Unsupported, match="there is no nvidia-cuda-mps-control"):
        await simulated.keeper().start(simulated.spec(1))
    state = await only(simulated)
    assert state.phase is DaemonPhase.SILENT
    assert "nvidia-cuda-mps-control" in state.reason


async def test_a_run_directory_that_is_not_ours_is_refused_with_the_reason(simulated: Subject):
    simulated.run_dir = Path("/sys/partage")
    with pytest.raises(NotPermitted, match=r"cannot be kept below /sys/partage.*--run-dir"):
        await simulated.keeper().start(simulated.spec())


async def test_a_run_directory_below_a_file_is_refused_with_the_reason(simulated: Subject):
    (simulated.root / "file").touch()
    simulated.run_dir = simulated.root / "file" / "run"
    with pytest.raises(DaemonError, match="Not a directory"):
        await simulated.keeper().start(simulated.spec())


async def test_a_run_directory_too_deep_for_a_socket_is_refused(simulated: Subject):
    simulated.run_dir = simulated.root / ("d" * 60)
    with pytest.raises(InputError, match="path of a unix socket has at most 107"):
        await simulated.keeper().start(simulated.spec())


@needs_root
async def test_a_full_run_directory_is_refused_with_the_reason(simulated: Subject):
    simulated.run_dir.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=4", "small", simulated.run_dir], check=True
    )
    try:
        with pytest.raises(DaemonError, match="No space left on device"):
            await simulated.keeper().start(simulated.spec())
    finally:
        subprocess.run(["umount", simulated.run_dir], check=True)


# --- work in flight ---------------------------------------------------------------------------------


BOTH_PROTOCOLS = pytest.mark.parametrize("protocol", [pytest.param(2, marks=pytest.mark.real), 3])
"""What only starts and ends processes is the same in version 2, and so for ``make check``."""


@BOTH_PROTOCOLS
async def test_a_client_that_is_terminated_in_the_middle_of_its_work_hits_nobody(
    simulated: Subject, protocol: int
):
    simulated.protocol = protocol
    await simulated.keeper().start(simulated.spec())
    working, neighbour = await simulated.tenant(), await simulated.tenant()
    assert await working.says("work") == "ok"
    (server,) = (await only(simulated)).servers
    await simulated.keeper().terminate(GPUS[0], server.pid, working.pid)
    await working.leaves()
    assert await neighbour.says("launch") == "ok"
    assert (await only(simulated)).phase is DaemonPhase.SERVING


@BOTH_PROTOCOLS
async def test_a_daemon_that_a_killed_client_has_wedged_is_replaced_once_it_is_idle(
    simulated: Subject, protocol: int
):
    simulated.protocol = protocol
    first = await simulated.keeper().start(simulated.spec())
    working, neighbour = await simulated.tenant(), await simulated.tenant()
    assert await working.says("work") == "ok"
    await working.leaves()  # killed

    async def is_hit() -> bool:
        return await neighbour.says("launch") == "CUDA_ERROR_ILLEGAL_ADDRESS"

    await until(is_hit)
    assert (await only(simulated)).phase is DaemonPhase.FAULT
    await neighbour.leaves()

    async def is_idle() -> bool:
        return not (await only(simulated)).clients

    await until(is_idle)
    assert "although it has no clients" in (await only(simulated)).reason
    assert await (await simulated.begins()).hears() == "CUDA_ERROR_MPS_SERVER_NOT_READY"
    again = await simulated.keeper().start(simulated.spec())
    assert (again.phase, again.reason) == (DaemonPhase.SERVING, "")
    assert again.pid != first.pid
    assert await (await simulated.tenant()).says("launch") == "ok"


# --- whose process is it ----------------------------------------------------------------------------


async def test_a_tenant_that_removes_or_rewrites_the_pid_file_changes_nothing(simulated: Subject):
    started = await simulated.keeper().start(simulated.spec())
    neighbour = await simulated.tenant()
    pid_file = simulated.home() / "pipe/nvidia-cuda-mps-control.pid"
    bystander = await asyncio.create_subprocess_exec("sleep", "60")
    for change in (pid_file.unlink, lambda: pid_file.write_text(f"{bystander.pid}\n")):
        change()
        state = await only(simulated)
        assert (state.phase, state.pid) == (DaemonPhase.SERVING, started.pid)
        assert (await simulated.keeper().start(simulated.spec())).pid == started.pid
        assert await neighbour.says("launch") == "ok"
    await neighbour.leaves()
    await simulated.keeper().stop(GPUS[0])
    assert bystander.returncode is None
    bystander.kill()
    await bystander.wait()


async def test_a_name_and_an_environment_make_no_server(simulated: Subject):
    """What a tenant can choose: neither adopted nor ended."""
    await simulated.keeper().start(simulated.spec())
    posing = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        "exec -a nvidia-cuda-mps-server sleep 60",
        env={"PATH": os.defpath, "CUDA_MPS_PIPE_DIRECTORY": str(simulated.home() / "pipe")},
    )
    await simulated.keeper().stop(GPUS[0])
    await simulated.keeper().start(simulated.spec())
    assert posing.returncode is None
    posing.kill()
    await posing.wait()


async def test_a_process_in_the_directory_that_nobody_knows_is_named_and_not_ended(simulated: Subject):
    started = await simulated.keeper().start(simulated.spec())
    assert started.pid is not None
    stranger = await asyncio.create_subprocess_exec(
        "sh", "-c", 'exec 3>>"$0"; exec sleep 60', str(simulated.home() / "log/control.log")
    )
    assert (await only(simulated)).phase is DaemonPhase.SERVING, "the daemon itself is known"
    os.kill(started.pid, signal.SIGKILL)

    async def is_named() -> bool:
        return f"kill {stranger.pid}" in (await only(simulated)).reason

    await until(is_named)
    assert (await only(simulated)).phase is DaemonPhase.SILENT
    with pytest.raises(DaemonError, match=f"process {stranger.pid} works in its directory"):
        await simulated.keeper().start(simulated.spec())
    with pytest.raises(DaemonError, match="are not removed"):
        await simulated.keeper().stop(GPUS[0])
    assert stranger.returncode is None
    stranger.kill()
    await stranger.wait()
    assert (await simulated.keeper().start(simulated.spec())).phase is DaemonPhase.SERVING


async def test_of_two_that_may_be_the_daemon_none_is_taken(simulated: Subject):
    started = await simulated.keeper().start(simulated.spec())
    edited(simulated.home() / "daemon.json", identity=None)
    second = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import sys, time; file = open(sys.argv[1], 'a'); print(flush=True); time.sleep(60)",
        str(simulated.home() / "log/control.log"),
        stdout=subprocess.PIPE,
    )
    assert second.stdout is not None
    await second.stdout.readline()
    state = await only(simulated)
    assert state.phase is DaemonPhase.SILENT
    assert "may each be its control daemon" in state.reason
    with pytest.raises(DaemonError, match="may each be"):
        await simulated.keeper().start(simulated.spec())
    assert second.returncode is None
    second.kill()
    await second.communicate()
    assert (await only(simulated)).pid == started.pid


async def test_a_daemon_that_does_not_answer_is_ended_by_its_pid(simulated: Subject):
    started = await simulated.keeper().start(simulated.spec())
    assert started.pid is not None
    os.kill(started.pid, signal.SIGSTOP)
    keeper = simulated.keeper(answer_s=0.5)
    with pytest.raises(DaemonError, match="did not answer"):
        await keeper.start(simulated.spec())
    assert procfs.runs(Path("/proc"), started.pid), "clients cannot be looked for"
    await keeper.stop(GPUS[0])
    assert not procfs.runs(Path("/proc"), started.pid)
    assert await keeper.states() == ()


async def test_before_a_daemon_is_ended_that_does_not_answer_its_clients_are_looked_for(simulated: Subject):
    started = await simulated.keeper().start(simulated.spec())
    assert started.pid is not None
    tenant = await simulated.tenant()
    asked: list[tuple[str, set[int]]] = []

    async def users(device: DeviceUuid, without: Collection[int]) -> tuple[str, ...]:
        """What the driver sees: the tenant, until it has left."""
        asked.append((device, set(without)))
        return (f"process python (pid {tenant.pid})",) if procfs.runs(Path("/proc"), tenant.pid) else ()

    os.kill(started.pid, signal.SIGSTOP)
    keeper = simulated.keeper(answer_s=0.5)
    with pytest.raises(GpuInUse, match=f"pid {tenant.pid}.* may be one: process {started.pid}, .*not ended"):
        await keeper.stop(GPUS[0], users=users)
    assert procfs.runs(Path("/proc"), started.pid)
    assert asked == [(GPUS[0], {started.pid, *(one.pid for one in started.servers)})]
    await tenant.leaves()
    await keeper.stop(GPUS[0], users=users)
    assert not procfs.runs(Path("/proc"), started.pid)


async def test_a_tenant_that_removes_or_takes_the_socket_is_noticed(simulated: Subject):
    started = await simulated.keeper().start(simulated.spec())
    control = simulated.home() / "pipe/control"
    control.unlink()
    state = await only(simulated)
    assert (state.phase, state.pid) == (DaemonPhase.SILENT, started.pid)
    assert "its socket control was removed" in state.reason
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(control))
        taken.listen()
        assert "its socket control was changed by somebody else" in (await only(simulated)).reason
        with pytest.raises(DaemonError, match="changed by somebody else"):
            await simulated.keeper().start(simulated.spec())
        await simulated.keeper().stop(GPUS[0])
    again = await simulated.keeper().start(simulated.spec())
    assert (again.phase, again.pid == started.pid) == (DaemonPhase.SERVING, False)


async def test_the_daemon_of_another_directory_is_not_taken_for_ours(simulated: Subject):
    keeper = simulated.keeper()
    other = await keeper.start(simulated.spec(1))
    await keeper.start(simulated.spec(0))
    await keeper.stop(GPUS[0])
    home = simulated.home()
    shutil.copytree(simulated.home(1), home, ignore=shutil.ignore_patterns("control", "shm"))
    (home / "shm").mkdir()

    states = {state.device: state for state in await keeper.states()}
    assert states[GPUS[0]].phase is DaemonPhase.DEAD
    await keeper.stop(GPUS[0])
    assert await only(simulated) == other


async def test_servers_that_a_dead_daemon_left_are_ended_when_the_gpu_is_free(simulated: Subject):
    """Their clients may be working: nobody can ask them any more."""
    state = await simulated.keeper().start(simulated.spec())
    assert state.pid is not None
    with (simulated.home() / "log/server.log").open("ab") as log:
        orphan = subprocess.Popen(
            [simulated.root / "usr/bin/nvidia-cuda-mps-server", str(os.geteuid()), "1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={"CUDA_MPS_PIPE_DIRECTORY": str(simulated.home() / "pipe")},
        )
    assert orphan.stdout is not None
    assert orphan.stdout.readline() == b"ready\n"
    os.kill(state.pid, signal.SIGKILL)

    async def is_named() -> bool:
        return f"kill {orphan.pid}" in (await only(simulated)).reason

    await until(is_named)
    assert (await only(simulated)).phase is DaemonPhase.SILENT
    with pytest.raises(GpuInUse, match="its clients may be working"):
        await simulated.keeper(answer_s=0.2).start(simulated.spec())
    assert orphan.poll() is None

    async def busy(device: DeviceUuid, without: Collection[int]) -> tuple[str, ...]:
        assert (device, set(without)) == (GPUS[0], {orphan.pid})
        return ("process python (pid 4711)",)

    with pytest.raises(GpuInUse, match=r"process python \(pid 4711\) may be one"):
        await simulated.keeper().stop(GPUS[0], users=busy)
    assert orphan.poll() is None
    ended = asyncio.create_task(asyncio.to_thread(orphan.wait, 30))
    await simulated.keeper().stop(GPUS[0])
    assert await ended == -signal.SIGTERM
    orphan.communicate()
    assert (await simulated.keeper().start(simulated.spec())).phase is DaemonPhase.SERVING


async def test_a_new_daemon_is_found_where_running_containers_have_it_mounted(
    simulated: Subject,
):
    """A bind mount keeps the directory itself: a new one with the same name would not be visible."""
    first = await simulated.keeper().start(simulated.spec())
    home = simulated.home()
    opened = {part: os.open(home / part, os.O_DIRECTORY) for part in ("pipe", "shm")}
    try:
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)

        async def is_dead() -> bool:
            return (await only(simulated)).phase is DaemonPhase.DEAD

        await until(is_dead)
        again = await simulated.keeper().start(simulated.spec())
        assert again.phase is DaemonPhase.SERVING
        for part, descriptor in opened.items():
            assert os.fstat(descriptor).st_ino == (home / part).stat().st_ino, part
            assert os.fstat(descriptor).st_dev == (home / part).stat().st_dev, part
        assert (home / "pipe" / "nvidia-cuda-mps-control.pid").exists()
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


async def test_a_starter_that_was_ended_in_the_middle_leaves_a_daemon_to_be_finished(simulated: Subject):
    keeper = simulated.keeper()
    pid = (await keeper.start(simulated.spec(threads_percent=20))).pid
    record = simulated.home() / "daemon.json"
    edited(record, identity=None, spec=json.loads(record.read_text())["spec"] | {"threadsPercent": 30})

    state = await only(simulated)
    assert (state.phase, state.pid) == (DaemonPhase.STARTING, pid)
    assert "allows 2 GiB and 20% of the SMs for each client, but should allow 2 GiB and 30%" in state.reason
    finished = await keeper.start(simulated.spec(threads_percent=30))
    assert (finished.phase, finished.pid) == (DaemonPhase.SERVING, pid)
    assert json.loads(record.read_text())["identity"]["pid"] == pid


@pytest.fixture
async def late(short_dir: Path) -> AsyncIterator[Subject]:
    """A control program that knows no limits before it is told some."""
    node = MpsNode(dict.fromkeys(GPUS, 80 * GIB), reads_limits=False)
    async with ending(simulated_subject(short_dir, node)) as subject:
        yield subject


async def abandoned(subject: Subject) -> int | None:
    """A daemon whose starter was ended before it had set the limits: its pid. Its first server has none."""
    await subject.keeper().start(subject.spec(memory_bytes=None, threads_percent=None))
    record = subject.home() / "daemon.json"
    limits = {"memoryBytes": LIMIT, "threadsPercent": 25}
    edited(record, identity=None, spec=json.loads(record.read_text())["spec"] | limits)
    return (await only(subject)).pid


async def test_a_daemon_that_took_a_client_before_its_limits_is_replaced_when_the_client_has_gone(
    late: Subject,
):
    pid, greedy = await abandoned(late), await late.tenant()
    assert await greedy.says(f"allocate {60 * GIB}") == "ok"
    with pytest.raises(GpuInUse, match=str(greedy.pid)):
        await late.keeper().start(late.spec())
    state = await only(late)
    assert (state.phase, state.pid, state.limits.memory_bytes) == (DaemonPhase.STARTING, pid, None)
    assert "allows any memory" in state.reason
    assert await greedy.says("launch") == "ok", "its work was not ended"
    await greedy.leaves()
    again = await late.keeper().start(late.spec())
    assert (again.phase, again.limits.memory_bytes, again.pid == pid) == (DaemonPhase.SERVING, LIMIT, False)
    assert await (await late.tenant()).says(f"allocate {LIMIT + 1}") == "CUDA_ERROR_OUT_OF_MEMORY"


async def test_a_server_with_a_limit_of_its_own_is_not_serving(simulated: Subject):
    server = (await simulated.keeper().start(simulated.spec())).servers[0].pid
    paths = DaemonPaths.of(simulated.run_dir, GPUS[0])
    driver = DriverFiles(simulated.root)
    control = ControlV2(driver.program, driver.environment(paths), 10.0)
    await control.ask(f"set_device_pinned_mem_limit {server} 0 60G")
    state = await only(simulated)
    assert (state.phase, state.limits.memory_bytes) == (DaemonPhase.STARTING, 60 * GIB)


async def test_a_daemon_has_its_limits_from_its_start(simulated: Subject):
    pid = (await simulated.keeper().start(simulated.spec())).pid
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={LIMIT // MIB}M".encode() in environ
    assert b"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25" in environ


async def test_a_tenant_that_tries_again_and_again_never_gets_more_than_the_limit(simulated: Subject):
    """It comes in before the starter can set the limits."""
    await simulated.keeper().start(simulated.spec())
    killed = (await only(simulated)).pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)

    async def is_dead() -> bool:
        return (await only(simulated)).phase is DaemonPhase.DEAD

    await until(is_dead)
    tenants = [asyncio.create_task(first_let_in(simulated)) for _ in range(2)]
    state = await simulated.keeper().start(simulated.spec())
    assert state.phase is DaemonPhase.SERVING
    for tenant in await asyncio.gather(*tenants):
        assert await tenant.says(f"allocate {LIMIT + 1}") == "CUDA_ERROR_OUT_OF_MEMORY"


async def first_let_in(subject: Subject) -> Tenant:
    while True:
        tenant = await subject.begins()
        if await tenant.hears() == "ok":
            return tenant


async def test_a_starter_that_was_ended_before_the_daemon_ran_leaves_a_dead_one(simulated: Subject):
    keeper = simulated.keeper()
    await keeper.start(simulated.spec())
    record = (simulated.home() / "daemon.json").read_text()
    await keeper.stop(GPUS[0])
    simulated.home().mkdir()
    (simulated.home() / "daemon.json").write_text(record)
    edited(simulated.home() / "daemon.json", identity=None)

    state = await only(simulated)
    assert (state.phase, state.pid) == (DaemonPhase.DEAD, None)
    assert "never seen running" in state.reason
    assert (await keeper.start(simulated.spec())).phase is DaemonPhase.SERVING


async def test_a_record_that_cannot_be_read_costs_its_content_and_not_the_daemon(simulated: Subject):
    pid = (await simulated.keeper().start(simulated.spec())).pid
    tenant = await simulated.tenant()
    for content in ("", "{", "[]", '{"version": 9}', '{"version": 1, "spec": {}}', "null"):
        (simulated.home() / "daemon.json").write_text(content)
        state = await only(simulated)
        assert (state.phase, state.pid) == (DaemonPhase.STARTING, pid)
    with pytest.raises(GpuInUse):
        await simulated.keeper().start(simulated.spec())
    assert await tenant.says("launch") == "ok"


async def test_what_is_no_daemons_directory_is_not_listed(simulated: Subject):
    for name in ("lost+found", ".hidden", "GPU-", "x" * 200):
        (simulated.run_dir / "mps" / name).mkdir(parents=True)
    assert await simulated.keeper().states() == ()


# --- directories ------------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


async def test_every_user_can_pass_to_pipe_log_and_shm_whatever_the_umask(simulated: Subject):
    before = os.umask(0o077)
    try:
        await simulated.keeper().start(simulated.spec())
    finally:
        os.umask(before)
    home = simulated.home()

    assert all(mode(path) & 0o011 == 0o011 for path in (simulated.run_dir, home.parent, home))
    assert mode(home) == 0o711
    assert (mode(home / "pipe"), mode(home / "log"), mode(home / "shm")) == (0o755, 0o755, 0o1777)
    assert mode(home / "log/control.log") == 0o644


async def test_a_parent_that_only_its_owner_can_pass_is_named(simulated: Subject):
    closed = simulated.root / "closed"
    closed.mkdir(mode=0o700)
    simulated.run_dir = closed / "run"
    state = await simulated.keeper().start(simulated.spec(multi_user=False))

    assert state.phase is DaemonPhase.SERVING
    assert f"only the owner of {closed} can be a client" in state.reason
    assert mode(closed) == 0o700


@needs_root
async def test_each_daemon_has_a_shared_memory_of_its_own(simulated: Subject):
    keeper = simulated.keeper()
    first, second = await asyncio.gather(*(keeper.start(simulated.spec(number)) for number in (0, 1)))
    (simulated.home(0) / "shm/mark").touch()

    assert first.pid is not None
    assert [path.name for path in Path(f"/proc/{first.pid}/root/dev/shm").iterdir()] == ["mark"]
    assert list(Path(f"/proc/{second.pid}/root/dev/shm").iterdir()) == []
    assert not Path("/dev/shm/mark").exists()
    assert Path("/proc/self/ns/mnt").readlink() != Path(f"/proc/{first.pid}/ns/mnt").readlink()


async def test_without_a_shared_memory_of_its_own_a_daemon_uses_the_nodes(simulated: Subject):
    state = await simulated.keeper(host=DaemonHost(own_mounts=False)).start(simulated.spec())
    assert Path("/proc/self/ns/mnt").readlink() == Path(f"/proc/{state.pid}/ns/mnt").readlink()
    assert not (simulated.home() / "shm").is_mount()


@needs_root
async def test_where_there_is_selinux_containers_are_let_in(simulated: Subject):
    enforcing = simulated.root / "selinux"
    enforcing.mkdir()
    await simulated.keeper(host=DaemonHost(selinux=enforcing)).start(simulated.spec())
    for name in ("pipe", "log", "shm"):
        label = os.getxattr(simulated.home() / name, "security.selinux")
        assert label == b"system_u:object_r:container_file_t:s0\0"


# --- the way it is started --------------------------------------------------------------------------


def whole_cgroup_tree() -> bool:
    return DaemonHost().home().kind is HomeKind.CGROUP


@pytest.mark.skipif(not whole_cgroup_tree(), reason="the cgroup v2 tree of this machine cannot be written")
async def test_a_daemon_has_a_session_and_a_cgroup_of_its_own(simulated: Subject):
    pid = (await simulated.keeper().start(simulated.spec())).pid
    assert pid is not None
    host = DaemonHost()
    cgroup = Path(host.make_cgroups(host.home(), DaemonPaths(simulated.home()))[0])

    assert os.getsid(pid) not in (os.getsid(0), 0)
    assert str(pid) in (cgroup / "cgroup.procs").read_text().split()
    await simulated.keeper().stop(GPUS[0])
    assert not cgroup.exists()
    assert "the cgroup" in host.bound_to(host.home(), DaemonPaths(simulated.home()), pid)
    assert not cgroup.exists(), "who asks makes none"


SYSTEMD_RUN = """#!{python} -IS
import json, os, sys
options, command = sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:]
json.dump(options, open({seen!r}, "w"))
def given(name):
    return [option.removeprefix(name) for option in options if option.startswith(name)]
lines = [*given("--setenv="), *open(given("--property=EnvironmentFile=")[0]).read().splitlines()]
os.chdir("/")
os.execve(command[0], command, dict(line.split("=", 1) for line in lines))
"""


@needs_root
async def test_where_systemd_takes_calls_the_daemon_is_a_unit_of_its_own(simulated: Subject):
    """Programs of systemd that keep nothing: what a real one does, test_systemd sees."""
    run, seen = simulated.root / "run-of-the-node", simulated.root / "seen.json"
    (run / "systemd/system").mkdir(parents=True)
    programs = {
        "systemd-run": SYSTEMD_RUN.format(python=sys.executable, seen=str(seen)),
        "systemctl": "#!/bin/sh\necho ActiveState=inactive\necho MainPID=0\n",
    }
    for name, text in programs.items():
        (simulated.root / name).write_text(text)
        (simulated.root / name).chmod(0o755)
    host = DaemonHost(run=run, path=str(simulated.root), own_mounts=False)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run / "systemd/private"))
        listener.listen()
        state = await simulated.keeper(host=host).start(simulated.spec())
    assert state.phase is DaemonPhase.SERVING
    assert state.bound_to.endswith(f"could not be moved to the unit partage-mps-{GPUS[0]}.service")
    options = json.loads(seen.read_text())
    assert f"--unit=partage-mps-{GPUS[0]}.service" in options
    assert not any("PIDFile" in option for option in options), "a tenant can write it, and 535 writes none"
    assert {"--collect", "--service-type=forking", f"--setenv=CUDA_VISIBLE_DEVICES={GPUS[0]}"} <= set(options)
    assert "2048M" not in "".join(options)  # limits are no part of the call


async def test_systemd_that_takes_no_calls_is_not_asked(simulated: Subject):
    run = simulated.root / "run-of-the-node"
    (run / "systemd/system").mkdir(parents=True)
    (simulated.root / "systemd-run").write_text("#!/bin/false\n")
    (simulated.root / "systemd-run").chmod(0o755)
    host = DaemonHost(run=run, path=str(simulated.root))
    assert (await simulated.keeper(host=host).start(simulated.spec())).phase is DaemonPhase.SERVING


async def test_a_program_that_does_not_return_is_ended(simulated: Subject):
    program = simulated.root / "usr/bin/nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh\necho thinking; exec sleep 60\n")
    with pytest.raises(DaemonError, match=r"did not start within 4 s: thinking"):  # long enough to say so
        await simulated.keeper(start_s=4.0, answer_s=0.2).start(simulated.spec(multi_user=False))
    assert await simulated.keeper().states() == ()


async def test_a_state_crosses_the_helpers_socket_unchanged(simulated: Subject):
    await simulated.keeper().start(simulated.spec())
    await simulated.tenant()
    states = await simulated.keeper().states()
    assert decode(tuple[DaemonState, ...], encode(states)) == states
    assert states[0].limits.memory_bytes == LIMIT


# --- who else gives commands ------------------------------------------------------------------------


def tell(subject: Subject, command: str, device: str = GPUS[0]) -> None:
    """A tenant's command, through the directory that its container has."""
    driver, paths = DriverFiles(subject.root), DaemonPaths.of(subject.run_dir, GpuUuid(device))
    environment = driver.environment(paths)
    subprocess.run([driver.program()], env=environment, input=f"{command}\n", text=True, check=True)


async def test_after_a_command_of_somebody_else_all_limits_are_set_again(simulated: Subject):
    keeper, spec = simulated.keeper(), simulated.spec()
    server = (await keeper.start(spec)).servers[0].pid
    assert [one.unsettled for one in await keeper.states()] == [""]
    tell(simulated, f"set_active_thread_percentage {server} 100")
    tell(simulated, f"set_device_pinned_mem_limit {server} 0 60G")
    (seen,) = await keeper.states()
    assert "60G" in seen.unsettled
    tenant = await simulated.tenant()
    again = await keeper.start(spec)
    assert (again.phase, again.unsettled, again.limits) == (DaemonPhase.SERVING, "", spec.limits)
    assert again.servers[0].pid == server, "nobody is ended, nothing is replaced"
    driver, paths = DriverFiles(simulated.root), DaemonPaths.of(simulated.run_dir, GPUS[0])
    control = ControlV2(driver.program, driver.environment(paths), 10.0)
    assert await control.ask(f"get_active_thread_percentage {server}") == "25.0\n"
    assert [one.unsettled for one in await simulated.keeper().states()] == [""], (
        "another helper knows it, too"
    )
    assert await tenant.says("launch") == "ok"


async def test_a_tenant_that_gives_commands_all_the_time_is_said_and_ends_nothing(
    simulated: Subject, monkeypatch: pytest.MonkeyPatch
):
    keeper, spec = simulated.keeper(), simulated.spec()
    pid = (await keeper.start(spec)).pid
    ask = ControlV2.ask

    async def between(self: ControlV2, command: str, deadline_s: float | None = None) -> str:
        answer = await ask(self, command, deadline_s)
        if command.startswith("set_"):
            await ask(self, "set_default_active_thread_percentage 99")
            await ask(self, "set_default_active_thread_percentage 25")
        return answer

    monkeypatch.setattr(ControlV2, "ask", between)
    with pytest.raises(DaemonError, match="keeps telling"):
        await keeper.start(spec)
    monkeypatch.undo()
    (now,) = await keeper.states()
    assert (now.pid, now.phase, bool(now.unsettled)) == (pid, DaemonPhase.SERVING, True)
