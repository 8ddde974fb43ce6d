"""GPU memory that is shared by amounts: what each GPU of a node has, and who holds how much of it. Pure.

It follows from what is offered and from the ledger. In a cluster the agent writes it to an annotation of its
Node, so that ``partage inspect`` can show all nodes; nothing reads it to decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import field

from partage.codec.values import CodecError, decode, encode_replacing
from partage.model.ids import MEMORY_RESOURCE, DeviceUuid, ResourceName, ShareId, device_of
from partage.model.share import DeviceOffer, NodeOffer
from partage.plan.serve.ledger_entry import Holder, LedgerEntry
from partage.plan.serve.unit_allocation import memory_in_units
from partage.values import Frozen

GPU_MEMORY = "partage.dev/gpu-memory"
"""The annotation of a Node."""

LONGEST = 32 * 2**10
"""Characters of the annotation. Pods that are too many are left out of it, and counted."""


class DeviceUnits(Frozen):
    """One GPU or MIG device. index: of the GPU. total, used: units. unit_bytes: of one unit."""

    index: int
    total: int
    used: int
    unit_bytes: int


class PodMemory(Frozen):
    """What one pod holds. name: empty for pods that are not named yet, taken together. units: of each
    device, in the order of the devices.
    """

    namespace: str
    name: str
    units: tuple[int, ...]


class NodeMemory(Frozen, omit_defaults=True):
    """Devices of a node, and the pods that hold memory of them. more: pods that are left out."""

    devices: tuple[DeviceUnits, ...] = field(name="cards")
    pods: tuple[PodMemory, ...] = ()
    more: int = 0


HeldUnit = tuple[ResourceName, ShareId, tuple[Holder, ...], str | None]
"""Resource and id of something that is held, its holders, and the claim that has it, ``namespace/name``."""


def node_memory(offer: NodeOffer, held: Iterable[HeldUnit]) -> NodeMemory:
    """offer: everything that can be held. Where several holders are possible, the first one counts; where
    none is named, the claim is called ``claim NAME``.
    """
    rows = [row for rows in offer.values() for row in rows if row.by_memory]
    places: dict[tuple[ResourceName, DeviceUuid], int] = {
        (row.resource, row.device): place for place, row in enumerate(rows)
    }
    used = [0] * len(rows)
    pods: dict[tuple[str, str], list[int]] = {}
    for resource, share, holders, claim in held:
        place = places.get((resource, device_of(share)))
        if place is None:
            continue
        used[place] += 1
        pod = (holders[0].namespace, holders[0].pod) if holders else _of_claim(claim)
        pods.setdefault(pod, [0] * len(rows))[place] += 1
    devices = tuple(
        DeviceUnits(row.gpu_index, row.count, count, row.memory_bytes)
        for row, count in zip(rows, used, strict=True)
    )
    return NodeMemory(devices, tuple(PodMemory(*pod, tuple(units)) for pod, units in sorted(pods.items())))


def _of_claim(claim: str | None) -> tuple[str, str]:
    namespace, slash, name = (claim or "").partition("/")
    return (namespace, f"claim {name}") if slash else ("", "")


def memory_annotation(memory: NodeMemory) -> str:
    """The annotation's value; empty where no GPU is shared by amounts."""
    if not memory.devices:
        return ""
    kept = len(memory.pods)
    while True:
        shown = NodeMemory(memory.devices, memory.pods[:kept], len(memory.pods) - kept)
        text = encode_replacing(shown).decode()
        if len(text) <= LONGEST or not kept:
            return text
        kept //= 2


def read_memory(annotation: str) -> NodeMemory | None:
    """The value of the annotation; None where it is none of ours."""
    try:
        memory = decode(NodeMemory, annotation.encode(errors="replace"), strict=False)
    except CodecError:
        return None
    return memory if all(len(pod.units) == len(memory.devices) for pod in memory.pods) else None


def count_shared_gpus(offer: NodeOffer) -> int:
    """GPUs of the node that are shared by amounts in gpushare's name: ``aliyun.com/gpu-count``."""
    rows = (row for rows in offer.values() for row in rows)
    return len({row.gpu for row in rows if row.by_memory and row.resource == MEMORY_RESOURCE})


def pod_annotations(
    offer: NodeOffer, entries: Iterable[LedgerEntry], memory_of: Mapping[DeviceUuid, int]
) -> dict[tuple[str, str], Mapping[str, str]]:
    """Gpushare's annotations of the pods that hold memory of one GPU, by namespace and name. Only of certain
    holders, in units; a pod that holds memory of two GPUs has none: gpushare knows no such pod.
    memory_of: bytes of each device.

    Source of the names: AliyunContainerService/gpushare-scheduler-extender, pkg/utils/pod.go.
    """
    rows = {row.device: row for rows in offer.values() for row in rows if row.by_memory}
    held: dict[tuple[str, str], list[DeviceOffer]] = {}
    for entry in entries:
        row = rows.get(device_of(entry.id))
        if row is not None and row.resource == entry.resource == MEMORY_RESOURCE and entry.holder is not None:
            held.setdefault((entry.holder.namespace, entry.holder.pod), []).append(row)
    return {
        pod: {
            "ALIYUN_COM_GPU_MEM_IDX": str(some[0].gpu_index),
            "ALIYUN_COM_GPU_MEM_POD": str(len(some)),
            "ALIYUN_COM_GPU_MEM_DEV": str(memory_in_units(some[0], memory_of.get(some[0].device))),
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        }
        for pod, some in sorted(held.items(), key=lambda pair: pair[0])
        if len({row.device for row in some}) == 1
    }
