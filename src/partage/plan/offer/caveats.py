"""What an operator should know before relying on a plan, although the policy has no errors. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from partage.model.driver_limit import LimitSetter, LimitWay, usable_bytes
from partage.model.gpu import Inventory, ToolkitConfig
from partage.model.ids import GpuUuid
from partage.model.policy import DeviceListStrategy, Exclusive, GpuEntry, Policy
from partage.model.share import DeviceOffer, Guarantee, NodeOffer
from partage.plan.offer.mps_command import why_not_promised
from partage.plan.offer.mps_shares import client_cap
from partage.text import gpus
from partage.units import format_bytes
from partage.values import Frozen


class Caveat(Frozen):
    """A sentence. certain: False if it could not be checked."""

    sentence: str
    certain: bool = True


def caveats(
    policy: Policy,
    inventory: Inventory,
    offer: NodeOffer,
    *,
    ctk_found: bool,
    layouts: Collection[GpuUuid] | None = None,
) -> tuple[Caveat, ...]:
    """All caveats. ctk_found: ``nvidia-ctk`` exists at the path in the policy.

    layouts: the GPUs whose MIG layout the policy wants, also none; None: not known.
    """
    found = _caveats(policy, inventory, offer, ctk_found)
    return (*found, *([] if layouts is None else _layouts_kept(policy, inventory, offer, layouts)))


def _caveats(policy: Policy, inventory: Inventory, offer: NodeOffer, ctk_found: bool) -> Iterator[Caveat]:
    options = policy.options
    if draining(policy):
        yield Caveat(DRAIN_NEEDS_CLUSTER, certain=False)
    if inventory.open_to_env:
        yield Caveat(
            "Pods of this node can set NVIDIA_VISIBLE_DEVICES themselves and see every GPU"
            f"{_evidence(inventory.toolkit)}: no share guarantees more than 'advisory'. Set {ACCEPTS_ENV} = "
            "false in the container toolkit's config.toml, with deviceListStrategy volume-mounts or cdi-cri."
        )
    elif inventory.open_to_env is None and DeviceListStrategy.ENVVAR in options.device_list:
        yield Caveat(
            "Whether pods of this node can set NVIDIA_VISIBLE_DEVICES themselves is not known; if they "
            "can, no share guarantees more than 'advisory'.",
            certain=False,
        )
    if useless := refused_ways(inventory.toolkit, options.device_list):
        yield Caveat(useless)
    if options.uses_cdi and not ctk_found:
        yield Caveat(
            f"Shares will be unhealthy: {options.nvidia_ctk} does not exist, and no CDI specification of "
            "NVIDIA's toolkit fits the driver, so containers would not have the driver's libraries."
        )
    if cold := [gpu.index for gpu in inventory if gpu.persistence is False]:
        yield Caveat(
            f"Persistence mode is off on {gpus(cold)}: the driver initialises a GPU anew for each first "
            "client, which takes 1 to 3 s. Run nvidia-persistenced."
        )
    if hidden := mig_hidden(inventory):
        yield Caveat(f"{hidden}; a plan of other MIG devices needs root.", certain=False)
    yield from _of_units([o for some in offer.values() for o in some if o.by_memory], inventory)
    yield from _of_limits([o for some in offer.values() for o in some if o.limited], inventory.limits_by)
    if on_demand(policy):
        yield Caveat(ON_DEMAND_COSTS, certain=False)
    if any(row.traits.through_daemon for rows in offer.values() for row in rows):
        yield Caveat(
            "Under MPS the limits apply to each process: a container with two can use its share twice."
        )
    yield from _commanded(inventory, offer)


def draining(policy: Policy) -> tuple[str, ...]:
    """Paths of the entries with ``change: drain``."""
    return tuple(
        entry.origin for entry in policy.entries if isinstance(entry, GpuEntry) and entry.drain is not None
    )


def on_demand(policy: Policy) -> tuple[str, ...]:
    """Paths of the entries with ``mig: {on-demand: true}``."""
    return tuple(
        entry.origin
        for entry in policy.entries
        if isinstance(entry, GpuEntry) and entry.mig is not None and entry.mig.on_demand
    )


def made_on_demand(inventory: Inventory, gpus_on_demand: Collection[GpuUuid]) -> Iterator[str]:
    """What claims get of GPUs whose MIG devices are made on demand, beside what the offer has now."""
    if found := [gpu.index for gpu in inventory if gpu.uuid in gpus_on_demand]:
        yield (
            f"{gpus(found)}: a claim gets all of a GPU, or a MIG device that is made when it asks for it; "
            "the offer has what claims have now."
        )


ON_DEMAND_COSTS = (
    "MIG devices on demand are offered from Kubernetes 1.37 on. On 1.36.4 and newer, 'dra.counters: always' "
    "offers them; there each scheduling cycle for a claim then takes about 500 times as long with 200 nodes, "
    "and 20 times for claims of other drivers."
)

DRAIN_NEEDS_CLUSTER = (
    "'change: drain' evicts pods through the API of a cluster: without one (partage agent --cluster), GPUs "
    "wait until their pods end. Pods without a controller and system-critical ones stay, unless 'also' names "
    "them: change: {drain: 10m, also: [bare, system-critical]}."
)

_MOST_LIMITS = 8

ACCEPTS_ENV = "accept-nvidia-visible-devices-envvar-when-unprivileged"
"""Key of the container toolkit's configuration: unprivileged containers may choose GPUs by a variable."""

_MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"


