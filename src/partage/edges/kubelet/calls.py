"""A gRPC call to the kubelet: its failures as errors of Partage. Deadlines: ``edges.own_task``."""

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
