"""What an operator should know before relying on a plan, although the policy has no errors. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid
from partage.model.policy import DeviceListStrategy, Exclusive, GpuEntry, Policy, Strategy
from partage.model.share import NodeOffer
from partage.text import gpus
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
    if inventory.open_to_env:
        yield Caveat(
            "Pods of this node can set NVIDIA_VISIBLE_DEVICES themselves and see every GPU: no share "
            "guarantees more than 'advisory'. Set accept-nvidia-visible-devices-envvar-when-unprivileged "
            "= false in the container toolkit's config.toml, with deviceListStrategy volume-mounts or cdi."
        )
    elif inventory.open_to_env is None and DeviceListStrategy.ENVVAR in options.device_list:
        yield Caveat(
            "Whether pods of this node can set NVIDIA_VISIBLE_DEVICES themselves is not known; if they "
            "can, no share guarantees more than 'advisory'.",
            certain=False,
        )
    if options.uses_cdi and not ctk_found:
        yield Caveat(
            f"The CDI specification will be incomplete: {options.nvidia_ctk} does not exist, so it "
            "contains device files and no libraries of the driver."
        )
    if cold := [gpu.index for gpu in inventory if gpu.persistence is False]:
        yield Caveat(
            f"Persistence mode is off on {gpus(cold)}: the driver initialises a GPU anew for each first "
            "client, which takes 1 to 3 s. Run nvidia-persistenced."
        )
    if hidden := mig_hidden(inventory):
        yield Caveat(f"{hidden}; a plan of other MIG devices needs root.", certain=False)
    if any(o.shared is Strategy.MPS for some in offer.values() for o in some):
        yield Caveat(
            "Under MPS the limits apply to each process: two of one container can use its share twice."
        )


def _layouts_kept(
    policy: Policy, inventory: Inventory, offer: NodeOffer, layouts: Collection[GpuUuid]
) -> Iterator[Caveat]:
    """``exclusive`` on a GPU in MIG mode: who writes that may expect a whole GPU."""
    plain = [one for one in policy.entries if isinstance(one, GpuEntry) and one.mig is None]
    if policy.later_wins or not any(isinstance(one.sharing, Exclusive) for one in plain):
        return
    kept = [
        gpu.index
        for gpu in inventory
        if gpu.mig_enabled
        and gpu.uuid not in layouts
        and all(one.shared is Strategy.EXCLUSIVE for one in offer.get(gpu.uuid, ()))
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
