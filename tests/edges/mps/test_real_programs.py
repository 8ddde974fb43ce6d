"""Which process is the daemon, with NVIDIA's own control programs, and a tenant that removes its files.

Without a GPU no server starts, so the keeper cannot start such a daemon to the end: it is started here.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from partage.edges.mps import directories
from partage.edges.mps.access import DaemonAccess, DaemonDeadlines
from partage.edges.mps.control_v2 import ControlV2
from partage.edges.mps.daemon_end import force_quit, quit_daemon
from partage.edges.mps.daemon_logs import LARGEST_BYTES, cut_logs, end_of_log, last_line, read_log
from partage.edges.mps.home import DaemonHost
from partage.edges.mps.paths import DaemonPaths, DriverFiles
from partage.edges.mps.record import (
    CLIENTS,
    COMMANDS,
    DaemonIdentity,
    DaemonRecord,
    answers_elsewhere,
    save_record,
    socket_ids,
)
from partage.errors import DaemonError
from partage.model.gpu_use import nobody
from partage.model.mps import DaemonPhase, DaemonSpec
from partage.units import MIB
from tests.edges.mps.subjects import GPUS, ROOT, fill, until
from tests.nvidia.packages import BRANCHES, unpacked

pytestmark = [pytest.mark.real, pytest.mark.skipif(not ROOT, reason="other users and mounts take root")]


@dataclass
class Real:
    access: DaemonAccess
    paths: DaemonPaths

    async def identity(self) -> DaemonIdentity:
        found = (await self.access.find(self.paths)).identity
        assert found is not None
        return found

    async def phase(self) -> tuple[DaemonPhase, str]:
        state = await self.access.state(self.paths)
        return state.phase, state.reason


@pytest.fixture(scope="module", params=BRANCHES)
def branch(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def driver(branch: str) -> Path:
    return unpacked(branch)


@pytest.fixture
async def real(driver: Path, short_dir: Path) -> AsyncIterator[Real]:
    """A daemon that is recorded as Partage does."""
    host, deadlines = DaemonHost(), DaemonDeadlines(answer_s=2.0)
    access = DaemonAccess(short_dir, DriverFiles(driver), host, deadlines)
    paths = DaemonPaths.of(short_dir, GPUS[0])
    made = directories.make_directories(paths, host)
    subprocess.run(
        [access.driver.program(), "-d"],
        env=access.driver.environment(paths) | {"CUDA_VISIBLE_DEVICES": GPUS[0]},
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    real = Real(access, paths)
    identity = await real.identity()
    spec = DaemonSpec(GPUS[0], GPUS[0])
    record = DaemonRecord(spec, identity, sockets=socket_ids(paths), directories=made.kind)
    save_record(paths.record, record)
    try:
        yield real
    finally:
        await force_quit(access, await access.find(paths))
        directories.remove_directories(paths)


async def test_it_is_adopted_without_a_record_and_without_its_pid_file(real: Real):
    before = await real.identity()
    assert answers_elsewhere(real.paths, before.pid) == ""
    assert await real.phase() == (DaemonPhase.SERVING, "")
    (real.paths.pipe / "nvidia-cuda-mps-control.pid").unlink(missing_ok=True)  # 535 has none
    assert await real.phase() == (DaemonPhase.SERVING, "")
    real.paths.record.unlink()
    assert await real.identity() == before


async def test_its_sockets_are_looked_for(real: Real):
    (real.paths.pipe / CLIENTS).unlink()
    reason = f"its socket {CLIENTS} was removed, so it has to be replaced"
    assert await real.phase() == (DaemonPhase.STARTING, reason), "it answers root on the other one"
    (real.paths.pipe / COMMANDS).unlink()
    phase, _ = await real.phase()
    assert phase is DaemonPhase.SILENT
    found = await real.access.find(real.paths)
    with pytest.raises(DaemonError, match=f"{COMMANDS} was removed"):
        await quit_daemon(real.access, found)
    assert await real.identity() == found.identity
    await quit_daemon(real.access, found, nobody)
    assert (await real.access.find(real.paths)).identity is None


LIMITED = DaemonSpec(GPUS[0], GPUS[0], 3500 * MIB, 25)
"""A limit that reads back as ``3G``, as every other from 3072 to 4095 MiB."""


async def settle(real: Real) -> None:
    """What the keeper does once it has started a daemon; without a GPU it gets no further than that."""
    found = await real.access.find(real.paths)
    control = real.access.control(found)
    assert isinstance(control, ControlV2)
    assert found.record is not None
    log = real.paths.log / "control.log"
    before = end_of_log(log)
    assert before is not None
    ours = await control.set_limits(LIMITED)
    assert await control.limits(LIMITED) == LIMITED.limits

    async def is_written() -> bool:
        return read_log(log, before).changes == ours

    await until(is_written)  # it answers before it writes
    end = read_log(log, before).end
    save_record(real.paths.record, replace(found.record, spec=LIMITED, settled=end))


def tell(real: Real, command: str, uid: int = 0) -> str:
    """A tenant's command: the control program in the same pipe directory, as some user."""
    as_user = ["setpriv", f"--reuid={uid}", "--clear-groups", "--no-new-privs"]
    asked = subprocess.run(
        [*as_user, real.access.driver.program()],
        env=real.access.driver.environment(real.paths),
        input=f"{command}\n",
        capture_output=True,
        text=True,
        check=True,
    )
    return asked.stdout


