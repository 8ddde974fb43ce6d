"""What a node publishes of the GPUs that are there for claims: one device for each GPU or MIG device.

The scheduler subtracts what claims have; so a device says what it has in all, whoever holds it. Every
capacity of a device that is shared has a policy: without one, the first claim would take all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from partage.claims.decide.devices import ClaimDevices, mig_device
from partage.claims.decide.on_demand import PlaceOnDemand, counter_set, counter_use
from partage.claims.model.names import (
    CORES,
    MEMORY,
    SHARES,
    STANDARD,
    ClaimNames,
    Mode,
    mode_of,
    usable_memory,
)
from partage.claims.model.slices import (
    LONGEST_TEXT,
    MOST_COUNTER_SETS,
    MOST_DEVICES,
    NUMA_SINCE,
    Attribute,
    Capacity,
    CounterSet,
    DeviceTaint,
    Pool,
    RequestPolicy,
    ServerVersion,
    SliceDevice,
    SliceSpec,
    ValidRange,
)
from partage.model.geometry import Geometry, MigProfile, ProfileSpec, instance_memory
from partage.model.gpu import Driver, Gpu, Inventory, NoDriver
from partage.model.ids import DeviceUuid, GpuUuid, parse_pci_address
from partage.model.share import DeviceOffer
from partage.plan.offer.select import GeometryOf
from partage.plan.serve.claim_offer import Closed
from partage.units import MIB, exact_quantity

_NUMBERS = re.compile(r"\d{1,9}(\.\d{1,9}){0,2}", re.ASCII)
_ENGINES = {
    "copyEngines": "copy",
    "decoders": "decoder",
    "encoders": "encoder",
    "jpegEngines": "jpeg",
    "ofaEngines": "ofa",
}
_NONE = RequestPolicy("0", valid_values=("0",))
"""Of a capacity that can be looked at in an expression, and not asked for."""


def slices_of(
    devices: ClaimDevices,
    inventory: Inventory,
    closed: Mapping[DeviceUuid, Closed],
    server: ServerVersion,
    geometry_of: GeometryOf,
    *,
    counters: bool = True,
) -> tuple[SliceSpec, ...]:
    """The slices of a node's pool, in generation 0. Without devices there is one that is empty: the driver is
    here. None at all for a server that is too old (``ServerVersion.too_old``).

    inventory, geometry_of: those with which ``devices`` was made. closed: devices of which no claim gets
    anything now. The scheduler takes the first device that fits, so whole GPUs come last: a claim for an
    amount would be given one of them, all of it; and those of which MIG devices are made come after all.
    counters: False: GPUs whose MIG devices are made on demand are left out.
    """
    if server.too_old:
        return ()
    names = devices.names
    found = []
    rows = [item for item in devices.rows.items() if counters or item[0] not in devices.places]
    sets: dict[GpuUuid, CounterSet] = {}
    for name, row in sorted(rows, key=lambda item: _order(item[1], devices.places.get(item[0]))):
        gpu = inventory.gpu(row.gpu)
        assert gpu is not None, "devices of other GPUs are left out by claim_devices"
        known = _attributes(row, gpu, inventory.driver, server, names)
        facts = {key: fact for key, fact in known if names.publishes(key)}
        if (place := devices.places.get(name)) is not None:
            sets.setdefault(row.gpu, counter_set(_counted_as(row.gpu), place.geometry))
            shut = closed.get(row.device) or closed.get(gpu.uuid)
            taints = _taints(FOREIGN if place.foreign and shut is None else shut, names)
            found.append(_on_demand(name, place, gpu, facts, taints))
            continue
        found.append(
            SliceDevice(
                name,
                attributes=facts,
                capacity=_capacities(row, gpu, geometry_of(gpu), names),
                allow_multiple_allocations=True if row.traits.in_shares else None,
                taints=_taints(closed.get(row.device), names),
            )
        )
    parts = [found[at : at + MOST_DEVICES] for at in range(0, len(found) or 1, MOST_DEVICES)]
    all_sets = [*sets.values()]
    counted = [all_sets[at : at + MOST_COUNTER_SETS] for at in range(0, len(all_sets), MOST_COUNTER_SETS)]
    pool = Pool(devices.pool, 0, len(counted) + len(parts))
    return (
        *(SliceSpec(names.driver, devices.node, pool, shared_counters=tuple(some)) for some in counted),
        *(SliceSpec(names.driver, devices.node, pool, tuple(part)) for part in parts),
    )


def _order(row: DeviceOffer, place: PlaceOnDemand | None) -> tuple[bool, bool]:
    return mode_of(row) is Mode.WHOLE, place is not None


# --- MIG on demand -----------------------------------------------------------------------------


def _on_demand(
    name: str,
    place: PlaceOnDemand,
    gpu: Gpu,
    attributes: dict[str, Attribute],
    taints: tuple[DeviceTaint, ...],
) -> SliceDevice:
    """A device that is the same whether it is there now or not. A MIG device has a UUID only once it is
    made, and its memory is that of its profile.
    """
    memory_bytes = gpu.memory_bytes
    engines: dict[str, int] = {}
    if place.spec is not None:
        attributes.pop("uuid", None)
        memory_bytes = instance_memory(place.spec, place.geometry, gpu.memory_bytes)
        engines = _engines_of(place.spec)
    amounts = {MEMORY: exact_quantity(memory_bytes // MIB * MIB, binary=True)}
    amounts |= {kind: exact_quantity(count) for kind, count in engines.items()}
    return SliceDevice(
        name,
        attributes=attributes,
        capacity={kind: Capacity(amount) for kind, amount in amounts.items()},
        taints=taints,
        consumes_counters=(counter_use(_counted_as(gpu.uuid), place),),
    )


FOREIGN = Closed("unusable", "has MIG devices in its place that were not made for a claim")
"""Why no claim gets a device on demand where somebody else has made one."""


def _counted_as(gpu: GpuUuid) -> str:
    """Name of a GPU's counter set, a DNS label."""
    return gpu.lower()


