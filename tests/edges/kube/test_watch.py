"""One Node is followed through everything that can happen to a watch, on real sockets."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from partage.edges.kube.config import Material
from partage.edges.kube.connection import LONGEST_S, Backoff, Connection
from partage.edges.kube.port import WatchState
from partage.edges.kube.watch import NodeWatch
from tests.edges.kube.scripted import Answer, ScriptedServer, Stream, api_server, listed, node, quick, status


class Follower:
    """A watch of ``n1``, and what it has said."""

    def __init__(self, server: ScriptedServer, **more) -> None:
        self.connection = Connection(server.config(**more), quick)
        self.states: list[WatchState] = []
        self._task = asyncio.create_task(NodeWatch(self.connection, "n1", self._seen).run())

    def _seen(self, state: WatchState) -> None:
        self.states.append(state)

    async def until(self, true_of) -> WatchState:
        async with asyncio.timeout(10):
            while not self.states or not true_of(self.states[-1]):
                await asyncio.sleep(0.002)
        return self.states[-1]

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@asynccontextmanager
async def following(answer=None, **more):
    async with api_server() as server:
        server.answer = answer or (lambda request: listed(7, a="1"))
        follower = Follower(server, **more)
        try:
            yield server, follower
        finally:
            await follower.end()


async def _stream(server: ScriptedServer) -> Stream:
    async with asyncio.timeout(10):
        return await server.streams.get()


def _labels(state: WatchState):
    return None if state.node is None else dict(state.node.labels)


async def test_a_change_is_told_and_a_bookmark_is_not():
    async with following() as (server, follower):
        stream = await _stream(server)
        await follower.until(lambda state: _labels(state) == {"a": "1"} and not state.trouble)
        await stream.send("MODIFIED", node(8, a="2"))
        await follower.until(lambda state: _labels(state) == {"a": "2"})
        told = len(follower.states)  # the bookmark adds none
        await stream.send("BOOKMARK", {"kind": "Node", "metadata": {"resourceVersion": "12"}})
        stream.end()
        await _stream(server)
        assert server.requests[-1].query["resourceVersion"] == "12"
        assert all(_labels(state) == {"a": "2"} for state in follower.states[told:])
        assert follower.states[-1].lists == 1


async def test_scenario_10_only_this_node_is_asked_for_and_none_whose_name_begins_so():
    async with following() as (server, _):
        await _stream(server)
        for request in server.requests:
            assert (request.path, request.query["fieldSelector"]) == ("/api/v1/nodes", "metadata.name=n1")
        assert int(server.requests[-1].query["timeoutSeconds"]) >= 1800
        assert server.requests[-1].query["allowWatchBookmarks"] == "true"


@pytest.mark.parametrize("how", ["event", "answer"])
async def test_an_expired_version_lists_again(how):
    expired = status(410, "Expired", "too old resource version")
    refused = iter([expired])

    def answer(request):
        if request.watches and how == "answer":
            return next(refused, Answer({}))
        return listed(7 if len(server_requests) < 3 else 90, a=str(len(server_requests)))

    server_requests: list[object] = []
    async with following() as (server, follower):
        server_requests = server.requests
        server.answer = answer
        stream = await _stream(server)
        if how == "event":
            await stream.send("ERROR", expired.body)
        else:
            stream.drop()
        await follower.until(lambda state: state.lists == 2)
        await _stream(server)
        assert server.requests[-1].query["resourceVersion"] == "90"
        await follower.until(lambda state: not state.trouble)


async def test_a_connection_that_breaks_goes_on_where_it_was():
    async with following() as (server, follower):
        stream = await _stream(server)
        await stream.send("MODIFIED", node(9, a="2"))
        await follower.until(lambda state: _labels(state) == {"a": "2"})
        stream.drop()
        again = await _stream(server)
        assert server.requests[-1].query["resourceVersion"] == "9"
        await again.send("MODIFIED", node(10, a="3"))
        last = await follower.until(lambda state: _labels(state) == {"a": "3"})
        assert (last.lists, last.trouble) == (1, "")


async def test_a_node_that_is_deleted_and_made_again():
    async with following() as (server, follower):
        stream = await _stream(server)
        await stream.send("DELETED", node(8, a="1"))
        await follower.until(lambda state: state.node is None and state.lists == 1)
        await stream.send("ADDED", node(9, a="5"))
        await follower.until(lambda state: _labels(state) == {"a": "5"})


async def test_no_such_node_is_known_and_waited_for():
    empty = Answer({"metadata": {"resourceVersion": "3"}, "items": None})
    async with following(lambda request: empty) as (server, follower):
        stream = await _stream(server)
        state = await follower.until(lambda state: not state.trouble)
        assert state.node is None
        await stream.send("ADDED", node(4))
        await follower.until(lambda state: state.node is not None)


async def test_an_api_server_that_is_away_is_named_and_comes_back():
    async with following() as (server, follower):
        await _stream(server)
        await follower.until(lambda state: not state.trouble)
        await server.stop()
        away = await follower.until(lambda state: bool(state.trouble))
        assert server.url in away.trouble
        assert away.node is not None, "what was known is still the best answer"
        await server.start()
        await _stream(server)
        back = await follower.until(lambda state: not state.trouble)
        assert back.since >= away.since


async def test_a_server_that_is_busy_is_asked_again_when_it_says():
    busy = iter([status(429, "TooManyRequests", "slow down", after=1)])
    loop = asyncio.get_running_loop()
    times: list[float] = []

    def answer(request):
        if request.watches:
            times.append(loop.time())
            return next(busy, Answer({}))
        return listed(7)

    async with following(answer) as (server, follower):
        await _stream(server)
        await follower.until(lambda state: not state.trouble)
        assert times[1] - times[0] >= 1


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b'{"type": "MODIFIED"}',
        b'{"type": "ERROR", "object": []}',
        b'{"type": "ERROR", "object": {"code": "many"}}',
        b'{"type": "ERROR", "object": {"code": null}}',
        b'{"type": "ADDED", "object": {"metadata": 1}}',
    ],
)
async def test_what_no_api_server_says_is_a_trouble_and_no_end(line):
    async with following() as (server, follower):
        stream = await _stream(server)
        await follower.until(lambda state: not state.trouble)
        await stream.raw(line + b"\n")
        await follower.until(lambda state: bool(state.trouble))
        stream.drop()
        await _stream(server)
        await follower.until(lambda state: not state.trouble)


async def test_a_forbidden_watch_is_named_with_what_to_do():
    async with following(lambda request: status(403, "Forbidden", "cannot list nodes")) as (_, follower):
        state = await follower.until(lambda state: "permitted" in state.trouble)
        assert state.trouble.startswith("GET /api/v1/nodes is not permitted: cannot list nodes")


async def test_a_token_that_is_replaced_is_read_again(tmp_path):
    token = tmp_path / "token"
    token.write_text("one\n")
    async with following(token=Material(token)) as (server, _):
        stream = await _stream(server)
        assert server.requests[-1].headers["authorization"] == "Bearer one"
        token.write_text("two\n")
        stream.end()
        await _stream(server)
        assert server.requests[-1].headers["authorization"] == "Bearer two"


def test_pauses_grow_to_their_limit_and_an_hour_of_them_is_no_busy_loop():
    backoff = Backoff(jitter=lambda: 0.0)
    pauses = [backoff.pause_s() for _ in range(200)]
    assert pauses[:4] == [0.25, 0.5, 1.0, 2.0]
    assert max(pauses) == LONGEST_S / 2
    requests, waited_s = 0, 0.0
    backoff.reset()
    while waited_s < 3600:
        waited_s += backoff.pause_s()
        requests += 1
    assert requests < 260
    assert backoff.pause_s(at_least_s=99) == 99
