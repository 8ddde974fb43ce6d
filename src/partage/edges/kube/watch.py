"""Following objects of one kind, or one Node: list, then watch from there, for ever."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

import msgspec
from msgspec import field
from msgspec.structs import replace

from partage.codec.values import CodecError, decode
from partage.edges.kube.connection import (
    Connection,
    ErrorResponse,
    Forbidden,
    Listing,
    as_ours,
    is_expired,
    read_list,
    refusal,
)
from partage.edges.kube.objects import Meta, NodeJson, NodeList, Status
from partage.edges.kube.port import AnswerState, ClusterNode, WatchState
from partage.errors import Absent, ClusterError, InputError, PartageError
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


T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Row(Protocol[T_co]):
    """An object as the API server sends it."""

    @property
    def metadata(self) -> Meta: ...
    def value(self) -> T_co:
        """As others know it."""
        ...


class CollectionState(AnswerState, Generic[T]):
    """What a watch of several objects knows. objects: by name. forbidden: the account has no right to ask.
    absent: the server does not know such objects.
    """

    objects: Mapping[str, T] = field(default_factory=dict)
    forbidden: bool = False
    absent: bool = False


class Collection(Frozen, Generic[T]):
    """Which objects: where they are, how a list of them and one of them is read; selection: parameters of
    the list and of the watch. page: objects in one answer at most; 0: all of them. in_namespaces: their names
    are ``namespace/name``. keeps: which of them are kept at all.
    """

    path: str
    listing: type[Listing[Row[T]]]
    row: type[Row[T]]
    selection: Mapping[str, str] = field(default_factory=dict)
    page: int = 0
    in_namespaces: bool = False
    keeps: Callable[[T], bool] = lambda _: True

    def name(self, meta: Meta) -> str:
        """Of one of the objects."""
        return f"{meta.namespace}/{meta.name}" if self.in_namespaces else meta.name


class CollectionWatch(Generic[T]):
    """Follows objects. Clock and pauses are arguments; nothing depends on the wall clock.

    each: told of one object that changed, None: it is gone or was not kept, in place of ``seen``. Then the
    watch keeps no objects, and ``seen`` has them only when they were listed: where there are many, all of
    them would be copied at every change.
    """

    def __init__(
        self,
        connection: Connection,
        collection: Collection[T],
        seen: Callable[[CollectionState[T]], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        each: Callable[[str, T | None], None] | None = None,
    ) -> None:
        self._connection, self._collection, self._seen, self._clock = connection, collection, seen, clock
        self._each = each
        self._backoff = connection.backoff()
        self._version = ""
        self._state: CollectionState[T] = CollectionState(since=clock())

    async def run(self) -> None:
        """List, then watch; after a failure wait and go on where it stopped. Never returns."""
        while True:
            began_s = self._clock()
            pause_s = 0.0
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except ErrorResponse as error:
                if is_expired(error):
                    self._version = ""
                    pause_s = self._pause_s(began_s)
                else:
                    self._trouble(as_ours(error, self._connection.config, f"GET {self._collection.path}"))
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
        forbidden = isinstance(error, Forbidden)
        absent = isinstance(error, Absent)
        self._tell(replace(self._state, trouble=message, since=since, forbidden=forbidden, absent=absent))

    def _answered(self) -> CollectionState[T]:
        return replace(self._state, trouble="", since=self._clock(), forbidden=False, absent=False)

    def _tell(self, state: CollectionState[T]) -> None:
        if state != self._state:
            self._state = state
            self._seen(state)

    async def _list(self) -> None:
        asked = self._collection
        objects: dict[str, T] = {}

        def take(found: Iterable[Row[T]]) -> None:
            rows = ((asked.name(row.metadata), row.value()) for row in found)
            objects.update((name, one) for name, one in rows if asked.keeps(one))

        def begin() -> Callable[[Iterable[Row[T]]], None]:
            objects.clear()
            return take

        self._version = await read_list(
            self._connection, asked.listing, asked.path, asked.selection, begin, page=asked.page
        )
        self._state = replace(self._state, lists=self._state.lists + 1)
        self._tell(replace(self._answered(), objects=objects))
        if self._each is not None:
            self._state = replace(self._state, objects={})

    async def _watch(self) -> None:
        """Until the server ends the watch. Raises ErrorResponse when the version is too old, and what
        ``lines`` raises.
        """
        self._state = replace(self._state, restarts=self._state.restarts + 1)
        parameters = {
            **self._collection.selection,
            "watch": "true",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S + random.randrange(WATCH_S)),  # noqa: S311 - no secret
        }
        async with self._connection.lines(self._collection.path, parameters, IDLE_S) as lines:
            self._tell(self._answered())
            async for line in lines:
                if line:
                    self._line(line)

    def _line(self, line: bytes) -> None:
        try:
            event = decode(_Event, line, strict=False)
            if event.type == "ERROR":
                said = bytes(event.object)
                raise refusal(decode(Status, said, strict=False).code or 500, said)
            row = decode(self._collection.row, bytes(event.object), strict=False)
        except CodecError as error:
            raise ClusterError(f"the watch said something that no API server says: {error}") from error
        self._version = row.metadata.resource_version or self._version
        self._backoff.reset()
        name, before = self._collection.name(row.metadata), self._state.objects
        kept = row.value() if event.type in ("ADDED", "MODIFIED") else None
        if self._each is not None:
            if event.type in ("ADDED", "MODIFIED", "DELETED"):
                self._each(name, kept if kept is not None and self._collection.keeps(kept) else None)
        elif kept is not None and self._collection.keeps(kept):
            self._tell(replace(self._state, objects={**before, name: kept}))
        elif event.type in ("ADDED", "MODIFIED", "DELETED") and name in before:
            others = {key: one for key, one in before.items() if key != name}
            self._tell(replace(self._state, objects=others))


class NodeWatch:
    """Follows one Node."""

    def __init__(
        self,
        connection: Connection,
        name: str,
        seen: Callable[[WatchState], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._told = name, seen
        nodes = Collection[ClusterNode](
            _NODES, NodeList, NodeJson, {"fieldSelector": f"metadata.name={name}"}
        )
        self._watch = CollectionWatch(connection, nodes, self._seen, clock=clock)

    async def run(self) -> None:
        """Never returns."""
        await self._watch.run()

    def _seen(self, now: CollectionState[ClusterNode]) -> None:
        node = now.objects.get(self._name)
        self._told(WatchState(now.trouble, now.since, now.restarts, now.lists, node))
