"""Files with mistakes, made from the examples: the same ones each time, without chance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_SOURCES = (
    "02-time-slicing/policy.yaml",
    "04-mps-on-two-of-eight/policy.yaml",
    "04-mps-on-two-of-eight/native.yaml",
    "06-mig/mixed.yaml",
    "07-mixed-node/policy.yaml",
    "07-mixed-node/story.yaml",
    "09-mig-parted/cards.yaml",
    "12-mps-namespaces/machine.json",
    "14-gpu-memory/machine.yaml",
    "14-gpu-memory/policy.yaml",
)
_MOST_LINES = 24
_VALUES = (
    "-1",
    "1e9",
    "''",
    "null",
    "[1, 2]",
    "{a: b}",
    "true",
    "text",
    "18446744073709551616",
    "2026-01-01",
)


def wrong_files(examples: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of each: a line left out, twice, misspelt, or with another value; and all at once."""
    for source in _SOURCES:
        text = (examples / source).read_text(encoding="utf-8")
        lines = text.splitlines()
        name = source.replace("/", "-").replace(".", "-")
        places = [n for n, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")]
        for number, place in enumerate(places[:_MOST_LINES]):
            yield f"{name}-{place:03}.yaml", _changed(lines, place, number)
        every = [
            _misspelt(line) if number % 3 else _valued(line, number) for number, line in enumerate(lines)
        ]
        yield f"{name}-all.yaml", "\n".join(every).encode()
        yield f"{name}-half.yaml", text[: len(text) // 2].encode()
        yield f"{name}-latin.yaml", text.encode() + b"\xff\xfe"


def _changed(lines: list[str], place: int, number: int) -> bytes:
    line = lines[place]
    instead = {0: [], 1: [line, line], 2: [_misspelt(line)]}.get(number % 4, [_valued(line, number)])
    return "\n".join([*lines[:place], *instead, *lines[place + 1 :]]).encode()


def _misspelt(line: str) -> str:
    key, colon, value = line.partition(":")
    return f"{key}x{colon}{value}" if colon else line + "x"


def _valued(line: str, number: int) -> str:
    key, colon, _ = line.partition(":")
    return f"{key}{colon} {_VALUES[number % len(_VALUES)]}" if colon else line
