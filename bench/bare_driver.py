"""A DRA driver with nothing behind it, on the library that Partage uses: what prepares are compared with.

A claim is one file, flushed to the disk; no API server is asked. ``python -m bench.bare_driver FOLDER``
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from grpclib.server import Server

from partage.edges.kubelet._generated import dra_v1_pb2 as pb
from partage.edges.kubelet._generated.dra_v1_grpc import DRAPluginBase

SOCKET = "bare.sock"


class Bare(DRAPluginBase):
    """Prepares whatever is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def NodePrepareResources(self, stream: Any) -> None:  # noqa: N802
        answer = pb.NodePrepareResourcesResponse()
        for claim in (await stream.recv_message()).claims:
            with (self._folder / f"{claim.uid}.json").open("wb") as file:
                file.write(claim.SerializeToString())
                file.flush()
                os.fsync(file.fileno())
            answer.claims[claim.uid].devices.add(pool_name="pool", device_name="gpu")
        await stream.send_message(answer)

    async def NodeUnprepareResources(self, stream: Any) -> None:  # noqa: N802
        answer = pb.NodeUnprepareResourcesResponse()
        for claim in (await stream.recv_message()).claims:
            (self._folder / f"{claim.uid}.json").unlink()
            answer.claims[claim.uid].SetInParent()
        await stream.send_message(answer)


async def serve(folder: Path) -> None:
    """Until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = Server([Bare(folder)])
    await server.start(path=str(folder / SOCKET))
    await stop.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
