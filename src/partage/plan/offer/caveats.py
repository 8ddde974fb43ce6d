"""What an operator should know before he relies on a plan, though nothing is wrong with his file. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from partage.model.gpu import Inventory
from partage.model.policy import DeviceListStrategy, Policy, Strategy
from partage.model.share import NodeOffer


@dataclass(frozen=True, slots=True)
class Caveat:
    """certain: it is so; otherwise it could not be found out."""

    sentence: str
    certain: bool = True


def caveats(policy: Policy, inventory: Inventory, offer: NodeOffer, *, ctk_found: bool) -> tuple[Caveat, ...]:
    """What there is to know. ctk_found: ``nvidia-ctk`` lies where the policy says it does."""
    return tuple(_caveats(policy, inventory, offer, ctk_found))


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
            "Whether pods of this node can set NVIDIA_VISIBLE_DEVICES themselves is not known; where they "
            "can, no share guarantees more than 'advisory'.",
            certain=False,
        )
    if options.uses_cdi and not ctk_found:
        yield Caveat(
            f"The CDI specification will be incomplete: {options.nvidia_ctk} is not there, so it holds "
            "device nodes and none of the driver's libraries."
        )
    if any(o.shared is Strategy.MPS for gpu in offer.values() for o in gpu):
        yield Caveat(
            "Under MPS the limits hold for each process: a container with two may have its share twice."
        )
