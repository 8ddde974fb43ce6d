"""Values that stand in several files: numbers and names of GPUs and their parts, what a process does over
time, what sensors show. None where a problem was noted.
"""

from __future__ import annotations

import re
from itertools import pairwise

from partage.codec.fields import Field, Table
from partage.codec.reader import Reader, by_type, one_or_many
from partage.model.ids import GpuUuid, MigUuid, PciBusId
from partage.model.samples import Throttle, ThrottleTime
from partage.sim.node.load import Load, LoadPoint, Sensors
from partage.units import parse_bytes

_HIGHEST_INDEX = 1023
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9./-]{0,99}", re.ASCII)
_PCI_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", re.ASCII)


def read_index(field: Field) -> int | None:
    """An index, a minor or an id."""
    return field.integer(0, _HIGHEST_INDEX)


def gpu_uuid(field: Field) -> GpuUuid | None:
    """The UUID of a GPU as the driver writes it."""
    text = field.matching(_UUID, "a UUID")
    return None if text is None else GpuUuid(text)


def mig_uuid(field: Field) -> MigUuid | None:
    """The UUID of a MIG device as the driver writes it."""
    text = field.matching(_UUID, "a UUID")
    return None if text is None else MigUuid(text)


def read_pci_bus_id(field: Field) -> PciBusId | None:
    """A PCI address."""
    text = field.matching(_PCI_BUS_ID, "a PCI address such as 00000000:1A:00.0")
    return None if text is None else PciBusId(text)


_POINT = ("at-s", "memory", "busy", "reading")
MOST_POINTS = 10_000
_EXAMPLE = "{shape: spikes, to: 12Gi, every-s: 30, for-s: 2, busy: 80%}"


def read_load(place: Field) -> Load | None:
    """A curve: ``{shape: wave, to: 12Gi, every-s: 60, idle: 5%, busy: 80%, noise: 2%, seed: 7}``, or a
    recorded one:
    ``{points: [{at-s: 0, memory: 2Gi, busy: 40%, reading: 20%}, ...], repeat: true}``.
    """
    words = place.table(_LOAD.keys, _EXAMPLE)
    if words is None:
        return None
    every_s = words.value("every-s", Field.seconds, 60.0)
    if not every_s:
        words.here("every-s").error("has to be more than 0")
        return None
    return _LOAD.fill(words, every_s=every_s)


def read_sensors(place: Field) -> Sensors | None:
    """What the sensors of a GPU show: ``{temperature: 85, power: 650, throttle: [sw_thermal], throttled-s:
    {thermal: 30},
    ecc-corrected: 2, ecc-uncorrected: 1}``.
    """
    return _SENSORS.read(place, "{temperature: 85}")


def read_bytes(field: Field) -> int | None:
    """``8Gi``, or a number of bytes."""
    return field.integer(0) if type(field.value) is int else field.parsed(parse_bytes, "8Gi")


def _points(field: Field) -> tuple[LoadPoint, ...] | None:
    rows = [row.table(_POINT) for row in field.items(MOST_POINTS) or ()]
    points = [_point(row) for row in rows if row is not None]
    if any(later.at_s <= point.at_s for point, later in pairwise(points)):
        field.error("points have to be in the order of their times")
        return None
    return tuple(points)


def _point(row: Table) -> LoadPoint:
    return LoadPoint(
        row.needed("at-s", Field.seconds) or 0.0,
        row.needed("memory", read_bytes) or 0,
        row.value("busy", _ratio, 0.0),
        row.value("reading", _ratio, 0.0),
    )


def _ratio(field: Field) -> float | None:
    """``40%``, from 0% to 100%."""
    value = field.value
    number = value.removesuffix("%") if isinstance(value, str) and value.endswith("%") else ""
    if not number.isascii() or not number.isdigit() or len(number) > 3 or int(number) > 100:
        field.unfit("a percentage from 0% to 100%")
        return None
    return int(number) / 100


def _times(field: Field) -> dict[ThrottleTime, float]:
    causes = {time.value: time for time in ThrottleTime}
    words = field.table(tuple(causes))
    if words is None:
        return {}
    return {cause: words.value(name, Field.seconds, 0.0) for name, cause in causes.items() if name in words}


_LOAD = Reader(
    Load,
    named={"to_bytes": "to"},
    reads={"to_bytes": read_bytes, "idle": _ratio, "busy": _ratio, "noise": _ratio, "points": _points},
)
_SENSORS = Reader(
    Sensors,
    named={
        "temperature_c": "temperature",
        "power_w": "power",
        "corrected": "ecc-corrected",
        "uncorrected": "ecc-uncorrected",
    },
    reads={"throttle": one_or_many(by_type(Throttle)), "throttled_s": _times},
)
