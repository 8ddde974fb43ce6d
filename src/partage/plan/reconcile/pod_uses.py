"""What pods hold, as uses of GPUs and MIG devices."""

from __future__ import annotations

from collections.abc import Iterable

from partage.model.gpu import Inventory
from partage.model.ids import ShareId
from partage.model.step import GpuUse, UseKind
from partage.plan.serve.ledger import LedgerEntry

NOT_NAMED = "(not named yet)"
"""A pod that was given a share, and of which the kubelet has not yet said which it is."""


def entry_uses(entries: Iterable[LedgerEntry], inventory: Inventory) -> tuple[GpuUse, ...]:
    """The same of what a ledger says. Several names for one id: it is held by one of them."""
    named = (
        (" or ".join(f"{one.namespace}/{one.pod}" for one in entry.holders) or NOT_NAMED, entry.id)
        for entry in entries
    )
    return _uses(named, inventory)


def _uses(held: Iterable[tuple[str, str]], inventory: Inventory) -> tuple[GpuUse, ...]:
    """held: pairs of a pod's name and the id of a share."""
    homes: dict[str, str] = {}
    for gpu in inventory:
        homes[gpu.uuid] = gpu.uuid
        homes |= {device.uuid: gpu.uuid for device in gpu.mig_devices}
    uses: dict[GpuUse, None] = {}
    for name, share in held:
        device = ShareId.parse(share).device
        if (home := homes.get(device)) is not None:
            uses[GpuUse(home, UseKind.POD, name, device=None if device == home else device)] = None
    return tuple(uses)