# --- attributes --------------------------------------------------------------------------------


def _attributes(
    row: DeviceOffer, gpu: Gpu, driver: Driver | NoDriver, server: ServerVersion, names: ClaimNames
) -> Iterator[tuple[str, Attribute]]:
    mig = row.profile is not None
    texts = {
        "type": "mig" if mig else "gpu",
        "mode": mode_of(row).value,
        "strategy": row.shared.value,
        "guarantee": row.guarantee.value,
        "uuid": row.device,
        "productName": gpu.product,
        "brand": gpu.brand,
        "architecture": names.architecture(gpu.architecture),
        "profile": row.profile,
        "parentUUID": row.gpu if mig else None,
        "addressingMode": gpu.addressing_mode,
        f"{STANDARD}/pciBusID": _pci_bus_id(gpu.pci_bus_id),
        f"{STANDARD}/pcieRoot": gpu.pcie_root,
    }
    yield from ((name, Attribute(string=text[:LONGEST_TEXT])) for name, text in texts.items() if text)
    yield "index", Attribute(number=row.gpu_index)
    if server >= NUMA_SINCE and gpu.numa_node is not None and gpu.numa_node >= 0:
        yield f"{STANDARD}/numaNode", Attribute(number=gpu.numa_node)
    versions = {
        "driverVersion": driver.version if isinstance(driver, Driver) else "",
        "cudaDriverVersion": driver.cuda if isinstance(driver, Driver) else "",
        "cudaComputeCapability": ".".join(map(str, gpu.compute_capability)),
    }
    for name, text in versions.items():
        if version := semantic_version(text):
            yield name, Attribute(version=version)


