"""What is advised as a policy in Partage's format: an entry for each GPU model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partage.model.policy import Exclusive, GpuCriteria, GpuEntry, Mps, Sharing, TimeSlicing
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
    match sharing:
        case Exclusive():
            return {"exclusive": {}}
        case TimeSlicing(interval=interval):
            length = {} if interval is None else {"interval": str(interval)}
            return {"time-slicing": {**_amount(sharing), **length}}
        case Mps(protocol=protocol):
            return {"mps": {**_amount(sharing), **({"protocol": protocol} if protocol >= 3 else {})}}


def _amount(sharing: TimeSlicing | Mps) -> dict[str, Any]:
    if sharing.units is None:
        return {"replicas": sharing.replicas}
    return {"unit": f"{sharing.units.unit_bytes // GIB}Gi"}
