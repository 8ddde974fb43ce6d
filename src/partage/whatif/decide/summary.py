"""What became of the pods of a trace: figures, and words for those that fit nowhere or were refused. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from partage.plan.history.evidence import quantile
from partage.plan.placement.mix import WHOLE_MILLI
from partage.text import listed
from partage.units import format_bytes
from partage.values import Answer
from partage.whatif.decide.demand import Cause, Unmet
from partage.whatif.decide.play import Played, Refused, Started
from partage.whatif.decide.pods import PodWants, TracePod
from partage.whatif.decide.usage import Moment, Usage

MOST_POINTS = 500
"""Moments of an answer; a plot has no more either."""


class Waits(Answer):
    """How long pods waited that started in the end, in seconds."""

    median_s: float
    p95_s: float
    longest_s: float


class NeverFitting(Answer):
    """Pods that fit on no node. example: name of a pod. hint: what can be done."""

    cause: Cause
    pods: int
    example: str
    message: str
    hint: str


class RefusedPods(Answer):
    """Pods that a node refused after they had been scheduled to it. refusals: some pods were refused more
    than once.
    """

    pods: int
    refusals: int
    message: str
    hint: str


class FleetUse(Answer):
    """Numbers of GPUs, on the average over time, or at the end where no time passes (``overTime`` false).

    all: of the fleet. offered: by the policy. asked: what running pods asked for. held: what they hold; a
    share may be larger than what was asked for. free: offered and not held. blocked: free while pods wait.
    stranded: free, and of no use to any pod of the trace. fragmentation: blocked, as a part of free.
    peak_asked, peak_held: the most at one moment.
    """

    over_time: bool
    all: float
    offered: float
    asked: float
    held: float
    free: float
    blocked: float
    stranded: float
    fragmentation: float
    peak_asked: float
    peak_held: float


class PolicyResult(Answer):
    """What one policy makes of the trace.

    policy: its file. at_once: pods that started when they were created. waited: pods that started later.
    waits: of those that waited. still_waiting: pods that had not started at the end. never_fit: pods that fit
    on no node. over_time: at most 500 moments.
    """

    policy: str
    at_once: int
    waited: int
    waits: Waits | None
    still_waiting: int
    never_fit: int
    never: tuple[NeverFitting, ...]
    refused: RefusedPods | None
    gpus: FleetUse
    over_time: tuple[Moment, ...]


def summarise(policy: str, pods: Sequence[TracePod], played: Played) -> PolicyResult:
    """All figures of one play. policy: its name."""
    waits = sorted(
        event.at_s - pods[event.pod].created_s for event in played.events if isinstance(event, Started)
    )
    waited = [wait for wait in waits if wait > 0]
    return PolicyResult(
        policy=policy,
        at_once=len(waits) - len(waited),
        waited=len(waited),
        waits=_waits(waited),
        still_waiting=len(played.waiting),
        never_fit=len(played.never),
        never=tuple(_never(pods, played)),
        refused=_refused(pods, played),
        gpus=_gpu_use(played.usage),
        over_time=tuple(thinned(played.usage.moments)),
    )


def _waits(ordered: Sequence[float]) -> Waits | None:
    median_s, p95_s = quantile(ordered, 0.5), quantile(ordered, 0.95)
    if median_s is None or p95_s is None:
        return None
    return Waits(median_s, p95_s, ordered[-1])


def _never(pods: Sequence[TracePod], played: Played) -> Iterator[NeverFitting]:
    """The most frequent cause first, each with a pod that is nearest to fitting."""
    counts = Counter(unmet.cause for unmet in played.never.values())
    for cause, count in counts.most_common():
        same = [(number, unmet) for number, unmet in played.never.items() if unmet.cause is cause]
        number, nearest = max(same, key=lambda pair: (pair[1].most, -pair[0]))
        example = pods[number]
        yield NeverFitting(cause, count, example.name, _never_sentence(nearest, example), _HINTS[cause])


def _refused(pods: Sequence[TracePod], played: Played) -> RefusedPods | None:
    refusals = [event for event in played.events if isinstance(event, Refused)]
    if not refusals:
        return None
    first = refusals[0]
    count = len({refusal.pod for refusal in refusals})
    message = _refused_sentence(count, len(refusals), f"{pods[first.pod].name}: {first.text}")
    return RefusedPods(
        count, len(refusals), message, _NO_ROOM_HINT if first.no_room else _HINTS[Cause.REFUSED]
    )


def _gpu_use(usage: Usage) -> FleetUse:
    span_s = usage.span_s
    free = usage.offered - usage.held_milli
    if span_s > 0:
        asked, held = usage.asked_time / span_s, usage.held_time / span_s
        free, blocked = usage.free_time / span_s, usage.blocked_time / span_s
        stranded = usage.stranded_time / span_s
    else:
        asked, held, stranded = usage.asked_milli, usage.held_milli, usage.stranded_milli
        blocked = free if usage.waiting else 0.0
    return FleetUse(
        over_time=span_s > 0,
        all=_gpus(usage.capacity),
        offered=_gpus(usage.offered),
        asked=_gpus(asked),
        held=_gpus(held),
        free=_gpus(free),
        blocked=_gpus(blocked),
        stranded=_gpus(stranded),
        fragmentation=round(_gpus(blocked) / _gpus(free), 6) if _gpus(free) else 0.0,
        peak_asked=_gpus(usage.peak_asked),
        peak_held=_gpus(usage.peak_held),
    )


def _gpus(milli: float) -> float:
    """GPUs; without the last bits, which sums of parts leave."""
    return max(0.0, round(milli / 1000, 6))


def thinned(moments: Sequence[Moment]) -> list[Moment]:
    """At most ``MOST_POINTS`` of them, evenly, the last one among them."""
    step = -(-len(moments) // MOST_POINTS)
    return [*moments[: -1 : max(1, step)], moments[-1]]


def _never_sentence(unmet: Unmet, example: TracePod) -> str:
    """Why pods like this one fit on no node."""
    return f"{_said(unmet, example.wants)}; for example {example.name}"


_HINTS = {
    Cause.MODEL: "add nodes with that GPU to the fleet, or allow other models (gpu_spec)",
    Cause.RESOURCE: "offer that resource in the policy, or ask for one that partage plan --policy shows",
    Cause.SHARE: "offer larger shares on some GPUs: fewer replicas, a larger MIG profile, or exclusive",
    Cause.GPUS: "offer more exclusive GPUs on one node (select: ..., exclusive: {}), or split the pod",
    Cause.CPU: "add larger nodes, or let the pod ask for less CPU",
    Cause.CLAIM: "give more GPUs to claims (via: claims), or ask for what partage plan says of claims",
    Cause.MEMORY: "add larger nodes, or let the pod ask for less memory",
    Cause.REFUSED: "let the pod ask for one share, or change the policy so that a container may have more",
}
"""What could be done about pods that fit on no node."""


def _said(unmet: Unmet, wants: PodWants) -> str:
    match unmet.cause:
        case Cause.MODEL:
            return f"no node has a GPU that they may use ({listed(sorted(wants.models), 4)})"
        case Cause.RESOURCE:
            return f"no node offers {unmet.text}"
        case Cause.SHARE:
            return f"they ask for {_size(wants)}, and {_largest(unmet, wants)}"
        case Cause.GPUS if wants.requests:
            return f"they ask for more shares than a node has ({unmet.most})"
        case Cause.GPUS:
            most = (
                f"one container can have at most {unmet.most} on a node" if unmet.most else "none is offered"
            )
            return f"they ask for {_each(wants)}, and {most}"
        case Cause.CPU:
            most_cpu = f"{unmet.most / 1000:g}"
            return f"they ask for {wants.cpu_milli / 1000:g} CPUs, and such a node has {most_cpu}"
        case Cause.MEMORY:
            has = format_bytes(unmet.most)
            return f"they ask for {format_bytes(wants.memory_bytes)} of memory, and such a node has {has}"
        case Cause.CLAIM:
            return f"no device has what their claims ask for: {unmet.text}"
        case Cause.REFUSED:
            return f"the agent refuses them even on an empty node: {unmet.text}"


def _largest(unmet: Unmet, wants: PodWants) -> str:
    if not unmet.most:
        return "no share is offered where they may run"
    size = format_bytes(unmet.most) if wants.gpu_memory_bytes else _part(unmet.most)
    return f"the largest that one container can have is {size}"


def _each(wants: PodWants) -> str:
    """``8 whole GPUs``, ``2 GPUs, 46 % of each``."""
    if wants.gpu_milli >= WHOLE_MILLI:
        return f"{wants.gpus} whole GPUs"
    size = format_bytes(wants.gpu_memory_bytes) if wants.gpu_memory_bytes else f"{wants.gpu_milli / 10:g} %"
    return f"{wants.gpus} GPUs, {size} of each"


def pods_of(count: int) -> str:
    """``1 pod``, ``8,152 pods``."""
    return f"{count:,} pod" + ("" if count == 1 else "s")


def _size(wants: PodWants) -> str:
    return format_bytes(wants.gpu_memory_bytes) if wants.gpu_memory_bytes else _part(wants.gpu_milli)


def _part(milli: int) -> str:
    """``46 % of a GPU``."""
    return "a whole GPU" if milli >= WHOLE_MILLI else f"{milli / 10:g} % of a GPU"


def _refused_sentence(pods: int, refusals: int, example: str) -> str:
    """That nodes refused pods which the scheduler had sent there. example: ``NAME: what the agent says``."""
    times = "" if refusals == pods else f", {refusals:,} times in all"
    were = "was" if pods == 1 else "were"
    return (
        f"{pods_of(pods)} {were} refused by a node, after the scheduler had chosen it{times}: "
        f"for example {example}"
    )


_NO_ROOM_HINT = (
    "the scheduler counts the free shares of a node, and not of which GPU they are; placement: binpack keeps "
    "more together, shares of fixed size (replicas, MIG) are never refused like this"
)
"""What could be done about pods that are refused because no GPU of the node has so much free."""
