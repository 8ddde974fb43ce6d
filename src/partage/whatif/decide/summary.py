"""What became of the pods of a trace, in figures. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from partage.plan.history.evidence import quantile
from partage.values import Frozen
from partage.whatif.decide.demand import Cause, Unmet
from partage.whatif.decide.play import Played, Refused, Started
from partage.whatif.decide.pods import TracePod
from partage.whatif.decide.usage import Usage


class Waits(Frozen):
    """How long pods waited that started in the end, in seconds."""

    median_s: float
    p95_s: float
    longest_s: float


class NeverFitting(Frozen):
    """Pods that fit on no node, for one cause. unmet: of the nearest to fitting. example: its number."""

    cause: Cause
    pods: int
    unmet: Unmet
    example: int


class RefusedPods(Frozen):
    """Pods that the agent of a node refused at least once. refusals: all of them. example: number of a pod;
    text: the agent's words about it; no_room: because no GPU had so much memory free.
    """

    pods: int
    refusals: int
    example: int
    text: str
    no_room: bool


class FleetUse(Frozen):
    """GPUs, on the average over time, or at the end where no time passes (``over_time``).

    all: of the fleet. offered: of these, what the policy offers. asked: by running pods; held: by them. free:
    offered and not held. blocked: free while pods wait. stranded: free and of no use to any pod of the trace.
    peak_asked, peak_held: at one moment.
    """

    over_time: bool
    all: float
    offered: float
    asked: float
    held: float
    free: float
    blocked: float
    stranded: float
    peak_asked: float
    peak_held: float

    @property
    def fragmentation(self) -> float:
        """The part of the free GPUs that no waiting pod can use, 0 to 1."""
        return self.blocked / self.free if self.free else 0.0


class Summary(Frozen):
    """at_once, waited: pods that started; still_waiting: that did not. never: those that fit on no node, the
    most frequent reason first. span_s: from the first event to the last.
    """

    at_once: int
    waited: int
    waits: Waits | None
    still_waiting: int
    never: tuple[NeverFitting, ...]
    refused: RefusedPods | None
    gpus: FleetUse
    span_s: float

    @property
    def never_pods(self) -> int:
        """Pods that fit on no node."""
        return sum(one.pods for one in self.never)


def summarise(pods: Sequence[TracePod], played: Played) -> Summary:
    """All figures of one play."""
    waits = sorted(
        event.at_s - pods[event.pod].created_s for event in played.events if isinstance(event, Started)
    )
    waited = [one for one in waits if one > 0]
    return Summary(
        at_once=len(waits) - len(waited),
        waited=len(waited),
        waits=_waits(waited),
        still_waiting=len(played.waiting),
        never=tuple(_never(played)),
        refused=_refused(played),
        gpus=_gpu_use(played.usage),
        span_s=played.usage.span_s,
    )


def _waits(ordered: Sequence[float]) -> Waits | None:
    median_s, p95_s = quantile(ordered, 0.5), quantile(ordered, 0.95)
    if median_s is None or p95_s is None:
        return None
    return Waits(median_s, p95_s, ordered[-1])


def _never(played: Played) -> list[NeverFitting]:
    counts = Counter(one.cause for one in played.never.values())
    found = []
    for cause, count in counts.most_common():
        same = [(number, one) for number, one in played.never.items() if one.cause is cause]
        example, nearest = max(same, key=lambda pair: (pair[1].most, -pair[0]))
        found.append(NeverFitting(cause, count, nearest, example))
    return found


def _refused(played: Played) -> RefusedPods | None:
    refusals = [event for event in played.events if isinstance(event, Refused)]
    if not refusals:
        return None
    first = refusals[0]
    return RefusedPods(
        len({one.pod for one in refusals}), len(refusals), first.pod, first.text, first.no_room
    )


def _gpu_use(usage: Usage) -> FleetUse:
    last = usage.moments[-1]
    span_s = usage.span_s
    free = usage.offered - last.held
    if span_s > 0:
        asked, held = usage.asked_time / span_s, usage.held_time / span_s
        free, blocked = usage.free_time / span_s, usage.blocked_time / span_s
        stranded = usage.stranded_time / span_s
    else:
        asked, held, stranded = last.asked, last.held, last.stranded
        blocked = free if last.waiting else 0.0
    figures = (usage.capacity, usage.offered, asked, held, free, blocked, stranded)
    return FleetUse(span_s > 0, *(_gpus(one) for one in (*figures, usage.peak_asked, usage.peak_held)))


def _gpus(milli: float) -> float:
    """GPUs; without the last bits, which sums of parts leave."""
    return max(0.0, round(milli / 1000, 6))
