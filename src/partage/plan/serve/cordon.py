"""GPUs that are cordoned: who holds a share keeps it, and nobody gets another one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from partage.model.gpu import Gpu
from partage.model.ids import GpuUuid
from partage.text import gpus

CORDONED = "partage.dev/cordoned"
"""The annotation of a Node that names such GPUs, by UUID or NVML index, with commas between them."""


def cordon_sentence(indexes: Iterable[int]) -> str:
    """Which GPUs are cordoned, for people; empty if none is."""
    found = tuple(indexes)
    verb = "is" if len(found) == 1 else "are"
    what = "who holds a share keeps it, and nobody gets another one"
    return f"{gpus(found)} {verb} cordoned: {what}" if found else ""


def names_in(text: str) -> frozenset[str]:
    """The names in the annotation, or in a file with one on each line; ``#`` begins a comment."""
    lines = (line.partition("#")[0] for line in text.splitlines())
    return frozenset(word for line in lines for word in line.replace(",", " ").split())


def cordoned_gpus(names: Iterable[str], known: Mapping[GpuUuid, Gpu]) -> frozenset[GpuUuid]:
    """The GPUs of these names; a name of no GPU is left out. known: GPUs that have been seen."""
    wanted = {name.lower() for name in names}
    return frozenset(
        uuid for uuid, gpu in known.items() if uuid.lower() in wanted or str(gpu.index) in wanted
    )