@pytest.mark.parametrize(
    "command",
    [
        "set_default_device_pinned_mem_limit 0 3999M",
        "set_default_device_pinned_mem_limit 0 60G\nset_default_device_pinned_mem_limit 0 3500M",
        "set_active_thread_percentage 99 100",
    ],
)
async def test_a_command_of_somebody_else_is_noticed_though_all_reads_back_as_before(
    real: Real, command: str
):
    await settle(real)
    for _ in range(2):
        assert (await real.access.state(real.paths)).unsettled == "", "Partage's own questions change nothing"
    tell(real, "get_default_device_pinned_mem_limit 0\nps")
    assert (await real.access.state(real.paths)).unsettled == "", "nor do those of others"
    tell(real, command)
    seen = await real.access.state(real.paths)
    assert (seen.phase, seen.limits) == (DaemonPhase.SERVING, LIMITED.limits), "so it reads back"
    assert command.rpartition("\n")[2] in seen.unsettled
    assert (await real.access.state(real.paths)).unsettled == seen.unsettled, "until they are set again"
    await settle(real)
    assert (await real.access.state(real.paths)).unsettled == ""


async def test_since_550_a_user_that_is_not_root_changes_nothing(real: Real, branch: str):
    await settle(real)
    said = tell(real, "set_default_device_pinned_mem_limit 0 60G", uid=65534)
    refused = "Insufficient privileges for UID 65534" in said
    assert refused is (branch != "535")
    seen = await real.access.state(real.paths)
    assert (seen.limits == LIMITED.limits) is refused
    assert "60G" in seen.unsettled, "the log does not say who gave it, nor that it was refused"


async def test_why_its_server_ended_is_found_in_its_log(real: Real):
    """It is written while the connection that asked for the server is open, where answers are, too."""
    control = real.access.control(await real.access.find(real.paths))
    assert isinstance(control, ControlV2)
    with contextlib.suppress(DaemonError):
        await control.start_server(0)

    async def is_written() -> bool:
        return "exited with status 1" in last_line(real.paths.log / "control.log")

    await until(is_written)
    assert await control.servers() == ()
    assert await is_written(), "a question that came later does not hide it"


FILL = """
import os, sys
log = os.open(sys.argv[1] + "/log", os.O_WRONLY | os.O_NONBLOCK)
if sys.argv[2:]:
    os.unlink(sys.argv[1] + "/log")
print("holds", flush=True)
for line in sys.stdin:
    try:
        while True:
            os.write(log, b"A" * 4096)
    except BlockingIOError:
        print("full", flush=True)
"""
"""Fills the pipe for each line that it is told. With a second argument it has removed its name before."""


