"""A node for claims in processes that are killed: agent and helper; the GPUs, the kubelet and the API server
outlive them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from partage.claims.agent.ports import ClaimStep
from partage.edges.hardware.helper_server import HelperServer
from partage.model.gpu import Gpu
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from tests.agent.harness import REPOSITORY, Place, place
from tests.claims.kills.agent_process import MAKING, NODE
from tests.dra_script import DriverSocket
from tests.edges.kube.store import SLICES, ObjectStore, object_store
from tests.kubelet_script import ScriptedKubelet, until

MACHINE: dict[str, Any] = {
    "version": "partage/v1",
    "kind": "Machine",
    "driver": "615.71.09",
    "gpus": [{"name": "NVIDIA H100 80GB HBM3"}] * 8,
}
"""Of a driver branch in which MPS has namespaces."""
POLICY = """
version: partage/v1
gpus:
  - {select: {index: [0]}, via: claims, mps: {unit: 1Gi}}
  - {select: {index: [1]}, via: claims, mps: {unit: 1Gi, protocol: 3}}
  - {select: {index: [2, 3]}, via: claims, time-slicing: {replicas: 4}}
  - {select: {index: [4]}, via: claims, exclusive: {}}
  - {select: {index: [5]}, via: claims, mig: {on-demand: true}}
  - {select: {index: [6]}, via: claims, mig: {layout: [3g.40gb, 2g.20gb, 1g.10gb]}}
  - {select: rest, exclusive: {}}
