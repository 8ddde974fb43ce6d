"""Who holds what, asked of the kubelet's PodResources API."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from grpclib.client import Channel

from partage.edges.kubelet._generated import podresources_pb2 as pb
from partage.edges.kubelet._generated.podresources_grpc import PodResourcesListerStub
from partage.edges.kubelet.calls import translate_errors
from partage.edges.kubelet.messages import LimitedCodec, held_by
from partage.errors import Rejected, Unreachable
from partage.model.allocation import ContainerHold

CALL_TIMEOUT_S = 5.0
LONGEST_ANSWER = 16 * 2**20
"""Bytes. What the kubelet's own clients allow; the usual 4 MiB are too little for a crowded node."""


@dataclass(slots=True, eq=False)
class _Round:
    """One call and those who share its answer: all who asked before it began."""

    answer: tuple[ContainerHold, ...] | Unreachable | None = None


class PodResourcesClient:
    """The kubelet's answer to "who holds what?", with one call in flight.

    The API is rate limited over all its clients, so callers that come while a call is in flight share the
    next one: never an answer that is older than their question.
    """

    def __init__(self, socket_path: Path, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._socket_path = socket_path
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()
        self._next = _Round()
        self._channel: Channel | None = None

    async def held(self) -> tuple[ContainerHold, ...]:
        """All containers with devices. Raises Unreachable, whatever the reason; trying again
        is the caller's."""
        mine = self._next
        async with self._turn:
            if mine.answer is None:
                self._next = _Round()
                mine.answer = await self._ask()
        if isinstance(mine.answer, Unreachable):
            raise Unreachable(mine.answer.problems) from mine.answer
        return mine.answer

    async def _ask(self) -> tuple[ContainerHold, ...] | Unreachable:
        """One call; failures are values, so that all who wait for it get them."""
        done = False
        try:
            with translate_errors(f"the kubelet's PodResources at {self._socket_path}"):
                stub = PodResourcesListerStub(self._connection())
                response = await stub.List(pb.ListPodResourcesRequest(), timeout=self._timeout_s)
                answer = held_by(response)
            done = True
        except Unreachable as error:
            return error
        except Rejected as error:
            return Unreachable(error.problems)
        finally:
            if not done:  # cancelled calls included: what is left of the connection is not to be trusted
                self.close()
        return answer

    def _connection(self) -> Channel:
        if self._channel is None:
            self._channel = Channel(path=str(self._socket_path), codec=LimitedCodec(LONGEST_ANSWER))
        return self._channel

    def close(self) -> None:
        """Give the connection back. The next call opens another."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
