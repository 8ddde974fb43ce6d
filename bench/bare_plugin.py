"""A device plugin with nothing behind it, on the library that Partage uses: what Partage is compared with.

It serves, registers with the kubelet, sends one list, and answers, as the manual of grpclib says, with
nothing of ours but the generated messages. ``python -m bench.bare_plugin KUBELET_DIR RESOURCE SHARES``
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

from grpclib.client import Channel
from grpclib.server import Server

from partage.edges.kubelet._generated import deviceplugin_pb2 as pb
from partage.edges.kubelet._generated.deviceplugin_grpc import DevicePluginBase, RegistrationStub

SOCKET = "bare.sock"


class Bare(DevicePluginBase):
    """Lists its shares, and allocates whatever is asked for."""

    def __init__(self, shares: int) -> None:
        self._list = pb.ListAndWatchResponse()
        for number in range(shares):
            self._list.devices.add(ID=f"GPU-{number // 48:032d}::{number % 48}", health="Healthy")

    async def GetDevicePluginOptions(self, stream: Any) -> None:  # noqa: N802
        await stream.recv_message()
        await stream.send_message(pb.DevicePluginOptions())

    async def ListAndWatch(self, stream: Any) -> None:  # noqa: N802
        await stream.recv_message()
        await stream.send_message(self._list)
        await asyncio.Event().wait()

    async def GetPreferredAllocation(self, stream: Any) -> None:  # noqa: N802
        await stream.recv_message()
        await stream.send_message(pb.PreferredAllocationResponse())

    async def Allocate(self, stream: Any) -> None:  # noqa: N802
        await stream.recv_message()
        await stream.send_message(pb.AllocateResponse())

    async def PreStartContainer(self, stream: Any) -> None:  # noqa: N802
        await stream.recv_message()
        await stream.send_message(pb.PreStartContainerResponse())


async def serve(directory: Path, resource: str, shares: int) -> None:
    """Serve and register, until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    socket = directory / SOCKET
    socket.unlink(missing_ok=True)
    server = Server([Bare(shares)])
    await server.start(path=str(socket))
    async with Channel(path=str(directory / "kubelet.sock")) as channel:
        request = pb.RegisterRequest(version="v1beta1", endpoint=SOCKET, resource_name=resource)
        await RegistrationStub(channel).Register(request)
    await stop.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
