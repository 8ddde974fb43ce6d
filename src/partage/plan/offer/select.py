"""Which GPU belongs to which entry of a policy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from partage.model.geometry import Geometry
from partage.model.gpu import Gpu, Inventory
from partage.model.ids import GpuUuid, parse_pci_address
from partage.model.layout import DoesNotFit, resolve_layout
from partage.model.policy import AllDevices, GpuCriteria, GpuEntry, NodeLayouts, Policy, RemainingGpus
from partage.plan.offer.findings import Findings
from partage.text import gpus

GeometryOf = Callable[[Gpu], Geometry | None]
"""The geometry of a GPU's model; None if its MIG profiles are not known."""

_MAKER = "nvidia "


def select(
    policy: Policy, inventory: Inventory, geometry_of: GeometryOf, findings: Findings
) -> Mapping[GpuUuid, GpuEntry]:
    """GPU UUID to the entry that selects it. GPUs that no entry selects are missing."""
    entries = [entry for entry in policy.entries if isinstance(entry, GpuEntry)]
    for entry in entries:
        if entry.when:  # who resolves a policy asks ``conditions.for_node`` first
            findings.add("wrong", f"{entry.origin}.when", "the labels of the node are not known")
    if policy.later_wins:
        return _last_wins(entries, inventory, findings)
    return _exactly_one(entries, inventory, geometry_of, findings)


def select_layouts(
    layouts: NodeLayouts | None, inventory: Inventory, geometry_of: GeometryOf, findings: Findings
) -> Mapping[GpuUuid, GpuEntry]:
    """GPU UUID to the entry of the label's layouts that matches it. A layout's name that only some models
    have concerns only those.
    """
    if layouts is None:
        return {}
    owners = _last_wins(layouts.entries, inventory, findings)
    fitting = {gpu: entry for gpu, entry in owners.items() if _has_name(inventory, gpu, entry, geometry_of)}
    return fitting or owners


def _has_name(inventory: Inventory, uuid: GpuUuid, entry: GpuEntry, geometry_of: GeometryOf) -> bool:
    named = entry.mig.named if entry.mig else None
    if named is None:
        return True
    gpu = inventory.gpu(uuid)
    geometry = geometry_of(gpu) if gpu else None
    if geometry is None:
        return False
    try:
        resolve_layout(geometry, (), named)
    except DoesNotFit:
        return False
    return True


# --- Partage's own format: every GPU has one entry ---------------------------------------------


def _exactly_one(
    entries: Sequence[GpuEntry], inventory: Inventory, geometry_of: GeometryOf, findings: Findings
) -> Mapping[GpuUuid, GpuEntry]:
    owners: dict[GpuUuid, GpuEntry] = {}
    rest = [entry.origin for entry in entries if isinstance(entry.select, RemainingGpus)]
    for origin in rest[1:]:
        findings.add("wrong", f"{origin}.select", f"rest is selected by {rest[0]} already")
    for entry in sorted(entries, key=lambda entry: isinstance(entry.select, RemainingGpus)):
        _name_absent(entry, inventory, findings)
        chosen = [gpu for gpu in inventory if _selects(entry, gpu, geometry_of(gpu), owners)]
        for gpu in chosen:
            owner = owners.setdefault(gpu.uuid, entry)
            if owner is not entry:
                findings.add(
                    "wrong", f"{entry.origin}.select", f"selected by {owner.origin} already", gpus=[gpu.index]
                )
        if not chosen and isinstance(entry.select, GpuCriteria):
            _selects_nothing(entry, entry.select, inventory, findings)
    return owners


def _selects(
    entry: GpuEntry, gpu: Gpu, geometry: Geometry | None, owners: Mapping[GpuUuid, GpuEntry]
) -> bool:
    match entry.select:
        case AllDevices():
            return True
        case RemainingGpus():
            return gpu.uuid not in owners
        case GpuCriteria() as where:
            return (
                (not where.index or gpu.index in where.index)
                and (not where.uuid or gpu.uuid.casefold() in _folded(where.uuid))
                and (not where.pci or _pci(gpu.pci_bus_id) in map(_pci, where.pci))
                and (not where.model or _is_model(gpu, geometry, where.model))
                and (not where.device_filter or filter_matches(gpu, where.device_filter))
            )


