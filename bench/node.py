"""A real agent on a simulated node, with a scripted kubelet on the other side of its socket."""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.processes import cpu_ms
from tests.agent.harness import MACHINE, REAL, AgentProcess, Place, place, registered, running, spawn
from tests.edges.hardware.conftest import compiled_stub
from tests.edges.hardware.stub import StubNode
from tests.kubelet_script import ScriptedKubelet, held, scripted_kubelet, wait_for

RESOURCE = "nvidia.com/gpu"
BARE, BARE_SHARES = "example.com/bare", 384
WHOLE = "version: v1\n"
IMAGE = Path(__file__).parents[1] / "deploy" / "image" / "Containerfile"


def image_environment() -> dict[str, str]:
    """What the image sets for the C library's memory, so that what is measured is what is shipped."""
    found = dict(re.findall(r"\b(MALLOC_\w+)=(\d+)", IMAGE.read_text(encoding="utf-8")))
    assert found, f"{IMAGE} sets nothing"
    return found


spawn_as_shipped = partial(spawn, env=image_environment())
"""An agent with the environment of the image."""


def sliced(replicas: int) -> str:
    """A policy in NVIDIA's format: every GPU in so many shares, of which a container may ask for several."""
    resource = f"{{name: nvidia.com/gpu, replicas: {replicas}}}"
    return f"version: v1\nsharing: {{timeSlicing: {{resources: [{resource}]}}}}\n"


@dataclass(frozen=True)
class Node:
    """One agent that runs. ids: what it offers, or what of it is free."""

    place: Place
    kubelet: ScriptedKubelet
    agent: AgentProcess
    ids: list[str]
    resource: str = RESOURCE

    @property
    def pids(self) -> list[int]:
        """The agent and its helper."""
        helper = self.agent.helper_pid()
        assert helper is not None
        return [self.agent.pid, helper]


@contextmanager
def node(policy: str, *, driver: bool = False) -> Iterator[Node]:
    """An agent with policy file and HTTP, its first list received. driver: its helper has loaded the stand-in
    for NVIDIA's library in place of simulating a node.
    """
    with (
        place() as directories,
        scripted_kubelet(directories.kubelet_dir, directories.pod_resources) as kubelet,
    ):
        options, machine = list[str](), MACHINE
        if driver:
            stub = StubNode(directories.root / "driver", compiled_stub(directories.root)).add_h100s(8)
            stub.keys["quiet"] = "1"
            stub.write()
            options, machine = [f"--driver-root={stub.root}"], REAL
        agent = spawn_as_shipped(directories, *options, policy=policy, machine=machine)
        with running(agent):
            watch = registered(kubelet, RESOURCE).watch
            assert watch is not None
            agent.wait(lambda: agent.health()[0] == 200, "healthy")
            yield Node(directories, kubelet, agent, list(watch.health))


FREE_BEHIND_A_QUEUE = 2
_SHARED = "nvidia.com/gpu.shared"
_BEFORE = "version: partage/v1\ngpus:\n  - {select: all, time-slicing: {replicas: 48}}\n"
_AFTER = """\
version: partage/v1
gpus:
  - {select: {index: [0]}, time-slicing: {replicas: 24}}
  - {select: rest, time-slicing: {replicas: 48}}
"""


@contextmanager
def behind_a_queue() -> Iterator[Node]:
    """The first of 8 GPUs x 48 has to change, and is held as all others are, but for the last few shares.

    With these the held ones of the first become unhealthy, so that nobody gets them when their holders end.
    """
    with (
        place() as directories,
        scripted_kubelet(directories.kubelet_dir, directories.pod_resources) as kubelet,
    ):
        agent = spawn_as_shipped(directories, policy=_BEFORE)
        with running(agent):
            watch = registered(kubelet, _SHARED).watch
            assert watch is not None
            ids = list(watch.health)
            taken, free = ids[:-FREE_BEHIND_A_QUEUE], ids[-FREE_BEHIND_A_QUEUE:]
            pods = {f"bench/pod-{n}": {"main": {_SHARED: [id_]}} for n, id_ in enumerate(taken)}
            kubelet.pod_resources = held(pods)
            agent.wait(lambda: len(agent.report()["held"]) == len(taken), "all are held")
            directories.write_policy(_AFTER)
            agent.wait(lambda: agent.gpu(0).get("phase") == "waiting", "the first GPU waits")
            yield Node(directories, kubelet, agent, free, _SHARED)


