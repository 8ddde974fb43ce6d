"""The names of resources: NVIDIA's, unless the policy has patterns of its own; and a warning where the shares
of one name differ.
"""

from __future__ import annotations

from collections.abc import Sequence

from partage.model.gpu import Gpu, MigDevice
from partage.model.ids import VENDOR, ResourceName
from partage.model.policy import Exclusive, MigStrategy, Mps, NamePattern, Options, Policy, TimeSlicing
from partage.plan.offer.findings import Findings
from partage.plan.offer.gpu_devices import PlannedDevice, Target
from partage.plan.offer.memory_units import kinds_of_gpus, units_of
from partage.plan.offer.mps_shares import Portion, Portions, client_resource, limits_clients, portions
from partage.plan.offer.select import glob_matches
from partage.units import format_bytes

GPU_RESOURCE = ResourceName(f"{VENDOR}/gpu")


def default_name(product: str, profile: str | None, options: Options) -> ResourceName:
    """The name of a device that is not shared: from the operator's patterns, else from the MIG strategy.

    profile: of a MIG device; None for a whole GPU.
    """
    if profile is None:
        return _by_pattern(product, options.gpu_names) or GPU_RESOURCE
    named = _by_pattern(profile, options.mig_names)
    if named is not None:
        return named
    if options.mig_strategy is MigStrategy.SINGLE:
        return GPU_RESOURCE
    return ResourceName(f"{VENDOR}/{mig_resource(profile)}")


def mig_resource(profile: str) -> str:
    """The part of a resource's name after the slash, for a MIG profile: ``mig-1g.10gb.me``."""
    return f"mig-{profile.replace('+', '.').replace(',', '.')}"


def device_name(gpu: Gpu, mig: MigDevice | PlannedDevice | None, options: Options) -> ResourceName:
    """The name of this GPU, or of its MIG device, while it is not shared."""
    return default_name(gpu.product, None if mig is None else mig.profile, options)


def _by_pattern(text: str, patterns: Sequence[NamePattern]) -> ResourceName | None:
    return next((pattern.name for pattern in patterns if glob_matches(pattern.pattern, text)), None)


def warn_of_unlike_shares(policy: Policy, targets: Sequence[Target], findings: Findings) -> None:
    """Shares that differ under one name: a pod that asks by name cannot know which it gets."""
    kinds: dict[ResourceName, dict[str, list[Target]]] = {}
    for target in targets:
        for name, kind in _named_kinds(target):
            kinds.setdefault(name, {}).setdefault(kind, []).append(target)
    rename = "'rename'" if policy.format.startswith("nvidia") else "'name'"
    for name, unlike in kinds.items():
        if len(unlike) < 2:
            continue
        text, origin = kinds_of_gpus(unlike)
        findings.add(
            "doubtful",
            origin,
            f"{name} holds shares that guarantee different things: {text}",
            f"give each kind a {rename} of its own, so that pods can choose",
        )


def _named_kinds(target: Target) -> Sequence[tuple[ResourceName, str]]:
    """The kinds of shares of a device with their names: several if its clients differ."""
    sharing = target.sharing
    if isinstance(sharing, Exclusive) or not sharing.clients:
        return [(target.resource, _kind(target))]
    shares = portions(sharing, target.gpu.memory_bytes)
    if not isinstance(shares, Portions):
        return ()
    try:
        kinds = [
            (client_resource(target.resource, client.name), _described(shares, client, sharing))
            for client in shares.clients
        ]
    except ValueError:  # an invalid name, which ``advertise`` reports
        return ()
    return tuple(dict.fromkeys(kinds))


def _described(shares: Portions, client: Portion, sharing: Mps | TimeSlicing) -> str:
    """An unequal share in words."""
    if isinstance(sharing, Mps):
        return shares.described(client)
    return f"time-slicing with {format_bytes(client.memory_bytes)}{_limited(sharing)}"


def _limited(sharing: TimeSlicing) -> str:
    return ", memory: hard" if sharing.limited else ""


def _kind(target: Target) -> str:
    """A share in words; equal for equal shares."""
    on = f"{target.mig.profile} " if target.mig is not None else ""
    units = units_of(target.sharing)
    each = "" if units is None else f"{format_bytes(units.unit_bytes)} each, "
    match target.sharing:
        case Exclusive():
            return f"{on}exclusive"
        case TimeSlicing() as sharing if each:
            return f"{on}{each}time-slicing{_limited(sharing)}"
        case Mps(protocol=protocol) if each:
            return f"{on}{each}MPS, {'namespaces' if protocol >= 3 else 'limits in the environment'}"
        case TimeSlicing(replicas=replicas) as sharing:
            return f"{on}time-slicing x {replicas}{_limited(sharing)}"
        case Mps(replicas=replicas, exclusive_process=alone):
            older = "" if limits_clients(target.gpu) else " without limits"
            return f"{on}MPS x {replicas}{'' if alone else ' without exclusive-process mode'}{older}"
