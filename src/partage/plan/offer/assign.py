"""Apply a policy to an inventory: how each device is offered, under which name, and what is impossible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import field

from partage.errors import Problem
from partage.model.claim import NO_DEMANDS, Demands, GpuDemand
from partage.model.geometry import Geometry
from partage.model.gpu import Gpu, Inventory, NoDriver
from partage.model.ids import (
    GPU_CLASS,
    MEMORY_RESOURCE,
    MIG_CLASS,
    SHARE_CLASS,
    GpuUuid,
    ResourceName,
    parse_resource_name,
)
from partage.model.node_labels import ACK_SCHEDULE, MIG_CONFIG, STOOD_FOR
from partage.model.policy import (
    DesiredMig,
    Drain,
    Exclusive,
    GpuEntry,
    MigStrategy,
    Options,
    Policy,
    ResourceEntry,
    Sharing,
    WatchAction,
)
from partage.model.strategy import Strategy, Via
from partage.plan.offer.driver_limits import warn_unlimited
from partage.plan.offer.findings import Findings
from partage.plan.offer.gpu_devices import GpuDevices, Target, can_divide, devices_of
from partage.plan.offer.memory_units import check_unit_names, units_of
from partage.plan.offer.on_demand import on_demand_devices, wanted_layout
from partage.plan.offer.resource_names import device_name, warn_of_unlike_shares
from partage.plan.offer.select import GeometryOf, select, select_layouts
from partage.plan.offer.sharing_items import ClaimableDevice, claim
from partage.text import gpus
from partage.values import Frozen

_SUFFIX = ".shared"


class WantedGpus(Frozen, kw_only=True):
    """What a policy wants of the GPUs of a node. All mappings are by GPU UUID.

    strategies: of every GPU that answers (a MIG GPU without instances offers nothing). pending: what has
    still to be done before all is offered, one sentence. layouts: the MIG layout, or none, of GPUs that the
    policy names; others stay as they are. labelled: GPUs whose layout is that of the node's label. warnings:
    doubtful things, each with file and path. drain_of: how pods are asked to leave before a GPU changes;
    other GPUs wait for them. on_demand: GPUs whose MIG devices are made on demand, and what claims want of
    each.
    """

    strategies: Mapping[GpuUuid, Strategy] = field(default_factory=dict)
    pending: Mapping[GpuUuid, str] = field(default_factory=dict)
    layouts: Mapping[GpuUuid, DesiredMig] = field(default_factory=dict)
    labelled: frozenset[GpuUuid] = frozenset()
    warnings: tuple[Problem, ...] = ()
    drain_of: Mapping[GpuUuid, Drain] = field(default_factory=dict)
    on_demand: Demands = field(default_factory=dict)


class Assignment(WantedGpus):
    """The policy, applied to one inventory.

    targets: ordered by GPU index, then MIG index or placement. existing: the MIG devices that live on GPUs
    with something pending, as the policy shares them.
    """

    targets: tuple[Target, ...]
    existing: tuple[Target, ...] = ()

    @property
    def watch_of(self) -> dict[GpuUuid, WatchAction]:
        """GPU UUID to what happens to a container that exceeds its share of it."""
        return {target.gpu.uuid: target.watch for target in self.targets}


def assign(
    policy: Policy, inventory: Inventory, geometry_of: GeometryOf, demands: Demands = NO_DEMANDS
) -> Assignment:
    """Lay ``policy`` over ``inventory``. demands: what claims want of GPUs with MIG on demand.

    Raises InputError (overlapping selectors) or Unsatisfiable (a GPU that the node does not have, a MIG
    layout that does not fit, MIG strategy ``single`` with unequal devices), each with *all* problems;
    InputError first.

    Without a driver nothing can be checked, and the assignment is empty.
    """
    if isinstance(inventory.driver, NoDriver):
        return Assignment(())
    findings = Findings(policy.source)
    owners = select(policy, inventory, geometry_of, findings)
    strategy = policy.options.mig_strategy
    labelled = select_layouts(policy.layouts, inventory, geometry_of, findings)
    _check_labelled(policy, inventory, owners, labelled, findings)
    laid_out = {**owners, **labelled}
    on_demand = {
        uuid: demands.get(uuid, GpuDemand())
        for uuid, entry in laid_out.items()
        if entry.mig is not None and entry.mig.on_demand and strategy is not MigStrategy.NONE
    }
    presented = {
        gpu.uuid: _devices(
            gpu,
            laid_out.get(gpu.uuid),
            strategy,
            geometry_of(gpu),
            findings,
            demand=on_demand.get(gpu.uuid),
        )
        for gpu in inventory
    }
    if strategy is MigStrategy.SINGLE:
        _check_single(policy, inventory, presented, findings)
    devices = [
        ClaimableDevice(gpu, mig, device_name(gpu, mig, policy.options), position)
        for gpu in inventory
        for position, mig in enumerate(presented[gpu.uuid].devices)
    ]
    claims = claim(policy, devices, inventory, findings)
    targets = [
        _target(device, owners.get(device.gpu.uuid), claims.get(device.key), policy.options, findings)
        for device in devices
    ]
    _warn_of_stand_ins(owners, findings)
    by_name = [target for target in targets if target.via is Via.DEVICE_PLUGIN]
    check_unit_names(by_name, findings)
    warn_of_unlike_shares(policy, by_name, findings)
    warn_unlimited(targets, inventory, findings)
    findings.raise_any()
    return Assignment(
        targets=tuple(targets),
        strategies=_strategies(inventory, presented, targets),
        pending={uuid: shown.pending for uuid, shown in presented.items() if shown.pending},
        existing=tuple(_existing(policy, inventory, presented, owners)),
        layouts=_layouts(laid_out, strategy, inventory, on_demand),
        labelled=frozenset(labelled),
        warnings=findings.warnings(),
        drain_of={uuid: entry.drain for uuid, entry in owners.items() if entry.drain is not None},
        on_demand=on_demand,
    )


def _devices(
    gpu: Gpu,
    entry: GpuEntry | None,
    strategy: MigStrategy,
    geometry: Geometry | None,
    findings: Findings,
    *,
    demand: GpuDemand | None,
) -> GpuDevices:
    """demand: of a GPU whose MIG devices are made on demand; None: it is another one."""
    if demand is None:
        return devices_of(gpu, entry, strategy, geometry, findings)
    assert entry is not None, "it says that they are"
    divided = can_divide(gpu, entry, geometry, findings)
    return (
        GpuDevices((), mig=True, judged=False) if divided is None else on_demand_devices(gpu, demand, divided)
    )


def _existing(
    policy: Policy,
    inventory: Inventory,
    presented: Mapping[GpuUuid, GpuDevices],
    owners: Mapping[GpuUuid, GpuEntry],
) -> Iterator[Target]:
    devices = [
        ClaimableDevice(gpu, mig, device_name(gpu, mig, policy.options), position)
        for gpu in inventory
        for position, mig in enumerate(presented[gpu.uuid].existing)
    ]
    unsaid = Findings(policy.source)  # these devices go, so what does not suit them is no problem
    claims = claim(policy, devices, inventory, unsaid)
    for device in devices:
        claimed = claims.get(device.key)
        yield _target(device, owners.get(device.gpu.uuid), claimed, policy.options, unsaid)


def _warn_of_stand_ins(owners: Mapping[GpuUuid, GpuEntry], findings: Findings) -> None:
    """The label asks for something that is not here, and the entry is the nearest to it."""
    for entry in dict.fromkeys(owners.values()):
        if entry.in_place_of:
            findings.add(
                "doubtful",
                f"{entry.origin}.when",
                f"the label {ACK_SCHEDULE} asks for {entry.in_place_of}, "
                f"{STOOD_FOR[entry.in_place_of]}: it is not here, and this entry counts in its place",
                "what it guarantees stands in 'partage plan'; compute is not limited",
            )


def _check_labelled(
    policy: Policy,
    inventory: Inventory,
    owners: Mapping[GpuUuid, GpuEntry],
    labelled: Mapping[GpuUuid, GpuEntry],
    findings: Findings,
) -> None:
    """A GPU has one layout, and MIG strategy ``none`` offers no MIG device."""
    for gpu in inventory:
        owner, entry = owners.get(gpu.uuid), labelled.get(gpu.uuid)
        if entry is None:
            continue
        layout = entry.mig
        if layout is None:
            continue
        if owner is not None and owner.mig not in (None, layout):
            message = f"{owner.origin} has a layout of its own, and the label {MIG_CONFIG} asks for another"
            hint = "remove one of the two; how MIG devices are shared can be said without a layout"
            findings.add("wrong", entry.origin, message, hint, [gpu.index])
        if layout.enabled and policy.options.mig_strategy is MigStrategy.NONE:
            message = "a MIG layout under MIG strategy none, which offers whole GPUs"
            findings.add("impossible", entry.origin, message, "set the MIG strategy to mixed or single")


def _layouts(
    owners: Mapping[GpuUuid, GpuEntry], strategy: MigStrategy, inventory: Inventory, on_demand: Demands
) -> dict[GpuUuid, DesiredMig]:
    """Under MIG strategy ``none`` a GPU is only ever taken out of MIG mode."""
    layouts = {
        uuid: entry.mig for uuid, entry in owners.items() if entry.mig is not None and not entry.mig.on_demand
    }
    for gpu in inventory:
        demand = on_demand.get(gpu.uuid)
        if demand is not None and (layout := wanted_layout(gpu, demand)) is not None:
            layouts[gpu.uuid] = layout
    if strategy is MigStrategy.NONE:
        return {uuid: layout for uuid, layout in layouts.items() if not layout.enabled}
    return layouts


# --- one device --------------------------------------------------------------------------------


def _target(
    device: ClaimableDevice,
    entry: GpuEntry | None,
    claimed: ResourceEntry | None,
    options: Options,
    findings: Findings,
) -> Target:
    if entry is not None and claimed is not None:
        findings.add("wrong", claimed.origin, f"selected by {entry.origin} already", gpus=[device.gpu.index])
    if claimed is not None:
        target = _of_resource(device, claimed)
    elif entry is not None:
        target = _of_gpu(device, entry, options)
    else:
        target = Target(device.gpu, device.mig, Exclusive(), _strategy(device, Exclusive()), device.resource)
    if target.sharing.strategy.traits.through_daemon and _has_no_daemon(device, claimed):
        findings.add(
            "impossible",
            _mps_path(target.origin, entry),
            "sharing using MPS is not supported for MIG devices",
            "Partage's own format gives each MIG device a daemon: mig: {layout: [...], mps: {replicas: 4}}",
            [device.gpu.index],
        )
    return target


def _has_no_daemon(device: ClaimableDevice, claimed: ResourceEntry | None) -> bool:
    """NVIDIA's format has no MPS on MIG devices; a GPU in MIG mode has none as a whole."""
    if claimed is not None:
        return device.mig is not None or device.gpu.mig_enabled
    return device.mig is None and device.gpu.mig_enabled


