"""Apply a policy to an inventory: how each device is offered, under which name, and what is impossible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import field

from partage.errors import Problem
from partage.model.gpu import Gpu, Inventory, MigDevice, NoDriver
from partage.model.ids import VENDOR, GpuUuid, ResourceName, parse_resource_name
from partage.model.node_labels import MIG_CONFIG
from partage.model.policy import (
    DesiredMig,
    Exclusive,
    GpuEntry,
    MigStrategy,
    Mps,
    NamePattern,
    Options,
    Policy,
    ResourceEntry,
    Sharing,
    Strategy,
    TimeSlicing,
    WatchAction,
)
from partage.plan.offer.claims import ClaimableDevice, claim
from partage.plan.offer.findings import Findings
from partage.plan.offer.gpu_devices import GpuDevices, PlannedDevice, devices_of
from partage.plan.offer.mps_shares import Portions, client_resource, limits_clients, portions
from partage.plan.offer.select import GeometryOf, glob_matches, select, select_layouts
from partage.text import gpus
from partage.values import Frozen

__all__ = ["Assignment", "GeometryOf", "PlannedDevice", "Target", "assign", "default_name", "mig_resource"]

_GPU = ResourceName(f"{VENDOR}/gpu")
_SUFFIX = ".shared"


class Target(Frozen):
    """One device that is offered. mig: None for a whole GPU.

    resource: the final name. strategy: of the GPU. single: at most one share per container.
    origin: path in the policy file; empty for the default.
    """

    gpu: Gpu
    mig: MigDevice | PlannedDevice | None
    sharing: Sharing
    strategy: Strategy
    resource: ResourceName
    single: bool = False
    guard: bool = False
    watch: WatchAction = WatchAction.WARN
    origin: str = ""


class Assignment(Frozen):
    """The policy, applied to one inventory.

    targets: ordered by GPU index, then MIG index or placement.
    strategies: of every GPU that answers, by UUID (a MIG GPU without instances has no target).
    pending: GPU UUID to a sentence: what has still to be done (a layout to make).
    existing: the MIG devices that live on GPUs with something pending, as the policy shares them.
    layouts: GPU UUID to the MIG layout, or none, that the policy asks for; other GPUs stay as they are.
    labelled: GPUs whose layout is that of the node's label.
    warnings: doubtful things, each with file and path.
    """

    targets: tuple[Target, ...]
    strategies: Mapping[GpuUuid, Strategy]
    pending: Mapping[GpuUuid, str]
    existing: tuple[Target, ...] = ()
    layouts: Mapping[GpuUuid, DesiredMig] = field(default_factory=dict)
    labelled: frozenset[GpuUuid] = frozenset()
    warnings: tuple[Problem, ...] = ()

    @property
    def watch_of(self) -> dict[GpuUuid, WatchAction]:
        """GPU UUID to what happens to a container that exceeds its share of it."""
        return {target.gpu.uuid: target.watch for target in self.targets}


def assign(policy: Policy, inventory: Inventory, geometry_of: GeometryOf) -> Assignment:
    """Lay ``policy`` over ``inventory``.

    Raises InputError (overlapping selectors) or Unsatisfiable (a GPU that the node does not have, a MIG
    layout that does not fit, MIG strategy ``single`` with unequal devices), each with *all* problems;
    InputError first.

    Without a driver nothing can be checked, and the assignment is empty.
    """
    if isinstance(inventory.driver, NoDriver):
        return Assignment((), {}, {})
    findings = Findings(policy.source)
    owners = select(policy, inventory, geometry_of, findings)
    strategy = policy.options.mig_strategy
    labelled = select_layouts(policy.layouts, inventory, geometry_of, findings)
    _check_labelled(policy, inventory, owners, labelled, findings)
    laid_out = {**owners, **labelled}
    presented = {
        gpu.uuid: devices_of(gpu, laid_out.get(gpu.uuid), strategy, geometry_of(gpu), findings)
        for gpu in inventory
    }
    if strategy is MigStrategy.SINGLE:
        _check_single(policy, inventory, presented, findings)
    devices = [
        ClaimableDevice(gpu, mig, _name(gpu, mig, policy.options), position)
        for gpu in inventory
        for position, mig in enumerate(presented[gpu.uuid].devices)
    ]
    claims = claim(policy, devices, inventory, findings)
    targets = [
        _target(device, owners.get(device.gpu.uuid), claims.get(device.key), policy.options, findings)
        for device in devices
    ]
    _warn_of_unlike_shares(policy, targets, findings)
    findings.raise_any()
    return Assignment(
        targets=tuple(targets),
        strategies=_strategies(inventory, presented, targets),
        pending={uuid: shown.pending for uuid, shown in presented.items() if shown.pending},
        existing=tuple(_existing(policy, inventory, presented, owners)),
        layouts=_layouts(laid_out, strategy),
        labelled=frozenset(labelled),
        warnings=findings.warnings(),
    )


def _existing(
    policy: Policy,
    inventory: Inventory,
    presented: Mapping[GpuUuid, GpuDevices],
    owners: Mapping[GpuUuid, GpuEntry],
) -> Iterator[Target]:
    devices = [
        ClaimableDevice(gpu, mig, _name(gpu, mig, policy.options), position)
        for gpu in inventory
        for position, mig in enumerate(presented[gpu.uuid].existing)
    ]
    unsaid = Findings(policy.source)  # these devices go, so what does not suit them is no problem
    claims = claim(policy, devices, inventory, unsaid)
    for device in devices:
        claimed = claims.get(device.key)
        yield _target(device, owners.get(device.gpu.uuid), claimed, policy.options, unsaid)


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
        if entry is None or entry.mig is None:
            continue
        if owner is not None and owner.mig not in (None, entry.mig):
            message = f"{owner.origin} has a layout of its own, and the label {MIG_CONFIG} asks for another"
            hint = "remove one of the two; how MIG devices are shared can be said without a layout"
            findings.add("wrong", entry.origin, message, hint, [gpu.index])
        if entry.mig.enabled and policy.options.mig_strategy is MigStrategy.NONE:
            message = "a MIG layout under MIG strategy none, which offers whole GPUs"
            findings.add("impossible", entry.origin, message, "set the MIG strategy to mixed or single")


def _layouts(owners: Mapping[GpuUuid, GpuEntry], strategy: MigStrategy) -> dict[GpuUuid, DesiredMig]:
    """Under MIG strategy ``none`` a GPU is only ever taken out of MIG mode."""
    layouts = {uuid: entry.mig for uuid, entry in owners.items() if entry.mig is not None}
    if strategy is MigStrategy.NONE:
        return {uuid: layout for uuid, layout in layouts.items() if not layout.enabled}
    return layouts


# --- names -------------------------------------------------------------------------------------


def default_name(product: str, profile: str | None, options: Options) -> ResourceName:
    """The name of a device that is not shared: from the operator's patterns, else from the MIG strategy.

    profile: of a MIG device; None for a whole GPU.
    """
    if profile is None:
        return _by_pattern(product, options.gpu_names) or _GPU
    named = _by_pattern(profile, options.mig_names)
    if named is not None:
        return named
    if options.mig_strategy is MigStrategy.SINGLE:
        return _GPU
    return ResourceName(f"{VENDOR}/{mig_resource(profile)}")


def mig_resource(profile: str) -> str:
    """The part of a resource's name after the slash, for a MIG profile: ``mig-1g.10gb.me``."""
    return f"mig-{profile.replace('+', '.').replace(',', '.')}"


