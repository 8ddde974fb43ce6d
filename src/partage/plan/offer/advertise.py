"""From an assignment to the offer: shares, their memory, their guarantees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, assert_never

from msgspec.structs import replace

from partage.model.gpu import Inventory
from partage.model.ids import DeviceUuid, GpuUuid, ResourceName, planned_uuid
from partage.model.policy import Exclusive, MemoryUnits, Mps, Policy, TimeSlicing, clients_of
from partage.model.share import DeviceOffer, GpuOffer, Guarantee, NodeOffer, plugin_resources
from partage.model.strategy import Strategy, Via
from partage.plan.offer.assign import Assignment
from partage.plan.offer.driver_limits import check_limits, limits_of_gpu
from partage.plan.offer.findings import Findings
from partage.plan.offer.gpu_devices import PlannedDevice, Target, device_memory
from partage.plan.offer.list_size import MESSAGE_LIMIT_BYTES, SLACK_BYTES, list_bytes, most_for_each
from partage.plan.offer.memory_units import (
    MOST_NAMESPACES,
    SLOT_PIPE,
    UNIT_PIPE,
    check_unit_count,
    check_units,
    count_units,
    unit_offering,
    units_of,
)
from partage.plan.offer.mps_shares import (
    Portion,
    Portions,
    client_cap,
    client_offerings,
    limits_clients,
    no_namespaces,
    portions,
)
from partage.units import MIB

_LARGEST_LIST: Final = MESSAGE_LIMIT_BYTES - SLACK_BYTES


def advertise(assignment: Assignment, inventory: Inventory, policy: Policy) -> NodeOffer:
    """What every GPU that answers offers, including planned MIG devices (``DeviceOffer.planned``).

    Raises Unsatisfiable with all problems: more MPS clients than architecture and driver allow, an MPS
    protocol that the driver does not have, clients that need more memory or threads than the GPU has, more
    ids in one resource than fit into one kubelet message, more units of memory than a node may have.
    Raises InputError for a client whose name gives no valid resource name.
    """
    findings = Findings(policy.source)
    gpus = [gpu.uuid for gpu in inventory if gpu.uuid in assignment.strategies]
    offer = _offer(gpus, assignment.targets, inventory, findings)
    origins = {target.resource: _replicas_path(target) for target in reversed(assignment.targets)}
    check_unit_count(offer, origins, findings)
    _refuse_too_long_lists(offer, origins, findings)
    findings.raise_any()
    return offer


def advertise_existing(assignment: Assignment, inventory: Inventory, policy: Policy) -> NodeOffer:
    """What the MIG devices that live on GPUs with a layout still to be made are offered as until then.

    ``advertise`` has judged the policy: nothing is raised here.
    """
    return _offer((), assignment.existing, inventory, Findings(policy.source))


def _offer(
    gpus: Iterable[GpuUuid], targets: Iterable[Target], inventory: Inventory, findings: Findings
) -> dict[GpuUuid, GpuOffer]:
    rows: dict[GpuUuid, list[DeviceOffer]] = {gpu: [] for gpu in gpus}
    for target in targets:
        gpu_rows = rows.setdefault(target.gpu.uuid, [])
        gpu_rows.extend(_offerings(target, _whole_device(target, len(gpu_rows)), inventory, findings))
    return {gpu: tuple(offers) for gpu, offers in rows.items()}


def _refuse_too_long_lists(offer: NodeOffer, origins: Mapping[ResourceName, str], findings: Findings) -> None:
    for name, resource in plugin_resources(offer).items():
        if list_bytes(resource.offerings) <= _LARGEST_LIST:
            continue
        most = most_for_each(resource.offerings, _LARGEST_LIST)
        fitting = sum(min(offering.count, most) for offering in resource.offerings)
        message = f"{name}: {resource.count:,} shares do not fit into the kubelet's message of 4 MiB"
        hint = f"{fitting:,} would fit, at most {most:,} for each device"
        findings.add("impossible", origins.get(name, ""), message, hint)


# --- one device -------------------------------------------------------------------------------


def _offerings(
    target: Target, whole: DeviceOffer, inventory: Inventory, findings: Findings
) -> list[DeviceOffer]:
    """The rows of one device; none if there is a problem. whole: the device as one share."""
    sharing = target.sharing
    match sharing:
        case Exclusive():
            offerings = [whole]
        case TimeSlicing():
            offerings = _time_sliced(target, whole, sharing, inventory, findings)
        case Mps():
            offerings = _mps(target, whole, sharing, inventory, findings)
            if not limits_clients(target.gpu):  # before Volta the daemon has no limits: nothing is set
                offerings = [replace(offering, guarantee=Guarantee.NONE) for offering in offerings]
        case _:
            assert_never(sharing)
    return offerings


def _whole_device(target: Target, position: int) -> DeviceOffer:
    """The device in one share. position: among the rows of its GPU. Shared memory is not guaranteed."""
    gpu, mig = target.gpu, target.mig
    memory = device_memory(gpu, mig)
    nodes: tuple[str, ...] = (f"/dev/nvidia{gpu.minor}",)
    device: DeviceUuid
    if mig is None:
        device, index, profile = gpu.uuid, str(gpu.index), None
    elif isinstance(mig, PlannedDevice):
        device = planned_uuid(gpu.uuid, position)
        index, profile, nodes = f"{gpu.index}:{position}", mig.profile, ()
    else:
        device, index, profile = mig.uuid, f"{gpu.index}:{mig.index}", mig.profile
        nodes += mig.capability_files
    return DeviceOffer(
        device=device,
        gpu=gpu.uuid,
        index=index,
        gpu_index=gpu.index,
        resource=target.resource,
        strategy=target.strategy,
        shared=Strategy.EXCLUSIVE,
        replicas=1,
        memory_bytes=memory.memory_bytes,
        guarantee=Guarantee.HARD if memory.alone else Guarantee.NONE,
        numa_node=gpu.numa_node,
        nodes=nodes,
        single=target.single,
        placement=mig.placement if isinstance(mig, PlannedDevice) else None,
        profile=profile,
        guard=target.guard,
        via=target.via,
    )


def _time_sliced(
    target: Target, whole: DeviceOffer, sharing: TimeSlicing, inventory: Inventory, findings: Findings
) -> list[DeviceOffer]:
    by_driver = limits_of_gpu(target, inventory) if sharing.limited else None
    # The guard sets a framework's own limit, which a tenant can remove.
    guarantee = by_driver or (Guarantee.ADVISORY if whole.guard else Guarantee.NONE)
    limited = by_driver is not None
    whole = replace(whole, interval=sharing.interval, guarantee=guarantee, limited=limited)
    rows = _sliced_rows(target, whole, sharing, findings)
    if sharing.limited and not check_limits(target, rows, _replicas_path(target), findings):
        return []
    return rows


def _sliced_rows(
    target: Target, whole: DeviceOffer, sharing: TimeSlicing, findings: Findings
) -> list[DeviceOffer]:
    if sharing.units is not None:
        if not check_units(target, sharing.units, whole.memory_bytes, _replicas_path(target), findings):
            return []
        return [unit_offering(whole, sharing.units, Strategy.TIME_SLICING, whole.guarantee)]
    whole = replace(whole, shared=Strategy.TIME_SLICING, replicas=sharing.replicas, count=sharing.replicas)
    if not sharing.clients:
        return [replace(whole, memory_bytes=whole.memory_bytes // sharing.replicas // MIB * MIB)]

    def offered(_: Portions, client: Portion) -> DeviceOffer:
        return replace(whole, memory_bytes=client.memory_bytes)

    return _clients(target, whole, sharing, offered, findings)


def _clients(
    target: Target,
    whole: DeviceOffer,
    sharing: Mps | TimeSlicing,
    offered: Callable[[Portions, Portion], DeviceOffer],
    findings: Findings,
) -> list[DeviceOffer]:
    """Equal shares or those of the policy. offered: the share of one client."""
    gpu, path = [target.gpu.index], _replicas_path(target)
    shares = portions(sharing, whole.memory_bytes)
    if not isinstance(shares, Portions):
        findings.add("impossible", path, shares.message, shares.hint, gpu)
        return []
    try:
        return client_offerings(whole, shares, lambda client: offered(shares, client))
    except ValueError as wrong:
        findings.add("wrong", path, str(wrong), gpus=gpu)
        return []


def _mps(
    target: Target, whole: DeviceOffer, sharing: Mps, inventory: Inventory, findings: Findings
) -> list[DeviceOffer]:
    gpu = [target.gpu.index]
    cap = client_cap(target.gpu.compute_capability, inventory.driver)
    if sharing.replicas > cap.clients:
        message = f"{sharing.replicas:,} MPS clients, but at most {cap.clients} are possible: {cap.why}"
        findings.add("impossible", _replicas_path(target), message, gpus=gpu)
        return []
    if sharing.protocol >= 3 and (
        why_not := no_namespaces(target.gpu, inventory.driver, mig=target.mig is not None)
    ):
        path = f"{_replicas_path(target).rpartition('.')[0]}.protocol"
        hint = "without 'protocol' smaller shares are held by variables that a tenant can drop"
        findings.add("impossible", path, why_not, hint, gpu)
        return []
    # A MIG device has no compute mode: a tenant that does not use the daemon's pipe can use all of it.
    guarded = limits_clients(target.gpu) and sharing.exclusive_process and target.mig is None
    if sharing.units is not None:
        return _mps_units(target, whole, sharing, sharing.units, findings, guarded=guarded)

    def offered(shares: Portions, client: Portion) -> DeviceOffer:
        return shares.offered(whole, client, guarded=guarded)

    return _clients(target, whole, sharing, offered, findings)


def _mps_units(
    target: Target, whole: DeviceOffer, sharing: Mps, units: MemoryUnits, findings: Findings, *, guarded: bool
) -> list[DeviceOffer]:
    """With namespaces each amount has a limit of the daemon's own. Without them the daemon's limit is what
    the device has, and each container's is in its environment.
    """
    path = _replicas_path(target)
    if not check_units(target, units, whole.memory_bytes, path, findings):
        return []
    count, apart = count_units(units, whole.memory_bytes), sharing.protocol >= 3
    if apart and count > MOST_NAMESPACES:
        message = f"{count:,} units: protocol 3 has a namespace for each amount, at most {MOST_NAMESPACES:,}"
        findings.add("impossible", path, message, "take a larger unit, 1Gi", [target.gpu.index])
        return []
    guarantee = Guarantee.GUARDED if guarded and apart else Guarantee.ADVISORY
    row = unit_offering(whole, units, Strategy.MPS, guarantee)
    pipe = SLOT_PIPE if target.via is Via.CLAIMS else UNIT_PIPE
    return [replace(row, limits_in_env=not apart, pipe=pipe if apart else "")]


def _replicas_path(target: Target) -> str:
    """The path of the replicas or the unit in the policy file, which differs between the formats."""
    if isinstance(target.sharing, Exclusive):
        return target.origin
    if ".sharing." in f".{target.origin}":  # an item of NVIDIA's format; in a ConfigMap below its key
        return f"{target.origin}.replicas"
    inside = "" if target.mig is None else ".mig"
    key = "clients" if clients_of(target.sharing) else "unit" if units_of(target.sharing) else "replicas"
    return f"{target.origin}{inside}.{target.sharing.strategy}.{key}"
