"""The slices of a node are kept as they are wanted, whoever changes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from partage.claims.agent.publisher import Publisher
from partage.claims.model.names import DRIVER
from partage.claims.model.slices import Pool, SliceDevice, SliceSpec
from partage.edges.kube.backoff import Backoff
from partage.edges.kube.connection import Connection
from partage.edges.kube.resources import ResourceApi
from tests.edges.kube.scripted import Answer, Request, status
from tests.edges.kube.store import NODES, SLICES, ObjectStore, object_store
from tests.kubelet_script import until

SHARED = SliceDevice("gpu-1", allow_multiple_allocations=True)


def specs(*parts: tuple[SliceDevice, ...]) -> tuple[SliceSpec, ...]:
    return tuple(SliceSpec(DRIVER, "n1", Pool("n1-partage", 0, len(parts)), part) for part in parts)


@dataclass
class Place:
    """A publisher, and the API server to which it writes."""

    store: ObjectStore
    publisher: Publisher

    @property
    def slices(self) -> dict[str, Any]:
        return self.store.objects.get(SLICES, {})

    @property
    def devices(self) -> list[list[str]]:
        """Their names, slice by slice."""
        made = [self.slices[name]["spec"] for name in sorted(self.slices)]
        return [[device["name"] for device in one.get("devices", [])] for one in made]

    @property
    def writes(self) -> list[tuple[str, str]]:
        """(kind, number of the slice), oldest first."""
        return [(kind, one["metadata"]["name"][:5]) for at, kind, one in self.store.log if at == SLICES]

    async def settled(self, *devices: list[str]) -> None:
        """These are there, and nobody is to write anything more."""
        await until(
            lambda: self.devices == [*devices] and self.publisher.current == len(devices), what="the slices"
        )


@asynccontextmanager
async def publishing(*wanted: SliceSpec, version: str = "v1.37.2") -> AsyncIterator[Place]:
    async with object_store() as store:
        store.version = version
        store.node("n1")
        connection = Connection(store.server.config(), lambda: Backoff(0.01, 0.02))
        publisher = Publisher(ResourceApi(connection), "n1", lambda: None)
        publisher._backoff = Backoff(0.01, 0.02)
        publisher.want(wanted)
        task = asyncio.create_task(publisher.run())
        try:
            yield Place(store, publisher)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def by_hand(name: str, node: str = "n1", driver: str = DRIVER) -> Any:
    spec = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": "p", "generation": 4, "resourceSliceCount": 1},
    }
    return {"metadata": {"name": name}, "spec": spec}


async def test_slices_have_a_number_an_owner_and_a_count() -> None:
    async with publishing(*specs((SHARED,), (SliceDevice("gpu-2"),))) as place:
        await place.settled(["gpu-1"], ["gpu-2"])
        assert [
            name.startswith(f"0000{at}-{DRIVER}-n1-") for at, name in enumerate(sorted(place.slices))
        ] == [
            True,
            True,
        ]
        for made in place.slices.values():
            assert made["spec"]["pool"] == {"name": "n1-partage", "generation": 1, "resourceSliceCount": 2}
            assert made["metadata"]["ownerReferences"] == [
                {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1", "controller": True}
            ]
        assert place.writes == [("ADDED", "00000"), ("ADDED", "00001")]
        assert place.publisher.trouble == ""


async def test_what_is_obsolete_goes_first_and_what_is_new_comes_last() -> None:
    async with publishing(*specs((SHARED,))) as place:
        await place.settled(["gpu-1"])
        place.publisher.want(specs((SliceDevice("gpu-3"),), ()))
        await place.settled(["gpu-3"], [])
        assert place.writes == [("ADDED", "00000"), ("MODIFIED", "00000"), ("ADDED", "00001")]
        place.publisher.want(specs(()))
        await place.settled([])
        assert place.writes[3:] == [("DELETED", "00001"), ("MODIFIED", "00000")]
        assert [made["spec"]["pool"]["generation"] for made in place.slices.values()] == [3]


async def test_one_changed_slice_stays_in_its_generation() -> None:
    async with publishing(*specs((SHARED,), ())) as place:
        await place.settled(["gpu-1"], [])
        place.publisher.want(specs((SHARED, SliceDevice("gpu-2")), ()))
        await place.settled(["gpu-1", "gpu-2"], [])
        assert place.writes[2:] == [("MODIFIED", "00000")]
        assert {made["spec"]["pool"]["generation"] for made in place.slices.values()} == {1}


async def test_foreign_slices_of_this_driver_on_this_node_go_and_no_others() -> None:
    async with publishing(*specs((SHARED,))) as place:
        await place.settled(["gpu-1"])
        place.store.put(SLICES, by_hand("others-node", node="n2"), "ADDED")
        place.store.put(SLICES, by_hand("others-driver", driver="gpu.nvidia.com"), "ADDED")
        place.store.put(SLICES, by_hand("00000-by-hand"), "ADDED")
        place.store.put(SLICES, by_hand("by-hand"), "ADDED")
        await until(lambda: len(place.slices) == 3, what="three slices")
        assert {"others-node", "others-driver"} < place.slices.keys()


async def test_a_node_that_is_made_again_owns_its_new_slices() -> None:
    """The garbage collector takes the slices of the Node of before; those with its UID would go, too."""
    async with publishing(*specs((SHARED,))) as place:
        await place.settled(["gpu-1"])
        node = place.store.objects[NODES]["n1"]
        place.store.remove(NODES, "n1")
        place.store.put(NODES, {**node, "metadata": {"name": "n1", "uid": "uid-again"}}, "ADDED")
        (old,) = place.slices
        place.store.remove(SLICES, old)
        await place.settled(["gpu-1"])
        (made,) = place.slices.values()
        assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-again"


async def test_a_slice_that_somebody_deletes_meanwhile_is_no_trouble() -> None:
    async with publishing(*specs((SHARED,), ())) as place:
        await place.settled(["gpu-1"], [])
        told: list[str] = []
        place.publisher._ask = lambda: told.append(place.publisher.trouble)

        def deletes_first(request: Request) -> Answer | None:
            name = request.path.rpartition("/")[2]
            if request.method in ("DELETE", "PUT") and name in place.slices:
                place.store.remove(SLICES, name)
            return None

        place.store.refuse = deletes_first
        place.publisher.want(specs((SliceDevice("gpu-3"),)))
        await place.settled(["gpu-3"])
        assert told == []


def without_gate(found: Any) -> None:
    for device in found["spec"].get("devices", []):
        device.pop("allowMultipleAllocations", None)


async def test_what_the_server_drops_a_field_of_is_withdrawn_once() -> None:
    """Sent again at every change, it would each time be a device for one claim alone, for a moment."""
    async with publishing() as place:
        place.store.drops = without_gate
        place.publisher.want(specs((SHARED, SliceDevice("gpu-2"))))
        await place.settled(["gpu-2"])
        assert "turn the feature gate DRAConsumableCapacity on" in place.publisher.trouble
        before = len(place.store.log)
        place.publisher.want(specs((SHARED, SliceDevice("gpu-2"), SliceDevice("gpu-3"))))
        await place.settled(["gpu-2", "gpu-3"])
        sent = [one["spec"]["devices"] for at, _, one in place.store.log[before:] if at == SLICES]
        assert [[device["name"] for device in devices] for devices in sent] == [["gpu-2", "gpu-3"]]


async def test_a_server_that_comes_back_is_asked_anew() -> None:
    """With another version and the gate turned on."""
    async with publishing(*specs((SHARED,)), version="v1.36.4") as place:
        await place.settled(["gpu-1"])
        place.store.drops = without_gate
        (name,) = place.slices
        place.store.remove(SLICES, name)
        await until(lambda: place.publisher.trouble, what="the gate")
        assert place.devices == [[]]
        place.store.drops, place.store.version = lambda found: None, "v1.37.2"
        refused = asyncio.Event()

        def away(request: Request) -> Answer | None:
            if request.path == SLICES:
                refused.set()
                return status(503, "ServiceUnavailable", "away")
            return None

        place.store.refuse = away
        for watch in place.store._watches:
            watch.stream.drop()
        await refused.wait()
        place.store.refuse = lambda request: None
        await place.settled(["gpu-1"])
        assert str(place.publisher.server) == "1.37.2"
        assert place.publisher.trouble == ""


async def test_an_old_server_gets_no_slices_and_it_is_said() -> None:
    async with publishing(*specs((SHARED,)), version="v1.36.3") as place:
        await until(lambda: place.publisher.trouble, what="a reason")
        assert "Kubernetes 1.36.3 gets no ResourceSlices" in place.publisher.trouble
        assert place.slices == {}


@pytest.mark.parametrize("code", [403, 500])
async def test_a_refusal_is_said_and_tried_again(code: int) -> None:
    async with publishing() as place:
        place.store.refuse = lambda request: (
            status(code, "No", "not now") if request.method == "POST" and request.path == SLICES else None
        )
        place.publisher.want(specs((SHARED,)))
        await until(lambda: "not now" in place.publisher.trouble, what="the refusal")
        place.store.refuse = lambda request: None
        await place.settled(["gpu-1"])
        assert place.publisher.trouble == ""
