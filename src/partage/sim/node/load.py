"""What a simulated process does over time: memory and activity as a function of its age; and sensors that
show something else than that. Deterministic.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from enum import StrEnum

from msgspec import field

from partage.model.samples import Throttle, ThrottleTime
from partage.values import Frozen


class LoadShape(StrEnum):
    """The form of a curve between a low and a high value.

    steady: high from the start. ramp: from low to high within ``every_s``, then high.
    wave: a cosine from low to high and back in ``every_s``.
    spikes: low, and high in the last ``for_s`` of every ``every_s``.
    """

    STEADY = "steady"
    RAMP = "ramp"
    WAVE = "wave"
    SPIKES = "spikes"


class LoadPoint(Frozen):
    """One point of a recorded curve; it holds until the next one. sm, memory: parts of the GPU's time."""

    at_s: float
    memory_bytes: int
    sm: float = 0.0
    memory: float = 0.0


class Load(Frozen):
    """A curve. points: a recorded one; empty: ``shape`` between low and high.

    to_bytes: the high value of the memory; the low one is the process's own. idle, busy: low and high
    activity, parts of the GPU's time. noise: so much of each value at most is added or taken away, by
    ``seed``. repeat: a recorded curve begins again after its last point.
    """

    shape: LoadShape = LoadShape.STEADY
    to_bytes: int | None = None
    idle: float = 0.0
    busy: float = 0.0
    every_s: float = 60.0
    for_s: float = 1.0
    noise: float = 0.0
    seed: int = 0
    points: tuple[LoadPoint, ...] = ()
    repeat: bool = False


class LoadNow(Frozen):
    """The values at one moment. memory_bytes: None if nothing says how much it is."""

    memory_bytes: int | None
    sm: float
    memory: float


def load_at(load: Load, from_bytes: int | None, age_s: float) -> LoadNow:
    """The values of a process of that age. from_bytes: its own memory, the low value of a shape."""
    if load.points:
        point = _point(load, age_s)
        return LoadNow(
            round(point.memory_bytes * _noise(load, "bytes", age_s)),
            _ratio(point.sm * _noise(load, "sm", age_s)),
            _ratio(point.memory * _noise(load, "memory", age_s)),
        )
    level = _level(load, age_s)
    amount = None
    if from_bytes is not None or load.to_bytes is not None:
        low = from_bytes or 0
        high = low if load.to_bytes is None else load.to_bytes
        amount = round((low + (high - low) * level) * _noise(load, "bytes", age_s))
    activity = load.idle + (load.busy - load.idle) * level
    sm = _ratio(activity * _noise(load, "sm", age_s))
    return LoadNow(amount, sm, _ratio(sm / 2))


def _level(load: Load, age_s: float) -> float:
    """0 for low, 1 for high."""
    match load.shape:
        case LoadShape.STEADY:
            return 1.0
        case LoadShape.RAMP:
            return min(1.0, age_s / load.every_s)
        case LoadShape.WAVE:
            return (1 - math.cos(2 * math.pi * age_s / load.every_s)) / 2
        case LoadShape.SPIKES:
            return float(age_s % load.every_s >= load.every_s - load.for_s)


def _point(load: Load, age_s: float) -> LoadPoint:
    last_s = load.points[-1].at_s
    at_s = age_s % last_s if load.repeat and last_s > 0 else age_s
    return max((point for point in load.points if point.at_s <= at_s), key=_when, default=load.points[0])


def _when(point: LoadPoint) -> float:
    return point.at_s


def _noise(load: Load, what: str, age_s: float) -> float:
    """A factor around 1, the same for the same seed and second."""
    if not load.noise:
        return 1.0
    number = zlib.crc32(f"{load.seed}/{what}/{int(age_s)}".encode()) / 0xFFFFFFFF
    return 1.0 + load.noise * (2 * number - 1)


def _ratio(value: float) -> float:
    return max(0.0, min(1.0, value))


class Sensors(Frozen):
    """What the sensors of a GPU show in place of what its load would give. None, and an empty tuple: what it
    gives.

    throttle: why its clocks are lowered. throttled_s: time so far, by cause. corrected, uncorrected: ECC
    errors.
    """

    temperature_c: float | None = None
    power_w: float | None = None
    throttle: tuple[Throttle, ...] = ()
    throttled_s: Mapping[ThrottleTime, float] = field(default_factory=dict)
    corrected: int = 0
    uncorrected: int = 0
