"""Which GPUs need a reset to change their MIG mode, and which GPUs are reset together.

The rules are those of NVIDIA's MIG guide (Ampere changes its mode by a reset, later architectures do not) and
of ``nvidia-smi --gpu-reset`` in its manual: from Ampere on, a GPU with direct NVLinks is reset by itself; one
on NVSwitches, too, but on Ampere only while the fabric manager runs, otherwise with all its NVLink peers.
Uncertain: NVML does not say that links run through a switch, and a GPU in MIG mode may show no links at all.
So Ampere boards named SXM count as joined with each other, and so does a GPU with two or more peers (a bridge
joins two). That may take a four-GPU board without switches for one with them: it then waits for more GPUs
to be idle than it must, unless the fabric manager runs. The driver decides: it
refuses a reset and names the GPUs that are missing.
"""

from __future__ import annotations

from collections import defaultdict

from partage.model.gpu import Gpu, Inventory
from partage.model.ids import GpuUuid


def needs_reset(gpu: Gpu) -> bool:
    """Whether a change of MIG mode needs a reset. Unknown architectures count as later ones."""
    return gpu.architecture == "ampere"


def reset_sets(inventory: Inventory) -> dict[GpuUuid, tuple[GpuUuid, ...]]:
    """For every GPU, by UUID: those that have to be reset together with it, itself among them, by index.

    A fabric manager that is not known to run is not relied on.
    """
    peers = {gpu.uuid: {gpu.uuid} for gpu in inventory}
    if not inventory.fabric_manager:
        _join(inventory, peers)
    order = {gpu.uuid: position for position, gpu in enumerate(inventory)}
    return {uuid: tuple(sorted(group, key=order.__getitem__)) for uuid, group in peers.items()}


def _join(inventory: Inventory, groups: dict[GpuUuid, set[GpuUuid]]) -> None:
    ampere = {gpu.uuid: gpu for gpu in inventory if gpu.architecture == "ampere"}
    linked: dict[GpuUuid, set[GpuUuid]] = defaultdict(set)
    for link in inventory.links:
        if link.nvlinks and link.a in ampere and link.b in ampere:
            linked[link.a].add(link.b)
            linked[link.b].add(link.a)
    boards = {uuid for uuid, gpu in ampere.items() if "SXM" in gpu.product.upper()}
    for uuid in ampere:
        others = linked[uuid] if len(linked[uuid]) > 1 else set()
        for other in others | (boards if uuid in boards else set()):
            _merge(groups, uuid, other)


def _merge(groups: dict[GpuUuid, set[GpuUuid]], a: GpuUuid, b: GpuUuid) -> None:
    both = groups[a] | groups[b]
    for uuid in both:
        groups[uuid] = both