def _folded(texts: Iterable[str]) -> set[str]:
    return {text.casefold() for text in texts}


def _pci(address: str) -> str:
    try:
        return parse_pci_address(address)
    except ValueError:
        return address


def _is_model(gpu: Gpu, geometry: Geometry | None, patterns: Sequence[str]) -> bool:
    names = model_names(gpu, geometry)
    return any(_names_model(pattern.casefold(), name) for pattern in patterns for name in names)


@lru_cache(maxsize=1024)
def _names_model(pattern: str, name: str) -> bool:
    """``a100`` matches ``a100-sxm4-40gb`` too, and ``l4`` does not match ``l40s``."""
    return name.startswith((f"{pattern}-", f"{pattern} ")) or glob_matches(pattern, name)


def glob_matches(pattern: str, text: str) -> bool:
    """``*`` matches any text, other characters match themselves; the whole text must match.

    Not a regular expression: one with many stars takes exponential time for a text that does not match.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == text
    *middle, last = rest
    if not text.startswith(first) or len(text) < len(first) + len(last) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def model_names(gpu: Gpu, geometry: Geometry | None) -> tuple[str, ...]:
    """Possible names of a GPU's model: product with and without NVIDIA, as an id, the catalogue's id."""
    product = gpu.product.casefold()
    short = product.removeprefix(_MAKER).removeprefix("tesla ").removeprefix("geforce ")
    as_id = re.sub(r"[^a-z0-9]+", "-", short).strip("-")
    names = (product, product.removeprefix(_MAKER), short, as_id, geometry.model if geometry else as_id)
    return tuple(dict.fromkeys(names))


def _name_absent(entry: GpuEntry, inventory: Inventory, findings: Findings) -> None:
    """Report named GPUs that the node does not have. A lost GPU counts as present."""
    if not isinstance(entry.select, GpuCriteria):
        return
    where = entry.select
    path = f"{entry.origin}.select"
    has = f"it has {gpus(indexes)}" if (indexes := all_indexes(inventory)) else "it has no GPU"
    for index in where.index:
        if index not in indexes:
            findings.add("impossible", f"{path}.index", f"the node has no GPU {index}", has)
    unread = any(lost.uuid is None for lost in inventory.lost)
    known = _folded([gpu.uuid for gpu in inventory] + [lost.uuid for lost in inventory.lost if lost.uuid])
    for uuid in where.uuid:
        if uuid.casefold() not in known:
            _absent(findings, f"{path}.uuid", uuid, unread=unread)
    unread = any(lost.pci_bus_id is None for lost in inventory.lost)
    lost_addresses = [lost.pci_bus_id for lost in inventory.lost if lost.pci_bus_id]
    addresses = {_pci(address) for address in [gpu.pci_bus_id for gpu in inventory] + lost_addresses}
    for address in where.pci:
        if _pci(address) not in addresses:
            _absent(findings, f"{path}.pci", address, unread=unread)


def _absent(findings: Findings, path: str, what: str, *, unread: bool) -> None:
    if unread:
        findings.add("doubtful", path, f"the node has no GPU {what}, unless it is the one that is lost")
    else:
        findings.add("impossible", path, f"the node has no GPU {what}", "partage show lists what it has")


def all_indexes(inventory: Inventory) -> set[int]:
    """NVML indexes of the node, including lost GPUs."""
    return {gpu.index for gpu in inventory} | {lost.index for lost in inventory.lost}


def _selects_nothing(entry: GpuEntry, where: GpuCriteria, inventory: Inventory, findings: Findings) -> None:
    lost_only = any(lost.index in where.index for lost in inventory.lost)
    if where.model:
        products = ", ".join(dict.fromkeys(gpu.product for gpu in inventory)) or "none"
        hint = f"the node has: {products}; * matches any text"
        findings.add("doubtful", f"{entry.origin}.select", "matches no GPU of this node", hint)
    elif len([part for part in (where.index, where.uuid, where.pci) if part]) > 1 and not lost_only:
        findings.add(
            "doubtful", f"{entry.origin}.select", "matches no GPU of this node", "all criteria have to hold"
        )


# --- mig-parted: the last entry that matches wins ------------------------------------------------


def _last_wins(
    entries: Sequence[GpuEntry], inventory: Inventory, findings: Findings
) -> Mapping[GpuUuid, GpuEntry]:
    owners: dict[GpuUuid, GpuEntry] = {}
    touched = False
    for entry in entries:
        for gpu in _matched(entry, inventory, findings):
            touched = True
            if gpu.mig_mode is None and _skips_incapable(entry):
                continue
            owner = owners.get(gpu.uuid)
            if owner is not None:
                message = f"overrules {owner.origin}: the last entry that matches wins"
                findings.add("doubtful", entry.origin, message, gpus=[gpu.index])
            owners[gpu.uuid] = entry
    if entries and not owners and inventory.gpus:
        _matches_no_gpu(entries, inventory, findings, touched=touched)
    left = [gpu.index for gpu in inventory if gpu.mig_mode is not None and gpu.uuid not in owners]
    if owners and left:
        config = entries[0].origin.rpartition("[")[0]
        findings.add("doubtful", config, "matched by no entry, and left as found", gpus=left)
    return owners


def _skips_incapable(entry: GpuEntry) -> bool:
    """``devices: all`` with MIG on skips GPUs without MIG."""
    named = isinstance(entry.select, GpuCriteria) and entry.select.index
    enabled = entry.mig.enabled if entry.mig else False
    return enabled and not named


def _matched(entry: GpuEntry, inventory: Inventory, findings: Findings) -> list[Gpu]:
    if not isinstance(entry.select, GpuCriteria):
        return list(inventory)
    where = entry.select
    listed = [gpu for gpu in inventory if not where.index or gpu.index in where.index]
    if not where.device_filter:
        _name_absent_index(entry, where, inventory, findings)
        return listed
    matched = [gpu for gpu in listed if filter_matches(gpu, where.device_filter)]
    if where.index and matched:
        _name_absent_index(entry, where, inventory, findings)
        for gpu in listed:
            if gpu not in matched:
                message = f"listed, but its PCI device id {_device_id(gpu)} does not match the device-filter"
                hint = "correct the list or the filter; GPUs of two kinds need two entries"
                findings.add("wrong", f"{entry.origin}.device-filter", message, hint, [gpu.index])
    for gpu in listed:
        board_wanted = any(device_id.startswith(f"{gpu.pci_device_id}:") for device_id in where.device_filter)
        if gpu not in matched and gpu.pci_subsystem_id is None and board_wanted:
            message = (
                "passed over: the filter names boards, and the PCI subsystem id of this GPU is not known"
            )
            hint = "a machine file can say it: pci-subsystem-id"
            findings.add("doubtful", f"{entry.origin}.device-filter", message, hint, [gpu.index])
    return matched


def _name_absent_index(entry: GpuEntry, where: GpuCriteria, inventory: Inventory, findings: Findings) -> None:
    indexes = all_indexes(inventory)
    for index in where.index:
        if index not in indexes:
            has = f"it has {gpus(indexes)}" if indexes else "it has no GPU"
            findings.add("impossible", f"{entry.origin}.devices", f"the node has no GPU {index}", has)


def filter_matches(gpu: Gpu, filters: Sequence[str]) -> bool:
    """Whether one of mig-parted's device filters matches this GPU: its device id, or that and its board's."""
    return gpu.pci_device_id in filters or _device_id(gpu) in filters


def _device_id(gpu: Gpu) -> str:
    """In the form of a filter, as exactly as it is known."""
    return f"{gpu.pci_device_id}:{gpu.pci_subsystem_id}" if gpu.pci_subsystem_id else gpu.pci_device_id


def _matches_no_gpu(
    entries: Sequence[GpuEntry], inventory: Inventory, findings: Findings, *, touched: bool
) -> None:
    config = entries[0].origin.rpartition("[")[0]
    if touched:
        products = ", ".join(dict.fromkeys(gpu.product for gpu in inventory))
        findings.add("impossible", config, f"no GPU of this node has MIG: {products}")
    else:
        ids = ", ".join(dict.fromkeys(map(_device_id, inventory)))
        findings.add(
            "impossible",
            config,
            "the configuration matches no GPU of this node",
            f"their PCI device ids: {ids}",
        )
