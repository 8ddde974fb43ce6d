"""Ending a process: with patience, then without, and never another one."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from partage.edges.hardware import end_process as ending
from partage.edges.hardware.end_process import end_process, refuse_own_process
from partage.errors import GpuInUse, NotFound, NotPermitted, Unsupported
from partage.model.ids import ContainerId
from partage.model.step import EndProcess
from tests.edges.hardware.stub import StubNode

CID, OURS = ContainerId("3f" * 32), ContainerId("a0" * 32)
START = 4711
LIMIT_S = 10.0
OBEYS = "print(flush=True); input()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); input()"

Child = subprocess.Popen[bytes]
Begin = Callable[[str], tuple[Child, EndProcess]]


@pytest.fixture
def begin(node: StubNode) -> Iterator[Begin]:
    """Starts real processes, of which our /proc says that they are in the container; waits until they run."""
    children: list[Child] = []

    def start(program: str) -> tuple[Child, EndProcess]:
        pipe = subprocess.PIPE
        child = subprocess.Popen([sys.executable, "-S", "-c", program], stdin=pipe, stdout=pipe)
        children.append(child)
        assert child.stdout is not None
        child.stdout.readline()
        node.works(child.pid, "train", cgroup=f"0::/docker/{CID}", start=START)
        return child, EndProcess(StubNode.uuid(0), child.pid, START, CID)

    yield start
    for child in children:
        child.kill()
        child.communicate()


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_who_obeys_is_asked_and_not_killed(node: StubNode, begin: Begin) -> None:
    child, step = begin(OBEYS)
    async with asyncio.timeout(LIMIT_S):
        await end_process(node.host, step)
    assert child.wait(LIMIT_S) == -signal.SIGTERM


async def test_who_does_not_obey_is_killed(node: StubNode, begin: Begin) -> None:
    child, step = begin(STUBBORN)
    async with asyncio.timeout(LIMIT_S):
        await end_process(node.host, step, grace_s=0.05)
    assert child.wait(LIMIT_S) == -signal.SIGKILL


async def test_who_does_not_even_die_is_named(
    node: StubNode, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No process here can hang in a driver: the signals are kept from it instead.
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda descriptor, number: None)
    child, step = begin(OBEYS)
    with pytest.raises(GpuInUse, match="does not end, though it was killed") as caught:
        await end_process(node.host, step, grace_s=0.05, killed_s=0.05)
    assert caught.value.uses == (f"process train (pid {child.pid})",)


async def test_a_cancelled_wait_leaves_nothing_behind(node: StubNode, begin: Begin) -> None:
    _, step = begin(STUBBORN)
    before = open_files()
    task = asyncio.create_task(end_process(node.host, step))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert open_files() == before


@pytest.mark.parametrize(
    ("start", "cgroup"),
    [(START + 1, f"0::/docker/{CID}"), (START, f"0::/docker/{OURS}"), (START, "0::/"), (START, "")],
    ids=["another process", "another container", "no container", "nothing to be read"],
)
async def test_another_process_with_the_same_pid_is_left_alone(
    node: StubNode, begin: Begin, start: int, cgroup: str
) -> None:
    child, step = begin(OBEYS)
    node.file(f"proc/{child.pid}/stat", f"{child.pid} (train) S {'0 ' * 18}{start} 0\n")
    node.file(f"proc/{child.pid}/cgroup", cgroup + "\n")
    with pytest.raises(NotFound):
        await end_process(node.host, step)
    assert child.poll() is None


async def test_who_has_gone_is_not_there(node: StubNode, begin: Begin) -> None:
    child, step = begin(OBEYS)
    child.kill()
    child.wait()
    with pytest.raises(NotFound, match="there is no process"):
        await end_process(node.host, step)


async def test_a_kernel_that_cannot_hold_a_process_lets_none_be_ended(
    node: StubNode, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(pid: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)  # no kernel here is as old
    child, step = begin(OBEYS)
    with pytest.raises(Unsupported, match=r"kernel of 5\.3"):
        await end_process(node.host, step)
    assert child.poll() is None


async def test_whom_we_may_not_signal_is_left_and_that_is_said(
    node: StubNode, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(descriptor: int, number: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(signal, "pidfd_send_signal", refused)  # root may signal everybody
    child, step = begin(OBEYS)
    with pytest.raises(NotPermitted, match="run it as root"):
        await end_process(node.host, step)
    assert child.poll() is None


def test_neither_we_nor_our_container_nor_process_1_are_ever_ended(node: StubNode) -> None:
    node.file("proc/self/cgroup", f"0::/docker/{OURS}\n")
    gpu = StubNode.uuid(0)
    for pid, container in ((0, CID), (1, CID), (os.getpid(), CID), (77, OURS)):
        with pytest.raises(NotPermitted, match="will not end process"):
            refuse_own_process(node.host, EndProcess(gpu, pid, 1, container))
    refuse_own_process(node.host, EndProcess(gpu, 77, 1, CID))
    assert ending.GRACE_S + ending.KILLED_S < 60  # an act's own deadline
