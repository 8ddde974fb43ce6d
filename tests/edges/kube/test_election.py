"""One leader among replicas, in virtual time: whatever is killed, or cannot reach the API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from partage.edges.kube.cluster import ApiCluster
from partage.edges.kube.connection import Backoff
from partage.edges.kube.election import LASTS_S, RENEW_WITHIN_S, RETRY_S, Election
from tests.edges.kube.scripted import Request, status
from tests.edges.kube.store import ObjectStore, leases_path, object_store
from tests.virtual_time import run_in_virtual_time

PLACE = leases_path("ns")


class Candidate:
    """working: its work runs. killed: it says nothing any more."""

    def __init__(self, store: ObjectStore, holder: str) -> None:
        clock = asyncio.get_running_loop().time
        cluster = ApiCluster(store.server.config(), backoff=lambda: Backoff(0.05, 0.1), clock=clock)
        self.election = Election(cluster, "ns", "lead", holder, wall=lambda: 1e9 + clock(), clock=clock)
        self.working = False
        self.task = asyncio.create_task(self.election.run(self._work))

    async def _work(self) -> None:
        self.working = True
        try:
            await asyncio.Event().wait()
        finally:
            self.working = False

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


@asynccontextmanager
async def candidates(store: ObjectStore, *holders: str) -> AsyncIterator[list[Candidate]]:
    made = [Candidate(store, holder) for holder in holders]
    try:
        yield made
    finally:
        for one in made:
            await one.end()


async def until(question: Callable[[], bool], seconds: float) -> float:
    """How long it took."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while not question():
        assert loop.time() - began_s <= seconds, f"not within {seconds:g} s"
        await asyncio.sleep(0.1)
    return loop.time() - began_s


def cut_off(store: ObjectStore, *holders: str) -> None:
    """Nothing that these write arrives."""

    def refuse(request: Request) -> object:
        written = request.method != "GET" and request.json["spec"].get("holderIdentity") in holders
        return status(500, "InternalError", "no") if written else None

    store.refuse = refuse  # type: ignore[assignment]


def test_one_leads_and_the_next_need_not_wait_when_it_leaves() -> None:
    async def story() -> None:
        async with object_store() as store, candidates(store, "a", "b") as (a, b):
            await until(lambda: a.working or b.working, 5)
            leader, other = (a, b) if a.working else (b, a)
            await asyncio.sleep(3 * LASTS_S)
            assert (leader.working, other.working) == (True, False)
            await leader.end()
            assert not leader.working
            assert await until(lambda: other.working, 5) <= RETRY_S + 1
            assert store.objects[PLACE]["lead"]["spec"]["leaseTransitions"] == 2

    run_in_virtual_time(story())


def test_one_that_says_nothing_any_more_is_followed() -> None:
    async def story() -> None:
        async with object_store() as store, candidates(store, "a", "b") as (a, b):
            await until(lambda: a.working or b.working, 5)
            leader, other = (a, b) if a.working else (b, a)
            cut_off(store, "a" if leader is a else "b")
            took_s = await until(lambda: other.working, LASTS_S + 10)
            assert took_s >= LASTS_S - RETRY_S - 1
            assert not leader.working  # it has seen before that its time is over

    run_in_virtual_time(story())


def test_a_leader_that_cannot_renew_stops_before_its_lease_is_over() -> None:
    async def story() -> None:
        async with object_store() as store, candidates(store, "a") as (a,):
            await until(lambda: a.working, 5)
            cut_off(store, "a")
            took_s = await until(lambda: not a.working, LASTS_S)
            assert took_s >= RENEW_WITHIN_S - RETRY_S - 1
            store.refuse = lambda request: None
            await until(lambda: a.working, 5)

    run_in_virtual_time(story())


def test_of_two_who_write_at_once_one_leads() -> None:
    async def story() -> None:
        async with object_store() as store, candidates(store, *"abcdef") as found:
            for _ in range(8):
                await until(lambda: any(one.working for one in found), LASTS_S + 5)
                for _ in range(20):
                    assert sum(one.working for one in found) <= 1
                    await asyncio.sleep(0.3)
                leader = next(one for one in found if one.working)
                await leader.end()
                found.remove(leader)
                if not found:
                    return

    run_in_virtual_time(story())
