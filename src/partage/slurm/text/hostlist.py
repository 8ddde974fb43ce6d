"""Slurm's short form of many names: ``g[001-500]``, ``/dev/nvidia[0-3,6]``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MOST_NAMES = 100_000
_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
_TAIL = re.compile(r"(.*?)(\d{1,9})", re.ASCII | re.DOTALL)
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def split_list(text: str) -> list[str]:
    """The parts between commas that are not in brackets."""
    parts, depth, begin = [], 0, 0
    for at, sign in enumerate(text):
        depth += (sign == "[") - (sign == "]")
        if sign == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    return [part for part in (*parts, text[begin:]) if part]


def expand_hostlist(text: str) -> list[str]:
    """``g[1-2],h`` as ``g1``, ``g2``, ``h``. Raises ValueError."""
    names: list[str] = []
    for part in split_list(text):
        for name in _expanded(part):
            names.append(name)
            if len(names) > MOST_NAMES:
                raise ValueError(f"{text[:40]!r} means more than {MOST_NAMES:,} names")
    return names


def node_names(text: str) -> tuple[str, ...]:
    """The nodes that ``text`` names, one or a list. Raises ValueError, also for what would be more than a
    name in a line of slurm.conf, and for a name twice."""
    names = tuple(expand_hostlist(text))
    bad = next((name for name in names if not _NODE.fullmatch(name) or name.upper() == "DEFAULT"), None)
    if not names or bad is not None:
        raise ValueError(f"{(bad or text)[:40]!r} is not the name of a node, or a list such as g[001-500]")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"node {twice} occurs twice")
    return names


def in_hostlist(name: str, text: str) -> bool:
    """Whether a name is one of ``text``, which is not expanded: it may be long. False for what is no list."""
    return any(_is_one(name, part) for part in split_list(text))


def _is_one(name: str, part: str) -> bool:
    head, bracket, rest = part.partition("[")
    if not bracket:
        return name == part
    inside, closed, tail = rest.partition("]")
    if not closed or not name.startswith(head):
        return False
    rest = name[len(head) :]
    ranges = [match for piece in inside.split(",") if (match := _RANGE.fullmatch(piece))]
    return any(
        _numbered(rest[:width], bounds[1], bounds[2] or bounds[1]) and _is_one(rest[width:], tail)
        for bounds in ranges
        for width in range(len(bounds[1]), len(bounds[2] or bounds[1]) + 1)
    )


def _numbered(text: str, low: str, high: str) -> bool:
    """Whether it is a number of ``low-high``, as wide as ``low`` at least."""
    if not (text.isascii() and text.isdecimal()):
        return False
    return int(low) <= int(text) <= int(high) and text == f"{int(text):0{len(low)}}"


def _expanded(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        if "]" in part:
            raise ValueError(f"{part[:40]!r} has a bracket that was not opened")
        yield part
        return
    inside, closed, tail = rest.partition("]")
    if not closed or "[" in inside:
        raise ValueError(f"{part[:40]!r} has a bracket that is not closed")
    for piece in inside.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise ValueError(f"{piece[:40]!r} in {part[:40]!r} is not a range of numbers such as 0-3")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low) or int(high) - int(low) > MOST_NAMES:
            raise ValueError(f"{piece!r} in {part[:40]!r} is not a range of numbers such as 0-3")
        for number in range(int(low), int(high) + 1):
            for end in _expanded(tail):
                yield f"{head}{number:0{len(low)}}{end}"
    return


def format_hostlist(names: Iterable[str]) -> str:
    """The short form of names; those that end with consecutive numbers of one width are joined. The order
    of the names is kept."""
    runs: list[tuple[str, list[tuple[str, str]]]] = []
    for name in names:
        match = _TAIL.fullmatch(name)
        if match is None:
            runs.append((name, []))
            continue
        head, number = match[1], match[2]
        if not runs or runs[-1][0] != head or not runs[-1][1]:
            runs.append((head, [(number, number)]))
        elif _follows(runs[-1][1][-1][1], number):
            runs[-1][1][-1] = (runs[-1][1][-1][0], number)
        else:
            runs[-1][1].append((number, number))
    return ",".join(_joined(head, ranges) for head, ranges in runs)


def _follows(before: str, after: str) -> bool:
    """Whether a range may run from one to the other: padded numbers keep their width."""
    padded = len(before) > 1 and before[0] == "0"
    return int(after) == int(before) + 1 and (len(before) == len(after) or (not padded and after[0] != "0"))


def _joined(head: str, ranges: list[tuple[str, str]]) -> str:
    if not ranges:
        return head
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return head + ranges[0][0]
    return f"{head}[{','.join(low if low == high else f'{low}-{high}' for low, high in ranges)}]"