def _evidence(toolkit: ToolkitConfig | None) -> str:
    """What was seen, in brackets; empty for a simulated node."""
    if toolkit is None:
        return ""
    text = f"{ACCEPTS_ENV} = true" if toolkit.stated else f"{ACCEPTS_ENV} is not set, which means true"
    return f" ({toolkit.path}: {text})"


def refused_ways(toolkit: ToolkitConfig | None, ways: Collection[DeviceListStrategy]) -> str:
    """Why unprivileged containers would get no GPU by any of these ways; empty if they do."""
    if toolkit is None or toolkit.accepts_env:
        return ""
    if any(way not in (DeviceListStrategy.ENVVAR, DeviceListStrategy.VOLUME_MOUNTS) for way in ways):
        return ""
    if DeviceListStrategy.VOLUME_MOUNTS in ways:
        wrong = "" if toolkit.accepts_mounts else f", and {_MOUNTS} is not true: set it"
    else:
        wrong = f": use deviceListStrategy volume-mounts, with {_MOUNTS} = true, or cdi-cri"
    return wrong and f"Unprivileged containers get no GPU: {toolkit.path} has {ACCEPTS_ENV} = false{wrong}."


def _commanded(inventory: Inventory, offer: NodeOffer) -> Iterator[Caveat]:
    """Why shares whose daemon holds their limit are only advisory: who may change that limit."""
    why = why_not_promised(inventory.driver, restricted=inventory.restricted_mps)
    whole = [o for some in offer.values() for o in some if o.traits.through_daemon and not o.pipe]
    if why and any(o.guarantee is Guarantee.ADVISORY and not o.limits_in_env for o in whole):
        yield Caveat(f"MPS shares are 'advisory': {why}.")


def _of_units(units: Sequence[DeviceOffer], inventory: Inventory) -> Iterator[Caveat]:
    """What amounts of memory mean. units: the offers that are shared by memory."""
    if not units:
        return
    yield Caveat(
        f"The context of each process counts in a container's amount of {units[0].resource}: it takes 250 to "
        "820 MiB, the rest is for data. A container that asks for less than 1 GiB may not be able to use any."
    )
    capability = {gpu.uuid: gpu.compute_capability for gpu in inventory}
    caps = {row.gpu: client_cap(capability[row.gpu], inventory.driver) for row in units}
    if over := [row for row in units if row.traits.through_daemon and row.count > caps[row.gpu].clients]:
        where = gpus(row.gpu_index for row in over)
        yield Caveat(
            f"An MPS server has at most {caps[over[0].gpu].clients} clients, and more containers than that "
            f"can hold memory of {where}: CUDA does not start in the processes that are too many."
        )


def _of_limits(limited: Sequence[DeviceOffer], by: LimitSetter | None) -> Iterator[Caveat]:
    """What a limit of the driver's leaves for data, what it does not count, and what has to set it."""
    amounts = sorted({row.memory_bytes for row in limited})
    for limit_bytes in amounts[:_MOST_LIMITS]:
        least, most = usable_bytes(limit_bytes)
        yield Caveat(
            f"Of a limit of {format_bytes(limit_bytes)} a container can use {format_bytes(least)} to "
            f"{format_bytes(most)} for data with one process: each process has a context of 250 to 820 MiB, "
            "and memory comes in steps of 256 MiB (measured by others)."
        )
    if amounts:
        yield Caveat(
            "The driver's limits do not count managed memory, and limit neither bandwidth nor compute. 'hard'"
            " is said of a share once the limit of its container was read."
        )
        yield from _of_setter(by)


def _of_setter(by: LimitSetter | None) -> Iterator[Caveat]:
    if by is None:
        yield Caveat(
            "Whether these limits can be set before a container starts is not known: the agent looks, and "
            "offers shares without limits where nothing can.",
            certain=False,
        )
    elif by.way is LimitWay.NVIDIA:
        yield Caveat(
            "These limits are set by NVIDIA's hook and are 'advisory', because a tenant's own variables may "
            f"be what it sets. Partage's hook cannot be used: {by.why}."
        )
    elif by.way is LimitWay.HOOK:
        yield Caveat(
            "The hook that sets these limits comes by CDI: where the container runtime has CDI switched off, "
            "containers start without limits, and 'none' is said of their GPUs; 'cdi-off' of partage doctor "
            "says what to switch on.",
            certain=False,
        )


def _layouts_kept(
    policy: Policy, inventory: Inventory, offer: NodeOffer, layouts: Collection[GpuUuid]
) -> Iterator[Caveat]:
    """``exclusive`` on a GPU in MIG mode: who writes that may expect a whole GPU."""
    plain = [entry for entry in policy.entries if isinstance(entry, GpuEntry) and entry.mig is None]
    if not any(isinstance(entry.sharing, Exclusive) for entry in plain):
        return
    kept = [
        gpu.index
        for gpu in inventory
        if gpu.mig_enabled
        and gpu.uuid not in layouts
        and not any(row.traits.in_shares for row in offer.get(gpu.uuid, ()))
    ]
    if kept:
        yield Caveat(
            f"In MIG mode: {gpus(kept)}. 'exclusive' leaves the MIG layout as it is and offers its devices; "
            "for whole GPUs write mig: {layout: all-disabled} in its place."
        )


def mig_hidden(inventory: Inventory) -> str:
    """Which GPUs do not say where their MIG devices are, half a sentence; empty: none."""
    hidden = [gpu.index for gpu in inventory if gpu.mig_hidden]
    if not hidden:
        return ""
    return f"Where the MIG devices of {gpus(hidden)} are can be read by root only"
