"""What pods hold, as uses of GPUs and MIG devices."""

from __future__ import annotations

from collections.abc import Iterable

from partage.model.gpu import Inventory
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.ids import DeviceUuid, GpuUuid, MigUuid, ShareId, device_of
from partage.plan.serve.ledger_entry import LedgerEntry

NOT_NAMED = "(not named by the kubelet)"
"""Name of a pod that holds a share, and that PodResources does not name, or not yet."""


def entry_uses(entries: Iterable[LedgerEntry], inventory: Inventory) -> tuple[GpuUse, ...]:
    """The uses of held shares. If an id has several holders, one of them holds it."""
    named = (
        (" or ".join(f"{holder.namespace}/{holder.pod}" for holder in entry.holders) or NOT_NAMED, entry.id)
        for entry in entries
    )
    return _uses(named, inventory)


def _uses(held: Iterable[tuple[str, ShareId]], inventory: Inventory) -> tuple[GpuUse, ...]:
    """held: pairs of a pod's name and the id of a share."""
    parts: dict[DeviceUuid, tuple[GpuUuid, MigUuid | None]] = {}
    for gpu in inventory:
        parts[gpu.uuid] = gpu.uuid, None
        parts |= {device.uuid: (gpu.uuid, device.uuid) for device in gpu.mig_devices}
    uses: dict[GpuUse, None] = {}
    for name, share in held:
        if (part := parts.get(device_of(share))) is not None:
            gpu_uuid, device = part
            uses[GpuUse(gpu_uuid, UseKind.POD, name, device=device)] = None
    return tuple(uses)
