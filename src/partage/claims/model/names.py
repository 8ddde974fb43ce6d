"""Names that users of claims write, and those of the driver: Partage's own, or those of NVIDIA's driver.

Which of them hold is one value, ``ClaimNames``, that is passed on from the agent's option. Source of
NVIDIA's: kubernetes-sigs/dra-driver-nvidia-gpu of 2026-08-07, deviceinfo.go, mig.go, consumable_shares.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import field

from partage.model.gpu import UNKNOWN_ARCHITECTURE
from partage.model.ids import DRA_DRIVERS, GPU_CLASS, MIG_CLASS, SHARE_CLASS, ResourceName
from partage.model.share import DeviceOffer
from partage.units import MIB
from partage.values import Frozen

MEMORY, CORES, SHARES = "memory", "cores", "shares"
"""Capacities of devices that are shared, as requests name them."""

STANDARD = "resource.kubernetes.io"
"""Domain of the attributes that all drivers have in common."""


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


def usable_memory(row: DeviceOffer) -> int:
    """Bytes that the device promises to its holders in all, in whole MiB; whole units of amounts."""
    return row.memory_bytes * row.count // MIB * MIB


class ClaimNames(Frozen):
    """How driver, pool, devices, their facts and their configurations are called.

    driver: name of the DRA driver, and the domain of its attributes, capacities and taints.
    pool_end: what follows the node's name in that of its pool.
    by_minor: GPUs are called by the number of their device file; else by their UUID, which never moves.
    attributes: those that are published; None: all that are known.
    architectures: words for Partage's; one that is not here is called as in Partage, or is not known.
    share_memory: a request for an even share may name memory, at most as much as one share has.
    nvidia_kinds: NVIDIA's kinds of configuration are read, beside Partage's.
    classes: DeviceClasses in place of Partage's.
    """

    driver: str
    pool_end: str
    by_minor: bool = False
    attributes: frozenset[str] | None = None
    architectures: Mapping[str, str] = field(default_factory=dict)
    share_memory: bool = False
    nvidia_kinds: bool = False
    classes: Mapping[ResourceName, ResourceName] = field(default_factory=dict)

    def pool(self, node: str) -> str:
        """Name of the node's pool."""
        return f"{node}{self.pool_end}"

    def publishes(self, attribute: str) -> bool:
        """Whether devices have this attribute, if it is known."""
        return self.attributes is None or attribute in self.attributes

    def architecture(self, word: str) -> str | None:
        """The word for an architecture; None: it is not known."""
        return self.architectures.get(word, None if word == UNKNOWN_ARCHITECTURE else word)

    def class_of(self, resource: ResourceName) -> ResourceName:
        """The DeviceClass of an offer."""
        return self.classes.get(resource, resource)


OWN_NAMES = ClaimNames(driver=DRA_DRIVERS[0], pool_end="-partage")
"""Pools have not the node's name alone, with which schedulers mixed up the pools of drivers."""

_NVIDIA_CLASS = ResourceName("gpu.nvidia.com")

NVIDIA_NAMES = ClaimNames(
    driver=DRA_DRIVERS[1],
    pool_end="",
    by_minor=True,
    attributes=frozenset(
        (
            "type", "uuid", "productName", "brand", "architecture", "cudaComputeCapability", "driverVersion",
            "cudaDriverVersion", "addressingMode", "profile", "parentUUID",
            f"{STANDARD}/pciBusID", f"{STANDARD}/pcieRoot",
        )
    ),
    architectures={
        "kepler": "Kepler", "maxwell": "Maxwell", "pascal": "Pascal", "volta": "Volta", "turing": "Turing",
        "ampere": "Ampere", "ada": "Ada Lovelace", "hopper": "Hopper", "blackwell": "Blackwell",
        "rubin": "Rubin", UNKNOWN_ARCHITECTURE: "Unknown",
    },
    share_memory=True,
    nvidia_kinds=True,
    classes={
        GPU_CLASS: _NVIDIA_CLASS,
        SHARE_CLASS: _NVIDIA_CLASS,
        MIG_CLASS: ResourceName("mig.nvidia.com"),
    },
)  # fmt: skip

NAMES_OF_DRIVER: Mapping[str, ClaimNames] = {names.driver: names for names in (OWN_NAMES, NVIDIA_NAMES)}
"""The names that there are, by that of the driver."""