def semantic_version(text: str) -> str:
    """``555.42.6`` for ``555.42.06``, ``12.4.0`` for ``12.4``: three numbers without leading zeros, as the
    API asks for. Empty for text that is no version of one to three numbers.
    """
    if _NUMBERS.fullmatch(text) is None:
        return ""
    numbers = [int(part) for part in text.split(".")]
    return ".".join(map(str, [*numbers, 0, 0][:3]))


def _pci_bus_id(address: str) -> str | None:
    """``0000:1a:00.0``, as sysfs has it; NVML has eight digits of domain."""
    try:
        domain, _, rest = parse_pci_address(address).partition(":")
    except ValueError:
        return None
    return f"{int(domain, 16):04x}:{rest}"


# --- capacities --------------------------------------------------------------------------------


def _capacities(
    row: DeviceOffer, gpu: Gpu, geometry: Geometry | None, names: ClaimNames
) -> dict[str, Capacity]:
    memory_bytes = usable_memory(row)
    memory = exact_quantity(memory_bytes, binary=True)
    match mode_of(row):
        case Mode.AMOUNTS:
            unit = exact_quantity(row.memory_bytes, binary=True)
            own = {
                MEMORY: Capacity(memory, _from(unit, memory, default=memory)),
                CORES: Capacity("100", RequestPolicy("0", ValidRange("0", "100", "1"))),
            }
        case Mode.REPLICAS:
            count = exact_quantity(row.count)
            own = {
                SHARES: Capacity(count, _from("1", count, default="1")),
                MEMORY: Capacity(memory, _up_to(row.memory_bytes // MIB) if names.share_memory else _NONE),
            }
        case Mode.WHOLE | Mode.MIG:
            own = {MEMORY: Capacity(memory)}
    policy = _NONE if row.traits.in_shares else None
    engines = _engines(row, gpu, geometry)
    return own | {name: Capacity(exact_quantity(count), policy) for name, count in engines.items()}


def _from(lowest: str, most: str, default: str) -> RequestPolicy:
    """Amounts from the lowest on, in steps of it. A range of one amount is refused by the API server, which
    wants ``min + step`` to be possible.
    """
    if lowest == most:
        return RequestPolicy(default, valid_values=(most,))
    return RequestPolicy(default, ValidRange(lowest, most, lowest))


def _up_to(most_mib: int) -> RequestPolicy:
    """Amounts from nothing on, which is what a request has that names none, in steps of 1 MiB."""
    if not most_mib:
        return _NONE
    return RequestPolicy("0", ValidRange("0", exact_quantity(most_mib * MIB, binary=True), "1Mi"))


def _engines(row: DeviceOffer, gpu: Gpu, geometry: Geometry | None) -> dict[str, int]:
    """Multiprocessors and engines of a MIG device, as far as they are known. Engines are those of its GPU
    instance: a compute instance that is a part of it has none of its own.
    """
    mig = mig_device(row, gpu)
    if mig is None:
        return {}
    profile = MigProfile.parse(mig.profile)
    alone = profile == profile.gpu_instance
    spec = geometry.spec(profile) if geometry is not None and alone else None
    counts = {"multiprocessors": mig.multiprocessors}
    if spec is not None:
        of_spec = _engines_of(spec)
        counts |= {**of_spec, "multiprocessors": mig.multiprocessors or of_spec.get("multiprocessors")}
    return {name: count for name, count in counts.items() if count is not None}


def _engines_of(spec: ProfileSpec) -> dict[str, int]:
    counts = {"multiprocessors": spec.multiprocessors}
    if spec.engines is not None:
        counts |= {name: getattr(spec.engines, kind) for name, kind in _ENGINES.items()}
    return {name: count for name, count in counts.items() if count is not None}


# --- taints ------------------------------------------------------------------------------------


def _taints(closed: Closed | None, names: ClaimNames) -> tuple[DeviceTaint, ...]:
    """No claim is allocated a device that is closed; claims that have it keep it."""
    if closed is None:
        return ()
    return (DeviceTaint(f"{names.driver}/{closed.kind}", "NoSchedule", closed.detail),)