@contextmanager
def bare_plugin(
    directories: Place, kubelet: ScriptedKubelet
) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """A bare plugin on the same library that has registered, and how many milliseconds that took."""
    command = [
        sys.executable,
        "-m",
        "bench.bare_plugin",
        str(directories.kubelet_dir),
        BARE,
        str(BARE_SHARES),
    ]
    began = time.monotonic()
    process = subprocess.Popen(command, env={**os.environ, **image_environment()})
    try:
        found = registered(kubelet, BARE)
        yield process, (found.time - began) * 1000
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class BareStarts:
    """The same of a bare plugin, each start beside one of the agent."""

    register: float
    cpu: float
    stop: float


@dataclass(frozen=True)
class Starts:
    """Medians, milliseconds. cpu: processor time of agent and helper until then, which a busy machine changes
    less than the time of day.
    """

    register: float
    agent_cpu: float
    helper_cpu: float
    first_list: float
    again: float
    stop: float
    slowest: float
    bare: BareStarts


def starts(policy: str, count: int) -> Starts:
    """Start the agent that often on a fresh node, and a bare plugin after each; then restart the kubelet
    under it that often.

    again: from the moment that a new kubelet begins to start until the agent has registered with it.
    stop: from SIGTERM until the process has ended.
    """
    times, bare = [], []
    with (
        place() as directories,
        scripted_kubelet(directories.kubelet_dir, directories.pod_resources) as kubelet,
    ):
        for _ in range(count):
            times.append(_started(directories, kubelet, policy))
            bare.append(_bare_started(directories, kubelet))
            for directory in (directories.state_dir, directories.run_dir):
                shutil.rmtree(directory)
        agent = spawn_as_shipped(directories, policy=policy)
        with running(agent):
            registered(kubelet, RESOURCE)
            again = [_registered_again(kubelet) for _ in range(count)]
    register, first, agent_cpu, helper_cpu, stop = (list(column) for column in zip(*times, strict=True))
    return Starts(
        register=statistics.median(register),
        agent_cpu=statistics.median(agent_cpu),
        helper_cpu=statistics.median(helper_cpu),
        first_list=statistics.median(first),
        again=statistics.median(again),
        stop=statistics.median(stop),
        slowest=max(register),
        bare=BareStarts(*(statistics.median(column) for column in zip(*bare, strict=True))),
    )


def _started(directories: Place, kubelet: ScriptedKubelet, policy: str) -> tuple[float, ...]:
    kubelet.registered.clear()
    began = time.monotonic()
    agent = spawn_as_shipped(directories, policy=policy)
    with running(agent):
        found = registered(kubelet, RESOURCE)
        helper = agent.helper_pid()
        assert found.watch is not None
        assert helper is not None
        cpu = cpu_ms(agent.pid), cpu_ms(helper)
        agent.wait(lambda: agent.health()[0] == 200, "healthy")
        stop = _stopped(agent)
    return (found.time - began) * 1000, (found.watch.times[0] - began) * 1000, *cpu, stop


def _bare_started(directories: Place, kubelet: ScriptedKubelet) -> tuple[float, float, float]:
    kubelet.registered.clear()
    with bare_plugin(directories, kubelet) as (process, register):
        cpu = cpu_ms(process.pid)
        watch = registered(kubelet, BARE).watch
        assert watch is not None
        wait_for(lambda: watch.lists, what="the first list of the bare plugin")
        return register, cpu, _ended(process)


def _stopped(agent: AgentProcess) -> float:
    took_ms = _ended(agent.process)
    agent.finish()
    return took_ms


def _ended(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> float:
    """Milliseconds from SIGTERM to the end. Waited for without a limit, which Python would poll for."""
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait()
    return (time.monotonic() - began) * 1000


def _registered_again(kubelet: ScriptedKubelet) -> float:
    before = len(kubelet.registered)
    began = kubelet.restart()
    wait_for(lambda: len(kubelet.registered) > before, what="registered again")
    return (kubelet.registered[-1].time - began) * 1000
