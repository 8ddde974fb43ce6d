"""A pod is deleted by force and its process lives on: nobody else gets its GPU before that has ended."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.e2e.cluster import GPU, MACHINE, NAMESPACE, SHARED, TWICE, WHOLE, Cluster
from tests.e2e.tenants import pod

pytestmark = pytest.mark.usefixtures("own")
POLICIES = {"default": WHOLE, "shared": TWICE}
FREEZER = Path("/sys/fs/cgroup/freezer")
DEAF = ("sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")


@contextmanager
def _stuck(node: Cluster, name: str) -> Iterator[None]:
    """The processes of a pod are as if in a call of the driver that does not return: SIGKILL waits, too.

    They are frozen in a cgroup below that of their container, since the runtime thaws that one.
    """
    if not (FREEZER / "freezer.state").exists() and not FREEZER.is_dir():
        pytest.skip("only the freezer of cgroup v1 holds SIGKILL back")
    (pid, *_) = node.pids_of(node.pod(name))
    lines = Path(f"/proc/{pid}/cgroup").read_text()
    found = re.search(r"^\d+:freezer:/(.+)$", lines, re.MULTILINE)
    assert found, lines
    container = FREEZER / found[1]
    below = container / "stuck"
    below.mkdir()
    for one in container.joinpath("cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):  # it has just ended
            below.joinpath("cgroup.procs").write_text(one)
    state = below / "freezer.state"
    try:
        state.write_text("FROZEN")
        node.until("they are frozen", lambda: state.read_text() == "FROZEN\n")
        yield
    finally:
        with suppress(FileNotFoundError):
            state.write_text("THAWED")
        node.until("they have ended", lambda: _gone(below))


def _gone(cgroup: Path) -> bool:
    with suppress(FileNotFoundError):
        if cgroup.joinpath("cgroup.procs").read_text():
            return False
        cgroup.rmdir()
    return True


def _hold_all(node: Cluster) -> str:
    """Pods on all four GPUs, of which ``left`` is one. Its GPU."""
    node.apply(*(pod(name, {GPU: 1}) for name in ("left", "a", "b", "c")))
    for name in ("left", "a", "b", "c"):
        node.until_phase(name, "Running")
    node.until("the ledger names all", lambda: len(node.ledger()) == 4)
    (gpu,) = node.shares("left")["left"]
    return gpu


def _delete_by_force(node: Cluster, name: str) -> None:
    node.kubectl("delete", "pod", name, "--grace-period=0", "--force")


def _for_seconds(seconds: float, question: Callable[[], bool]) -> None:
    """It stays true for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert question()
        time.sleep(0.2)


def test_the_next_pod_does_not_get_a_gpu_that_the_last_one_still_uses(node: Cluster) -> None:
    gpu = _hold_all(node)
    with _stuck(node, "left"):
        _delete_by_force(node, "left")
        node.apply(pod("next", {GPU: 1}))

        def withheld() -> bool:
            node.nothing_is_given_twice()
            status = node.pod("next")["status"]
            assert status["phase"] != "Running", "the GPU was given again"
            return node.allocatable()[GPU] == 3

        node.until("the GPU can be given to nobody", withheld)
        node.apply(pod("later", {GPU: 1}))
        _for_seconds(5, lambda: withheld() and node.pod("later")["status"]["phase"] == "Pending")
        assert len(node.kubelet_holds()) == 3, "the kubelet has forgotten it"
        assert "left" in str([one for one in node.report()["held"] if one["id"] == gpu])
    node.until_allocatable({GPU: 4})
    if node.pod("next")["status"]["phase"] == "Failed":
        assert "still" in node.pod("next")["status"]["message"]
        node.until_phase("later", "Running")
    node.nothing_is_given_twice()


def test_a_gpu_does_not_change_while_something_of_its_last_pod_runs(node: Cluster) -> None:
    node.apply(pod("left", {GPU: 1}))
    node.until_phase("left", "Running")
    node.until("the ledger names it", lambda: "left" in node.ledger())
    with _stuck(node, "left"):
        _delete_by_force(node, "left")
        node.choose("shared")
        node.until("the others change", lambda: node.allocatable().get(SHARED) == 6)
        node.until("the kubelet has forgotten it", lambda: not node.kubelet_holds())
        _for_seconds(6, lambda: len(node.gpus_in("waiting")) == 1)
        assert node.allocatable()[SHARED] == 6
    node.until_allocatable({SHARED: 8})


def _partage(node: Cluster, *words: str) -> str:
    """What the command prints in the agent's container; a simulated node has to be named there."""
    agent = node.component("agent")["metadata"]["name"]
    options = (f"--machine={MACHINE}", "--run-dir=/run/partage")
    command = ("partage", *words, *options)
    return node.kubectl("exec", "-n", NAMESPACE, agent, "-c", "agent", "--", *command, check=False)


def test_a_person_gives_a_gpu_away_that_a_process_keeps(node: Cluster) -> None:
    gpu = _hold_all(node)
    with _stuck(node, "left"):
        _delete_by_force(node, "left")
        node.until("the GPU is known as kept", lambda: "process-left" in node.agent_http("healthz"))
        assert "default/left" in _partage(node, "show")
        assert "no process is waited for with" in _partage(node, "free", f"{gpu}::0")
        node.until_allocatable({GPU: 3})
        said = _partage(node, "free", gpu)
        assert " on beside the next container" in said, said
        assert f"freed: {gpu}" in said, said
        node.until_allocatable({GPU: 4})
        node.apply(pod("next", {GPU: 1}))
        node.until_phase("next", "Running")
        assert node.shares("next") == {"next": {gpu}}
        node.until("nothing is waited for", lambda: "process-left" not in node.agent_http("healthz"))


@pytest.mark.parametrize("name", ["same", "other"])
def test_a_process_that_does_not_hear_is_waited_for(node: Cluster, name: str) -> None:
    """A pod of a StatefulSet comes back with the name of the one before it."""
    for index in range(3):
        node.apply(pod(f"full-{index}", {GPU: 1}))
    node.apply(pod("same", {GPU: 1}, command=DEAF, terminationGracePeriodSeconds=30))
    node.until_phase("same", "Running")
    node.until("the ledger names all", lambda: len(node.ledger()) == 4)
    _delete_by_force(node, "same")
    for attempt in range(20):
        node.apply(pod(name, {GPU: 1}))
        phase = ""
        while phase not in ("Running", "Failed"):
            node.nothing_is_given_twice()
            phase = node.pod(name)["status"]["phase"]
        if phase == "Running":
            break
        assert attempt < 19, node.pod(name)["status"]
        node.kubectl("delete", "pod", name)
    node.nothing_is_given_twice()
    node.until_ledger(node.shares(name, "full-0", "full-1", "full-2"))
