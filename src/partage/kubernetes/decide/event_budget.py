"""How many events a node may make: a fault that flaps must not fill the cluster with them. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from msgspec import field
from msgspec.structs import replace

from partage.kubernetes.decide.events import NodeEvent
from partage.text import count_of
from partage.values import Frozen

BURST, REFILL_S = 5, 120.0
"""Of one kind about one object: so many at once, then one in so many seconds."""

NODE_BURST, NODE_REFILL_S = 60, 10.0
"""Of a node together. client-go allows 25 about one object, then one in 300 s."""

_FULL_S = max(BURST * REFILL_S, NODE_BURST * NODE_REFILL_S)
"""After so many seconds without an event a bucket is full, and need not be kept."""


class _Bucket(Frozen):
    """left: events at ``at_s``. withheld: events of it that were not made."""

    left: float
    at_s: float
    withheld: int = 0


class EventBudget(Frozen):
    """What is left. Empty: nothing was made yet."""

    buckets: Mapping[Hashable, _Bucket] = field(default_factory=dict)

    def take(self, event: NodeEvent, now_s: float) -> tuple[EventBudget, NodeEvent | None]:
        """The budget after this event; and the event, with how many like it were withheld, or None if it is
        withheld itself.
        """
        kind = _refilled(self.buckets.get((event.about, event.reason)), BURST, REFILL_S, now_s)
        node = _refilled(self.buckets.get(None), NODE_BURST, NODE_REFILL_S, now_s)
        may = kind.left >= 1 and node.left >= 1
        if may:
            more = f" ({count_of(kind.withheld, 'event')} like this not shown)" if kind.withheld else ""
            event = replace(event, note=event.note + more)
            kind, node = _Bucket(kind.left - 1, now_s), _Bucket(node.left - 1, now_s)
        else:
            kind = replace(kind, withheld=kind.withheld + 1)
        kept = {key: one for key, one in self.buckets.items() if now_s - one.at_s < _FULL_S}
        buckets = {**kept, (event.about, event.reason): kind, None: node}
        return EventBudget(buckets), event if may else None


def _refilled(bucket: _Bucket | None, burst: int, refill_s: float, now_s: float) -> _Bucket:
    if bucket is None:
        return _Bucket(burst, now_s)
    left = min(burst, bucket.left + (now_s - bucket.at_s) / refill_s)
    return _Bucket(left, now_s, bucket.withheld)
