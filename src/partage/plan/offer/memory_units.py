"""Devices that are shared by amounts of memory: how many units each has, and what limits a container.

A container asks for a number of units of one device. Only memory is shared out, not compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from partage.model.ids import ResourceName
from partage.model.mps import SERVER, MpsNamespace, slot_name
from partage.model.policy import Exclusive, MemoryUnits, Sharing, UnitPlacement
from partage.model.share import DeviceOffer, Guarantee, NodeOffer
from partage.model.strategy import Strategy
from partage.plan.offer.findings import Findings
from partage.text import gpus
from partage.units import MIB, format_bytes

if TYPE_CHECKING:
    from partage.plan.offer.gpu_devices import Target

RESERVED_BYTES: Final = 512 * MIB
"""Memory of a device that is promised to nobody: the driver's own part, which NVML counts in the total, and
the context of an MPS server. A context of 250 to 820 MiB was measured by others (NVIDIA's MPS guide of
release 615, and people who tried it); none of it has been measured by us.
"""

MOST_UNITS: Final = 8_000
"""Ids of units on one node. The kubelet and its checkpoint handle each of them one by one, and so does the
ledger, also those of claims: a prepare of 40,000 units took longer than the kubelet waits."""

MOST_NAMESPACES: Final = 1_024
"""Namespaces of one MPS server. How many a real daemon takes is not documented."""

_NAMESPACE = "units"


def units_of(sharing: Sharing) -> MemoryUnits | None:
    """The units of a device that is shared by amounts of memory; else None."""
    return None if isinstance(sharing, Exclusive) else sharing.units


def count_units(units: MemoryUnits, memory_bytes: int) -> int:
    """How many units a device with so much memory has."""
    return max(0, memory_bytes - RESERVED_BYTES) // units.unit_bytes


def unit_offering(
    whole: DeviceOffer, units: MemoryUnits, shared: Strategy, guarantee: Guarantee
) -> DeviceOffer:
    """The units of a device. whole: the device as one share."""
    count = count_units(units, whole.memory_bytes)
    return replace(
        whole,
        shared=shared,
        replicas=count,
        count=count,
        memory_bytes=units.unit_bytes,
        guarantee=guarantee,
        single=False,
        # Without it the kubelet asks for every container on which device it should be: docs/adr/0110.
        numa_node=None,
        by_memory=True,
        spread=units.placement is UnitPlacement.SPREAD,
    )


# --- namespaces: a limit for each possible amount ------------------------------------------------


def unit_namespaces(units: MemoryUnits, count: int) -> tuple[MpsNamespace, ...]:
    """One for each number of units that a container can have. They exist before any container does."""
    return tuple(
        MpsNamespace(f"{_NAMESPACE}{number}", number * units.unit_bytes, 100)
        for number in range(1, count + 1)
    )


UNIT_PIPE: Final = f"{SERVER}/{_NAMESPACE}"
"""Directory of a container's namespace below the daemon's pipe directory, without the number of its units."""

SLOT_PIPE: Final = f"{SERVER}/{slot_name(0)[:-1]}"
"""The same of a claim's, without the number of its first unit."""


# --- what is impossible, or wrong ------------------------------------------------------------------


def check_units(target: Target, units: MemoryUnits, memory_bytes: int, path: str, findings: Findings) -> bool:
    """Whether a device has a unit at all. memory_bytes: of the device. path: in the policy."""
    if count_units(units, memory_bytes):
        return True
    message = (
        f"a unit of {format_bytes(units.unit_bytes)} does not fit: the device has "
        f"{format_bytes(memory_bytes)}, and {format_bytes(RESERVED_BYTES)} are kept for driver and contexts"
    )
    findings.add("impossible", path, message, "take a smaller unit, unit: 1Gi", [target.gpu.index])
    return False


def check_unit_names(targets: Iterable[Target], findings: Findings) -> None:
    """A pod asks for a number of units by name, so all devices under one name have to count alike."""
    kinds: dict[ResourceName, dict[str, list[Target]]] = {}
    for target in targets:
        kinds.setdefault(target.resource, {}).setdefault(_kind(target.sharing), []).append(target)
    for name, unlike in kinds.items():
        if len(unlike) < 2 or all(units_of(some[0].sharing) is None for some in unlike.values()):
            continue
        text, origin = kinds_of_gpus(unlike)
        hint = "one unit and one placement for a resource; give the others a 'name' of their own"
        findings.add("wrong", origin, f"a pod that asks for {name} cannot know what it gets: {text}", hint)


def kinds_of_gpus(unlike: dict[str, list[Target]]) -> tuple[str, str]:
    """``1g.10gb on GPU 0; 3g.40gb on GPUs 1 and 2``, and the path in the policy of the last that has one."""
    text = "; ".join(f"{kind} on {gpus(t.gpu.index for t in some)}" for kind, some in unlike.items())
    return text, next((t.origin for some in reversed(unlike.values()) for t in some if t.origin), "")


def _kind(sharing: Sharing) -> str:
    units = units_of(sharing)
    return "other shares" if units is None else f"{format_bytes(units.unit_bytes)} each ({units.placement})"


def check_unit_count(offer: NodeOffer, origins: Mapping[ResourceName, str], findings: Findings) -> None:
    """The node has few enough units in all."""
    rows = [row for rows in offer.values() for row in rows if row.by_memory]
    count = sum(row.count for row in rows)
    if count <= MOST_UNITS:
        return
    smallest = min(rows, key=lambda row: row.memory_bytes)
    name, size = smallest.resource, format_bytes(smallest.memory_bytes)
    sizes = {row.memory_bytes for row in rows}
    devices = f"{len(rows)} device{'' if len(rows) == 1 else 's'}"
    message = (
        f"{name}: {count:,} units of {size if len(sizes) == 1 else f'{size} and more'} on {devices}, and a "
        f"node has at most {MOST_UNITS:,}, which are counted one by one"
    )
    findings.add(
        "impossible", origins.get(name, ""), message, f"take a larger unit: {_fitting(rows)} or more"
    )


def _fitting(rows: list[DeviceOffer]) -> str:
    """The smallest unit with which these devices have few enough, as policies write it. Larger ones stay."""

    def count(size_mib: int) -> int:
        return sum(row.count * row.memory_bytes // max(size_mib * MIB, row.memory_bytes) for row in rows)

    sizes = [1 << power for power in range(17)]  # in MiB
    size = next((size for size in sizes if count(size) <= MOST_UNITS), sizes[-1])
    return f"{size // 1024}Gi" if size >= 1024 else f"{size}Mi"
