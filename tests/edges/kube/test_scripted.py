"""The scripted API server leaves nothing open, so that no test is blamed for another."""

from __future__ import annotations

import asyncio
import gc
import socket

from tests.edges.kube.scripted import api_server


async def test_a_connection_that_had_not_begun_tls_ends_with_the_server():
    async with api_server() as server:
        peer = socket.create_connection(("127.0.0.1", server.port))
        peer.settimeout(5)
        while not server.connections:
            await asyncio.sleep(0)
    with peer:
        assert peer.recv(1) == b""
    await asyncio.sleep(0)
    gc.collect()  # warns of what is still open, and a warning is an error here
