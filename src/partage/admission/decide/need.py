"""What a pod asks of GPUs, in no system's words."""

from __future__ import annotations

from decimal import Decimal

from msgspec import field

from partage.values import Frozen

MOST_GPUS = 32
"""Devices of one claim."""


class CannotMean(Exception):
    """The request has no meaning here. sentence: why, without a full stop. hint: what helps; may be empty."""

    def __init__(self, sentence: str, hint: str = "") -> None:
        super().__init__(sentence)
        self.sentence, self.hint = sentence, hint


class SizesUnknown(CannotMean):
    """It has a meaning only once the sizes of the GPUs are known."""


class WholeGpu(Frozen):
    """All of each GPU, alone."""


class BytesOfGpu(Frozen):
    """So many bytes of each GPU."""

    memory_bytes: int


class PartOfGpu(Frozen):
    """A part of the memory of each GPU, above 0 and below 1."""

    part: Decimal


class EvenShares(Frozen):
    """Some of the equal shares of a GPU that has at most so many. most: None: any number."""

    shares: int
    most: int | None


GpuMemory = WholeGpu | BytesOfGpu | PartOfGpu | EvenShares


class GpuNeed(Frozen):
    """What a container asks for. count: different GPUs. cores: percent of the multiprocessors of each; 0: no
    ceiling was named.
    """

    count: int
    memory: GpuMemory
    cores: int = 0


class GpuRules(Frozen):
    """Which GPUs a pod can have. models, not_models: parts of their names, in lower case. uuids, not_uuids:
    in lower case. mig: MIG devices of these GPUs, not parts of a GPU. Empty: any.
    """

    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    not_uuids: tuple[str, ...] = ()
    mig: bool = False


class ContainerNeed(Frozen):
    """A container that asks for GPUs. group, index: where it is in the spec. kind: ``container``, ``init`` or
    ``sidecar``.
    """

    group: str
    index: int
    name: str
    kind: str
    need: GpuNeed


class PodGpuNeed(Frozen):
    """What a pod asks for. system: in whose words. names: resources that are taken out of its containers.
    selectors: keys of its nodeSelector that are taken out. warnings: what of it has no effect, clauses.
    """

    system: str
    containers: tuple[ContainerNeed, ...]
    rules: GpuRules = field(default_factory=GpuRules)
    names: frozenset[str] = frozenset()
    selectors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
