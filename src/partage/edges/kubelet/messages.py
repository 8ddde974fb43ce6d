"""Our nouns as the kubelet's messages, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grpclib.encoding.proto import ProtoCodec

from partage.edges.kubelet._generated import deviceplugin_pb2 as plugin
from partage.edges.kubelet._generated import podresources_pb2 as resources
from partage.model.allocation import ContainerAllocation, ContainerHold
from partage.model.ids import ResourceName
from partage.model.share import DeviceRow

API_VERSION = "v1beta1"
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"
LONGEST_MESSAGE = 4 * 2**20
"""What a gRPC peer takes in one message unless it was told otherwise; the kubelet was not."""


class MessageTooLong(Exception):
    """A message is longer than its receiver takes."""


class LimitedCodec(ProtoCodec):
    """Protobuf, refusing messages of more than ``limit`` bytes as other gRPC implementations do."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def decode(self, data: bytes, message_type: Any) -> Any:  # noqa: ANN401 (as grpclib's)
        """One message. Raises MessageTooLong, google.protobuf.message.DecodeError."""
        if len(data) > self._limit:
            raise MessageTooLong(f"received message larger than max ({len(data)} vs. {self._limit})")
        return message_type.FromString(data)


def device_list_message(rows: tuple[DeviceRow, ...]) -> plugin.ListAndWatchResponse:
    """What ListAndWatch sends."""
    return plugin.ListAndWatchResponse(devices=map(_device, rows))


def _device(row: DeviceRow) -> plugin.Device:
    health = HEALTHY if row.healthy else UNHEALTHY
    if row.numa_node is None:
        return plugin.Device(ID=row.id, health=health)
    topology = plugin.TopologyInfo(nodes=[plugin.NUMANode(ID=row.numa_node)])
    return plugin.Device(ID=row.id, health=health, topology=topology)


def answer_message(answer: ContainerAllocation) -> plugin.ContainerAllocateResponse:
    """What Allocate answers for one container."""
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

    The kubelet lists each device on its own (each may have another topology): they are put together again.
    """
    return tuple(row for pod in response.pod_resources for row in _held_in(pod))


def _held_in(pod: resources.PodResources) -> Iterator[ContainerHold]:
    for container in pod.containers:
        ids: dict[str, list[str]] = {}
        for entry in container.devices:
            ids.setdefault(entry.resource_name, []).extend(entry.device_ids)
        for resource, held in ids.items():
            if held:
                yield ContainerHold(
                    pod.namespace, pod.name, container.name, ResourceName(resource), tuple(held)
                )
