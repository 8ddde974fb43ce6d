"""What is left of pods: real processes in real cgroups, of every form of path that runtimes give them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path, PosixPath
from typing import ClassVar
from uuid import uuid4

import pytest

from partage.edges.hardware.left_processes import MOST_OF_POD, left_of
from partage.edges.host import procfs
from partage.errors import HardwareError
from partage.model.ids import ContainerId, PodUid
from tests.kubelet_script import wait_for

PROC = Path("/proc")
HIERARCHIES = {
    name: Path(mounted)
    for name, mounted in procfs.cgroup_mounts(PROC, "self")
    if name in ("memory", "") and os.access(Path(mounted, "cgroup.procs"), os.W_OK)
}
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes cgroups"),
    pytest.mark.skipif(not HIERARCHIES, reason="no cgroups of the node can be written here"),
    pytest.mark.skipif(not procfs.sees_all_pids(PROC), reason="not in the node's pid namespace"),
    pytest.mark.xdist_group("cgroups of pods"),  # they would see each other's
]

STUCK = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
"""Its leader ends and a thread lives, as when a killed process has a thread that waits in the driver."""


class Node:
    """Cgroups of pods in one hierarchy, and processes in them; all is gone after the test."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root, self._stack = root, stack

    def cgroup(self, path: str) -> Path:
        made = self.root
        for part in path.strip("/").split("/"):
            made = made / part
            with suppress(FileExistsError):
                made.mkdir()
                self._stack.callback(_remove, made)
        return made

    def start(
        self, cgroup: Path, *command: str, executable: str | None = None, session: bool = False
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, executable=executable, stdout=subprocess.PIPE, text=True, start_new_session=session
        )
        self._stack.callback(_end, process)
        self.move(cgroup, process.pid)
        return process

    def move(self, cgroup: Path, pid: int) -> None:
        (cgroup / "cgroup.procs").write_text(str(pid))


def _remove(cgroup: Path) -> None:
    """The kernel needs a moment after the last process has left it."""

    def removed() -> bool:
        with suppress(OSError):
            cgroup.rmdir()
        return not cgroup.exists()

    wait_for(removed, what=f"{cgroup} removed")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@pytest.fixture(params=sorted(HIERARCHIES), ids=lambda name: name or "v2")
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    with ExitStack() as stack:
        yield Node(HIERARCHIES[request.param], stack)


def _uid() -> PodUid:
    return PodUid(str(uuid4()))


def _container() -> ContainerId:
    return ContainerId(uuid4().hex * 2)


def _pids(*pods: PodUid) -> set[int]:
    left = left_of(PROC, pods)
    assert not left.unseen
    assert {one.pod for one in left.processes} <= set(pods)
    return {one.pid for one in left.processes}


@pytest.mark.parametrize(
    "form",
    [
        "kubepods-t/pod{uid}/{id}",
        "kubepods-t/burstable/pod{uid}/{id}",
        "kubepods-t.slice/kubepods-t-besteffort.slice/kubepods-t-besteffort-pod{slice}.slice/cri-containerd-{id}.scope",
        "kubepods-t.slice/kubepods-t-pod{slice}.slice/crio-{id}.scope/container",
        "kubelet-t.slice/kubelet-t-kubepods.slice/kubelet-t-kubepods-pod{slice}.slice/cri-containerd-{id}.scope",
        "system-t.slice/containerd.service/kubepods-burstable-pod{slice}.slice:cri-containerd:{id}",
    ],
)
def test_a_process_is_found_in_every_form_of_path_as_long_as_it_runs(node: Node, form: str) -> None:
    uid, other, container = _uid(), _uid(), _container()
    path = form.format(uid=uid, slice=uid.replace("-", "_"), id=container)
    sleep = node.start(node.cgroup(path), "sleep", "1000")
    wait_for(lambda: procfs.name_of(PROC, sleep.pid) == "sleep", what="it runs")
    (found,) = left_of(PROC, [uid, other]).processes
    assert (found.pod, found.container, found.pid, found.name) == (uid, container, sleep.pid, "sleep")
    assert not left_of(PROC, [other]).processes
    sleep.kill()
    wait_for(lambda: not _pids(uid), what="a zombie that nobody has reaped is no process")
    assert sleep.poll() is not None


def test_a_thread_of_a_process_whose_leader_is_a_zombie_is_found(node: Node) -> None:
    uid = _uid()
    stuck = node.start(node.cgroup(f"kubepods-t/pod{uid}/{_container()}"), sys.executable, "-c", STUCK)
    assert stuck.stdout is not None
    assert stuck.stdout.readline() == "ready\n"
    wait_for(lambda: procfs.thread_fields(PROC, stuck.pid)["State"].startswith("Z"), what="its leader ended")

    def state() -> str:
        """Of the thread that lives: it may still be on its way into its sleep."""
        (found,) = left_of(PROC, [uid]).processes
        assert found.pid == stuck.pid
        return found.state

    wait_for(lambda: state() == "S", what="its thread sleeps")
    stuck.kill()
    wait_for(lambda: not _pids(uid), what="all its threads have ended")


