"""Slots and settings of a rollout, and how a person sees and steers them, on real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from partage.edges.kube.cluster import ApiCluster
from partage.edges.kube.leases import Rollout, RolloutPlace, SeenRollout, slot_of
from partage.errors import Absent, Conflict, Unsatisfiable
from partage.kubernetes.rollout import RolloutDocument, RolloutView
from partage.plan.cluster.rollout import RolloutSettings, Slot
from tests.edges.kube.scripted import quick
from tests.edges.kube.store import (
    NODES,
    ObjectStore,
    config_maps_path,
    leases_path,
    object_store,
    rollout_objects,
)

PLACE = RolloutPlace("ns", "r")
MINE = Slot("r-0", "n1", "p", "r2", failure="bad")


@asynccontextmanager
async def rollout(slots: int = 2, **settings: str) -> AsyncIterator[tuple[ObjectStore, Rollout]]:
    async with object_store() as store:
        rollout_objects(store, "ns", "r", slots, **settings)
        yield store, Rollout(ApiCluster(store.server.config(), backoff=quick), PLACE, wall=lambda: 1e9)


async def test_of_two_who_take_a_slot_one_gets_a_conflict_and_others_keep_what_they_wrote() -> None:
    async with rollout(12) as (store, found):
        leases = await found.leases()
        assert [one.name for one in leases] == [f"r-{number}" for number in range(12)]
        taken = await found.write(leases[0], MINE)
        with pytest.raises(Conflict):
            await found.write(leases[0], MINE)
        assert (slot_of(taken).holder, slot_of(taken).failure, taken.transitions) == ("n1", "bad", 1)
        assert taken.renewed_at == "2001-09-09T01:46:40.000000Z"
        renewed = await found.write(taken, slot_of(taken))
        assert (renewed.transitions, slot_of(renewed).version) != (2, slot_of(taken).version)
        freed = await found.write(renewed, Slot("r-0"))
        assert slot_of(freed) == Slot("r-0", version=freed.version)
        kept = store.objects[leases_path("ns")]["r-0"]["metadata"]
        assert kept["annotations"] == {"meta.helm.sh/release-name": "partage"}
        assert kept["labels"] == {"partage.dev/rollout": "r"}


class _Seen:
    """What was told."""

    def __init__(self) -> None:
        self.last = SeenRollout()
        self._news = asyncio.Event()

    def __call__(self, seen: SeenRollout) -> None:
        self.last = seen
        self._news.set()

    async def until(self, trouble: str, **values: object) -> SeenRollout:
        async with asyncio.timeout(10):
            while not self._is(trouble, values):
                await self._news.wait()
                self._news.clear()
        return self.last

    def _is(self, trouble: str, values: dict[str, object]) -> bool:
        nodes = {one.name for one in self.last.nodes}
        now = {"settings": self.last.settings, "nodes": nodes}
        told = trouble in self.last.trouble if trouble else not self.last.trouble
        return told and values.items() <= now.items()


async def test_settings_are_followed_and_nodes_only_while_they_name_canaries() -> None:
    async with rollout() as (store, found):
        store.node("c1", pool="test")
        store.node("n1", pool="other")
        seen = _Seen()
        task = asyncio.create_task(found.follow(seen))
        try:
            await seen.until("", settings=RolloutSettings(2))
            assert not any(one.path == NODES for one in store.server.requests)
            meta = {"name": "r", "namespace": "ns"}
            store.put(config_maps_path("ns"), {"metadata": meta, "data": {"canary": "pool=test"}})
            await seen.until("", settings=RolloutSettings(1, {"pool": "test"}), nodes={"c1"})
            store.annotate(config_maps_path("ns"), "r", **{"partage.dev/rollout-paused": "true"})
            await seen.until("", settings=RolloutSettings(1, {"pool": "test"}, paused=True))
            store.put(config_maps_path("ns"), {"metadata": meta, "data": {"maxChanging": "many"}})
            await seen.until("ConfigMap ns/r: maxChanging is 'many'", settings=None)
            await store.server.stop()
            await seen.until("cannot be reached")
            await store.server.start()
            await seen.until("ConfigMap ns/r: maxChanging is 'many'")
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.mark.parametrize("what", ["settings", "leases", "nodes"])
async def test_a_watch_that_is_cancelled_by_mistake_ends_following_with_an_error(what: str) -> None:
    """As by a deadline on Python 3.11.0 to 3.11.2: else nobody would hear of changes any more."""
    async with rollout(canary="pool=test") as (store, found):
        store.node("c1", pool="test")
        seen = _Seen()

        def cancelled(state: SeenRollout) -> None:
            seen(state)
            task = asyncio.current_task()
            assert task is not None
            if not state.trouble and task.get_name() == f"watch {what}":
                task.cancel()

        task = asyncio.create_task(found.follow(cancelled))
        await seen.until("", nodes={"c1"})
        if what != "nodes":
            meta = {"name": "r", "namespace": "ns"}
            store.put(config_maps_path("ns"), {"metadata": meta, "data": {"canary": "pool=test"}})
            await found.write((await found.leases())[0], MINE)
        with pytest.raises(ExceptionGroup) as ended:
            await asyncio.wait_for(task, 10)
        assert [str(one) for one in ended.value.exceptions] == [f"watch {what} was cancelled"]


# --- a person --------------------------------------------------------------------------------------


def _note(phase: str, **more: str) -> dict[str, str]:
    said = {"policy": "a", "inForce": "r1", "wanted": "r2", "phase": phase, **more}
    return {"partage.dev/rollout": json.dumps(said)}


async def _seen_by_a_person(store: ObjectStore) -> RolloutDocument:
    return await RolloutView(store.server.config(), PLACE).look()


async def test_a_person_sees_each_node_and_why() -> None:
    async with rollout(1, canary="pool=test") as (store, found):
        for name, note in (("n1", _note("waiting", why="its turn")), ("n2", _note("done")), ("cpu", {})):
            store.node(name, pool="test" if name == "n2" else "other")
            store.annotate(NODES, name, **note)
        (lease,) = await found.leases()
        await found.write(lease, Slot("r-0", "n1", "a", "r2"))
        now = await _seen_by_a_person(store)
        rows = [(row.name, row.phase.value, row.canary, row.lease, row.why) for row in now.nodes]
        assert rows == [("n1", "changing", False, "r-0", ""), ("n2", "done", True, None, "")]
        assert (now.done, now.stopped, now.canary) == (False, None, "pool=test")


async def test_that_an_agent_has_gone_is_known_from_those_who_wait() -> None:
    async with rollout(1) as (store, found):
        store.node("n1")
        store.node("n2")
        gone = {"policy": "a", "inForce": "r1", "wanted": "r2", "phase": "waiting", "why": "n1 has gone"}
        store.annotate(NODES, "n1", **_note("changing"))
        store.annotate(NODES, "n2", **{"partage.dev/rollout": json.dumps({**gone, "stopped": True})})
        (lease,) = await found.leases()
        lease = await found.write(lease, Slot("r-0", "n1", "a", "r2"))
        assert (await _seen_by_a_person(store)).stopped == "n1 has gone"
        await found.write(lease, Slot("r-0"))
        assert (await _seen_by_a_person(store)).stopped is None, "what n2 says is of before"


async def test_resume_frees_what_has_failed_or_is_silent_and_nothing_else() -> None:
    async with rollout(3) as (store, _):
        long_ago = (datetime.now(UTC) - timedelta(hours=1)).timestamp()
        late = Rollout(ApiCluster(store.server.config()), PLACE, wall=lambda: long_ago)
        leases = await late.leases()
        failed, silent, slow = [
            await late.write(lease, Slot(lease.name, f"n{number}", "a", "r2", failure=failure))
            for number, (lease, failure) in enumerate(zip(leases, ("bad", "", ""), strict=True))
        ]
        said: list[str] = []

        def say(text: str) -> None:
            said.append(text)
            # Its clock is an hour late, and it renews all the same.
            tasks.append(asyncio.create_task(late.write(slow, slot_of(slow))))
            late._wall = lambda: long_ago + 30

        tasks: list[asyncio.Task[object]] = []
        late._wall = lambda: long_ago + 30
        view = RolloutView(store.server.config(), PLACE)
        now = await view.resume(say, wait_s=0.5)
        await asyncio.gather(*tasks)
        assert now.freed == (failed.name, silent.name)
        assert [slot.node for slot in now.slots] == ["", "", "n2"]
        assert said == ["looking for 0.5 s whether the agent of n1, n2 renews its Lease"]


async def test_what_a_person_cannot_do_is_said() -> None:
    async with rollout(1, paused="true") as (store, _):
        view = RolloutView(store.server.config(), PLACE)
        assert (await view.pause()).paused_by == "hand"
        with pytest.raises(Unsatisfiable, match=r"rollout\.paused=false"):
            await view.resume(print)
        assert (await view.look()).paused_by == "chart"
        with pytest.raises(Absent):
            await RolloutView(store.server.config(), RolloutPlace("ns", "other")).look()


async def test_watching_ends_when_all_are_done() -> None:
    async with rollout(1) as (store, _):
        store.node("n1")
        store.annotate(NODES, "n1", **_note("changing"))
        told: list[RolloutDocument] = []

        def tell(now: RolloutDocument) -> None:
            told.append(now)
            if len(told) == 1:
                store.annotate(NODES, "n1", **_note("done"))

        async with asyncio.timeout(10):
            last = await RolloutView(store.server.config(), PLACE).follow(tell)
        assert last.done
        assert [one.done for one in told] == [False, True]
