"""A daemon's directories are file systems of their own: bounded, found again, and gone with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from partage.edges.mps import directories as mounts
from partage.edges.mps.daemon_logs import KEPT_BYTES, LARGEST_BYTES
from partage.edges.mps.home import DaemonHost
from partage.edges.mps.paths import DaemonPaths
from partage.errors import GpuInUse
from partage.model.mps import DaemonPhase, DaemonState
from partage.units import MIB
from tests.edges.mps.subjects import GPUS, ROOT, Subject, fill

pytestmark = pytest.mark.skipif(not ROOT, reason="mounting takes root")

PARTS = ("pipe", "log", "shm")


async def only(subject: Subject) -> DaemonState:
    (state,) = await subject.keeper().states()
    return state


def mounted(home: Path) -> list[str]:
    """What is mounted below a daemon's home, once for each time."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    return sorted(Path(where).name for line in lines if (where := line.split()[4]).startswith(f"{home}/"))


async def older(subject: Subject) -> DaemonState:
    """A daemon of a Partage that knew no file systems for them, and wrote no word of it."""
    state = await subject.keeper(host=DaemonHost(own_mounts=False)).start(subject.spec())
    record = subject.home() / "daemon.json"
    kept = json.loads(record.read_text())
    del kept["directories"]
    record.write_text(json.dumps(kept))
    return state


async def test_what_fills_one_directory_fills_nothing_else_and_is_said(simulated: Subject):
    await simulated.keeper().start(simulated.spec())
    home, node = simulated.home(), os.statvfs(simulated.run_dir).f_fsid
    assert mounted(home) == sorted(PARTS)
    assert len({os.statvfs(home / part).f_fsid for part in PARTS} | {node}) == 4
    assert (await only(simulated)).full == ""

    with pytest.raises(OSError, match="No space left"):
        fill(home / "pipe")
    assert os.statvfs(home / "pipe").f_blocks * os.statvfs(home / "pipe").f_frsize == mounts.PIPE_BYTES
    state = await only(simulated)
    assert (state.phase, state.full) == (
        DaemonPhase.SERVING,
        f"pipe of its MPS daemon has no room left: {home}",
    )
    with pytest.raises(OSError, match="No space left"):
        fill(home / "log")
    assert (await only(simulated)).full == f"pipe and log of its MPS daemon have no room left: {home}"
    (home / "pipe/filler").unlink()
    (home / "log/filler").unlink()
    assert (await only(simulated)).full == ""


async def test_a_directory_full_of_files_is_full(simulated: Subject):
    await simulated.keeper().start(simulated.spec())
    pipe = simulated.home() / "pipe"
    assert os.statvfs(pipe).f_files == mounts.PIPE_FILES
    subprocess.run(["mount", "-o", "remount,nr_inodes=64", pipe], check=True)  # 65,536 take long

    def make_many() -> None:
        for number in range(64):
            (pipe / f"file-{number}").touch()

    with pytest.raises(OSError, match="No space left"):
        make_many()
    assert (await only(simulated)).full.startswith("pipe of its MPS daemon")


async def test_in_pipe_and_log_no_link_is_followed(simulated: Subject):
    await simulated.keeper().start(simulated.spec())
    target = simulated.root / "file-of-the-node"
    target.touch()
    for part in ("pipe", "log"):
        link = simulated.home() / part / "link"
        link.symlink_to(target)
        with pytest.raises(OSError, match="Too many levels"):
            link.read_bytes()
    (simulated.home() / "shm/link").symlink_to(target)
    assert (simulated.home() / "shm/link").read_bytes() == b"", "a program's own"


async def test_they_are_mounted_once_and_gone_with_the_daemon(simulated: Subject):
    keeper = simulated.keeper()
    first = await keeper.start(simulated.spec())
    assert (await simulated.keeper().start(simulated.spec())).pid == first.pid, "another helper"
    assert mounted(simulated.home()) == sorted(PARTS)
    another = await simulated.keeper().start(simulated.spec(threads_percent=50))
    assert another.pid != first.pid
    assert mounted(simulated.home()) == sorted(PARTS), "kept for containers that have them mounted"
    await keeper.stop(GPUS[0])
    assert mounted(simulated.home()) == []
    assert not simulated.home().exists()


async def test_after_a_start_that_failed_nothing_is_mounted(simulated: Subject):
    (simulated.root / "usr/bin/nvidia-cuda-mps-control").write_text("#!/bin/sh\necho no; exit 1\n")
    with pytest.raises(Exception, match="did not start"):
        await simulated.keeper().start(simulated.spec())
    assert mounted(simulated.home()) == []
    assert not simulated.home().exists()


