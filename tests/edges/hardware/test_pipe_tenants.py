"""Who has the pipe directory of an MPS daemon: real processes, mounts, cgroups and user namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from partage.edges.hardware.pipe_tenants import pipe_tenants
from partage.edges.host import procfs
from partage.edges.mps.launch import mount, unmount
from partage.model.cgroup import Owner
from partage.model.ids import ContainerId, GpuUuid, PodUid
from partage.model.mps import NO_HOST_PIDS, PipeTenant
from partage.plan.reconcile.limit_trust import why_tenant_commands
from tests.edges.hardware.test_left_processes import HIERARCHIES, Node

PROC = Path("/proc")
GPU = GpuUuid("GPU-1")
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes cgroups and mounts"),
    pytest.mark.skipif(not HIERARCHIES, reason="no cgroups of the node can be written here"),
    pytest.mark.skipif(not procfs.sees_all_pids(PROC), reason="not in the node's pid namespace"),
    pytest.mark.xdist_group("cgroups of pods"),  # they would see each other's
]

TENANT = r"""
import ctypes, os, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
NEWNS, NEWUSER, NEWPID, BIND, PRIVATE, REC = 0x20000, 0x10000000, 0x20000000, 0x1000, 1 << 18, 0x4000
def drop(uid):
    check(libc.prctl(38, 1, 0, 0, 0))  # PR_SET_NO_NEW_PRIVS
    os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
def steps(words):
    for word in words:
        name, _, value = word.partition("=")
        if name == "namespace":
            check(libc.unshare(NEWNS))
            check(libc.mount(b"none", b"/", None, REC | PRIVATE, None))
        elif name == "bind":
            here, _, there = value.partition(":")
            check(libc.mount(here.encode(), there.encode(), None, BIND, None))
        elif name == "hide":
            check(libc.umount2(value.encode(), 2))
        elif name == "pids":
            check(libc.unshare(NEWPID))
            if pid := os.fork():
                sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            check(libc.prctl(1, 9, 0, 0, 0))  # PR_SET_PDEATHSIG
        elif name == "users":
            check(libc.unshare(NEWUSER))
            print("unmapped", flush=True)
            sys.stdin.readline()
        elif name == "user":  # without what keeps a set-uid program from making it root
            os.setresuid(int(value), int(value), int(value))
        elif name == "saved":
            os.setresuid(int(value), int(value), 0)
        elif name == "drop":
            drop(int(value))
        elif name == "thread":  # this thread becomes another user, the first one stays what it is
            def alone():
                check(libc.prctl(38, 1, 0, 0, 0))
                check(libc.syscall(117, 1000, 1000, 1000))
            alone()
        elif name == "root-thread":
            ready = threading.Event()
            threading.Thread(target=lambda: (ready.set(), time.sleep(1000)), daemon=True).start()
            ready.wait()