def _mps_path(origin: str, entry: GpuEntry | None) -> str:
    if entry is None:
        return origin
    return f"{origin}.mig.mps" if entry.mig is not None else f"{origin}.mps"


def _of_gpu(device: ClaimableDevice, entry: GpuEntry, options: Options) -> Target:
    shared = entry.sharing.strategy.traits.in_shares
    suffix = _SUFFIX if shared and options.rename_shared else ""
    by_memory = units_of(entry.sharing) is not None
    default = MEMORY_RESOURCE if by_memory else ResourceName(device.resource + suffix)
    by_claim = entry.via is Via.CLAIMS
    return Target(
        gpu=device.gpu,
        mig=device.mig,
        sharing=entry.sharing,
        strategy=_strategy(device, entry.sharing),
        resource=_device_class(device, entry.sharing) if by_claim else entry.name or default,
        single=shared and options.fail_requests_greater_than_one and not (by_memory or by_claim),
        guard=entry.guard,
        watch=entry.watch,
        origin=entry.origin,
        via=entry.via,
    )


def _device_class(device: ClaimableDevice, sharing: Sharing) -> ResourceName:
    """The DeviceClass by which a claim asks for it."""
    if device.mig is not None:
        return MIG_CLASS
    in_parts = sharing.strategy.traits.in_shares and units_of(sharing) is None
    return SHARE_CLASS if in_parts else GPU_CLASS