def _answer(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    process.stdin.flush()
    return process.stdout.readline()


@pytest.mark.parametrize("removes", [False, True])
async def test_a_daemon_that_waits_because_a_tenant_filled_its_log_pipe_is_let_go_on(
    real: Real, removes: bool
):
    """Every user may fill it, and root of a container may remove its name."""
    await settle(real)
    as_user = [] if removes else ["setpriv", "--reuid=65534", "--clear-groups", "--no-new-privs"]
    argv = [*as_user, "/usr/bin/python3", "-c", FILL, str(real.paths.pipe), *["removes"] * removes]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tenant:
        assert tenant.stdout is not None
        assert tenant.stdout.readline() == b"holds\n"

        async def is_silent() -> bool:
            assert _answer(tenant, b"fill\n") == b"full\n"
            phase, reason = await real.phase()
            return phase is DaemonPhase.SILENT and "pipe/log was full" in reason

        try:
            await until(is_silent)  # it reads some of it before it waits
            assert (await real.phase())[0] is DaemonPhase.SERVING
        finally:
            tenant.kill()


FAKE = """
import socket, sys
listens = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listens.bind(sys.argv[1])
listens.listen(8)
print("listens", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", [CLIENTS, COMMANDS])
async def test_somebody_else_who_listens_at_its_socket_is_not_the_daemon(real: Real, name: str):
    pid = (await real.identity()).pid
    socket_path = real.paths.pipe / name
    socket_path.unlink()
    assert answers_elsewhere(real.paths, pid) == ("nobody listens at its socket control" * (name == CLIENTS))
    fake = subprocess.Popen(
        ["/usr/bin/python3", "-c", FAKE, socket_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert fake.stdout is not None
        assert fake.stdout.readline() == b"listens\n"
        assert answers_elsewhere(real.paths, pid) == f"process {fake.pid} listens at its socket {name}"
    finally:
        fake.communicate()


async def test_questions_of_others_make_nothing_unknown(real: Real):
    """Two who ask at once: a tenant that asks again and again, or ``partage show`` beside the agent."""
    await settle(real)
    looks = [real.access.state(real.paths) for _ in range(6)]
    assert {state.phase for state in await asyncio.gather(*looks)} == {DaemonPhase.SERVING}


READ_ONLY = """
mount --bind "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_PIPE_DIRECTORY"
mount -o remount,bind,ro "$CUDA_MPS_PIPE_DIRECTORY"
echo get_default_active_thread_percentage | "$0"
rm "$CUDA_MPS_PIPE_DIRECTORY/control"
"""


async def test_on_a_pipe_that_is_mounted_read_only_it_answers_and_nothing_can_be_removed(real: Real):
    """As root in a mount namespace of its own, which is what a container's root has."""
    program = real.access.driver.program()
    asked = subprocess.run(
        ["unshare", "--mount", "sh", "-c", READ_ONLY, program],
        env=real.access.driver.environment(real.paths),
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.stdout == "100.0\n"
    assert "Read-only file system" in asked.stderr
    assert await real.phase() == (DaemonPhase.SERVING, "")


async def test_its_log_is_cut_while_it_writes_and_it_answers_when_the_log_is_full(real: Real):
    log = real.paths.log / "control.log"
    with log.open("ab") as file:
        file.write(bytes(b"a line\n" * (LARGEST_BYTES // 7 + 100)))
    cut_logs(real.paths)
    size = log.stat().st_size
    assert log.stat().st_blocks * 512 < LARGEST_BYTES / 2
    assert await real.phase() == (DaemonPhase.SERVING, "")

    async def is_appended() -> bool:
        with log.open("rb") as file:
            file.seek(size)
            return b"Cmd:" in file.read()

    await until(is_appended)  # it answers before it writes

    with pytest.raises(OSError, match="No space left"):
        fill(real.paths.log)
    full = await real.access.state(real.paths)
    assert (full.phase, full.full) == (
        DaemonPhase.SERVING,
        f"log of its MPS daemon has no room left: {real.paths.home}",
    )


def test_a_link_that_a_tenant_has_left_leads_it_nowhere(driver: Path, short_dir: Path):
    """Without the mount's flag, 550 and 555 write their pid into the file that the link names."""
    paths, files = DaemonPaths.of(short_dir, GPUS[0]), DriverFiles(driver)
    directories.make_directories(paths, DaemonHost())
    target = short_dir / "file-of-the-node"
    target.write_text("kept")
    link = paths.pipe / "nvidia-cuda-mps-control.pid"
    link.symlink_to(target)
    env = files.environment(paths) | {"CUDA_VISIBLE_DEVICES": GPUS[0]}
    try:
        subprocess.run([files.program(), "-d"], env=env, input=b"", capture_output=True, check=False)
        assert target.read_text() == "kept"
    finally:
        subprocess.run([files.program()], env=env, input=b"quit\n", capture_output=True, check=False)
        directories.remove_directories(paths)
