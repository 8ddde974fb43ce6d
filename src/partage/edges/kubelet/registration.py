"""Calls to the kubelet: their failures as errors of Partage; registers a resource, and detects that the
kubelet was restarted. Deadlines: ``edges.host.own_task``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path

from google.protobuf.message import DecodeError
from grpclib.client import Channel
from grpclib.const import Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from h2.exceptions import H2Error

from partage.edges.host.own_task import bounded
from partage.edges.kubelet._generated import deviceplugin_pb2 as pb
from partage.edges.kubelet._generated.deviceplugin_grpc import RegistrationStub
from partage.edges.kubelet.messages import API_VERSION, MessageTooLong
from partage.edges.kubelet.sockets import SocketIdentity, socket_identity
from partage.errors import ClusterError, Rejected, Unreachable
from partage.model.ids import ResourceName
from partage.values import Frozen

_PASSING = {
    Status.CANCELLED,
    Status.DEADLINE_EXCEEDED,
    Status.RESOURCE_EXHAUSTED,
    Status.ABORTED,
    Status.UNAVAILABLE,
}
"""Temporary statuses: the same call may succeed later."""


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Translate what a call can raise. what: the peer, "the kubelet at /var/...".

    Raises Unreachable if no valid answer came, Rejected if the answer was a refusal.
    """
    try:
        yield
    except GRPCError as error:
        raise _translated(what, error) from error
    except TimeoutError as error:
        raise Unreachable(f"{what} did not answer in time") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Unreachable(f"{what} is not there: no such socket") from error
    except OSError as error:
        raise Unreachable(f"{what} is unreachable: {error.strerror or error}") from error
    except (StreamTerminatedError, ProtocolError, H2Error) as error:
        raise Unreachable(f"{what} broke off the call: {error}") from error
    except AttributeError as error:
        # grpclib raises this if the connection is lost before its first use.
        if error.name != "_transport":
            raise
        raise Unreachable(f"{what} hung up at once") from error
    except (DecodeError, MessageTooLong, AssertionError, NotImplementedError) as error:
        # grpclib raises the last two for a truncated message and for compression.
        raise Unreachable(f"{what} sent what cannot be read: {error}") from error


def _translated(what: str, error: GRPCError) -> ClusterError:
    kind = Unreachable if error.status in _PASSING else Rejected
    return kind(f"{what} answered {error.status.name}: {error.message or 'no reason given'}")


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
    """Tell the kubelet that ``resource`` is served on the socket with the name ``endpoint`` in its directory.

    The kubelet calls that socket before it answers. Raises Unreachable, Rejected.
    """
    request = pb.RegisterRequest(
        version=API_VERSION, endpoint=endpoint, resource_name=resource, options=options
    )
    with translate_errors(f"the kubelet at {kubelet_socket}"):
        await bounded(_register(kubelet_socket, request), timeout_s)


async def _register(kubelet_socket: Path, request: pb.RegisterRequest) -> None:
    async with Channel(path=str(kubelet_socket)) as channel:
        await RegistrationStub(channel).Register(request)


class ObservedSockets(Frozen):
    """The two sockets on disk; None if there is none. others: of other plugins of the resource."""

    kubelet: SocketIdentity | None
    own: SocketIdentity | None
    others: frozenset[SocketIdentity] = frozenset()


def observe_sockets(
    kubelet_socket: Path, own_socket: Path, others: frozenset[SocketIdentity] = frozenset()
) -> ObservedSockets:
    """Read which sockets exist now."""
    return ObservedSockets(socket_identity(kubelet_socket), socket_identity(own_socket), others)


class NextAction(Enum):
    """What has to be done next for one resource."""

    NOTHING = auto()
    WAIT_FOR_KUBELET = auto()  # there is no kubelet
    REGISTER = auto()  # the kubelet is another one than that of the last registration
    SERVE = auto()  # the plugin's socket is gone, or another is in its place: serve again, then register


def next_action(
    served: SocketIdentity | None, known_to: SocketIdentity | None, sockets: ObservedSockets
) -> NextAction:
    """The next action. served: the socket that the plugin bound; known_to: the kubelet's socket when it
    accepted.

    A kubelet that starts empties the directory and creates a new socket. If only the directory was emptied,
    the kubelet's socket stays and the plugin's is gone. Only the inode tells whether a socket is still the
    plugin's: it cannot be reused while the plugin listens on it, and the file's mode may have been changed.
    """
    if served is None or sockets.own is None or sockets.own.inode != served.inode:
        return NextAction.SERVE
    if sockets.kubelet is None:
        return NextAction.WAIT_FOR_KUBELET
    return NextAction.NOTHING if sockets.kubelet == known_to else NextAction.REGISTER