async def test_a_daemon_of_an_older_partage_keeps_its_directories_until_it_is_started_again(
    simulated: Subject,
):
    before = await older(simulated)
    tenant = await simulated.tenant()
    state = await only(simulated)
    assert (state.phase, state.pid) == (DaemonPhase.SERVING, before.pid)
    assert state.outdated

    assert (await simulated.keeper().start(simulated.spec())).pid == before.pid, "nothing to replace yet"
    assert mounted(simulated.home()) == []
    assert await tenant.says("launch") == "ok"
    with pytest.raises(GpuInUse):
        await simulated.keeper().stop(GPUS[0])
    await tenant.leaves()

    await simulated.keeper().stop(GPUS[0])
    await simulated.keeper().start(simulated.spec())
    assert mounted(simulated.home()) == sorted(PARTS)
    assert not (await only(simulated)).outdated


async def test_nothing_is_mounted_over_a_directory_that_was_there(simulated: Subject):
    """A container that begins before the daemon: its runtime makes the directories, and has them mounted."""
    pipe = simulated.home() / "pipe"
    pipe.mkdir(parents=True)
    handle = os.open(pipe, os.O_DIRECTORY)
    try:
        state = await simulated.keeper().start(simulated.spec())
        assert state.phase is DaemonPhase.SERVING
        assert os.stat("control", dir_fd=handle)
    finally:
        os.close(handle)
    assert mounted(simulated.home()) == ["log", "shm"]
    assert (await only(simulated)).outdated
    await simulated.keeper().stop(GPUS[0])
    assert mounted(simulated.home()) == []


async def test_where_nothing_is_to_be_mounted_no_daemon_is_out_of_date(simulated: Subject):
    await older(simulated)
    (state,) = await simulated.keeper(host=DaemonHost(own_mounts=False)).states()
    assert (state.phase, state.outdated) == (DaemonPhase.SERVING, False)


MAKE = """
import sys
from pathlib import Path
from partage.edges.mps.directories import make_directories
from partage.edges.mps.home import DaemonHost
from partage.edges.mps.paths import DaemonPaths
made = make_directories(DaemonPaths(Path(sys.argv[1])), DaemonHost())
print(made.kind, made.remark, sep=": ")
"""


def test_where_mounting_is_not_permitted_they_are_plain_and_that_is_said(short_dir: Path):
    home = short_dir / "mps" / GPUS[0]
    command = ["setpriv", "--bounding-set=-sys_admin", sys.executable, "-c", MAKE, str(home)]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    reason = "pipe, log and shm are no file systems of their own: mounting is not permitted here"
    assert made.stdout == f"plain: {reason}\n"
    assert mounted(home) == []
    assert (home / "pipe").is_dir()


def test_what_would_not_be_seen_on_the_node_is_not_mounted(short_dir: Path):
    paths = DaemonPaths(short_dir / "mps" / GPUS[0])
    elsewhere = short_dir / "node"
    for root in (Path("/"), elsewhere):
        (root / paths.pipe.relative_to("/")).mkdir(parents=True)
    plain = mounts.mount_all(paths, [paths.pipe], proc=Path("/proc"), node=elsewhere)
    assert "is not seen on the node" in plain
    assert mounted(paths.home) == []
    assert mounts.mount_all(paths, [paths.pipe], proc=Path("/proc"), node=Path("/proc/self/root")) == ""
    assert mounted(paths.home) == ["pipe"]
    mounts.unmount_all([paths.pipe])
    assert mounted(paths.home) == []


async def test_a_log_that_has_grown_is_cut_and_goes_on(simulated: Subject):
    await simulated.keeper().start(simulated.spec())
    log = simulated.home() / "log/control.log"
    with log.open("ab") as file:
        file.write(b"a line\n" * (LARGEST_BYTES // 7 + 1000))
    size = log.stat().st_size
    assert (await only(simulated)).phase is DaemonPhase.SERVING
    await only(simulated)
    assert log.stat().st_size >= size, "who reads on from an offset goes on there"
    assert log.stat().st_blocks * 512 <= KEPT_BYTES + MIB
    assert log.read_bytes()[-KEPT_BYTES // 2 :].count(b"\0") == 0
    before = log.stat().st_size
    await simulated.keeper().start(simulated.spec())
    assert log.stat().st_size > before, "the daemon writes on"


async def test_a_log_that_is_a_link_is_not_followed(simulated: Subject):
    await simulated.keeper().start(simulated.spec())
    target = simulated.root / "file"
    target.write_bytes(bytes(range(1, 256)) * (LARGEST_BYTES // 255 + 1000))
    content = target.read_bytes()
    (simulated.home() / "log/server.log").unlink(missing_ok=True)
    (simulated.home() / "log/server.log").symlink_to(target)
    await simulated.keeper().states()
    assert target.read_bytes() == content
