"""Keeps the ResourceSlices of this node as they are wanted, whoever changes or deletes them.

A kubelet that starts deletes all slices of its node, and those of a driver that it does not reach for 30 s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from partage.claims.decide.slice_writes import SliceWrites, gates_needed, gates_off, slice_writes, without
from partage.claims.model.slices import ServerVersion, SliceSpec, slice_of_json
from partage.codec.values import CodecError
from partage.edges.kube.connection import Backoff
from partage.edges.kube.resources import ResourceApi, SliceObject
from partage.edges.kube.watch import CollectionState
from partage.errors import Absent, ClusterError, Conflict, InputError

log = logging.getLogger(__name__)

SETTLE_S, LONGEST_SETTLE_S = 0.1, 1.0
"""How long further changes are waited for before the slices are written, in seconds: longer with each write,
so that two who want different slices do not write without end; and below the 2 s in which they are back.
"""

QUIET_S = 10.0
"""After so long without a write, the next one waits as the first did, in seconds."""


class Publisher:
    """Writes the slices of one node.

    server: the version of the API server; None: not known yet. trouble: why slices are missing or not as they
    are wanted; empty: they are. current: how many slices there are, as wanted; 0 while that is not known.
    """

    def __init__(self, api: ResourceApi, node: str, driver: str, ask: Callable[[], None]) -> None:
        """ask: for a turn: ``server`` or ``trouble`` is another one."""
        self._api, self._node, self._driver, self._ask = api, node, driver, ask
        self._wanted: tuple[SliceSpec, ...] | None = None
        self._news = asyncio.Event()
        self._news.set()
        self._off: frozenset[str] = frozenset()
        self._watched: CollectionState[SliceObject] = CollectionState()
        self._backoff, self._settle = Backoff(), Backoff(SETTLE_S, LONGEST_SETTLE_S)
        self._written_at_s = 0.0
        self.server: ServerVersion | None = None
        self.trouble = ""
        self.current = 0

    def want(self, slices: Sequence[SliceSpec]) -> None:
        """These and no others, from now on. Before the first call nothing is written."""
        wanted = tuple(slices)
        if wanted != self._wanted:
            self._wanted, self.current = wanted, 0
            self._news.set()

    async def run(self) -> None:
        """Write whenever something is new. Never returns."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._api.watch_slices(self._node, self._driver, self._changed))
            while True:
                await self._news.wait()
                await asyncio.sleep(self._settle_s())
                self._news.clear()
                await self._tried()

    def _settle_s(self) -> float:
        if asyncio.get_running_loop().time() - self._written_at_s > QUIET_S:
            self._settle.reset()
            return SETTLE_S
        return self._settle.pause_s()

    async def _tried(self) -> None:
        """Write, or say why not and wait: then it is tried again."""
        try:
            await self._write()
        except Conflict:
            self._news.set()
        except (ClusterError, InputError) as error:
            self.current = 0
            self._say(error.problems[0].message)
            self._news.set()
            await asyncio.sleep(self._backoff.pause_s())
        else:
            self._backoff.reset()

    def _changed(self, state: CollectionState[SliceObject]) -> None:
        """The watch only says that something is new: what there is, is listed before it is written.

        A server that is replaced by another one, or has its gates turned on, ends the watch.
        """
        before, self._watched = self._watched, state
        if 0 < before.restarts < state.restarts:
            self._off = frozenset()
        if (state.objects, state.trouble, state.restarts) != (
            before.objects,
            before.trouble,
            before.restarts,
        ):
            self._news.set()

    async def _write(self) -> None:
        """Raises Unreachable, Conflict, Rejected, ClusterError."""
        server = await self._ask_server()
        if self._wanted is None:
            self._say(server.too_old)
            return
        wanted = () if server.too_old else without(self._wanted, self._off)
        try:
            objects = {made.name: made for made in await self._api.slices(self._node, self._driver)}
        except Absent:
            if not server.too_old:
                raise
            objects = {}  # it does not know what a slice is
        writes = slice_writes(wanted, {name: _read(one.spec) for name, one in objects.items()})
        if writes:
            await self._carry_out(writes, objects)
            return
        self.current = len(objects)
        self._say(server.too_old or _gate_trouble(self._wanted, self._off) or self._watched.trouble)

    async def _ask_server(self) -> ServerVersion:
        """Each time: a server can be replaced by another one."""
        try:
            server = ServerVersion.parse(await self._api.server_version())
        except ValueError as error:
            raise ClusterError(str(error)) from error
        if server != self.server:
            self.server = server
            self._ask()
        return server

    async def _carry_out(self, writes: SliceWrites, objects: Mapping[str, SliceObject]) -> None:
        self.current = 0
        self._written_at_s = asyncio.get_running_loop().time()
        # Asked each time: a Node that was deleted and is there again is another owner.
        owner = await self._api.node(self._node)
        answers: list[tuple[SliceSpec, SliceObject]] = []
        try:
            for name in writes.deletes:
                await self._api.delete_slice(objects[name])
            for name, spec in writes.replaces.items():
                answers.append((spec, await self._api.replace_slice(objects[name], owner, spec.to_json())))
        except Absent as error:
            raise Conflict("a slice has been deleted meanwhile") from error
        for number, spec in writes.creates.items():
            prefix = f"{number:05d}-{self._driver}-{self._node}-"
            answers.append((spec, await self._api.create_slice(prefix, owner, spec.to_json())))
        log.info(
            "resource slices are written",
            extra={
                "gone": len(writes.deletes),
                "changed": len(writes.replaces),
                "new": len(writes.creates),
            },
        )
        self._news.set()  # what is there now is compared once more
        off = frozenset[str]().union(*(gates_off(spec, _read(answer.spec)) for spec, answer in answers))
        self._off |= off
        altered = [answer.name for spec, answer in answers if _read(answer.spec) != spec]
        if altered and not off:
            raise ClusterError(f"the API server keeps ResourceSlice {altered[0]} otherwise than it was sent")

    def _say(self, trouble: str) -> None:
        if trouble == self.trouble:
            return
        self.trouble = trouble
        if trouble:
            log.warning("resource slices are not as wanted", extra={"reason": trouble})
        self._ask()


def _read(spec: object) -> SliceSpec | None:
    try:
        return slice_of_json(spec)
    except CodecError:
        return None


def _gate_trouble(wanted: Sequence[SliceSpec], off: frozenset[str]) -> str:
    withheld = [device.name for spec in wanted for device in spec.devices if gates_needed(device) & off]
    if not withheld:
        return ""
    more = f" and {len(withheld) - 4} more" if len(withheld) > 4 else ""
    return (
        f"the API server drops what {', '.join(withheld[:4])}{more} needs: turn the feature gate "
        f"{' and '.join(sorted(off))} on there; until then no claim gets these devices"
    )
