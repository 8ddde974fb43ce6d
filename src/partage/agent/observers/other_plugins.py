"""Whether another device plugin serves the GPUs of this node: then nothing of them is changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from pathlib import Path

from msgspec import Struct, field

from partage.edges.host.waiting import DirectoryChanges, until_tick
from partage.edges.kubelet.other_plugins import OtherPlugin, serving_gpus
from partage.edges.kubelet.sockets import SocketIdentity, socket_identity
from partage.model.ids import DeviceUuid, ResourceName

CHECK_S, REST_S = 1.0, 10.0
"""Seconds between two looks: where another plugin was seen or the kernel tells of no changes, and else. A
plugin that is killed leaves its socket, so no change of the directory shows its end."""

log = logging.getLogger(__name__)


class OtherPluginObserver(Struct):
    """The other plugin in the kubelet's directory.

    resources, devices: offered here, or to be offered, and of the node. ours: sockets of this process.
    ask: asks for a turn. takeover: those that are there at the first look do not count.
    """

    directory: Path
    changes: DirectoryChanges
    resources: Callable[[], Collection[ResourceName]]
    devices: Callable[[], Collection[DeviceUuid]]
    ours: Callable[[], Collection[SocketIdentity]]
    ask: Callable[[], None]
    takeover: bool = False
    found: OtherPlugin | None = None
    _ignored: frozenset[SocketIdentity] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def sentence(self) -> str:
        """Who serves the GPUs; empty if nobody is seen."""
        return str(self.found) if self.found is not None else ""

    def look(self) -> None:
        """Look now. Does not wait for the other process."""
        if self._ignored is None:
            self._ignored = frozenset(_sockets(self.directory)) if self.takeover else frozenset()
        before = self.found
        ours = {*self._ignored, *self.ours()}
        self.found = serving_gpus(self.directory, self.resources(), self.devices(), ours)
        if self.found != before:
            if self.found is None:
                log.info("no other plugin serves the GPUs any more")
            else:
                log.warning("GPUs are not changed", extra={"reason": str(self.found)})
            self.ask()

    async def watch(self) -> None:
        """Look at every change of the directory, at most once a second."""
        clock = asyncio.get_running_loop().time
        while True:
            self._changed.clear()
            told = self.changes.watch(self.directory, self._changed)
            self.look()
            again_s = clock() + CHECK_S
            if told and self.found is None:
                await until_tick(REST_S, self._changed, least_s=CHECK_S)
            await asyncio.sleep(max(0.0, again_s - clock()))


def _sockets(directory: Path) -> list[SocketIdentity]:
    try:
        paths = list(directory.iterdir())
    except OSError:
        return []
    return [found for path in paths if (found := socket_identity(path)) is not None]
