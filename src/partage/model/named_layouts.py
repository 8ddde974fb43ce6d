"""Layouts with names: ``all-balanced``, ``all-1g.10gb``. The names and rules are mig-parted's, for every
model.

``all-<profile>`` is as many MIG devices of a profile as the model holds; ``+`` is written as ``.``
(``all-1g.10gb.me``). ``all-balanced`` is two 1g, one 2g and one 3g on a GPU with 7 compute slices, two 1g
and one 2g on a GPU with 4. ``all-enabled`` is MIG mode without MIG devices, ``all-disabled`` no MIG mode.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from partage.model.geometry import Geometry, MisprintedLayout
from partage.model.layout import DoesNotFit, LayoutItem, MisfitKind
from partage.model.profile import MigProfile
from partage.text import counted
from partage.values import Frozen

ENABLED, DISABLED, BALANCED = "all-enabled", "all-disabled", "all-balanced"
_FIXED = (ENABLED, DISABLED, BALANCED)
_ALL_OF = re.compile(r"all-(\d+g\.\d+gb(?:-me)?)(?:[.+]([a-z][a-z0-9.,]*))?", re.ASCII)
_BALANCED: Mapping[int, tuple[int, ...]] = {7: (1, 1, 2, 3), 4: (1, 1, 2)}
"""Compute slices of the largest profile, to those of each MIG device of ``all-balanced``."""


class ResolvedLayout(Frozen):
    """The MIG devices of a layout on one model. doubt: a sentence if a misprint was corrected, else empty."""

    items: tuple[LayoutItem, ...]
    doubt: str = ""


def parse_layout_name(text: str) -> str:
    """The name in the spelling of ``named_layouts``. Raises ValueError for a text that no layout can have as
    name.
    """
    match = _ALL_OF.fullmatch(text)
    if match is not None:
        profile = match[1] + (f"+{match[2]}" if match[2] else "")
        return _all_of(MigProfile.parse(profile))
    if text not in _FIXED:
        import difflib  # only a wrong name has to pay for it

        near = difflib.get_close_matches(text[:40], _FIXED, n=1)
        advice = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(
            f"{text[:40]!r} is not the name of a layout: all-balanced, all-enabled, all-disabled, or all- "
            f"and a profile, such as all-1g.10gb{advice}"
        )
    return text


def named_layouts(geometry: Geometry) -> dict[str, tuple[LayoutItem, ...]]:
    """The layouts of one model that have MIG devices, by name; ``all-balanced`` only if the model has one."""
    named = {
        _all_of(spec.profile): (LayoutItem(spec.profile),) * spec.max_count for spec in geometry.profiles
    }
    balanced = _balanced(geometry)
    return {**named, BALANCED: balanced} if balanced else named


def resolve_layout(
    geometry: Geometry, items: Sequence[LayoutItem], name: str | None = None
) -> ResolvedLayout:
    """The MIG devices of ``items``, or of the layout called ``name``, on this model.

    A published row that the model cannot have (``Geometry.misnamed``) is replaced by the layout that was
    meant. Raises DoesNotFit if the model has no layout of that name.
    """
    known = named_layouts(geometry)
    if name is not None and name in known:
        return ResolvedLayout(known[name])
    wrong = next((row for row in geometry.misnamed if _is_row(row, items, name)), None)
    if wrong is not None:
        right = tuple(map(LayoutItem, wrong.right))
        return ResolvedLayout(right, _correction(geometry, wrong, known, name))
    if name is None:
        return ResolvedLayout(tuple(items))
    import difflib

    nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    raise DoesNotFit(
        MisfitKind.UNKNOWN_NAME,
        f"{geometry.model} has no layout {name}; {'nearest' if nearest else 'it has'}: "
        f"{', '.join(nearest or known)}",
    )


def _all_of(profile: MigProfile) -> str:
    return f"all-{profile}".replace("+", ".").replace(",", ".")


def _balanced(geometry: Geometry) -> tuple[LayoutItem, ...]:
    """For each size the profile without attributes of which most fit (not the 1g with double memory)."""
    plain: dict[int, tuple[int, MigProfile]] = {}
    for spec in geometry.profiles:
        if not spec.profile.attributes:
            best = plain.get(spec.compute_slices, (0, spec.profile))
            plain[spec.compute_slices] = max(best, (spec.max_count, spec.profile), key=lambda row: row[0])
    sizes = _BALANCED.get(max(plain, default=0), ())
    return tuple(LayoutItem(plain[size][1]) for size in sizes) if set(sizes) <= set(plain) else ()


def _is_row(row: MisprintedLayout, items: Sequence[LayoutItem], name: str | None) -> bool:
    if name is not None:
        return name == row.name
    asked = Counter(item.profile for item in items)
    return asked == Counter(row.listed) and all(item.start is None for item in items)


def _correction(
    geometry: Geometry, wrong: MisprintedLayout, known: Mapping[str, tuple[LayoutItem, ...]], name: str | None
) -> str:
    right = Counter(wrong.right)
    called = next((name for name, items in known.items() if Counter(i.profile for i in items) == right), None)
    written = name or counted(wrong.listed)
    taken = f"{called}: {counted(wrong.right)}" if called else counted(wrong.right)
    return f"{written} is a misprint in {wrong.source}: {geometry.model} has no such profile; using {taken}"
