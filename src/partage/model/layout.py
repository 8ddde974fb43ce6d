"""The MIG layout of one GPU: whether it fits, where its instances are placed, why it does not fit, and the
names that layouts have.

On an empty GPU placing needs no search: instances are sorted by size, then by compute slices, largest first,
and each gets the first free start in ``preferred_starts`` of its profile. A test checks by enumeration that
this finds a placement whenever there is one. With starts that the layout fixes, and on a GPU whose geometry
only its driver knows, this rule can fail; then the other starts are tried.

Names and their rules are mig-parted's, for every model. ``all-<profile>`` is as many MIG devices of a profile
as the model holds; ``+`` is written as ``.`` (``all-1g.10gb.me``). ``all-balanced`` is two 1g, one 2g and one
3g on a GPU with 7 compute slices, two 1g and one 2g on a GPU with 4. ``all-enabled`` is MIG mode without MIG
devices, ``all-disabled`` no MIG mode.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field

from partage.model.geometry import (
    ENGINE_KINDS,
    Geometry,
    MigProfile,
    MisprintedLayout,
    Placement,
    ProfileSpec,
)
from partage.model.gpu import MigDevice
from partage.text import counted
from partage.values import Frozen


class LayoutItem(Frozen):
    """One MIG device of a layout. start: its first memory slice if the layout fixes it (``3g.40gb@4``), else
    None.
    """

    profile: MigProfile
    start: int | None = None

    @classmethod
    def parse(cls, text: str) -> LayoutItem:
        """Inverse of ``str``. Raises ValueError."""
        name, at, start = text.partition("@")
        if at and not (start.isascii() and start.isdigit() and len(start) <= 2):
            raise ValueError(f"{text!r}: '@' must be followed by a number, the first memory slice")
        return cls(MigProfile.parse(name), int(start) if at else None)

    def __str__(self) -> str:
        return str(self.profile) if self.start is None else f"{self.profile}@{self.start}"


class PlacedItem(Frozen):
    """The place of one MIG device of a layout. spec, placement: of its GPU instance, which it may share.

    instance: number of the GPU instance in the layout, from 0, ordered by first memory slice.
    """

    item: LayoutItem
    spec: ProfileSpec
    placement: Placement
    instance: int


class MisfitKind(StrEnum):
    """Why a layout does not fit."""

    UNKNOWN_PROFILE = "unknown-profile"
    UNKNOWN_NAME = "unknown-name"
    BAD_COMPUTE = "bad-compute"
    BAD_START = "bad-start"
    TOO_MANY = "too-many"
    TOO_MANY_INSTANCES = "too-many-instances"
    COMPUTE = "compute-slices"
    ENGINES = "engines"
    MEMORY = "memory-slices"


class DoesNotFit(Exception):
    """A layout that is impossible on this GPU model. The text is one sentence for the operator; kind: for
    programs.
    """

    def __init__(self, kind: MisfitKind, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class _Instance(Struct):
    """A GPU instance of the layout: positions of its items in the layout, their compute slices, and its
    start.
    """

    spec: ProfileSpec
    start: int | None
    members: list[int] = field(default_factory=list)
    computes: list[int] = field(default_factory=list)


def place(geometry: Geometry, items: Sequence[LayoutItem]) -> tuple[PlacedItem, ...]:
    """The placement of each of ``items`` on an empty GPU, in their order.

    Items with fewer compute slices than their GPU instance (``1c.3g.40gb``) fill one GPU instance before
    the next one is created. Raises DoesNotFit.
    """
    if len(items) > geometry.compute_slices:
        raise DoesNotFit(
            MisfitKind.COMPUTE,
            f"{len(items)} MIG devices need at least {len(items)} compute slices, "
            f"and {geometry.model} has {geometry.compute_slices}",
        )
    instances = _instances(geometry, items)
    _within_budgets(geometry, instances)
    starts = _starts(geometry, instances)
    order = sorted(range(len(instances)), key=lambda at: starts[at])
    number = {at: n for n, at in enumerate(order)}
    placed = {
        member: PlacedItem(
            items[member], instance.spec, Placement(starts[at], instance.spec.size), number[at]
        )
        for at, instance in enumerate(instances)
        for member in instance.members
    }
    return tuple(placed[position] for position in range(len(items)))


def matches(live: Sequence[MigDevice], items: Sequence[LayoutItem]) -> bool:
    """Whether the live MIG devices are those that ``items`` ask for: the same profiles, and fixed starts.

    A device whose start is not known is at no fixed start.
    """
    starts = (None if device.placement is None else device.placement.start for device in live)
    left = Counter(zip((MigProfile.parse(device.profile) for device in live), starts, strict=True))
    for item in items:
        if item.start is not None:
            left[item.profile, item.start] -= 1
    if any(count < 0 for count in left.values()):
        return False
    loose = Counter(item.profile for item in items if item.start is None)
    unplaced: Counter[MigProfile] = Counter()
    for (profile, _), count in left.items():
        unplaced[profile] += count
    return +unplaced == loose


def compute_choices(gpu_slices: int) -> tuple[int, ...]:
    """Possible compute slices of a compute instance in a GPU instance with ``gpu_slices`` compute slices."""
    return tuple(c for c in range(1, gpu_slices + 1) if c == gpu_slices or 2 * c <= gpu_slices + 1)


def _instances(geometry: Geometry, items: Sequence[LayoutItem]) -> list[_Instance]:
    """The GPU instances that ``items`` need; fixed starts first, so that other items can share their
    instances.
    """
    instances: list[_Instance] = []
    by_need = sorted(
        range(len(items)), key=lambda at: (items[at].start is None, -items[at].profile.compute_slices)
    )
    for at in by_need:
        item = items[at]
        spec = _spec(geometry, item)
        host = next((instance for instance in instances if _takes(instance, spec, item)), None)
        if host is None:
            host = _Instance(spec, item.start)
            instances.append(host)
        host.members.append(at)
        host.computes.append(item.profile.compute_slices)
    return instances


def _takes(instance: _Instance, spec: ProfileSpec, item: LayoutItem) -> bool:
    room = spec.compute_slices - sum(instance.computes)
    return (
        instance.spec is spec
        and (item.start is None or item.start == instance.start)
        and item.profile.compute_slices <= room
    )


def _spec(geometry: Geometry, item: LayoutItem) -> ProfileSpec:
    spec = geometry.spec(item.profile)
    if spec is None:
        raise DoesNotFit(MisfitKind.UNKNOWN_PROFILE, _unknown(geometry, item.profile))
    if item.profile.compute_slices not in compute_choices(spec.compute_slices):
        raise DoesNotFit(
            MisfitKind.BAD_COMPUTE,
            f"{item.profile}: a {spec.profile} instance can be split into compute instances of "
            f"{_listed(compute_choices(spec.compute_slices))} slices only",
        )
    if item.start is not None and item.start not in spec.starts:
        raise DoesNotFit(
            MisfitKind.BAD_START,
            f"{item}: on {geometry.model}, {spec.profile} can start at memory slice "
            f"{_listed(spec.starts)} only",
        )
    return spec


def _unknown(geometry: Geometry, profile: MigProfile) -> str:
    import difflib

    names = [str(spec.profile) for spec in geometry.profiles]
    nearest = difflib.get_close_matches(str(profile.gpu_instance), names, n=3, cutoff=0.5) or names
    return f"{geometry.model} has no profile {profile.gpu_instance}; nearest: {', '.join(nearest)}"


def _within_budgets(geometry: Geometry, instances: Sequence[_Instance]) -> None:
    specs = [instance.spec for instance in instances]
    for spec, count in Counter(spec.profile for spec in specs).items():
        allowed = next(row.max_count for row in geometry.profiles if row.profile == spec)
        if count > allowed:
            raise DoesNotFit(
                MisfitKind.TOO_MANY, f"{geometry.model} holds at most {allowed} x {spec}, not {count}"
            )
    if len(specs) > geometry.max_instances:
        raise DoesNotFit(
            MisfitKind.TOO_MANY_INSTANCES,
            f"{geometry.model} holds at most {geometry.max_instances} GPU instances, not {len(specs)}",
        )
    wanted = sum(spec.compute_slices for spec in specs)
    if wanted > geometry.compute_slices:
        raise DoesNotFit(
            MisfitKind.COMPUTE,
            f"{_summary(specs)} need {wanted} compute slices, "
            f"and {geometry.model} has {geometry.compute_slices}",
        )
    for kind in ENGINE_KINDS:
        _within_engines(geometry, specs, kind)


def _within_engines(geometry: Geometry, specs: Sequence[ProfileSpec], kind: str) -> None:
    whole = geometry.whole.engines
    budget = getattr(whole, kind) if whole else None
    if budget is None:
        return
    users = [(spec, getattr(spec.engines, kind) or 0) for spec in specs if spec.engines]
    used = sum(amount for _, amount in users)
    if used > budget:
        users_text = _summary([spec for spec, amount in users if amount])
        raise DoesNotFit(
            MisfitKind.ENGINES,
            f"{users_text} need {used} {kind} engines, and {geometry.model} has {budget}",
        )


def _starts(geometry: Geometry, instances: Sequence[_Instance]) -> dict[int, int]:
    """First memory slice of each instance, by its position. Raises DoesNotFit."""
    taken: dict[int, Placement] = {}
    for at, instance in enumerate(instances):
        if instance.start is not None:
            taken[at] = _fixed(geometry, instance, instances, taken)
    loose = sorted(
        (at for at in range(len(instances)) if at not in taken),
        key=lambda at: (-instances[at].spec.size, -instances[at].spec.compute_slices),
    )
    search = bool(taken) or geometry.from_driver
    found = next(_placements(instances, loose, taken), None) if search else _greedy(instances, loose)
    if found is None:
        raise DoesNotFit(MisfitKind.MEMORY, _no_room(geometry, instances))
    return {at: placement.start for at, placement in found.items()}


def _fixed(
    geometry: Geometry, instance: _Instance, instances: Sequence[_Instance], taken: dict[int, Placement]
) -> Placement:
    assert instance.start is not None
    wanted = Placement(instance.start, instance.spec.size)
    other = next((at for at, placement in taken.items() if placement.overlaps(wanted)), None)
    if other is not None:
        raise DoesNotFit(
            MisfitKind.MEMORY,
            f"{instance.spec.profile}@{instance.start} and "
            f"{instances[other].spec.profile}@{taken[other].start} overlap on {geometry.model}",
        )
    return wanted


def _free_starts(spec: ProfileSpec, taken: dict[int, Placement]) -> Iterator[Placement]:
    for start in spec.preferred_starts:
        wanted = Placement(start, spec.size)
        if not any(placement.overlaps(wanted) for placement in taken.values()):
            yield wanted


def _greedy(instances: Sequence[_Instance], order: Sequence[int]) -> dict[int, Placement] | None:
    taken: dict[int, Placement] = {}
    for at in order:
        placement = next(_free_starts(instances[at].spec, taken), None)
        if placement is None:
            return None
        taken[at] = placement
    return taken


def _placements(
    instances: Sequence[_Instance], order: Sequence[int], taken: dict[int, Placement]
) -> Iterator[dict[int, Placement]]:
    """Every way to place the instances of ``order`` beside the fixed ones, preferred starts first."""
    if not order:
        yield taken
        return
    for placement in _free_starts(instances[order[0]].spec, taken):
        yield from _placements(instances, order[1:], {**taken, order[0]: placement})


def _no_room(geometry: Geometry, instances: Sequence[_Instance]) -> str:
    named = [str(LayoutItem(instance.spec.profile, instance.start)) for instance in instances]
    need = sum(instance.spec.size for instance in instances)
    if need > geometry.memory_slices:
        return (
            f"{counted(named)} need {need} memory slices, and {geometry.model} has {geometry.memory_slices}"
        )
    return (
        f"{counted(named)} do not fit side by side on {geometry.model}: no free slices where they may start"
    )


def _summary(specs: Sequence[ProfileSpec]) -> str:
    return counted(spec.profile for spec in specs)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


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
