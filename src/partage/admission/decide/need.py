"""What a pod asks of GPUs, in no system's words."""

from __future__ import annotations

from decimal import Decimal

from msgspec import field

from partage.values import Frozen

MOST_GPUS = 32
"""Devices of one claim."""
MOST_OF_POD = 64
"""GPUs and parts of them, of all containers: who makes pods decides how long a place is looked for."""


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
    in lower case. mig: MIG devices of these GPUs, not parts of a GPU. Empty: any. keys: the annotations of
    the four.
    """

    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    not_uuids: tuple[str, ...] = ()
    mig: bool = False
    keys: tuple[str, ...] = ()


class AmountWord(Frozen):
    """How a system writes an amount of each GPU. capacity: what of the claim it is. form: with ``{}`` for the
    number: ``nvidia.com/gpumem: {}``. now: the number as written. unit: of the capacity, for 1. of_gpu: unit
    is a part of the GPU's memory. step: between numbers that can be written.
    """

    capacity: str
    form: str
    now: str
    unit: Decimal
    of_gpu: bool = False
    step: Decimal = Decimal(1)

    def at_most(self, amount: Decimal, total: Decimal) -> Decimal:
        """The largest number that asks for no more; 0: none. total: memory of the GPU, in bytes."""
        one = self.unit * total if self.of_gpu else self.unit
        return amount // (one * self.step) * self.step if one else Decimal(0)

    def amount(self, number: Decimal, total: Decimal) -> Decimal:
        """What this number asks for."""
        return number * self.unit * (total if self.of_gpu else 1)

    def then(self, number: Decimal) -> str:
        """``nvidia.com/gpumem: 20000 in place of 40000``."""
        return f"{self.form.format(f'{number.normalize():f}')} in place of {self.now}"


class NamedContainer(Frozen):
    """A container of a pod. group, index: where it is in the spec. kind: ``container``, ``init`` or
    ``sidecar``.
    """

    group: str
    index: int
    name: str
    kind: str


class ContainerNeed(NamedContainer):
    """A container that asks for GPUs. words: how it writes its amounts."""

    need: GpuNeed
    words: tuple[AmountWord, ...] = ()


class ForeignPod(Frozen):
    """A pod of another system. system: in whose words it is. rules: which GPUs it can have. names: resources
    that are taken out of its containers. warnings: what of it has no effect, clauses.
    """

    system: str
    rules: GpuRules = field(default_factory=GpuRules)
    names: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


class PodGpuNeed(ForeignPod, kw_only=True):
    """What such a pod asks for. selectors: keys of its nodeSelector that are taken out."""

    containers: tuple[ContainerNeed, ...]
    selectors: tuple[str, ...] = ()