"""
ON_DEMAND = 5
DEVICES = 2 + 2 + 1 + 26 + 3
"""For claims; 26 of the GPU on demand, which is one of them itself."""
SLICES_OF_ALL = 2
"""One of them has the counters."""
MOMENTS = (*ClaimStep, *(step.__name__ for step in MAKING))
"""After each of them the agent can be killed."""


@dataclass
class KilledNode:
    """killed: how often the agent, the helper, and the agent after each step."""

    place: Place
    store: ObjectStore
    kubelet: ScriptedKubelet
    gpus: SimulatedHardware
    log: IO[bytes]
    killed: Counter[str] = field(default_factory=Counter)
    agent: subprocess.Popen[bytes] | None = None
    helper: subprocess.Popen[bytes] | None = None
    dies_after: str | None = None

    def _start(self, module: str, *arguments: object, pod_uid: str = "") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"tests.claims.kills.{module}", *map(str, arguments)]
        environment = {**os.environ, "POD_UID": pod_uid}
        return subprocess.Popen(command, cwd=REPOSITORY, stderr=self.log, env=environment)

    def start_helper(self) -> None:
        self.helper = self._start("helper_process", self.place.hardware_socket, self.gpu_socket)

    def start_agent(self, step: str | None = None, number: int = 1, *, pod_uid: str = "") -> None:
        """step: after which it kills itself, for the numberth time."""
        self.dies_after = step
        when = () if step is None else (step, number)
        self.agent = self._start(
            "agent_process", self.place.root, self.store.server.url, *when, pod_uid=pod_uid
        )

    async def kill_helper(self) -> None:
        assert self.helper is not None
        self.helper.kill()
        await asyncio.to_thread(self.helper.wait)
        self.killed["helper"] += 1
        self.start_helper()

    async def kill_agent(self) -> None:
        assert self.agent is not None
        if self.agent.poll() is None:
            self.agent.kill()
            self.killed["agent"] += 1
        await self.dead()

    async def dead(self) -> None:
        """The agent has ended; by SIGKILL, or it is said."""
        assert self.agent is not None
        code = await asyncio.to_thread(self.agent.wait)
        assert code == -signal.SIGKILL, f"the agent ended with {code}: {self.said()}"

    def notice_death(self) -> bool:
        """Whether it has killed itself."""
        assert self.agent is not None
        if self.agent.poll() is None:
            return False
        assert self.agent.returncode == -signal.SIGKILL, self.said()
        assert self.dies_after is not None, self.said()
        self.killed[f"agent after {self.dies_after}"] += 1
        self.dies_after = None
        return True

    def said(self) -> str:
        """The end of what agent and helper logged."""
        self.log.flush()
        return Path(self.log.name).read_text(errors="replace")[-4000:]

    async def end(self) -> None:
        for process in (self.agent, self.helper):
            if process is not None:
                process.kill()
                await asyncio.to_thread(process.wait)

    @property
    def gpu_socket(self) -> Path:
        return self.place.root / "gpus.sock"

    @property
    def cdi_dir(self) -> Path:
        return self.place.run_dir / "cdi"

    def cdi(self, uid: str) -> Any:
        """The content of a claim's CDI file; None: there is none."""
        with suppress(FileNotFoundError):
            return json.loads((self.cdi_dir / f"gpu.partage.dev-claim_{uid}.json").read_text())
        return None

    @property
    def devices(self) -> dict[str, Any]:
        """All devices of the slices, by name."""
        slices = self.store.objects.get(SLICES, {}).values()
        return {one["name"]: one for found in slices for one in found["spec"].get("devices", [])}

    @property
    def counters(self) -> dict[str, int]:
        """What there is of each counter of the GPU on demand."""
        return {
            name: int(counter["value"])
            for found in self.store.objects.get(SLICES, {}).values()
            for some in found["spec"].get("sharedCounters", ())
            for name, counter in some["counters"].items()
        }

    @property
    def tainted(self) -> list[str]:
        """Devices of which no claim gets anything now."""
        return [name for name, one in self.devices.items() if one.get("taints")]

    @property
    def slots(self) -> dict[str, int | None]:
        """The namespaces of MPS that are open, and the memory that each allows."""
        daemons = self.gpus.state.daemons.values()
        return {name: slot.memory_bytes for daemon in daemons for name, slot in daemon.slots.items()}

    @property
    def on_demand(self) -> Gpu:
        """The GPU of which MIG devices are made, as it is."""
        return self.gpus.state.gpus[ON_DEMAND]

    @property
    def made(self) -> list[str]:
        """``1g.10gb@6`` of each MIG device that is made, ``empty 1g.10gb@6`` of what is half made."""
        gpu = self.on_demand
        live = [(one.profile, one.known_placement.start) for one in gpu.mig_devices]
        live += [(f"empty {one.profile}", one.placement.start) for one in gpu.empty_instances]
        return sorted(f"{profile}@{start}" for profile, start in live)

    @property
    def places(self) -> list[Any]:
        """Where the agent has written down that something is made."""
        with suppress(FileNotFoundError):
            found: list[Any] = json.loads((self.place.state_dir / "claim-places.json").read_text())["places"]
            return found
        return []

    def report(self) -> Any:
        return json.loads((self.place.run_dir / "report.json").read_text())

    async def call(self, method: str, *arguments: Any, pod_uid: str = "") -> Any:
        """A call of the kubelet. Raises grpc.RpcError."""
        socket = f"dra-{pod_uid}.sock" if pod_uid else "dra.sock"
        calls = DriverSocket(self.place.root / "plugins" / "gpu.partage.dev" / socket)
        try:
            return await asyncio.to_thread(getattr(calls, method), *arguments)
        finally:
            await asyncio.to_thread(calls.close)


@asynccontextmanager
async def killed_node() -> AsyncIterator[KilledNode]:
    async with AsyncExitStack() as stack:
        here = stack.enter_context(place())
        (here.root / "plugins_registry").mkdir()
        here.write_policy(POLICY)
        store = await stack.enter_async_context(object_store())
        store.node(NODE)
        kubelet = ScriptedKubelet(here.kubelet_dir, here.pod_resources)
        await asyncio.to_thread(kubelet.start)
        machine = here.root / "machine.json"
        machine.write_text(json.dumps(MACHINE))
        gpus, stop = SimulatedHardware(load_machine(str(machine))), asyncio.Event()
        log = stack.enter_context((here.root / "processes.log").open("wb"))
        node = KilledNode(here, store, kubelet, gpus, log)
        serving = asyncio.create_task(HelperServer(gpus).run(node.gpu_socket, stop))
        try:
            await until(node.gpu_socket.exists, what="the simulated GPUs")
            node.start_helper()
            node.start_agent()
            await until(lambda: len(node.devices) == DEVICES and not node.tainted, what="the slices")
            yield node
        finally:
            await node.end()
            stop.set()
            await serving
            await asyncio.to_thread(kubelet.stop)


def names(answer: Sequence[Any]) -> list[tuple[str, str, tuple[str, ...]]]:
    """What an answer gives: device, share, CDI names."""
    return [(one.device_name, one.share_id, tuple(one.cdi_device_ids)) for one in answer]
