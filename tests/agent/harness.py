"""A real agent in a process of its own, with everything it needs in one temporary directory.

Synchronous, so that tests, the benchmark and the property test can drive it from outside; waits are for
conditions, with limits. Sockets have short paths: pytest's own are too long for ``sun_path``.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partage.edges.hardware.helper_server import HelperServer
from partage.sim.node.faults import Fault
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.sim.node.machine import Machine
from tests.kubelet_script import LIMIT_S, Registered, ScriptedKubelet, wait_for

MACHINE = "8xh100-sxm5-80gb"
REAL = "real"
"""In place of a machine: the node that the helper finds below ``--driver-root``."""
REPOSITORY = Path(__file__).parents[2]


@dataclass(slots=True)
class Place:
    """The directories of one node."""

    root: Path

    @property
    def kubelet_dir(self) -> Path:
        return self.root / "dp"

    @property
    def pod_resources(self) -> Path:
        return self.root / "pod-resources" / "kubelet.sock"

    @property
    def state_dir(self) -> Path:
        return self.root / "state"

    @property
    def run_dir(self) -> Path:
        return self.root / "run"

    @property
    def policy(self) -> Path:
        return self.root / "policy.yaml"

    @property
    def container_logs(self) -> Path:
        return self.root / "containers"

    @property
    def hardware_socket(self) -> Path:
        return self.root / "hw.sock"

    def write_policy(self, text: str) -> None:
        """Replace the file atomically, as an operator's tool does."""
        beside = self.root / "policy.new"
        beside.write_text(text, encoding="utf-8")
        beside.replace(self.policy)

    def in_report_file(self, text: str) -> None:
        """Wait until the agent has written that: verbs read the file, which is written once a second, so it
        can say less than what the agent answers over HTTP.
        """
        path = self.run_dir / "report.json"
        wait_for(lambda: path.exists() and text in path.read_text(encoding="utf-8"), what=f"{path}: {text}")

    def options(self) -> list[str]:
        return [
            f"--kubelet-dir={self.kubelet_dir}",
            f"--pod-resources={self.pod_resources}",
            f"--state-dir={self.state_dir}",
            f"--run-dir={self.run_dir}",
            f"--cdi-dir={self.root / 'cdi'}",
            f"--container-logs={self.container_logs}",
        ]


