"""What is advised as a policy in Partage's format: an entry for each GPU model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partage.model.policy import Exclusive, GpuCriteria, GpuEntry, Mps, Sharing, TimeSlicing
from partage.plan.offer.memory_units import units_of
from partage.units import GIB


def policy_of_entry(entry: GpuEntry) -> dict[str, Any]:
    """The policy of an entry that selects a model, or the GPUs of a virtual machine."""
    return {"version": "partage/v1", "gpus": [_entry(entry)]}


def policy_of_all(policies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One policy of several that have one entry each. Entries that are alike are there once."""
    rows = [row for policy in policies for row in policy["gpus"]]
    return {"version": "partage/v1", "gpus": [row for n, row in enumerate(rows) if row not in rows[:n]]}


def _entry(entry: GpuEntry) -> dict[str, Any]:
    select = {"model": list(entry.select.model)} if isinstance(entry.select, GpuCriteria) else "rest"
    if entry.mig is not None:
        return {"select": select, "mig": {"layout": [str(item) for item in entry.mig.items]}}
    return {"select": select, **_sharing(entry.sharing)}


def _sharing(sharing: Sharing) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    if units := units_of(sharing):
        keys["unit"] = f"{units.unit_bytes // GIB}Gi"
    elif not isinstance(sharing, Exclusive):
        keys["replicas"] = sharing.replicas
    if isinstance(sharing, TimeSlicing) and sharing.interval is not None:
        keys["interval"] = str(sharing.interval)
    if isinstance(sharing, Mps) and sharing.protocol >= 3:
        keys["protocol"] = sharing.protocol
    return {sharing.strategy.value: keys}
