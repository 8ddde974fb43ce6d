"""The answer of ``simulate --trace``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from partage.answers.documents.document import Document, row
from partage.values import Frozen
from partage.whatif.decide.play import Played
from partage.whatif.decide.pods import Fleet, TracePod
from partage.whatif.decide.summary import FleetUse, Summary, Waits
from partage.whatif.decide.usage import Moment, Usage
from partage.whatif.texts import never_hint, never_sentence, refused_hint, refused_sentence

MOST_POINTS = 500
"""Moments of a document; a plot has no more either."""


class WhatIfFleet(Frozen):
    """The nodes on which the pods are played."""

    nodes: int
    gpus: int


class NeverRow(Frozen):
    """Pods that fit on no node. cause: ``model``, ``resource``, ``share``, ``gpus``, ``memory``, ``cpu`` or
    ``refused``. example: name of a pod. hint: what can be done.
    """

    cause: str
    pods: int
    example: str
    message: str
    hint: str


class RefusedRow(Frozen):
    """Pods that a node refused after they had been scheduled to it. refusals: some pods were refused more
    than once.
    """

    pods: int
    refusals: int
    message: str
    hint: str


class GpuUseRow(Frozen):
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


class MomentRow(Frozen):
    """GPUs and waiting pods at one time. at_s: of the trace. created: pods until then."""

    at_s: float
    created: int
    held: float
    asked: float
    stranded: float
    waiting: int


class PolicyResultRow(Frozen):
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
    never: tuple[NeverRow, ...]
    refused: RefusedRow | None
    gpus: GpuUseRow
    over_time: tuple[MomentRow, ...]


class WhatIfDocument(Document, kw_only=True):
    """The answer of ``simulate --trace``. pods: of the trace. span_s: from its first event to the last, under
    the policy where that is longest. seed: of the draws among equally good nodes.
    """

    kind: Literal["WhatIf"] = "WhatIf"
    trace: str
    pods: int
    fleet: WhatIfFleet
    seed: int
    span_s: float
    policies: tuple[PolicyResultRow, ...]


def what_if_document(
    trace: str,
    pods: Sequence[TracePod],
    fleet: Fleet,
    seed: int,
    results: Sequence[tuple[str, Summary, Played]],
) -> WhatIfDocument:
    """results: name of a policy, its figures, its play."""
    return WhatIfDocument(
        trace=trace,
        pods=len(pods),
        fleet=WhatIfFleet(len(fleet.names), fleet.gpus),
        seed=seed,
        span_s=max(summary.span_s for _, summary, _ in results),
        policies=tuple(_result(name, summary, played, pods) for name, summary, played in results),
    )


def _result(name: str, summary: Summary, played: Played, pods: Sequence[TracePod]) -> PolicyResultRow:
    refused = summary.refused
    return row(
        PolicyResultRow,
        summary,
        policy=name,
        never_fit=summary.never_pods,
        never=tuple(
            NeverRow(
                one.cause.value, one.pods, pods[one.example].name, never_sentence(one, pods), never_hint(one)
            )
            for one in summary.never
        ),
        refused=None
        if refused is None
        else RefusedRow(
            refused.pods, refused.refusals, refused_sentence(refused, pods), refused_hint(refused)
        ),
        gpus=_use(summary.gpus),
        over_time=tuple(_moments(played.usage)),
    )


def _use(use: FleetUse) -> GpuUseRow:
    return row(GpuUseRow, use, fragmentation=round(use.fragmentation, 6))


def _moments(usage: Usage) -> Iterator[MomentRow]:
    for one in thinned(usage.moments):
        held, asked, stranded = (
            max(0.0, round(milli / 1000, 3)) for milli in (one.held, one.asked, one.stranded)
        )
        yield MomentRow(one.at_s, one.created, held, asked, stranded, one.waiting)


def thinned(moments: Sequence[Moment]) -> list[Moment]:
    """At most ``MOST_POINTS`` of them, evenly, the last one among them."""
    step = -(-len(moments) // MOST_POINTS)
    return [*moments[: -1 : max(1, step)], moments[-1]]
