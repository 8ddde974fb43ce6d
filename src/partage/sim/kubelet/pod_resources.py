"""The embedded kubelet's PodResources API. It leaves out what a real one leaves out, and can refuse calls."""

# ruff: noqa: N802  (gRPC's methods are called as the protocol calls them)
from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from partage.edges.kubelet._generated import podresources_pb2 as pb
from partage.edges.kubelet._generated.podresources_grpc import PodResourcesListerBase
from partage.model.ids import ShareId
from partage.sim.kubelet.pods import ContainerStatus, PodStatus
from partage.values import Frozen

_Request = TypeVar("_Request")

NumaNodes = Callable[[str, ShareId], tuple[int, ...]]
"""Resource and device id to the NUMA nodes of the device."""


def pod_message(status: PodStatus, numa_nodes: NumaNodes) -> pb.PodResources:
    """One pod as List answers it: without ordinary init containers, one entry for each device."""
    containers = [
        _container(status.container(container.name), numa_nodes) for container in status.pod.lasting
    ]
    return pb.PodResources(name=status.pod.name, namespace=status.pod.namespace, containers=containers)


def _container(status: ContainerStatus, numa_nodes: NumaNodes) -> pb.ContainerResources:
    devices = [
        device_message(resource, name, numa_nodes(resource, name))
        for resource, ids in status.ids.items()
        for name in ids
    ]
    return pb.ContainerResources(name=status.name, devices=devices)


def device_message(resource: str, name: ShareId, numa_nodes: tuple[int, ...]) -> pb.ContainerDevices:
    """One device."""
    message = pb.ContainerDevices(resource_name=resource, device_ids=[name])
    if numa_nodes:
        message.topology.nodes.extend(pb.NUMANode(ID=node) for node in numa_nodes)
    return message


class RateLimit(Frozen):
    """Calls per second of all clients together, and how many at once. A real kubelet has 100 and 10."""

    per_second: float = 100.0
    burst: int = 10


class TokenBucket:
    """A token bucket: each call takes a token, and tokens come back with time."""

    def __init__(self, limit: RateLimit, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        self._tokens = float(limit.burst)
        self._counted_at = clock()

    def take(self) -> bool:
        """Whether a call is allowed now."""
        now = self._clock()
        refill = (now - self._counted_at) * self._limit.per_second
        self._tokens = min(self._tokens + refill, float(self._limit.burst))
        self._counted_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class PodResourcesService(PodResourcesListerBase):
    """Answers with what ``pods`` and ``allocatable`` return at the moment of the call.

    refusal: the reason why a call is refused, None where it is answered. delay_s: how long after its making
    List's answer is sent.
    """

    def __init__(
        self,
        *,
        pods: Callable[[], Iterable[pb.PodResources]],
        allocatable: Callable[[], Iterable[pb.ContainerDevices]],
        refusal: Callable[[], str | None],
        delay_s: Callable[[], float],
    ) -> None:
        self._pods = pods
        self._allocatable = allocatable
        self._refusal = refusal
        self._delay_s = delay_s

    async def List(self, stream: Stream[pb.ListPodResourcesRequest, pb.ListPodResourcesResponse]) -> None:
        await self._request(stream)
        answer = pb.ListPodResourcesResponse(pod_resources=self._pods())
        await asyncio.sleep(self._delay_s())
        await stream.send_message(answer)

    async def GetAllocatableResources(
        self, stream: Stream[pb.AllocatableResourcesRequest, pb.AllocatableResourcesResponse]
    ) -> None:
        await self._request(stream)
        await stream.send_message(pb.AllocatableResourcesResponse(devices=self._allocatable()))

    async def Get(self, stream: Stream[pb.GetPodResourcesRequest, pb.GetPodResourcesResponse]) -> None:
        wanted = await self._request(stream)
        for pod in self._pods():
            if (pod.namespace, pod.name) == (wanted.pod_namespace, wanted.pod_name):
                await stream.send_message(pb.GetPodResourcesResponse(pod_resources=pod))
                return
        raise GRPCError(
            Status.UNKNOWN, f"pod {wanted.pod_name} in namespace {wanted.pod_namespace} not found"
        )

    async def _request(self, stream: Stream[_Request, Any]) -> _Request:
        request = await stream.recv_message()
        if request is None:
            raise GRPCError(Status.INVALID_ARGUMENT, "the call carries no message")
        if reason := self._refusal():
            raise GRPCError(Status.RESOURCE_EXHAUSTED, reason)
        return request
