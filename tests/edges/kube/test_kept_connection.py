"""A connection that is kept for the next request: for claims, which come in bursts."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from partage.edges.kube.config import Material
from partage.edges.kube.connection import Connection
from partage.errors import Rejected
from tests.edges.kube.scripted import PKI, Answer, Request, api_server, quick, status
from tests.kubelet_script import until

CLAIM = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/c"


async def get(connection: Connection) -> Any:
    return await connection.call(dict[str, Any], "GET", CLAIM)


async def test_calls_one_after_the_other_use_one_connection_and_calls_at_once_several() -> None:
    async with api_server() as server:
        connection = Connection(server.config(), quick, keep=True)
        for _ in range(3):
            await get(connection)
            assert len(server.connections) == 1
        await asyncio.gather(*(get(connection) for _ in range(5)))
        await until(lambda: len(server.connections) == 1, what="only one is kept")
        connection.close()
        await until(lambda: not server.connections, what="none is left open")


async def test_without_being_asked_to_none_is_kept() -> None:
    async with api_server() as server:
        await get(Connection(server.config(), quick))
        await until(lambda: not server.connections, what="none is left open")


async def test_a_server_that_was_started_again_is_asked_on_a_new_connection() -> None:
    """Without a pause, and without counting as a failure: it is usual that servers end what is idle."""
    async with api_server() as server:
        connection = Connection(server.config(), quick, keep=True)
        await get(connection)
        await server.stop()
        await server.start()
        assert await connection.call(dict[str, Any], "GET", CLAIM, tries=1) == {}
        connection.close()


async def test_what_may_have_arrived_is_not_sent_again() -> None:
    """A POST never goes out on a connection that the server may have given up."""
    async with api_server() as server:
        connection = Connection(server.config(), quick, keep=True)
        await get(connection)
        await server.stop()
        await server.start()
        await connection.call(dict[str, Any], "POST", CLAIM, body={}, tries=1)
        assert [one.method for one in server.requests] == ["GET", "POST"]
        connection.close()


async def test_a_refusal_does_not_spoil_the_next_answer() -> None:
    async with api_server() as server:

        def answer(request: Request) -> Answer:
            return status(403, "Forbidden", "no") if len(server.requests) == 1 else Answer({"good": True})

        server.answer = answer
        connection = Connection(server.config(), quick, keep=True)
        with pytest.raises(Rejected):
            await get(connection)
        assert await get(connection) == {"good": True}
        connection.close()


async def test_after_a_change_of_the_certificates_a_new_connection_is_made(tmp_path: Path) -> None:
    async with api_server() as server:
        ca = tmp_path / "ca.crt"
        shutil.copy(PKI / "ca.crt", ca)
        connection = Connection(server.config(ca=Material(ca)), quick, keep=True)
        await get(connection)
        (former,) = server.connections
        ca.with_suffix(".new").write_bytes(ca.read_bytes())
        ca.with_suffix(".new").replace(ca)
        await get(connection)
        await until(former.done, what="the former one has ended")
        connection.close()
