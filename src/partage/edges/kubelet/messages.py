"""Translates between Partage's values and the kubelet's messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from grpclib.encoding.proto import ProtoCodec

from partage.edges.kubelet._generated import deviceplugin_pb2 as plugin
from partage.edges.kubelet._generated import podresources_pb2 as resources
from partage.model.claim import ClaimHold
from partage.model.ids import ResourceName, ShareId
from partage.model.share import ContainerAllocation, ContainerHold, DeviceRow

API_VERSION = "v1beta1"
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"
LONGEST_MESSAGE = 4 * 2**20
"""Bytes. The default limit of a gRPC peer for one message; the kubelet uses the default."""


class MessageTooLong(Exception):
    """A message is longer than the receiver's limit."""


class LimitedCodec(ProtoCodec):
    """Protobuf; refuses messages of more than ``limit`` bytes, as other gRPC implementations do."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def decode(self, data: bytes, message_type: Any) -> Any:  # noqa: ANN401 (as grpclib's)
        """One message. Raises MessageTooLong, google.protobuf.message.DecodeError."""
        if len(data) > self._limit:
            raise MessageTooLong(f"received message larger than max ({len(data)} vs. {self._limit})")
        return message_type.FromString(data)


def share_ids(sent: Iterable[str]) -> list[ShareId]:
    """The ids in a message; a list, because a field of a message makes its strings anew at each iteration."""
    return cast("list[ShareId]", list(sent))


def device_list_message(rows: tuple[DeviceRow, ...]) -> plugin.ListAndWatchResponse:
    """The message of ListAndWatch."""
    return plugin.ListAndWatchResponse(devices=map(_device, rows))


def _device(row: DeviceRow) -> plugin.Device:
    health = HEALTHY if row.healthy else UNHEALTHY
    if row.numa_node is None:
        return plugin.Device(ID=row.id, health=health)
    topology = plugin.TopologyInfo(nodes=[plugin.NUMANode(ID=row.numa_node)])
    return plugin.Device(ID=row.id, health=health, topology=topology)


def answer_message(answer: ContainerAllocation) -> plugin.ContainerAllocateResponse:
    """The answer of Allocate for one container."""
    return plugin.ContainerAllocateResponse(
        envs=answer.envs,
        mounts=[
            plugin.Mount(
                container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only
            )
            for mount in answer.mounts
        ],
        devices=[
            plugin.DeviceSpec(
                container_path=node.container_path, host_path=node.host_path, permissions=node.permissions
            )
            for node in answer.devices
        ],
        annotations=answer.annotations,
        cdi_devices=[plugin.CDIDevice(name=name) for name in answer.cdi_devices],
    )


def held_by(response: resources.ListPodResourcesResponse) -> tuple[ContainerHold, ...]:
    """Every container that holds something, one row for each of its resources.

    The kubelet lists each device separately, because each has its own topology; here they are joined.
    """
    return tuple(row for pod in response.pod_resources for row in _held_in(pod))


def claimed_by(response: resources.ListPodResourcesResponse) -> tuple[ClaimHold, ...]:
    """Every container that has a claim, of whichever driver, one row for each of its claims."""
    return tuple(
        ClaimHold(pod.namespace, pod.name, container.name, f"{claim.claim_namespace}/{claim.claim_name}")
        for pod in response.pod_resources
        for container in pod.containers
        for claim in container.dynamic_resources
    )


def _held_in(pod: resources.PodResources) -> Iterator[ContainerHold]:
    for container in pod.containers:
        ids: dict[str, list[str]] = {}
        for entry in container.devices:
            ids.setdefault(entry.resource_name, []).extend(entry.device_ids)
        for resource, held in ids.items():
            if held:
                yield ContainerHold(
                    pod.namespace,
                    pod.name,
                    container.name,
                    ResourceName(resource),
                    tuple(map(ShareId, held)),
                )
