"""The publisher against an API server that keeps objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from partage.claims.agent.publisher import Publisher
from partage.claims.model.slices import (
    Capacity,
    DeviceTaint,
    Pool,
    RequestPolicy,
    ServerVersion,
    SliceDevice,
    SliceSpec,
)
from partage.edges.kube.connection import Connection
from partage.edges.kube.resources import ResourceApi
from tests.edges.kube.scripted import Answer, Request, quick, status
from tests.edges.kube.store import NODES, SLICES, ObjectStore, object_store
from tests.kubelet_script import until

PLAIN, OTHER = SliceDevice("plain"), SliceDevice("other")
SHARED = SliceDevice(
    "shared",
    capacity={"memory": Capacity("80Gi", RequestPolicy("0", valid_values=("0",)))},
    allow_multiple_allocations=True,
)
ILL = SliceDevice("ill", taints=(DeviceTaint("gpu.partage.dev/unhealthy", "NoSchedule", "79"),))


def slices(*parts: tuple[SliceDevice, ...]) -> tuple[SliceSpec, ...]:
    pool = Pool("n1-partage", 0, len(parts))
    return tuple(SliceSpec("gpu.partage.dev", "n1", pool, part) for part in parts)


@dataclass
class Published:
    store: ObjectStore
    publisher: Publisher
    requests: list[Request] = field(default_factory=list)
    asked: list[None] = field(default_factory=list)

    @property
    def specs(self) -> list[Any]:
        return [found["spec"] for _, found in sorted(self.store.objects.get(SLICES, {}).items())]

    @property
    def devices(self) -> list[list[str]]:
        return [[one["name"] for one in spec.get("devices", [])] for spec in self.specs]

    def writes(self) -> int:
        return sum(one.method != "GET" for one in self.requests)

    async def settled(self, *devices: list[str]) -> None:
        """These are there, and the publisher knows it."""
        await until(
            lambda: self.devices == [*devices] and self.publisher.current == len(devices),
            what=f"{devices}, not {self.devices}; {self.publisher.trouble}",
        )


@asynccontextmanager
async def published(version: str = "v1.37.2") -> AsyncIterator[Published]:
    async with object_store() as store:
        store.node("n1")
        store.version = version
        asked: list[None] = []
        api = ResourceApi(Connection(store.server.config(), quick))
        node = Published(
            store, Publisher(api, "n1", "gpu.partage.dev", lambda: asked.append(None)), asked=asked
        )

        def note(request: Request) -> Answer | None:
            node.requests.append(request)
            return None

        store.refuse = note
        task = asyncio.create_task(node.publisher.run())
        try:
            yield node
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def foreign(driver: str, node: str) -> dict[str, Any]:
    spec = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
    }
    return {"metadata": {"name": f"00000-{driver}-{node}-x"}, "spec": spec}


async def test_it_tells_the_version_and_writes_nothing_before_it_is_told_what() -> None:
    async with published() as node:
        node.store.put(SLICES, foreign("gpu.partage.dev", "n1"))
        await until(lambda: node.asked)
        assert node.publisher.server == ServerVersion(1, 37, 2)
        await until(lambda: any(one.watches for one in node.requests))
        assert node.writes() == 0


async def test_slices_of_other_nodes_and_drivers_stay() -> None:
    async with published() as node:
        for driver, name in (("gpu.partage.dev", "n2"), ("gpu.nvidia.com", "n1")):
            node.store.put(SLICES, foreign(driver, name))
        node.publisher.want(slices((PLAIN,)))
        await until(lambda: node.publisher.current == 1)
        assert len(node.specs) == 3


async def test_equal_wishes_ask_nothing_of_the_server() -> None:
    async with published() as node:
        node.publisher.want(slices((PLAIN,), (OTHER,)))
        await node.settled(["plain"], ["other"])
        assert [one["pool"]["generation"] for one in node.specs] == [1, 1]
        assert node.publisher.trouble == ""
        requests = len(node.requests)
        for _ in range(1000):
            node.publisher.want(slices((PLAIN,), (OTHER,)))
        node.publisher.want(slices((PLAIN,), (SHARED,)))  # the next that is new comes alone
        await node.settled(["plain"], ["shared"])
        assert node.writes() == 3
        assert len(node.requests) - requests < 20


async def test_what_is_obsolete_goes_first_and_what_is_new_comes_last() -> None:
    """Between two writes the pool is not complete; client-go's helper for drivers has this order."""
    async with published() as node:
        node.publisher.want(slices((PLAIN,)))
        await node.settled(["plain"])
        first = [*node.store.objects[SLICES]]
        node.publisher.want(slices((OTHER,), ()))
        await node.settled(["other"], [])
        node.publisher.want(slices(()))
        await node.settled([])
        writes = [(kind, found["metadata"]["name"]) for at, kind, found in node.store.log if at == SLICES]
        new = writes[2][1]
        assert writes == [
            ("ADDED", *first),
            ("MODIFIED", *first),
            ("ADDED", new),
            ("DELETED", new),
            ("MODIFIED", *first),
        ]
        assert new.startswith("00001-gpu.partage.dev-n1-")
        assert [one["pool"]["generation"] for one in node.specs] == [3]


