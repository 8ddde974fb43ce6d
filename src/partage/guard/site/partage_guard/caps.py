"""The memory that a framework may use: from the share (``ShareLimit``) or from ``limit()``
(``RequestedLimit``).

Both have the same three methods, because frameworks take limits in three ways: ``on`` a known device in
bytes, ``anywhere`` in bytes, or as a ``fraction`` of any device. All raise NotCapped with the reason.
"""

import os

from .record import NotCapped

TYPE_CHECKING = False  # typing itself costs more than all of this
if TYPE_CHECKING:
    from typing import List, Mapping, Optional, Union

MIB = 1 << 20

CONTEXT_BYTES = 512 * MIB
LARGE_CONTEXT_BYTES = 1024 * MIB
MANY_MULTIPROCESSORS = 140
"""A CUDA context and its libraries use memory besides the framework's allocator, more on GPUs with more
multiprocessors. Reports range from 300 to 816 MiB for each process; these numbers are estimates
(docs/explanation/guard.md).
"""


class ShareLimit:
    """The container's share, from the environment variables ``PARTAGE_*``.

    memory, total: bytes of the share and of the whole device, one for each of ``gpus`` or one for all. The
    limit is the share divided by the number of processes, minus the context; for a small share half of it.
    """

    explicit = False

    def __init__(self, memory: "List[int]", total: "List[int]", gpus: "List[str]", processes: int) -> None:
        self.memory, self.total, self.gpus, self.processes = memory, total, gpus, processes

    def on(self, total: int, gpu: str = "", multiprocessors: int = 0) -> int:
        """Bytes on a device with ``total`` bytes. gpu: its UUID, if the framework knows it."""
        return self._less_context(self._portion(self._memory_of(gpu), total), multiprocessors)

    def anywhere(self) -> int:
        """Bytes on the device with the smallest share."""
        for share, total in self._pairs():
            self._portion(share, total)
        return self._less_context(min(self.memory) // self.processes)

    def fraction(self) -> float:
        """The fraction of a device, on the one where it is smallest."""
        if not self.total:
            raise NotCapped("PARTAGE_TOTAL_BYTES does not say how large the device is")
        return min(self._less_context(self._portion(share, total)) / total for share, total in self._pairs())

    def _pairs(self) -> "List[tuple[int, int]]":
        longest = max(len(self.memory), len(self.total))
        return list(zip(_each(self.memory, longest), _each(self.total, longest)))

    def _memory_of(self, gpu: str) -> int:
        if len(self.memory) == len(self.gpus) and gpu in self.gpus:
            return self.memory[self.gpus.index(gpu)]
        return min(self.memory)

    def _portion(self, share: int, total: int) -> int:
        portion = share // self.processes
        if portion >= total:
            raise NotCapped("the share is the whole device")
        return portion

    @staticmethod
    def _less_context(portion: int, multiprocessors: int = 0) -> int:
        context = LARGE_CONTEXT_BYTES if multiprocessors >= MANY_MULTIPROCESSORS else CONTEXT_BYTES
        return max(portion - context, portion // 2)


class RequestedLimit:
    """The limit of a call of ``limit``, used as it is."""

    explicit = True

    def __init__(self, part: "Optional[float]", size: "Optional[int]") -> None:
        self.part, self.size = _checked(part, size)
        self.total = min(numbers(os.environ, "PARTAGE_TOTAL_BYTES", []) or [0])

    def on(self, total: int, gpu: str = "", multiprocessors: int = 0) -> int:  # noqa: ARG002
        """Bytes on a device with ``total`` bytes."""
        return min(self.size, total) if self.size is not None else int(total * self.part)

    def anywhere(self) -> int:
        """Bytes on any device."""
        return self.size if self.size is not None else int(self.part * self._known_total())

    def fraction(self) -> float:
        """The fraction of any device."""
        return self.part if self.size is None else min(1.0, self.size / self._known_total())

    def _known_total(self) -> int:
        if not self.total:
            raise NotCapped("PARTAGE_TOTAL_BYTES does not say how large the device is")
        return self.total


if TYPE_CHECKING:
    Cap = Union[ShareLimit, RequestedLimit]


def share(environ: "Mapping[str, str]") -> ShareLimit:
    """The share in the environment. Raises NotCapped for invalid values."""
    memory = numbers(environ, "PARTAGE_MEMORY_BYTES")
    gpus = [gpu for gpu in environ.get("PARTAGE_GPUS", "").split(",") if gpu]
    total = numbers(environ, "PARTAGE_TOTAL_BYTES", [])
    if len(memory) > 1 and len(memory) != len(gpus):
        memory = [min(memory)]
    if len({1, len(memory), len(total)} - {0}) > 2:
        total = []  # inconsistent: the size of the device is not known
    return ShareLimit(memory, total, gpus, numbers(environ, "PARTAGE_GUARD_PROCESSES", [1])[0])


def numbers(environ: "Mapping[str, str]", name: str, default: "Optional[List[int]]" = None) -> "List[int]":
    """Positive integers separated by commas. Raises NotCapped for other text, and if the variable is missing
    without a default.
    """
    text = environ.get(name, "")
    if not text and default is not None:
        return default
    try:
        found = [int(number) for number in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) <= 0:
        raise NotCapped(f"{name} is {text!r}, not a number above 0")
    return found


def _each(values: "List[int]", count: int) -> "List[int]":
    return values * count if len(values) == 1 else values


def _checked(part: object, size: object) -> "tuple[float, Optional[int]]":
    given = {"fraction": part, "bytes": size}
    if (part is None) == (size is None):
        raise ValueError("give one of fraction and bytes")
    for name, value in given.items():
        kinds = (int, float) if name == "fraction" else (int,)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
            wanted = "a number" if name == "fraction" else "a whole number"
            raise TypeError(f"{name} is {wanted}, not {value!r}")
    if isinstance(part, (int, float)) and not 0 < part <= 1:
        raise ValueError(f"fraction is above 0 and at most 1, not {part!r}")
    if isinstance(size, int) and size < MIB:
        raise ValueError(f"bytes is at least 1 MiB ({MIB}), not {size!r}")
    return (float(part) if isinstance(part, (int, float)) else 0.0), (size if isinstance(size, int) else None)
