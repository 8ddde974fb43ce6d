"""One gRPC call to the kubelet, its failures in our own words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from google.protobuf.message import DecodeError
from grpclib.const import Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from h2.exceptions import H2Error

from partage.edges.kubelet.messages import MessageTooLong
from partage.errors import ClusterError, Rejected, Unreachable

_PASSING = {
    Status.CANCELLED,
    Status.DEADLINE_EXCEEDED,
    Status.RESOURCE_EXHAUSTED,
    Status.ABORTED,
    Status.UNAVAILABLE,
}
"""Statuses that say nothing about what was asked: the same call may succeed a moment later."""


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Translate what a call can fail with; ``what`` names the peer: "the kubelet at /var/...".

    Raises Unreachable where no valid answer came, Rejected where the answer was no.
    """
    try:
        yield
    except GRPCError as error:
        raise _worded(what, error) from error
    except TimeoutError as error:
        raise Unreachable(f"{what} did not answer in time") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Unreachable(f"{what} is not there: no such socket") from error
    except OSError as error:
        raise Unreachable(f"{what} is unreachable: {error.strerror or error}") from error
    except (StreamTerminatedError, ProtocolError, H2Error) as error:
        raise Unreachable(f"{what} broke off the call: {error}") from error
    except AttributeError as error:
        # grpclib's word for a connection that was lost between its making and its first use.
        if error.name != "_transport":
            raise
        raise Unreachable(f"{what} hung up at once") from error
    except (DecodeError, MessageTooLong, AssertionError, NotImplementedError) as error:
        # The last two are grpclib's, for a message that is cut short and for compression.
        raise Unreachable(f"{what} sent what cannot be read: {error}") from error


def _worded(what: str, error: GRPCError) -> ClusterError:
    kind = Unreachable if error.status in _PASSING else Rejected
    return kind(f"{what} answered {error.status.name}: {error.message or 'no reason given'}")
