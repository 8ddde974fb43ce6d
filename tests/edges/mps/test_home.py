"""Where a daemon lives and what it survives: decided from what can be reached, tried with real cgroups."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from partage.edges.host.procfs import INITIAL_PID_NAMESPACE
from partage.edges.mps.home import INITIAL_CGROUP_NAMESPACE, DaemonHost
from partage.edges.mps.paths import DaemonPaths
from partage.errors import Unsupported
from partage.model.mps import (
    DaemonHome,
    DaemonPhase,
    HomeChoice,
    HomeKind,
    Surroundings,
    bound_to,
    choose_home,
)
from tests.edges.mps.subjects import ROOT, Subject, until

V2, V1 = {"": "/host"}, {"": "/host", "memory": "/host/memory"}


@pytest.mark.parametrize(
    ("found", "home"),
    [
        (Surroundings(no_systemd="", contained=True), DaemonHome(HomeKind.UNIT)),
        (Surroundings(), DaemonHome(HomeKind.SESSION)),
        (Surroundings(roots=V1), DaemonHome(HomeKind.CGROUP, ("/host",), True)),
        (Surroundings(contained=True, roots=V2), DaemonHome(HomeKind.CGROUP, ("/host",), True)),
        (
            Surroundings(contained=True, hierarchies=("memory", ""), roots=V1),
            DaemonHome(HomeKind.CGROUP, ("/host", "/host/memory"), True),
        ),
        (
            Surroundings(contained=True, hierarchies=("memory",), roots=V1),
            DaemonHome(HomeKind.CGROUP, ("/host/memory",)),
        ),
    ],
)
def test_a_daemon_lives_where_it_lasts_longest(found, home):
    assert choose_home(found) == home
    assert bound_to(home, contained=found.contained) == ""


def test_the_operator_can_insist_on_systemd_or_do_without():
    there = Surroundings(no_systemd="", contained=True, roots=V2)
    assert choose_home(there, HomeChoice.SYSTEMD).kind is HomeKind.UNIT
    assert choose_home(there, HomeChoice.POD) == choose_home(Surroundings(contained=True, roots=V2))
    with pytest.raises(Unsupported, match="units of the node's systemd, and it sleeps"):
        choose_home(Surroundings(no_systemd="it sleeps", roots=V2), HomeChoice.SYSTEMD)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (Surroundings(contained=True), "(hierarchy v2)"),
        (Surroundings(contained=True, hierarchies=("memory", ""), roots=V2), "(hierarchy memory)"),
        (Surroundings(contained=True, host_pids=False, roots=V2), "pid namespace"),
    ],
)
def test_in_a_container_that_cannot_be_left_the_daemon_is_not_said_to_outlive_it(found, why):
    home = choose_home(found)
    assert home.kind is HomeKind.CONTAINER
    assert bound_to(home, contained=True).startswith("the daemon ends with this container: ")
    assert why in home.reason


def test_what_was_promised_and_is_not_so_is_said():
    home = DaemonHome(HomeKind.CGROUP, ("/host",), unified=True)
    assert "ends with this container" in bound_to(home, contained=True, left_in="/host/partage-mps")
    assert "ends with this service" in bound_to(home, contained=False, left_in="/host/partage-mps")


# --- what the kernel shows ---------------------------------------------------------------------------


def _proc(directory: Path, *, private: bool, marked: bool, lines: str = "0::/\n") -> DaemonHost:
    """A /proc in which a cgroup2 file system is mounted at ``directory/fs``. marked: as one that is not the
    host's root is.
    """
    proc, fs = directory / "proc", directory / "fs"
    (proc / "self/ns").mkdir(parents=True)
    fs.mkdir()
    (fs / "cgroup.procs").touch()
    if marked:
        (fs / "cgroup.type").touch()
    (proc / "self/ns/cgroup").symlink_to("cgroup:[4026532179]" if private else INITIAL_CGROUP_NAMESPACE)
    (proc / "self/ns/pid").symlink_to(INITIAL_PID_NAMESPACE)
    (proc / "self/cgroup").write_text(lines)
    (proc / "self/mountinfo").write_text(f"41 31 0:38 / {fs} rw - cgroup2 cgroup2 rw\n")
    return DaemonHost(proc=proc, run=directory / "run")


def test_a_cgroup_is_removed_once_the_last_thread_has_left_it(tmp_path, monkeypatch):
    host = _proc(tmp_path, private=False, marked=False)
    paths = DaemonPaths(tmp_path / "GPU-1")
    (cgroup,) = map(Path, host.make_cgroups(host.home(), paths))
    host.remove_cgroup(paths)
    assert not cgroup.exists()
    cgroup.mkdir()
    (cgroup / "thread").touch()
    pauses = []

    def pause(pause_s):  # the kernel has no call that waits until a cgroup is empty
        pauses.append(pause_s)
        if len(pauses) == 2:
            (cgroup / "thread").unlink()

    monkeypatch.setattr(time, "sleep", pause)
    host.remove_cgroup(paths)
    assert not cgroup.exists()
    cgroup.mkdir()
    (cgroup / "process").touch()
    host.remove_cgroup(paths)
    assert cgroup.exists()
    assert sum(pauses[2:]) < 1


POD = f"0::/kubepods.slice/cri-containerd-{'a' * 64}.scope\n"


@pytest.mark.parametrize(
    ("private", "marked", "lines", "kind"),
    [
        (False, False, "0::/\n", HomeKind.CGROUP),
        (False, True, "0::/\n", HomeKind.SESSION),
        (True, True, "0::/\n", HomeKind.CONTAINER),  # `/` is the container's own cgroup
        (True, False, "0::/\n", HomeKind.CGROUP),  # the host's tree is mounted besides
        (False, False, POD, HomeKind.CGROUP),
        (False, True, POD, HomeKind.CONTAINER),
    ],
)
def test_the_root_of_a_namespace_is_not_taken_for_the_hosts(tmp_path, private, marked, lines, kind):
    assert _proc(tmp_path, private=private, marked=marked, lines=lines).home().kind is kind


def test_the_hosts_tree_is_found_through_process_1(tmp_path):
    """A privileged container with hostPID; its own mount shows its own part alone."""
    host = _proc(tmp_path, private=True, marked=True)
    root = tmp_path / "proc/1/root/sys/fs/cgroup"
    root.mkdir(parents=True)
    (root / "cgroup.procs").touch()
    (tmp_path / "proc/1/mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    assert host.home() == DaemonHome(HomeKind.CGROUP, (str(root),), unified=True)
    (tmp_path / "proc/self/ns/pid").unlink()
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026532200]")
    assert host.home().kind is HomeKind.CONTAINER  # process 1 is the container's own


def test_hierarchies_of_version_1_have_the_names_that_processes_have_for_them(tmp_path):
    host = _proc(tmp_path, private=True, marked=False, lines="3:cpu,cpuacct:/\n1:name=systemd:/\n0::/\n")
    lines = [(tmp_path / "proc/self/mountinfo").read_text()]
    for name, options in {
        "cpu,cpuacct": "rw,cpu,cpuacct",
        "name=systemd": "rw,xattr,release_agent=/lib/agent,name=systemd",
    }.items():
        root = tmp_path / name
        root.mkdir()
        (root / "cgroup.procs").touch()
        (root / "release_agent").touch()
        lines.append(f"32 31 0:29 / {root} rw - cgroup cgroup {options}\n")
    (tmp_path / "proc/self/mountinfo").write_text("".join(lines))
    home = host.home()
    assert home.kind is HomeKind.CGROUP
    assert [Path(root).name for root in home.roots] == ["fs", "cpu,cpuacct", "name=systemd"]


# --- real containers, as far as cgroups and namespaces make one ---------------------------------------

STARTER = """
import asyncio, sys
from pathlib import Path
from partage.edges.mps.keeper import MpsKeeper
from partage.model.mps import DaemonSpec