steps(sys.argv[1:])
print("ready", flush=True)
time.sleep(1000)
"""


class Machine(Node):
    """A node with a pipe directory, and containers that are processes in cgroups with these names."""

    def __init__(self, root: Path, stack: ExitStack, pipe: Path) -> None:
        super().__init__(root, stack)
        self.pipe, self.inside = pipe, pipe.with_name("inside")
        self.inside.mkdir()
        self.uid = str(uuid4())

    def container(self, *steps: str, pod: str | None = None, users: str = "") -> str:
        """Start one, do these steps in it; its id. users: what is written to its uid_map."""
        identity = uuid4().hex * 2
        cgroup = self.cgroup(f"kubepods-t/pod{pod or self.uid}/{identity}")
        self.run(cgroup, *steps, users=users)
        return identity

    def run(self, cgroup: Path, *steps: str, users: str = "") -> subprocess.Popen[str]:
        arguments: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen([sys.executable, "-IS", "-c", f"input()\n{TENANT}", *steps], **arguments)
        self._stack.callback(_end, process)
        assert process.stdin is not None
        assert process.stdout is not None
        self.move(cgroup, process.pid)
        print("go", file=process.stdin, flush=True)
        if users:
            assert process.stdout.readline() == "unmapped\n"
            (PROC / str(process.pid) / "uid_map").write_text(users)
            print("go", file=process.stdin, flush=True)
        assert process.stdout.readline() == "ready\n"
        return process

    @property
    def has_pipe(self) -> tuple[str, str, str]:
        return "namespace", f"bind={self.pipe}:{self.inside}", f"hide={self.pipe}"

    def tenants(self, device: GpuUuid = GPU) -> dict[str, PipeTenant]:
        found = pipe_tenants(PROC, {device: self.pipe})
        assert found.unseen == ""
        return {one.container: one for one in found.rows}


def _end(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    pipe = tmp_path / "pipe"
    pipe.mkdir()
    root = next(iter(HIERARCHIES.values()))
    with ExitStack() as stack:
        mount("pipe", str(pipe), "tmpfs", 0, "size=64k")
        stack.callback(unmount, str(pipe))
        yield Machine(root, stack, pipe)


def test_containers_are_found_by_what_they_have_mounted_whatever_they_call_it(machine: Machine) -> None:
    inside = machine.container(*machine.has_pipe, "drop=1000")
    whole_node = machine.container("namespace", "drop=1000", pod=str(uuid4()))
    machine.container("namespace", f"hide={machine.pipe}", pod=str(uuid4()))
    found = machine.tenants()
    assert found.keys() == {inside, whole_node}
    assert [why_tenant_commands(one) for one in found.values()] == ["", ""]
    assert found[inside].pod == machine.uid


@pytest.mark.parametrize(
    ("steps", "users", "why"),
    [
        (("drop=1000",), "", ""),
        ((), "", "user 0"),
        (("user=1000",), "", "set-uid"),
        (("saved=1000",), "", "user 0"),
        (("root-thread", "thread"), "", "user 0"),
        (("users", "user=0"), "0 100000 65536", ""),
        (("users",), "0 100000 65536", "user 0"),
        (("users",), "0 0 65536", "user 0"),
        (("users", "user=0"), "0 100000 10\n20 0 1", "capabilities"),
    ],
)
def test_what_its_threads_are_and_may_become(
    machine: Machine, steps: tuple[str, ...], users: str, why: str
) -> None:
    own = (*machine.has_pipe, *steps) if "users" not in steps else ("namespace", *steps)
    identity = machine.container(*own, users=users)
    said = why_tenant_commands(machine.tenants()[identity])
    assert why in said
    assert bool(said) is bool(why)


def test_a_process_that_only_holds_the_whole_pod_together_counts_too(machine: Machine) -> None:
    """A container without the mount can be handed an open directory by one that has it."""
    identity = machine.container(*machine.has_pipe, "drop=1000")
    assert why_tenant_commands(machine.tenants()[identity]) == ""
    beside = machine.container("namespace", f"hide={machine.pipe}")
    found = machine.tenants()
    assert found.keys() == {identity}
    assert found[identity].beside == (beside,)
    assert "user 0" in why_tenant_commands(found[identity])


def test_every_process_of_a_container_counts(machine: Machine) -> None:
    identity = uuid4().hex * 2
    cgroup = machine.cgroup(f"kubepods-t/pod{machine.uid}/{identity}")
    machine.run(cgroup, *machine.has_pipe, "drop=1000")
    second = machine.run(cgroup, "namespace", f"hide={machine.pipe}")
    assert f"process {second.pid} " in why_tenant_commands(machine.tenants()[identity])


def test_a_pid_namespace_of_its_own_is_a_container_whatever_its_cgroup_is(machine: Machine) -> None:
    cgroup = machine.cgroup("no-runtime-t")
    machine.run(cgroup, *machine.has_pipe, "pids")
    (found,) = machine.tenants().values()
    assert (found.pod, found.container) == ("", "")
    assert "user 0" in why_tenant_commands(found)


def test_a_service_of_the_node_is_no_tenant(machine: Machine) -> None:
    machine.run(machine.cgroup("service-t"), *machine.has_pipe)
    assert machine.tenants() == {}


def test_all_processes_of_a_job_are_one_tenant(machine: Machine) -> None:
    for step in ("step_0", "step_batch"):
        machine.run(machine.cgroup(f"slurm-t/uid_1000/job_7/{step}"), "drop=1000")
    (found,) = machine.tenants().values()
    assert (found.job, why_tenant_commands(found)) == ("7", "")
    machine.run(machine.cgroup("slurm-t/uid_1000/job_7/step_1"), "user=1000")
    (found,) = machine.tenants().values()
    assert "NoNewPrivs" in why_tenant_commands(found)


def test_a_directory_of_a_namespace_is_not_the_whole_pipe(machine: Machine) -> None:
    share = machine.pipe / "gpu" / "share0"
    share.mkdir(parents=True)
    only = ("namespace", f"bind={share}:{machine.inside}", f"hide={machine.pipe}", "drop=1000")
    identity, other = machine.container(*only), machine.container(*machine.has_pipe, "drop=1000")
    found = machine.tenants()
    assert not found[identity].whole
    assert found[other].whole


def test_a_file_of_the_pipe_is_as_good_as_all_of_it(machine: Machine) -> None:
    for directory in (machine.pipe, machine.inside):
        (directory / "control").touch()
    steps = f"bind={machine.pipe}/control:{machine.inside}/control", f"hide={machine.pipe}"
    identity = machine.container("namespace", *steps, "drop=1000")
    assert machine.tenants()[identity].whole


def test_where_the_pipe_is_a_plain_directory_its_file_system_alone_is_not_enough(tmp_path: Path) -> None:
    """As a daemon has it that was started before its pipe was a file system of its own."""
    pipe, other = tmp_path / "run/pipe", tmp_path / "run/other"
    root = next(iter(HIERARCHIES.values()))
    with ExitStack() as stack:
        (tmp_path / "run").mkdir()
        mount("run", str(tmp_path / "run"), "tmpfs", 0, "size=64k")
        stack.callback(unmount, str(tmp_path / "run"))
        pipe.mkdir()
        other.mkdir()
        machine = Machine(root, stack, pipe)
        there = tmp_path / "there"
        there.mkdir()
        has, hide = f"bind={pipe}:{there}", f"hide={tmp_path}/run"
        identity = machine.container("namespace", has, hide, "drop=1000")
        machine.container("namespace", f"bind={other}:{there}", hide, "drop=1000")
        assert machine.tenants().keys() == {identity}


def test_the_pods_of_partage_itself_are_no_tenants(machine: Machine) -> None:
    """The agent has the run directory, and runs as root; it is known because the helper speaks with it."""
    agent = machine.container(*machine.has_pipe)
    other = machine.container(*machine.has_pipe, pod=str(uuid4()))
    seen = pipe_tenants(PROC, {GPU: machine.pipe})
    assert {one.container for one in seen.rows} == {agent, other}
    owner = Owner(PodUid(machine.uid), ContainerId(agent), "containerd")
    assert [one.container for one in seen.without([owner, Owner()]).rows] == [other]


def test_a_pipe_that_is_not_there_says_nothing(machine: Machine) -> None:
    missing = machine.pipe / "missing"
    assert "cannot be found" in pipe_tenants(PROC, {GPU: missing}).unseen


def test_without_the_nodes_processes_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    assert pipe_tenants(tmp_path, {}).unseen == NO_HOST_PIDS