def test_the_sandbox_does_not_count_and_nobody_else_can_look_like_it(node: Node) -> None:
    uid, sandbox, container = _uid(), _container(), _container()

    def shim(*words: str) -> int:
        """The child of a runtime's process with these words."""
        script = ["-c", "sleep 1000 & echo $!; wait", *words]
        process = node.start(
            node.cgroup("runtime-t"), "containerd-shim-runc-v2", *script, executable="/bin/sh"
        )
        assert process.stdout is not None
        return int(process.stdout.readline())

    pod = f"kubepods-t/pod{uid}"
    pause = shim("-namespace", "k8s.io", "-id", sandbox)
    node.move(node.cgroup(f"{pod}/{sandbox}"), pause)
    assert not _pids(uid)
    other = shim("-namespace", "k8s.io", "-id", sandbox)
    node.move(node.cgroup(f"{pod}/{container}"), other)
    assert _pids(uid) == {other}, "a container of the pod has the same shim"
    docker = shim("-namespace", "moby", "-id", container)
    node.move(node.cgroup(f"{pod}/{container}"), docker)
    assert _pids(uid) == {other, docker}, "docker's has the id of every container"
    for pid in (pause, other, docker):
        os.kill(pid, 9)
    wait_for(lambda: not _pids(uid), what="all have ended")


class EndingProc(PosixPath):
    """/proc, where everything of one session ends in the moment in which a command line is read."""

    session: ClassVar[subprocess.Popen[str]]
    sandbox: ClassVar[int]

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        if self.name == "cmdline":
            os.killpg(self.session.pid, signal.SIGKILL)
            self.session.wait()
            wait_for(lambda: not procfs.runs(PROC, self.sandbox), what="both have ended")
        return super().read_text(encoding, errors)


def test_a_sandbox_that_ends_with_its_shim_while_it_is_looked_at_does_not_count(node: Node) -> None:
    """Its parent is not there any more to say what it was."""
    uid, sandbox = _uid(), _container()
    words = ["-c", "sleep 1000 & echo $!; wait", "-namespace", "k8s.io", "-id", sandbox]
    shim = node.start(
        node.cgroup("runtime-t"), "containerd-shim-runc-v2", *words, executable="/bin/sh", session=True
    )
    assert shim.stdout is not None
    EndingProc.session, EndingProc.sandbox = shim, int(shim.stdout.readline())
    node.move(node.cgroup(f"kubepods-t/pod{uid}/{sandbox}"), EndingProc.sandbox)
    assert left_of(EndingProc("/proc"), [uid]).processes == ()
    assert shim.returncode == -signal.SIGKILL, "its command line was read"


def test_a_process_called_pause_under_a_false_shim_of_the_tenant_is_found(node: Node) -> None:
    uid, container = _uid(), _container()
    words = ["-c", "sleep 1000 & echo $!; wait", "-namespace", "k8s.io", "-id", container]
    cgroup = node.cgroup(f"kubepods-t/pod{uid}/{container}")
    shim = node.start(cgroup, "containerd-shim-runc-v2", *words, executable="/bin/sh")
    assert shim.stdout is not None
    pause = int(shim.stdout.readline())
    node.move(cgroup, pause)
    assert _pids(uid) == {shim.pid, pause}
    os.kill(pause, 9)


def test_a_cgroup_that_another_pod_makes_with_this_name_says_nothing(node: Node) -> None:
    uid, other = _uid(), _uid()
    false = node.cgroup(f"kubepods-t/pod{other}/{_container()}/kubepods/pod{uid}/{_container()}")
    node.start(false, "sleep", "1000")
    assert not _pids(uid)
    assert len(_pids(other)) == 1


def test_of_many_processes_some_are_named(node: Node) -> None:
    uid = _uid()
    cgroup = node.cgroup(f"kubepods-t/pod{uid}/{_container()}")
    for _ in range(MOST_OF_POD + 2):
        node.start(cgroup, "sleep", "1000")
    assert len(_pids(uid)) == MOST_OF_POD


def test_where_the_nodes_processes_cannot_be_seen_nothing_is_known(tmp_path: Path) -> None:
    assert "hostPID" in left_of(tmp_path, [_uid()]).unseen


def test_what_no_kernel_is_known_to_say_is_an_error_and_does_not_end_the_helper(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text("short - cgroup2 cgroup2 rw\n")
    with pytest.raises(HardwareError, match="cannot be read"):
        left_of(tmp_path, [_uid()])