@contextmanager
def place() -> Iterator[Place]:
    """A place for one node, removed afterwards."""
    root = Path(tempfile.mkdtemp(prefix="pt-", dir="/tmp"))
    (root / "dp").mkdir()
    try:
        yield Place(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


@dataclass(slots=True)
class Agent:
    """One agent, as its pages show it. ``log``: lines of its log so far, where somebody reads them."""

    url: str = ""
    log: list[str] = field(default_factory=list)

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body; status 0 where nobody answers (yet)."""
        if not self.url:
            return 0, b""
        try:
            with urllib.request.urlopen(self.url + path, timeout=LIMIT_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except OSError:
            return 0, b""

    def report(self) -> dict[str, Any]:
        """The report; its page opens a moment after the first registration, so that one is waited for."""
        answer = wait_for(lambda: self._answered("/report.json"), what="a report")
        document: dict[str, Any] = json.loads(answer)
        return document

    def _answered(self, path: str) -> bytes:
        status, body = self.get(path)
        return body if status == 200 else b""

    def health(self) -> tuple[int, list[str]]:
        """Status of /healthz, and the codes of its reasons."""
        status, body = self.get("/healthz")
        return status, [reason["code"] for reason in json.loads(body)["reasons"]] if body else []

    def degraded(self) -> list[str]:
        _, body = self.get("/healthz")
        return [reason["code"] for reason in json.loads(body)["degraded"]] if body else []

    def metric(self, line: str) -> float | None:
        """The value of one sample, ``partage_devices{health="healthy",resource="nvidia.com/gpu"}``."""
        _, body = self.get("/metrics")
        found = re.search(rf"^{re.escape(line)} (\S+)$", body.decode(), re.MULTILINE)
        return float(found[1]) if found else None

    def gpu(self, index: int) -> dict[str, Any]:
        gpus = [gpu for gpu in self.report().get("gpus", []) if gpu["index"] == index]
        return gpus[0] if gpus else {}

    def wait(self, condition: Callable[[], Any], what: str = "", limit_s: float = LIMIT_S) -> Any:
        """Wait for a condition; what the agent logged is part of the complaint."""
        try:
            return wait_for(condition, limit_s, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\nthe agent logged:\n{''.join(self.log[-40:])}") from None


@dataclass(slots=True)
class AgentProcess(Agent):
    """An agent in a process of its own. ``log``: lines of its stderr so far."""

    process: subprocess.Popen[str] = field(kw_only=True)
    _readers: list[threading.Thread] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def helper_pid(self) -> int | None:
        """The helper that it spawned."""
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii").split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def stop(self) -> int:
        """SIGTERM, as a supervisor does; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.finish()

    def kill(self) -> None:
        """SIGKILL, as a kernel out of memory does."""
        self.process.kill()
        self.finish()

    def finish(self) -> int:
        """Wait for the end; the exit code."""
        code = self.process.wait(LIMIT_S)
        for reader in self._readers:
            reader.join(LIMIT_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return code

    def _read_url(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.url = line.strip()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)

    def read(self) -> None:
        for target in (self._read_url, self._read_log):
            reader = threading.Thread(target=target, daemon=True)
            reader.start()
            self._readers.append(reader)


def spawn(
    node: Place,
    *options: str,
    machine: str | None = MACHINE,
    policy: str | None = None,
    http: bool = True,
    env: Mapping[str, str] | None = None,
) -> AgentProcess:
    """Start an agent. policy: text of a policy file. machine None: its hardware is at ``hardware_socket``."""
    place_of_hardware = {None: [f"--hardware-socket={node.hardware_socket}"], REAL: []}
    if policy is not None:
        node.write_policy(policy)
    command = [sys.executable, "-m", "partage", "agent", *node.options(), *options]
    command += place_of_hardware.get(machine, [f"--machine={machine}"])
    command += [f"--policy={node.policy}"] if policy is not None else []
    command += ["--http=127.0.0.1:0"] if http else []
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONWARNINGS": "default", **(env or {})},
    )
    agent = AgentProcess(process=process)
    agent.read()
    return agent


@contextmanager
def running(agent: AgentProcess) -> Iterator[AgentProcess]:
    """Ended afterwards, however it goes."""
    try:
        yield agent
    finally:
        if agent.process.poll() is None:
            agent.kill()
        elif not all(reader.is_alive() is False for reader in agent._readers):
            agent.finish()


class SimulatedHelper:
    """A helper on a thread of this process, for the agent's ``--hardware-socket``; it can misbehave."""

    def __init__(self, node: Place, machine: str | Machine = MACHINE) -> None:
        self._socket = node.hardware_socket
        self._machine = load_machine(machine) if isinstance(machine, str) else machine
        self._loop = asyncio.new_event_loop()
        self._stop: asyncio.Event | None = None
        self._serving: Future[None] | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.hardware: SimulatedHardware | None = None

    def start(self) -> None:
        if not self._thread.is_alive():
            self._thread.start()
        self._serving = asyncio.run_coroutine_threadsafe(self._serve(), self._loop)
        wait_for(self._socket.exists, what="the helper's socket")

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self.hardware = self.hardware or SimulatedHardware(self._machine)
        await HelperServer(self.hardware).run(self._socket, self._stop)

    def inject(self, *faults: Fault) -> None:
        """Make these faults happen now."""
        assert self.hardware is not None
        for fault in faults:
            asyncio.run_coroutine_threadsafe(self.hardware.inject(fault), self._loop).result(LIMIT_S)

    def stop(self) -> None:
        """Go away; the node stays as it is."""
        if self._serving is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._serving.result(LIMIT_S)
            self._serving = None

    def close(self) -> None:
        self.stop()
        asyncio.run_coroutine_threadsafe(_ended(), self._loop).result(LIMIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()


async def _ended() -> None:
    """Nothing goes on in this loop any more."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def simulated_helper(node: Place, machine: str | Machine = MACHINE) -> Iterator[SimulatedHelper]:
    """A helper for the length of a block."""
    helper = SimulatedHelper(node, machine)
    helper.start()
    try:
        yield helper
    finally:
        helper.close()


def registered(kubelet: ScriptedKubelet, resource: str) -> Registered:
    """Wait until the resource is registered with its first list."""
    found = wait_for(lambda: kubelet.last(resource), what=f"{resource} registered")
    assert isinstance(found, Registered)
    wait_for(lambda: found.watch and found.watch.lists, what=f"the first list of {resource}")
    return found


def ids(kubelet: ScriptedKubelet, resource: str) -> list[str]:
    """The ids of the last list, in its order."""
    found = kubelet.last(resource)
    return list(found.watch.health) if found and found.watch else []


def healthy(kubelet: ScriptedKubelet, resource: str) -> list[str]:
    """The healthy ids of the last list."""
    found = kubelet.last(resource)
    rows = found.watch.health if found and found.watch else {}
    return [share for share, health in rows.items() if health == "Healthy"]


def offered(kubelet: ScriptedKubelet, resource: str, count: int) -> None:
    """Wait until so many ids of a resource are healthy."""
    wait_for(lambda: len(healthy(kubelet, resource)) == count, what=f"{count} of {resource}")


def run_to_end(node: Place, *options: str, **how: Any) -> tuple[int, str]:
    """Start an agent that is expected to end by itself: exit code and log."""
    agent = spawn(node, *options, **how)
    with running(agent):
        code = agent.finish()
        return code, "".join(agent.log)


def native(*entries: Sequence[object] | str) -> str:
    """A policy in Partage's own format from the text of its entries."""
    lines = "".join(f"  - {entry}\n" for entry in entries)
    return f"version: partage/v1\ngpus:\n{lines}" if entries else "version: partage/v1\ngpus: []\n"