spec, run_dir, root = sys.argv[1:]
async def main():
    state = await MpsKeeper(Path(run_dir), Path(root)).start(eval(spec))
    print(state.bound_to, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def tree() -> Path | None:
    """The root of this machine's cgroup v2, if tests may make cgroups there."""
    home = DaemonHost().home() if ROOT else DaemonHome(HomeKind.SESSION)
    return Path(home.roots[0]) if home.kind is HomeKind.CGROUP and home.unified else None


needs_tree = pytest.mark.skipif(tree() is None, reason="the host's cgroup v2 tree cannot be written")


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup for a container."""
    root = tree()
    assert root is not None
    made = Path(tempfile.mkdtemp(prefix="partage-test-", dir=root))
    yield made
    (made / "cgroup.kill").write_text("1")
    deadline = time.monotonic() + 10
    while "populated 1" in (made / "cgroup.events").read_text():  # killed processes are leaving
        assert time.monotonic() < deadline
        time.sleep(0.01)
    made.rmdir()


@contextlib.asynccontextmanager
async def _container(cgroup: Path, subject: Subject, *namespaces: str) -> AsyncIterator[str]:
    """A process in that cgroup and in namespaces of its own starts a daemon; what it says of the daemon."""
    enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    arguments = [repr(subject.spec()), str(subject.run_dir), str(subject.root)]
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", enter, str(cgroup), "unshare", *namespaces),
        *(sys.executable, "-c", STARTER, *arguments),
        stdout=PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            yield (await process.stdout.readline()).decode().strip()
    finally:
        (cgroup / "cgroup.kill").write_text("1")
        await process.wait()


@needs_tree
async def test_a_daemon_leaves_a_container_from_which_the_hosts_cgroups_can_be_reached(
    simulated: Subject, cgroup: Path
):
    async with _container(cgroup, simulated, "--cgroup") as said:
        assert said == ""
        tenant = await simulated.tenant()
    (state,) = await simulated.keeper().states()
    assert (state.phase, state.bound_to) == (DaemonPhase.SERVING, "")
    assert await tenant.says("launch") == "ok"
    assert state.pid is not None
    inside = Path(DaemonHost().make_cgroups(DaemonHost().home(), DaemonPaths(simulated.home()))[0])
    assert str(state.pid) in (inside / "cgroup.procs").read_text().split()


@needs_tree
async def test_a_daemon_of_a_private_pid_namespace_ends_with_its_container_and_that_was_said(
    simulated: Subject, cgroup: Path
):
    async with _container(cgroup, simulated, "--cgroup", "--pid", "--fork", "--mount-proc") as said:
        assert said.startswith("the daemon ends with this container: ")

    async def is_dead() -> bool:
        return [one.phase for one in await simulated.keeper().states()] == [DaemonPhase.DEAD]

    await until(is_dead)


@needs_tree
async def test_a_daemon_that_stays_in_the_containers_cgroup_ends_with_it_and_that_was_said(
    simulated: Subject, cgroup: Path
):
    """Its cgroup file system shows the container's part alone, as a container runtime mounts it."""
    root = tree()
    hidden = 'umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
    assert root is not None
    async with _container(
        cgroup, simulated, "--cgroup", "--mount", "--propagation=private", "sh", "-c", hidden, "sh"
    ) as said:
        reachable = "1" if os.access("/proc/1/root/sys/fs/cgroup", os.W_OK) else ""
        assert bool(said) is not bool(reachable)

    async def is_as_said() -> bool:
        (state,) = await simulated.keeper().states()
        return state.phase is (DaemonPhase.SERVING if reachable else DaemonPhase.DEAD)

    await until(is_as_said)