def _of_resource(device: ClaimableDevice, entry: ResourceEntry) -> Target:
    suffix = _SUFFIX if entry.shared_suffix else ""
    return Target(
        gpu=device.gpu,
        mig=device.mig,
        sharing=entry.sharing,
        strategy=_strategy(device, entry.sharing),
        resource=entry.rename or parse_resource_name(device.resource + suffix),
        single=entry.fail_requests_greater_than_one,
        origin=entry.origin,
    )


def _strategy(device: ClaimableDevice, sharing: Sharing) -> Strategy:
    return sharing.strategy if device.mig is None else Strategy.MIG


def _strategies(
    inventory: Inventory, presented: Mapping[GpuUuid, GpuDevices], targets: Sequence[Target]
) -> dict[GpuUuid, Strategy]:
    by_gpu = {target.gpu.uuid: target.strategy for target in targets}
    return {
        gpu.uuid: Strategy.MIG if presented[gpu.uuid].mig else by_gpu.get(gpu.uuid, Strategy.EXCLUSIVE)
        for gpu in inventory
    }


# --- the node as a whole -----------------------------------------------------------------------


def _check_single(
    policy: Policy, inventory: Inventory, presented: Mapping[GpuUuid, GpuDevices], findings: Findings
) -> None:
    """MIG strategy ``single`` needs equal devices: all GPUs whole, or all divided into one profile."""
    path = "flags.migStrategy" if policy.format.startswith("nvidia") else "resources.mig-strategy"
    judged = [gpu for gpu in inventory if presented[gpu.uuid].judged]
    whole = [gpu.index for gpu in judged if not presented[gpu.uuid].mig]
    cut = [gpu for gpu in judged if presented[gpu.uuid].mig]
    if not cut:
        return
    key = path.rpartition(".")[2]
    hint = f"{key}: mixed names MIG devices by their profile, and takes GPUs of all kinds"
    if whole:
        message = "all devices on the node must be configured with the same migEnabled value"
        text = f"{message} under MIG strategy single: {gpus(whole)} without MIG"
        findings.add("impossible", path, text, hint)
    for gpu in cut:
        if not presented[gpu.uuid].devices:
            message = f"device {gpu.index} has no MIG devices configured, and MIG strategy is single"
            findings.add("impossible", path, message, hint)
    profiles = {device.profile for gpu in cut for device in presented[gpu.uuid].devices if device is not None}
    if len(profiles) > 1:
        message = f"more than one MIG device type present on node: {', '.join(sorted(profiles))}"
        findings.add("impossible", path, message, hint)