async def test_a_node_made_anew_is_the_owner() -> None:
    async with published() as node:
        node.publisher.want(slices((PLAIN,)))
        await node.settled(["plain"])
        node.store.put(NODES, {"metadata": {"name": "n1", "uid": "second"}, "spec": {}, "status": {}})
        for name in [*node.store.objects[SLICES]]:
            node.store.remove(SLICES, name)  # as the garbage collector
        await node.settled(["plain"])
        ((found),) = node.store.objects[SLICES].values()
        (owner,) = found["metadata"]["ownerReferences"]
        assert owner == {
            "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "second", "controller": True,
        }  # fmt: skip


def drops_sharing(found: Any) -> None:
    for device in found["spec"].get("devices", []):
        device.pop("allowMultipleAllocations", None)
        for capacity in device.get("capacity", {}).values():
            capacity.pop("requestPolicy", None)


def drops_taints(found: Any) -> None:
    for device in found["spec"].get("devices", []):
        device.pop("taints", None)


@pytest.mark.parametrize(
    ("drops", "gate", "left"),
    [
        (drops_sharing, "DRAConsumableCapacity", ["plain", "ill"]),
        (drops_taints, "DRADeviceTaints", ["plain", "shared"]),
    ],
)
async def test_a_device_of_which_something_is_dropped_goes_and_the_gate_is_named(
    drops: Callable[[Any], None], gate: str, left: list[str]
) -> None:
    async with published() as node:
        node.store.drops = drops
        node.publisher.want(slices((PLAIN, SHARED, ILL)))
        await node.settled(left)
        assert gate in node.publisher.trouble
        before = node.writes()
        node.publisher.want(slices((PLAIN, OTHER, SHARED, ILL)))
        await node.settled([left[0], "other", *left[1:]])
        assert node.writes() - before == 1, "what the server drops is not sent again at each change"


async def test_a_device_is_back_when_it_needs_the_gate_no_more() -> None:
    async with published() as node:
        node.store.drops = drops_taints
        node.publisher.want(slices((PLAIN, ILL)))
        await node.settled(["plain"])
        node.publisher.want(slices((PLAIN, replace(ILL, taints=()))))
        await node.settled(["plain", "ill"])
        assert node.publisher.trouble == ""


async def test_a_gate_that_is_turned_on_is_seen_when_the_server_is_there_again() -> None:
    async with published() as node:
        node.store.drops = drops_sharing
        node.publisher.want(slices((PLAIN, SHARED)))
        await node.settled(["plain"])
        await until(lambda: node.store._watches)
        node.store.drops = lambda found: None
        node.store._watches[-1].stream.drop()
        await node.settled(["plain", "shared"])
        assert node.publisher.trouble == ""


async def test_a_server_that_is_too_old_gets_none_until_it_is_a_newer_one() -> None:
    async with published("v1.36.3") as node:
        node.store.put(SLICES, foreign("gpu.partage.dev", "n1"))
        node.publisher.want(slices((PLAIN,)))
        await until(lambda: "1.36.4 or newer" in node.publisher.trouble and node.specs == [])
        await until(lambda: node.store._watches)
        node.store.version = "v1.36.4"
        node.store._watches[-1].stream.drop()
        await node.settled(["plain"])
        assert node.publisher.server == ServerVersion(1, 36, 4)
        assert node.publisher.trouble == ""


async def test_an_answer_that_no_gate_explains_is_said() -> None:
    async with published() as node:

        def renames(found: Any) -> None:
            for device in found["spec"].get("devices", []):
                device["name"] = "renamed"

        node.store.drops = renames
        node.publisher.want(slices((SHARED,)))
        await until(lambda: "otherwise than it was sent" in node.publisher.trouble)
        assert node.publisher.current == 0
        node.store.drops = lambda found: None
        await node.settled(["shared"])
        assert node.publisher.trouble == ""


async def test_a_refusal_is_said_and_tried_again() -> None:
    async with published() as node:

        def refuse(request: Request) -> Answer | None:
            if request.method == "POST":
                return status(403, "Forbidden", "an agent writes slices of its own node only")
            return None

        node.store.refuse = refuse
        node.publisher.want(slices((PLAIN,)))
        await until(lambda: "own node only" in node.publisher.trouble)
        node.store.refuse = lambda request: None
        await node.settled(["plain"])
        assert node.publisher.trouble == ""


async def test_a_slice_that_somebody_deletes_or_changes_meanwhile_is_listed_again() -> None:
    """Between the list and the write: once gone, once another version."""
    async with published() as node:
        node.publisher.want(slices((PLAIN,)))
        await node.settled(["plain"])
        meanwhile = [
            lambda name: node.store.remove(SLICES, name),
            lambda name: node.store.put(SLICES, node.store.objects[SLICES][name]),
        ]
        for device, happens in zip((OTHER, SHARED), meanwhile, strict=True):
            left = [happens]

            def once(request: Request, left: list[Any] = left) -> Answer | None:
                if request.method == "PUT" and left:
                    left.pop()(request.path.rpartition("/")[2])
                return None

            node.store.refuse = once
            node.publisher.want(slices((device,)))
            await node.settled([device.name])
            assert left == []
            assert node.publisher.trouble == ""