def _name(gpu: Gpu, mig: MigDevice | PlannedDevice | None, options: Options) -> ResourceName:
    return default_name(gpu.product, None if mig is None else mig.profile, options)


def _by_pattern(text: str, patterns: Sequence[NamePattern]) -> ResourceName | None:
    return next((pattern.name for pattern in patterns if glob_matches(pattern.pattern, text)), None)


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
    if isinstance(target.sharing, Mps) and _has_no_daemon(device, claimed):
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
    shared = not isinstance(entry.sharing, Exclusive)
    suffix = _SUFFIX if shared and options.rename_shared else ""
    return Target(
        gpu=device.gpu,
        mig=device.mig,
        sharing=entry.sharing,
        strategy=_strategy(device, entry.sharing),
        resource=entry.name or ResourceName(device.resource + suffix),
        single=shared and options.fail_requests_greater_than_one,
        guard=entry.guard,
        watch=entry.watch,
        origin=entry.origin,
    )


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
    if device.mig is not None:
        return Strategy.MIG
    match sharing:
        case Exclusive():
            return Strategy.EXCLUSIVE
        case TimeSlicing():
            return Strategy.TIME_SLICING
        case Mps():
            return Strategy.MPS


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
        said = f"{message} under MIG strategy single: {gpus(whole)} without MIG"
        findings.add("impossible", path, said, hint)
    for gpu in cut:
        if not presented[gpu.uuid].devices:
            message = f"device {gpu.index} has no MIG devices configured, and MIG strategy is single"
            findings.add("impossible", path, message, hint)
    profiles = {device.profile for gpu in cut for device in presented[gpu.uuid].devices if device is not None}
    if len(profiles) > 1:
        message = f"more than one MIG device type present on node: {', '.join(sorted(profiles))}"
        findings.add("impossible", path, message, hint)


def _warn_of_unlike_shares(policy: Policy, targets: Sequence[Target], findings: Findings) -> None:
    """Shares that differ under one name: a pod that asks by name cannot know which it gets."""
    kinds: dict[ResourceName, dict[str, list[Target]]] = {}
    for target in targets:
        for name, kind in _named_kinds(target):
            kinds.setdefault(name, {}).setdefault(kind, []).append(target)
    rename = "'rename'" if policy.format.startswith("nvidia") else "'name'"
    for name, unlike in kinds.items():
        if len(unlike) < 2:
            continue
        said = "; ".join(f"{kind} on {gpus(t.gpu.index for t in some)}" for kind, some in unlike.items())
        origin = next((t.origin for some in reversed(unlike.values()) for t in some if t.origin), "")
        findings.add(
            "doubtful",
            origin,
            f"{name} holds shares that guarantee different things: {said}",
            f"give each kind a {rename} of its own, so that pods can choose",
        )


def _named_kinds(target: Target) -> Sequence[tuple[ResourceName, str]]:
    """The kinds of shares of a device with their names: several if its MPS clients differ."""
    sharing = target.sharing
    if not isinstance(sharing, Mps) or not sharing.clients:
        return [(target.resource, _kind(target))]
    shares = portions(sharing, target.gpu.memory_bytes)
    if not isinstance(shares, Portions):
        return ()
    try:
        kinds = [
            (client_resource(target.resource, client.name), shares.described(client))
            for client in shares.clients
        ]
    except ValueError:  # an invalid name, which ``advertise`` reports
        return ()
    return tuple(dict.fromkeys(kinds))


def _kind(target: Target) -> str:
    """A share in words; equal for equal shares."""
    on = f"{target.mig.profile} " if target.mig is not None else ""
    match target.sharing:
        case Exclusive():
            return f"{on}exclusive"
        case TimeSlicing(replicas=replicas):
            return f"{on}time-slicing x {replicas}"
        case Mps(replicas=replicas, exclusive_process=alone):
            older = "" if limits_clients(target.gpu) else " without limits"
            return f"{on}MPS x {replicas}{'' if alone else ' without exclusive-process mode'}{older}"
