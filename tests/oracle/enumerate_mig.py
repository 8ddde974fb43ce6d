"""Every MIG layout of every model, by plain enumeration over ``mig_profiles.yaml``.

Compiled from public sources; it shares no code and no data file with the package. A layout is a set of
(profile, start) pairs that do not overlap, keep to the profiles' maximum counts, use no more compute slices
than the GPU has, and no more engines of a kind than the whole-GPU profile owns (null: not checked).
"""

from collections import Counter
from functools import cache
from pathlib import Path

import yaml

ENGINES = ("copy", "decoder", "encoder", "jpeg", "ofa")
DOUBLE_MEM_1G = "GPU_INSTANCE_PROFILE_1_SLICE_REV2"

Multiset = tuple[tuple[str, int], ...]


@cache
def facts():
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(Path(__file__).with_name("mig_profiles.yaml").read_text(), loader)


def models_with_placements():
    return {m["id"]: m for m in facts()["models"] if any(p.get("placements") for p in m["profiles"])}


def is_base(profile):
    name = profile["name"]
    return "+" not in name and not name.endswith("-me") and profile["nvml_enum_name"] != DOUBLE_MEM_1G


def budget(model):
    whole = max(model["profiles"], key=lambda p: (p["slices"], is_base(p)))
    return whole["engines"] or {}


class Space:
    def __init__(self, model):
        self.profiles = [p for p in model["profiles"] if p.get("placements")]
        self.total_slices = model["compute_slices"]
        self.budget = budget(model)
        self.slots = []  # (profile index, start, bitmask)
        for i, p in enumerate(self.profiles):
            size = p["placements"]["size"]
            self.slots += [(i, start, ((1 << size) - 1) << start) for start in p["placements"]["starts"]]
        self.slots.sort(key=lambda slot: (slot[1], slot[0]))

    def fits(self, chosen, slot):
        i, _, mask = slot
        profile = self.profiles[i]
        members = [self.profiles[c[0]] for c in chosen]
        return (
            not any(mask & c[2] for c in chosen)
            and sum(1 for c in chosen if c[0] == i) < profile["max_count"]
            and sum(p["slices"] for p in members) + profile["slices"] <= self.total_slices
            and all(self.engine_fits(members, profile, engine) for engine in ENGINES)
        )

    def engine_fits(self, members, profile, engine):
        cap = self.budget.get(engine)
        used = sum((p["engines"] or {}).get(engine) or 0 for p in (*members, profile))
        return cap is None or used <= cap

    def layouts(self):
        """Every valid non-empty set, each exactly once (slots taken in index order)."""

        def grow(first, chosen):
            for k in range(first, len(self.slots)):
                if self.fits(chosen, self.slots[k]):
                    bigger = [*chosen, self.slots[k]]
                    yield bigger
                    yield from grow(k + 1, bigger)

        yield from grow(0, [])

    def key(self, layout) -> Multiset:
        return tuple(sorted(Counter(self.profiles[c[0]]["name"] for c in layout).items()))


@cache
def feasible(model_id: str) -> frozenset[Multiset]:
    """Every multiset of profiles that some layout of the model has."""
    space = Space(models_with_placements()[model_id])
    return frozenset(space.key(layout) for layout in space.layouts())


@cache
def fixed_layouts(model_id: str) -> frozenset[tuple[tuple[str, int], ...]]:
    """Every layout, as sorted (profile, start) pairs."""
    space = Space(models_with_placements()[model_id])
    return frozenset(
        tuple(sorted((space.profiles[i]["name"], start) for i, start, _ in layout))
        for layout in space.layouts()
    )
