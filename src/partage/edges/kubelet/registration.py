"""Registering a resource with the kubelet, and noticing that the kubelet is another one now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from grpclib.client import Channel

from partage.edges.kubelet._generated import deviceplugin_pb2 as pb
from partage.edges.kubelet._generated.deviceplugin_grpc import RegistrationStub
from partage.edges.kubelet.calls import translate_errors
from partage.edges.kubelet.messages import API_VERSION
from partage.edges.kubelet.sockets import SocketIdentity, identity
from partage.model.ids import ResourceName

KUBELET_SOCKET = "kubelet.sock"
REGISTER_TIMEOUT_S = 5.0


async def register(
    kubelet_socket: Path,
    *,
    endpoint: str,
    resource: ResourceName,
    options: pb.DevicePluginOptions,
    timeout_s: float = REGISTER_TIMEOUT_S,
) -> None:
    """Tell the kubelet that ``resource`` is served on the socket called ``endpoint`` beside its own.

    The kubelet calls that socket before it answers. Raises Unreachable, Rejected.
    """
    request = pb.RegisterRequest(
        version=API_VERSION, endpoint=endpoint, resource_name=resource, options=options
    )
    with translate_errors(f"the kubelet at {kubelet_socket}"):
        async with Channel(path=str(kubelet_socket)) as channel:
            await RegistrationStub(channel).Register(request, timeout=timeout_s)


@dataclass(frozen=True, slots=True)
class ObservedSockets:
    """The two sockets as they are on disk, None where there is none."""

    kubelet: SocketIdentity | None
    own: SocketIdentity | None


def observe_sockets(kubelet_socket: Path, own_socket: Path) -> ObservedSockets:
    """See which sockets are there now."""
    return ObservedSockets(kubelet=identity(kubelet_socket), own=identity(own_socket))


class NextAction(Enum):
    """What one resource needs next."""

    NOTHING = auto()
    WAIT_FOR_KUBELET = auto()  # no kubelet to register with: wait for one
    REGISTER = auto()  # another kubelet than the one that knows us
    SERVE = auto()  # our socket is gone, or somebody else's: serve anew, then register


def next_action(
    served: SocketIdentity | None, known_to: SocketIdentity | None, sockets: ObservedSockets
) -> NextAction:
    """served: the socket that we bound; known_to: the kubelet's socket when it accepted us.

    A kubelet that starts empties the directory and makes a new socket; somebody who empties the directory
    under a running kubelet takes our socket only. The inode alone tells whether a socket is still ours:
    it cannot be used again while we listen on it, and somebody may have changed its mode.
    """
    if served is None or sockets.own is None or sockets.own.inode != served.inode:
        return NextAction.SERVE
    if sockets.kubelet is None:
        return NextAction.WAIT_FOR_KUBELET
    return NextAction.NOTHING if sockets.kubelet == known_to else NextAction.REGISTER
