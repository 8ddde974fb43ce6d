"""Which container holds which share, and which can be given, from the kubelet's PodResources API."""

from __future__ import annotations

import asyncio
from pathlib import Path

from grpclib.client import Channel
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from msgspec import Struct

from partage.edges.host.own_task import bounded
from partage.edges.kubelet._generated import podresources_pb2 as pb
from partage.edges.kubelet._generated.podresources_grpc import PodResourcesListerStub
from partage.edges.kubelet.messages import LimitedCodec, claimed_by, held_by, share_ids
from partage.edges.kubelet.registration import translate_errors
from partage.errors import Rejected, Unreachable
from partage.model.claim import ClaimHold
from partage.model.ids import ResourceName, ShareId
from partage.model.share import ContainerHold

CALL_TIMEOUT_S = 5.0
LONGEST_ANSWER = 16 * 2**20
"""Bytes. The limit of the kubelet's own clients; the usual 4 MiB are too few for a node with many pods."""


class KubeletRefused(Unreachable):
    """The kubelet answers, and refuses the call."""


class _Round(Struct, eq=False):
    """One call, shared by all callers that asked before it began."""

    answer: tuple[ContainerHold, ...] | Unreachable | None = None


class PodResourcesClient:
    """Asks the kubelet which containers hold which ids, with one call at a time.

    The API has one rate limit for all its clients. Callers that ask during a call share the next one, so an
    answer is never older than the question.

    claims: containers with ResourceClaims, as the last answer has them.
    """

    def __init__(self, socket_path: Path, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._socket_path = socket_path
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()
        self._next = _Round()
        self._channel: Channel | None = None
        self.claims: tuple[ClaimHold, ...] = ()

    async def held(self) -> tuple[ContainerHold, ...]:
        """All containers with devices. Raises Unreachable for every failure; the caller tries again."""
        mine = self._next
        async with self._turn:
            if mine.answer is None:
                self._next = _Round()
                mine.answer = await self._ask()
        if isinstance(mine.answer, Unreachable):
            raise type(mine.answer)(mine.answer.problems) from mine.answer
        return mine.answer

    async def _ask(self) -> tuple[ContainerHold, ...] | Unreachable:
        """One call. Failures are returned, so that all waiting callers get them."""
        done = False
        try:
            with translate_errors(f"the kubelet's PodResources at {self._socket_path}"):
                stub = PodResourcesListerStub(self._connection())
                response = await bounded(stub.List(pb.ListPodResourcesRequest()), self._timeout_s)
                answer = held_by(response)
                self.claims = claimed_by(response)
            done = True
        except Unreachable as error:
            cause = error.__cause__
            if isinstance(cause, GRPCError) and cause.status is Status.RESOURCE_EXHAUSTED:
                return KubeletRefused(error.problems)
            return error
        except Rejected as error:
            return KubeletRefused(error.problems)
        finally:
            if not done:  # also after a cancelled call: the connection may be in an undefined state
                self.close()
        return answer

    async def allocatable(self) -> dict[ResourceName, frozenset[ShareId]]:
        """The ids that the kubelet gives to pods now, held ones included: healthy in the last list of a
        plugin that it counts as connected. Raises Unreachable.
        """
        try:
            with translate_errors(f"the kubelet's PodResources at {self._socket_path}"):
                stub = PodResourcesListerStub(self._connection())
                call = stub.GetAllocatableResources(pb.AllocatableResourcesRequest())
                response = await bounded(call, self._timeout_s)
        except Rejected as error:
            raise Unreachable(error.problems) from error
        found: dict[ResourceName, set[ShareId]] = {}
        for entry in response.devices:
            found.setdefault(ResourceName(entry.resource_name), set()).update(share_ids(entry.device_ids))
        return {name: frozenset(ids) for name, ids in found.items()}

    def _connection(self) -> Channel:
        if self._channel is None:
            self._channel = Channel(path=str(self._socket_path), codec=LimitedCodec(LONGEST_ANSWER))
        return self._channel

    def close(self) -> None:
        """Close the connection. The next call opens a new one."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
