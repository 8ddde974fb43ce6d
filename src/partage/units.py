"""Amounts of memory, percentages and times: parse them, and format them for people."""

from __future__ import annotations

import re
from decimal import Decimal
from math import ceil

KIB, MIB, GIB = 2**10, 2**20, 2**30

_SUFFIXES = {
    "": 1,
    "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "k": 10**3,
    "Ki": KIB, "Mi": MIB, "Gi": GIB, "Ti": 2**40,
}  # fmt: skip
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)
_AMOUNT = re.compile(
    r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([eE][+-]?[0-9]{1,2})|(m|[kMGTPE]|[KMGTPE]i))?", re.ASCII
)
_AMOUNT_SUFFIXES = {
    **{letter: Decimal(1000) ** n for n, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Decimal(1024) ** n for n, letter in enumerate("KMGTPE", 1)},
    "m": Decimal("0.001"),
}
_PERCENT = re.compile(r"(\d{1,3})\s*%", re.ASCII)
_DURATION = re.compile(r"(\d{1,6})([smh])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_LONGEST = 32


_MOST_COUNT = 10**9


def parse_bytes(text: str) -> int:
    """Bytes in a Kubernetes quantity: ``8Gi``, ``512Mi``, ``8G``, ``1073741824``.

    Fractions of a byte are rounded up, as in Kubernetes. Raises ValueError for other text and for zero.
    """
    match = _QUANTITY.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if match is None or match[2] not in _SUFFIXES:
        unit = match and re.fullmatch(r"([kmgt])(?:i?b|i)?", match[2], re.IGNORECASE)
        hint = f": write {match[1]}{unit[1].upper()}i" if match and unit else ""
        raise ValueError(f"{text[:_LONGEST]!r} is not an amount of memory such as 8Gi or 512Mi{hint}")
    amount_bytes = ceil(Decimal(match[1]) * _SUFFIXES[match[2]])
    if amount_bytes == 0:
        raise ValueError(f"{text!r} is not a positive amount of memory")
    return amount_bytes


def parse_gpu_memory(text: str) -> int:
    """The same for memory of a GPU, where less than 1 MiB means that the unit was forgotten."""
    amount_bytes = parse_bytes(text)
    if amount_bytes < MIB:
        hint = f": write {text.strip()}Gi" if text.strip().isdecimal() else ""
        raise ValueError(f"{text!r} is less than 1Mi of GPU memory{hint}")
    return amount_bytes


def parse_quantity(text: str) -> Decimal:
    """The number that a Kubernetes quantity stands for: ``2``, ``500m``, ``1.5Gi``, ``1e3``.

    Raises ValueError for other text, also for negative amounts.
    """
    match = _AMOUNT.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise ValueError(f"{text[:_LONGEST]!r} is not an amount such as 2, 500m or 16Gi")
    number = Decimal(match[1] + (match[2] or ""))
    return number * _AMOUNT_SUFFIXES.get(match[3] or "", Decimal(1))


def whole_quantity(value: object) -> int | None:
    """The count that a quantity in a manifest stands for (``2``, ``1k``, ``1e0``), as text or number;
    None for anything but a whole number from 0 to 10**9.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        amount = parse_quantity(str(value))
    except ValueError:
        return None
    return int(amount) if amount <= _MOST_COUNT and amount == int(amount) else None


def exact_quantity(amount: int, *, binary: bool = False) -> str:
    """A whole number as the API server writes it back: ``100``, ``1k``; binary: ``79Gi``, ``512Mi``.

    amount: not negative. Source: ``Quantity.CanonicalizeBytes`` of Kubernetes' apimachinery.
    """
    base = 1024 if binary and amount >= 1024 else 1000
    power = 0
    while amount and amount % base == 0 and power < 6:
        amount, power = amount // base, power + 1
    suffix = "kMGTPE"[power - 1] if power else ""
    return f"{amount}{suffix.upper() + 'i' if suffix and base == 1024 else suffix}"


def format_bytes(amount_bytes: int) -> str:
    """Short text: ``79.6 GiB``, ``512 MiB``; exact multiples without a fraction."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if amount_bytes >= size:
            return f"{amount_bytes / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{amount_bytes} B"


def format_exactly(amount_bytes: int) -> str:
    """The same without rounding, for amounts that are compared: ``5.5 GiB``, ``5312 MiB``. Whole MiB."""
    exact = amount_bytes * 10 % GIB == 0 or amount_bytes < GIB
    return format_bytes(amount_bytes) if exact else f"{amount_bytes // MIB} MiB"


def parse_duration(text: str) -> int:
    """Whole seconds from 1 s to 7 days: ``90s``, ``10m``, ``2h``. Raises ValueError for other text."""
    match = _DURATION.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 1 <= seconds <= 7 * 86400:
        raise ValueError(f"{text[:_LONGEST]!r} is not a time such as 90s, 10m or 2h, at most 168h")
    return seconds


def format_duration(seconds: int) -> str:
    """``90 s``, ``10 min``, ``2 h``."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def parse_percent(text: str) -> int:
    """Whole percent from 1 to 100: ``20%``. Raises ValueError for other text."""
    match = _PERCENT.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if match is None or not 1 <= int(match[1]) <= 100:
        raise ValueError(f"{text[:_LONGEST]!r} is not a percentage from 1% to 100%")
    return int(match[1])
