"""A stand-in for NVIDIA's device plugin: its socket names, options and ids, as ``tests/golden`` has them.

It removes what is at its socket's path, registers once, and does not look at its socket again.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partage.edges.kubelet.port import DeviceList
from partage.edges.kubelet.registration import register
from partage.edges.kubelet.server import PluginServer
from partage.model.ids import ResourceName, ShareId, device_of, plugin_socket_name
from partage.model.share import ContainerAllocation, DeviceRow

GOLDEN = Path(__file__).parent / "golden" / "device-plugin"


def recording(machine: str) -> Any:
    return json.loads((GOLDEN / f"{machine}.json").read_text())


class _Resource:
    """One resource, listed in any order."""

    pre_start_required = False

    def __init__(self, name: str, ids: Sequence[str]) -> None:
        self.resource = ResourceName(name)
        rows = [DeviceRow(ShareId(one), healthy=True) for one in ids]
        random.Random(name).shuffle(rows)
        self._list = DeviceList(1, tuple(rows))

    def registering(self) -> None:
        pass

    def devices(self) -> DeviceList:
        return self._list

    async def changed(self, seen_version: int) -> None:
        del seen_version
        await asyncio.Event().wait()

    def preferred(
        self, available: Sequence[ShareId], must_include: Sequence[ShareId], size: int
    ) -> list[ShareId]:
        return [*must_include, *sorted(set(available) - set(must_include))][:size]

    async def allocate(self, ids: Sequence[ShareId]) -> ContainerAllocation:
        return ContainerAllocation(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(map(device_of, ids))})

    async def pre_start(self, ids: Sequence[ShareId]) -> None:
        raise AssertionError(f"NVIDIA's plugin does not ask for it: {ids}")


class NvidiaPlugin:
    """The plugin of one recorded case."""

    def __init__(self, kubelet_dir: Path, machine: str, case: str) -> None:
        self._dir = kubelet_dir
        rows = recording(machine)["cases"][case]["resources"]
        self.ids = {
            one["register"]["resource_name"]: [device["ID"] for device in one["devices"]] for one in rows
        }
        self._servers: list[PluginServer] = []
        self.starts = 0

    @property
    def running(self) -> bool:
        return bool(self._servers)

    async def start(self) -> None:
        self.starts += 1
        for name, ids in self.ids.items():
            server = PluginServer(_Resource(name, ids), self._dir / plugin_socket_name(ResourceName(name)))
            await server.start()
            self._servers.append(server)
            await register(
                self._dir / "kubelet.sock",
                endpoint=server.socket_path.name,
                resource=ResourceName(name),
                options=server.options,
            )

    async def stop(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            await server.stop()
