"""A resource whose devices a test can change, and its endpoint for the length of a block."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from partage.edges.kubelet.endpoint import ResourceEndpoint
from partage.edges.kubelet.port import DeviceList
from partage.model.ids import ResourceName, ShareId
from partage.model.share import AllocationRefused, ContainerAllocation, DeviceNode, DeviceRow, Mount


class Shelf:
    """A PluginHandler whose devices a test puts on and takes off."""

    def __init__(self, *ids: str, resource: str = "nvidia.com/gpu") -> None:
        self.resource = ResourceName(resource)
        self.pre_start_required = False
        self.registrations = 0
        self.asked: list[tuple[ShareId, ...]] = []
        self.allocated: list[tuple[ShareId, ...]] = []
        self.started: list[tuple[ShareId, ...]] = []
        self.before_start: Callable[[], object] = lambda: None
        self._list = DeviceList(1, tuple(DeviceRow(ShareId(device), healthy=True) for device in ids))
        self._changed = asyncio.Condition()

    async def put(self, *rows: DeviceRow) -> None:
        async with self._changed:
            self._list = DeviceList(self._list.version + 1, rows)
            self._changed.notify_all()

    def registering(self) -> None:
        self.registrations += 1

    def devices(self) -> DeviceList:
        return self._list

    async def changed(self, seen_version: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._list.version != seen_version)

    def preferred(
        self, available: Sequence[ShareId], must_include: Sequence[ShareId], size: int
    ) -> list[ShareId]:
        self.asked.append(tuple(available))
        if size > len(available):
            raise AllocationRefused(f"{size} asked, {len(available)} free: \u00e9puis\u00e9")
        rest = sorted(set(available) - set(must_include))
        return [*must_include, *rest][:size]

    async def allocate(self, ids: Sequence[ShareId]) -> ContainerAllocation:
        self.allocated.append(tuple(ids))
        if unknown := [device for device in ids if device not in {row.id for row in self._list.rows}]:
            raise AllocationRefused(
                f'invalid allocation request for "{self.resource}": unknown device: {unknown[0]}'
            )
        if "bug" in ids:
            raise ZeroDivisionError("a bug of ours")
        return ContainerAllocation(
            envs={"NVIDIA_VISIBLE_DEVICES": ",".join(ids)},
            mounts=(Mount("/in", "/out", read_only=True),),
            devices=(DeviceNode("/dev/nvidia0", "/host/dev/nvidia0", "rw"),),
            annotations={"cdi.k8s.io/x": "y"},
            cdi_devices=("nvidia.com/gpu=0",),
        )

    async def pre_start(self, ids: Sequence[ShareId]) -> None:
        self.started.append(tuple(ids))
        outcome = self.before_start()
        if isinstance(outcome, Exception):
            raise outcome
        if asyncio.iscoroutine(outcome):
            await outcome


@asynccontextmanager
async def running(endpoint: ResourceEndpoint) -> AsyncIterator[ResourceEndpoint]:
    """The endpoint alive for the length of a block."""
    task = asyncio.create_task(endpoint.run())
    try:
        yield endpoint
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


_LISTENS = """
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def listening_child(path: Path | None) -> Iterator[None]:
    """Another process that listens there, for the length of a block; none without a path."""
    if path is None:
        yield
        return
    command = [sys.executable, "-c", _LISTENS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield
        finally:
            child.kill()
