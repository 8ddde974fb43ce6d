"""The processes of a story's pods: they come when a pod runs, on what it holds, and go when it ends."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from partage.lab.stories.model import Work
from partage.model.ids import ContainerId, DeviceUuid, PodUid, device_of
from partage.sim.kubelet.pods import ContainerStatus, PodPhase, PodStatus
from partage.sim.node.faults import Occupy, Vacate
from partage.sim.node.hardware import SimulatedHardware

_FIRST_PID = 10_000
_MPS = "CUDA_MPS_PIPE_DIRECTORY"
"""A container with this variable is a client of MPS."""


class PodWork:
    """directory: where the kubelet links the logs of containers, by which the agent knows their names."""

    def __init__(self, hardware: SimulatedHardware, directory: Path) -> None:
        self._hardware = hardware
        self._directory = directory
        self._wanted: dict[str, Work] = {}
        self._busy: dict[str, set[int]] = {}
        self._pids = itertools.count(_FIRST_PID)

    def want(self, key: str, work: Work) -> None:
        """That pod works so from when it runs."""
        self._wanted[key] = work

    async def update(self, pods: Iterable[PodStatus]) -> None:
        """Begin the work of pods that run, end that of pods that do not any more."""
        running = {pod.pod.key: pod for pod in pods if pod.phase is PodPhase.RUNNING}
        for key in self._busy.keys() - running.keys():
            for gpu in self._busy.pop(key):
                await self._hardware.inject(Vacate(gpu, _name(key)))
        for key in self._wanted.keys() & running.keys() - self._busy.keys():
            self._busy[key] = set()
            for container in running[key].containers:
                for occupy in self._processes(key, running[key].uid, container):
                    await self._hardware.inject(occupy)
                    self._busy[key].add(occupy.gpu)

    def _processes(self, key: str, uid: PodUid, container: ContainerStatus) -> Iterator[Occupy]:
        """One process for each device that the container holds."""
        devices = dict.fromkeys(device_of(share) for ids in container.ids.values() for share in ids)
        identity = ContainerId(hashlib.sha256(f"{key}/{container.name}".encode()).hexdigest())
        namespace, _, pod = key.partition("/")
        if devices:
            self._directory.mkdir(exist_ok=True)
            (self._directory / f"{pod}_{namespace}_{container.name}-{identity}.log").touch()
        work = self._wanted[key]
        for device in devices:
            for index, gi, ci in self._places(device):
                yield Occupy(
                    index,
                    _name(key),
                    gi=gi,
                    ci=ci,
                    pid=next(self._pids),
                    memory_bytes=work.memory_bytes,
                    container=identity,
                    pod=uid,
                    mps=_MPS in container.env,
                    load=work.load,
                )

    def _places(self, device: DeviceUuid) -> Iterator[tuple[int, int | None, int | None]]:
        for index, gpu in self._hardware.state.gpus.items():
            if gpu.uuid == device:
                yield index, None, None
            yield from ((index, mig.gi_id, mig.ci_id) for mig in gpu.mig_devices if mig.uuid == device)


def _name(key: str) -> str:
    """Of the processes of a pod: no other pod has it."""
    return key
