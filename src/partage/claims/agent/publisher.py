"""Keeps the ResourceSlices of this node as they are wanted, whoever changes or deletes them.

A kubelet that starts deletes all slices of its node, and those of a driver that it does not reach for 30 s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from partage.claims.decide.slice_writes import SliceWrites, dropped, slice_writes, still_dropped, without
from partage.claims.model.names import DRIVER
from partage.claims.model.server import ServerVersion
from partage.claims.model.slices import SliceSpec, slice_of_json
from partage.codec.values import CodecError
from partage.edges.kube.backoff import Backoff
from partage.edges.kube.resources import ResourceApi, SliceObject
from partage.edges.kube.watch import CollectionState
from partage.errors import Absent, ClusterError, Conflict, InputError

log = logging.getLogger(__name__)

SETTLE_S = 0.1
"""How long further changes are waited for before the slices are written, in seconds."""


class Publisher:
    """Writes the slices of one node.

    server: the version of the API server; None: not known yet. trouble: why slices are missing or not as they
    are wanted; empty: they are. current: how many slices there are, as wanted.
    """

    def __init__(self, api: ResourceApi, node: str, ask: Callable[[], None]) -> None:
        """ask: for a turn: ``server`` or ``trouble`` is another one."""
        self._api, self._node, self._ask = api, node, ask
        self._wanted: tuple[SliceSpec, ...] | None = None
        self._news = asyncio.Event()
        self._gates: Mapping[str, str] = {}
        self._seen: Mapping[str, SliceObject] = {}
        self._interrupted = False
        self._backoff = Backoff()
        self.server: ServerVersion | None = None
        self.trouble = ""
        self.current = 0

    def want(self, slices: Sequence[SliceSpec]) -> None:
        """These and no others, from now on."""
        wanted = tuple(slices)
        if wanted != self._wanted:
            self._wanted, self._gates = wanted, still_dropped(self._gates, wanted)
            self._news.set()

    async def run(self) -> None:
        """Write whenever something is new. Never returns."""
        while self.server is None:
            await self._tried(self._learn_of_server)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._api.watch_slices(self._node, DRIVER, self._changed))
            while True:
                await self._news.wait()
                await asyncio.sleep(SETTLE_S)
                self._news.clear()
                await self._tried(self._write)

    async def _learn_of_server(self) -> None:
        version = await self._api.server_version()
        try:
            self.server = ServerVersion.parse(version)
        except ValueError as error:
            raise ClusterError(str(error)) from error
        self._interrupted, self._gates = False, {}
        self._say(self.server.too_old)
        self._ask()

    async def _tried(self, work: Callable[[], Any]) -> None:
        """Do it, or say why not and wait: then it is tried again."""
        try:
            await work()
        except Conflict:
            self._news.set()
        except (ClusterError, InputError) as error:
            self._say(error.problems[0].message)
            self._news.set()
            await asyncio.sleep(self._backoff.pause_s())
        else:
            self._backoff.reset()

    def _changed(self, state: CollectionState[SliceObject]) -> None:
        """The watch only says that something is new: what there is, is listed before it is written. A server
        that was away may come back as a newer one, or with other feature gates."""
        if state.trouble and not self._interrupted:
            self._interrupted = True
            self._news.set()
        if state.objects != self._seen:
            self._seen = state.objects
            self._news.set()

    async def _write(self) -> None:
        """Raises Unreachable, Conflict, Rejected."""
        if self._interrupted:
            await self._learn_of_server()
        if self._wanted is None or (self.server is not None and self.server.too_old):
            return
        objects = {one.name: one for one in await self._api.slices(self._node, DRIVER)}
        wanted = without(self._wanted, self._gates)
        writes = slice_writes(wanted, {name: _read(one.spec) for name, one in objects.items()})
        if writes:
            await self._carry_out(writes, objects)
            return
        self.current = len(objects)
        self._say(_gate_trouble(self._gates))

    async def _carry_out(self, writes: SliceWrites, objects: Mapping[str, SliceObject]) -> None:
        owner = await self._api.node(self._node)  # of now: a Node that is made again has another UID
        answers: list[tuple[SliceSpec, SliceObject]] = []
        try:
            for name in writes.deletes:
                await self._api.delete_slice(objects[name])
            for name, spec in writes.replaces.items():
                answers.append((spec, await self._api.replace_slice(objects[name], owner, spec.to_json())))
        except Absent as error:  # somebody has deleted it just now
            raise Conflict(error.problems) from error
        for number, spec in writes.creates.items():
            prefix = f"{number:05d}-{DRIVER}-{self._node}-"
            answers.append((spec, await self._api.create_slice(prefix, owner, spec.to_json())))
        log.info(
            "resource slices are written",
            extra={
                "gone": len(writes.deletes),
                "changed": len(writes.replaces),
                "new": len(writes.creates),
            },
        )
        gates: dict[str, str] = {}
        for spec, answer in answers:
            gates |= dropped(spec, _read(answer.spec))
        self._gates = {**self._gates, **gates}
        self._news.set()  # what is there now is compared once more

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


def _gate_trouble(gates: Mapping[str, str]) -> str:
    if not gates:
        return ""
    names = " and ".join(sorted(set(gates.values())))
    devices = ", ".join(sorted(gates)[:4])
    return (
        f"the API server drops what {devices} needs: turn the feature gate {names} on there; "
        "until then no claim gets these devices"
    )
