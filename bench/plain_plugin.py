"""Plugins that do nothing: what gRPC itself costs. ``python -m bench.plain_plugin KIND SOCKET ANSWERS``.

They parse the request, and send an answer that they were given (``{"/method": base64}``). KIND is ``grpclib``
or ``grpcio``, each as its manual says, with nothing of ours.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from partage.edges.kubelet._generated import deviceplugin_pb2 as pb
from partage.edges.kubelet._generated.deviceplugin_grpc import DevicePluginBase

Canned = dict[str, bytes]
_PREFERRED, _ALLOCATE = "/v1beta1.DevicePlugin/GetPreferredAllocation", "/v1beta1.DevicePlugin/Allocate"


async def on_grpclib(socket: str, canned: Canned) -> None:
    """Serve for ever."""
    from grpclib.server import Server

    preferred = pb.PreferredAllocationResponse.FromString(canned[_PREFERRED])
    allocated = pb.AllocateResponse.FromString(canned[_ALLOCATE])

    class Plain(DevicePluginBase):
        async def GetPreferredAllocation(self, stream: Any) -> None:  # noqa: N802
            await stream.recv_message()
            await stream.send_message(preferred)

        async def Allocate(self, stream: Any) -> None:  # noqa: N802
            await stream.recv_message()
            await stream.send_message(allocated)

        async def GetDevicePluginOptions(self, stream: Any) -> None:  # noqa: N802
            raise NotImplementedError

        async def ListAndWatch(self, stream: Any) -> None:  # noqa: N802
            raise NotImplementedError

        async def PreStartContainer(self, stream: Any) -> None:  # noqa: N802
            raise NotImplementedError

    server = Server([Plain()])
    await server.start(path=socket)
    await server.wait_closed()


def on_grpcio(socket: str, canned: Canned) -> None:
    """Serve for ever, on a pool of threads."""
    import grpc as _grpc

    grpc: Any = _grpc

    def handler(request: Any, response: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            lambda _asked, _context: response,
            request_deserializer=request.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    methods = {
        "GetPreferredAllocation": handler(
            pb.PreferredAllocationRequest, pb.PreferredAllocationResponse.FromString(canned[_PREFERRED])
        ),
        "Allocate": handler(pb.AllocateRequest, pb.AllocateResponse.FromString(canned[_ALLOCATE])),
    }
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods),))
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    threading.Event().wait()


def main() -> None:
    """Serve one kind."""
    kind, socket, answers = sys.argv[1:]
    text = json.loads(Path(answers).read_text(encoding="ascii"))
    canned = {method: base64.b64decode(body) for method, body in text.items()}
    if kind == "grpclib":
        asyncio.run(on_grpclib(socket, canned))
    else:
        on_grpcio(socket, canned)


if __name__ == "__main__":
    main()
