"""What a ResourceSlice of the API ``resource.k8s.io/v1`` says: devices, what they are like, what can be asked
of them; and which versions of the API server understand them.

Amounts are text as the API server writes it back (``units.exact_quantity``), so that what it returns can be
compared with what was sent. Source: the types and the validation of Kubernetes 1.36 and 1.37.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import field

from partage.codec.values import from_plain, to_plain
from partage.values import Frozen

_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?![0-9])", re.ASCII)


class ServerVersion(Frozen, order=True):
    """Version of a Kubernetes server, ``1.36.4``."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, git_version: str) -> ServerVersion:
        """Of ``gitVersion`` in the answer to ``/version``: ``v1.36.4``, ``v1.37.0-gke.12``. Raises
        ValueError.
        """
        match = _VERSION.match(git_version)
        if match is None:
            raise ValueError(f"{git_version[:40]!r} is not a version of Kubernetes such as v1.36.4")
        return cls(int(match[1]), int(match[2]), int(match[3]))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @property
    def too_old(self) -> str:
        """Why this server gets no slices, a sentence; empty if it gets them."""
        if self >= OLDEST:
            return ""
        return (
            f"Kubernetes {self} gets no ResourceSlices: its scheduler can give one device twice; "
            f"claims need {OLDEST} or newer"
        )


COUNTERS_SINCE = ServerVersion(1, 37, 0)
"""Before it, node-local counters make every scheduling cycle look at the pools of all nodes: with 200 nodes
it takes about 500 times as long (Kubernetes #138917)."""

OLDEST = ServerVersion(1, 36, 4)
"""Older ones forget counters, mix up the pools of two drivers, and pass CDI devices twice (Kubernetes
#139040, #140434)."""

NUMA_SINCE = ServerVersion(1, 37, 0)
"""First version in which ``resource.kubernetes.io/numaNode`` is a standard attribute."""


MOST_DEVICES = 64
"""Devices of one slice. 128 are possible where none has a taint; with one number for both, a fault of a GPU
never changes how many slices there are, and so never makes the pool incomplete meanwhile."""

MOST_COUNTER_SETS = 8
"""Counter sets of one slice, which has no devices then."""

LONGEST_TEXT = 64
"""Characters of a string or version."""


class Attribute(Frozen, omit_defaults=True):
    """A fact of a device. Exactly one of the four is set. version: ``1.2.3``, without leading zeros."""

    number: int | None = field(default=None, name="int")
    flag: bool | None = field(default=None, name="bool")
    string: str | None = None
    version: str | None = None


class ValidRange(Frozen, omit_defaults=True):
    """Amounts that a request can name: min, min + step, ... max."""

    min: str
    max: str | None = None
    step: str | None = None


class RequestPolicy(Frozen, omit_defaults=True):
    """What a request gets of a capacity. default: where it names no amount. One of the others is set."""

    default: str
    valid_range: ValidRange | None = None
    valid_values: tuple[str, ...] = ()


class Capacity(Frozen, omit_defaults=True):
    """What a device has of something. request_policy: None: a request takes all of it."""

    value: str
    request_policy: RequestPolicy | None = None


class DeviceTaint(Frozen, omit_defaults=True):
    """effect: NoSchedule: claims that do not tolerate it are not allocated this device. value: the API server
    leaves an empty one out.
    """

    key: str
    effect: str
    value: str = ""


class Counter(Frozen):
    """How much there is of something, or is used up."""

    value: str


class CounterSet(Frozen):
    """What the devices of one GPU use up together. name: unique in the pool. counters: names are DNS
    labels."""

    name: str
    counters: Mapping[str, Counter]


class CounterUse(Frozen):
    """What a device uses up of a counter set while somebody has it."""

    counter_set: str
    counters: Mapping[str, Counter]


class SliceDevice(Frozen, omit_defaults=True):
    """A device. name: a DNS label, unique in its pool. Attributes and capacities without a domain are of the
    driver's domain.
    """

    name: str
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    capacity: Mapping[str, Capacity] = field(default_factory=dict)
    allow_multiple_allocations: bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    consumes_counters: tuple[CounterUse, ...] = ()


class Pool(Frozen):
    """The pool of which a slice is part. generation: only slices of the highest one count; 0 in what is
    decided, the publisher knows it. resource_slice_count: of the whole pool.
    """

    name: str
    generation: int
    resource_slice_count: int


class SliceSpec(Frozen, omit_defaults=True):
    """``spec`` of a ResourceSlice: devices, or counter sets of the pool."""

    driver: str
    node_name: str
    pool: Pool
    devices: tuple[SliceDevice, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As the API server takes it."""
        spec: dict[str, Any] = to_plain(self)
        return spec


def slice_of_json(spec: object) -> SliceSpec:
    """What the API server returned as ``spec``, as far as it is known here. Raises CodecError."""
    return from_plain(SliceSpec, spec, strict=False)
