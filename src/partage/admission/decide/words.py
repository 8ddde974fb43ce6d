"""What annotations of these systems say, in the forms that several of them have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

from partage.admission.decide.need import (
    MOST_GPUS,
    AmountWord,
    BytesOfGpu,
    CannotMean,
    GpuMemory,
    GpuNeed,
    GpuRules,
    PartOfGpu,
    WholeGpu,
)
from partage.claims.model.names import CORES, MEMORY
from partage.units import MIB

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+()/-]{0,63}", re.ASCII)
"""What a rule may name: it becomes part of an expression."""
_MOST_WORDS = 64
MOST_MIB = 2**31 - 1


def listed_words(annotations: Mapping[str, str], key: str) -> tuple[str, ...]:
    """The words of a comma list, in lower case; () if there is none. Raises CannotMean."""
    found = [word.strip() for word in annotations.get(key, "").split(",") if word.strip()]
    for word in found:
        if _PLAIN.fullmatch(word) is None:
            raise CannotMean(f"{key} names {word[:40]!r}, which is neither a GPU model nor a UUID")
    if len(found) > _MOST_WORDS:
        raise CannotMean(f"{key} names {len(found)} GPUs, and a claim can name {_MOST_WORDS}")
    return tuple(dict.fromkeys(word.lower() for word in found))


def mig_of_mode(annotations: Mapping[str, str], key: str) -> tuple[bool, tuple[str, ...]]:
    """Whether ``vgpu-mode`` asks for MIG devices; with warnings. Raises CannotMean."""
    modes = [word.strip() for word in annotations.get(key, "").split(",") if word.strip()]
    possible = [mode for mode in modes if mode in ("mig", "mps")]
    if modes and not possible:
        raise CannotMean(
            f"{key}: {modes[0][:40]} asks for a library inside the container, which Partage does not have",
            f"remove the annotation, or {key}: mps or mig",
        )
    warnings = () if possible in ([], ["mig"]) else (f"{key}: a part of a GPU is shared as the policy says",)
    return possible == ["mig"], warnings


def gpu_rules(annotations: Mapping[str, str], keys: tuple[str, str, str, str], *, mig: bool) -> GpuRules:
    """Which GPUs annotations name. keys: models, other models, UUIDs, other UUIDs. Raises CannotMean."""
    models, not_models, uuids, not_uuids = (listed_words(annotations, key) for key in keys)
    return GpuRules(models, not_models, uuids, not_uuids, mig, keys)


def amount_words(
    need: GpuNeed, written: Mapping[str, int], names: tuple[str, str, str], unit_bytes: int
) -> tuple[AmountWord, ...]:
    """How a container of HAMi or Volcano writes what it asks for. names: of memory, percentage and cores.
    unit_bytes: of memory.
    """
    memory, percentage, cores = names
    found = []
    match need.memory:
        case BytesOfGpu() if written.get(memory):
            found.append(AmountWord(MEMORY, f"{memory}: {{}}", str(written[memory]), Decimal(unit_bytes)))
        case PartOfGpu():
            now = str(written.get(percentage, ""))
            found.append(AmountWord(MEMORY, f"{percentage}: {{}}", now, Decimal("0.01"), of_gpu=True))
    if need.cores and cores in written:
        found.append(AmountWord(CORES, f"{cores}: {{}}", str(need.cores), Decimal(1)))
    return tuple(found)


def mib_bytes(mib: int, who: str, name: str) -> int:
    """Bytes. Raises CannotMean for what is above the 32 bits that these systems read."""
    if mib > MOST_MIB:
        raise CannotMean(f"{who} asks for {mib} MiB ({name}), and the most that can be named is {MOST_MIB}")
    return mib * MIB


def memory_of_percent(percent: int) -> GpuMemory:
    """Of 1 to 100."""
    return WholeGpu() if percent == 100 else PartOfGpu(Decimal(percent) / 100)


def checked_count(count: int, who: str, name: str) -> int:
    """A number of GPUs. Raises CannotMean."""
    if not 1 <= count <= MOST_GPUS:
        raise CannotMean(f"{who} asks for {count} GPUs ({name}), and a claim has 1 to {MOST_GPUS} of them")
    return count
