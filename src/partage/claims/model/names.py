"""Names that users of claims write, and those of the driver."""

from __future__ import annotations

from enum import StrEnum

from partage.model.share import DeviceOffer

DRIVER = "gpu.partage.dev"
"""Name of the DRA driver, and the domain of its attributes and capacities."""

MEMORY, CORES, SHARES = "memory", "cores", "shares"
"""Capacities of devices that are shared, as requests name them."""


class Mode(StrEnum):
    """What a claim can get of a device.

    whole: all of a GPU. amounts: any amount of its memory, in whole units, or all of it. replicas: some of N
    even shares. mig: a MIG device.
    """

    WHOLE = "whole"
    AMOUNTS = "amounts"
    REPLICAS = "replicas"
    MIG = "mig"


def mode_of(row: DeviceOffer) -> Mode:
    """The mode of a device that is offered by claims."""
    if row.by_memory:
        return Mode.AMOUNTS
    if row.traits.in_shares:
        return Mode.REPLICAS
    return Mode.WHOLE if row.profile is None else Mode.MIG


def pool_of(node: str) -> str:
    """Name of the node's pool: not the node's alone, with which schedulers mix up the pools of drivers."""
    return f"{node}-partage"
