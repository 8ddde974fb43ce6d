"""Following one Node: list it, then watch it from there, for ever."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from partage.codec.values import CodecError, decode
from partage.edges.kube.connection import Connection, Refused, as_ours, is_expired, refusal
from partage.edges.kube.objects import NodeJson, NodeList
from partage.edges.kube.port import WatchState
from partage.errors import ClusterError, InputError, PartageError
from partage.values import Frozen

WATCH_S = 1800
"""How long one watch lasts, in seconds; up to twice as long, so that not all nodes begin anew together."""

IDLE_S = 600.0
"""A watch that says nothing for so long is begun anew. The server sends bookmarks about once a minute, and
the kubelet writes its Node every five minutes."""

LIVED_S = 5.0
"""A watch that lasted so long has worked: after it the next attempt comes at once."""

_NODES = "/api/v1/nodes"


class _Event(Frozen):
    """One line of a watch. object: a Node, or a Status in case of an ERROR."""

    type: str
    object: msgspec.Raw


class NodeWatch:
    """Follows one Node. Clock and pauses are arguments; nothing depends on the wall clock."""

    def __init__(
        self,
        connection: Connection,
        name: str,
        seen: Callable[[WatchState], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection, self._name, self._seen, self._clock = connection, name, seen, clock
        self._backoff = connection.backoff()
        self._version = ""
        self._state = WatchState(since=clock())

    async def run(self) -> None:
        """List, then watch; after a failure wait and go on where it stopped. Never returns."""
        while True:
            began_s = self._clock()
            pause_s = 0.0
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except Refused as error:
                if is_expired(error):
                    self._version = ""
                    pause_s = self._pause_s(began_s)
                else:
                    self._trouble(as_ours(error, self._connection.config, f"GET {_NODES}"))
                    pause_s = self._backoff.pause_s(error.retry_after_s)
            except (ClusterError, InputError) as error:
                self._trouble(error)
                pause_s = self._pause_s(began_s)
            else:
                pause_s = self._pause_s(began_s)
            await asyncio.sleep(pause_s)

    def _pause_s(self, began_s: float) -> float:
        """A connection that ends when it has worked for a while is nothing special."""
        if self._clock() - began_s >= LIVED_S:
            self._backoff.reset()
            return 0.0
        return self._backoff.pause_s()

    def _trouble(self, error: PartageError) -> None:
        message = error.problems[0].message
        since = self._state.since if self._state.trouble else self._clock()
        self._tell(replace(self._state, trouble=message, since=since))

    def _tell(self, state: WatchState) -> None:
        if state != self._state:
            self._state = state
            self._seen(state)

    async def _list(self) -> None:
        parameters = {"fieldSelector": f"metadata.name={self._name}"}
        found = await self._connection.call(NodeList, "GET", _NODES, parameters=parameters)
        self._version = found.metadata.resource_version
        node = found.items[0].value() if found.items else None
        lists = self._state.lists + 1
        self._tell(replace(self._state, node=node, trouble="", since=self._clock(), lists=lists))

    async def _watch(self) -> None:
        """Until the server ends the watch. Raises Refused when the version is too old, and what ``lines``
        raises.
        """
        self._state = replace(self._state, restarts=self._state.restarts + 1)
        parameters = {
            "watch": "true",
            "fieldSelector": f"metadata.name={self._name}",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S + random.randrange(WATCH_S)),  # noqa: S311 - no secret
        }
        async with self._connection.lines(_NODES, parameters, IDLE_S) as lines:
            self._tell(replace(self._state, trouble="", since=self._clock()))
            async for line in lines:
                if line:
                    self._line(line)

    def _line(self, line: bytes) -> None:
        try:
            event = decode(_Event, line, strict=False)
            if event.type == "ERROR":
                said = bytes(event.object)
                code = msgspec.json.decode(said).get("code", 500)
                raise refusal(int(code), said)
            node = decode(NodeJson, bytes(event.object), strict=False)
        except (CodecError, msgspec.MsgspecError, AttributeError) as error:
            raise ClusterError(f"the watch said something that no API server says: {error}") from error
        self._version = node.metadata.resource_version or self._version
        self._backoff.reset()
        if event.type == "DELETED":
            self._tell(replace(self._state, node=None))
        elif event.type in ("ADDED", "MODIFIED"):
            self._tell(replace(self._state, node=node.value()))
