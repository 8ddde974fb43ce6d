"""What the colours, marks and words of the pages mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from partage.answers.render.cards import Mark
from partage.model.health import HealthState
from partage.model.mps import DaemonPhase
from partage.model.share import Guarantee
from partage.model.strategy import Strategy
from partage.plan.serve.ledger_entry import Certainty
from partage.serve_http.pages.markup import element

MARKS = {
    Mark.HELD: "held",
    Mark.FREE: "free",
    Mark.WITHDRAWN: "not usable",
    Mark.PLANNED: "planned",
    Mark.CUT: "MIG device, not offered",
    Mark.UNCUT: "no MIG device",
    Mark.IDLE: "compute slice without a use",
}
"""What each mark, the class of a box in the drawings, is called."""

CERTAINTIES: Mapping[Certainty, str] = {
    Certainty.TENTATIVE: "pod not known yet",
    Certainty.UNCONFIRMED: "not confirmed",
    Certainty.ENDING: "pod ended",
    Certainty.CLAIMED: "by claim",
}
"""What is said beside a holder. Nothing is where the kubelet names it."""

_CERTAINTY_WORDS = {
    Certainty.TENTATIVE: "The kubelet has given the share away, and has not named the container yet.",
    Certainty.UNCONFIRMED: "The kubelet has just started, and does not name the container yet.",
    Certainty.CLAIMED: "A ResourceClaim has the share, until no pod needs the claim any more.",
    Certainty.ENDING: "The kubelet has forgotten the pod. The share is free when no process of it is left.",
}
_HEALTH_WORDS = {
    HealthState.SUSPECT: "Something was reported that may mean nothing. Pods still get shares of the GPU.",
    HealthState.UNHEALTHY: "The GPU cannot be used. No pod gets a share of it.",
    HealthState.PROBATION: "The GPU was reset. No pod gets a share of it before some time without a fault.",
}
_SHARE_WORDS = {
    **{strategy.traits.word: strategy.traits.for_pods for strategy in Strategy},
    "held": "A pod has it.",
    "free": "The next pod gets it.",
    "not usable": "No pod gets it now: its GPU is lost, unhealthy, cordoned or about to change.",
    "lost": "The GPU does not answer the driver.",
    **{str(state): text for state, text in _HEALTH_WORDS.items()},
    "pending changes": "GPUs that are not yet as the policy wants them.",
}
_DAEMON_WORDS = {
    DaemonPhase.STARTING: "It runs, and its limits are not verified yet. No pod gets a share of it.",
    DaemonPhase.SERVING: "It answers.",
    DaemonPhase.FAULT: "One of its servers had a fatal fault. It takes clients again when all have ended.",
    DaemonPhase.SILENT: "It runs, and does not answer, or not so that its answer can be read.",
    DaemonPhase.DEAD: "It does not run any more.",
}
_NODE_WORDS = {
    "upper bar": "The memory of a GPU, and its shares.",
    "lower bar": "The compute slices of a GPU in MIG mode.",
    MARKS[Mark.PLANNED]: "A MIG device that the policy wants, and that does not exist yet.",
    MARKS[Mark.CUT]: "A MIG device of which the policy offers nothing.",
    MARKS[Mark.UNCUT]: "Slices of which no MIG device is made.",
    MARKS[Mark.IDLE]: "It goes with the memory of a MIG device that has fewer compute slices.",
    "cordoned": "An administrator has closed the GPU: no pod gets a share of it, and pods on it keep theirs.",
    **{f"guarantee {guarantee}": f"Of the memory of a share: {guarantee.means}." for guarantee in Guarantee},
    **{CERTAINTIES[certainty]: text for certainty, text in _CERTAINTY_WORDS.items()},
    **{f"MPS daemon {phase}": text for phase, text in _DAEMON_WORDS.items()},
    "utilisation": "Part of the time in which a GPU worked; of its busiest MIG device, on Hopper and later.",
    "busy": "The part of the GPU's time that a container took.",
    "peak": "The most memory that a container used since it began.",
    "green bar": "The memory that a container uses, of what its shares have.",
    "red bar, red figure": "A container uses, or has used, more memory than its shares have.",
    "offers nothing": "Nothing of the GPU is offered to pods.",
    "curves": "The last hour, a minute each: the highest of its samples. A gap was not sampled. A click "
    "shows the numbers.",
    "not known": "It was not measured. It is never shown as 0.",
}
_FLEET_WORDS = {
    "small bar": "A GPU, in the colour of how it is shared, and how much of it is held. Where agents do not "
    "publish that, a resource.",
    "with idle GPUs": "Nodes with GPUs that are held but idle for an hour.",
    "held but idle for an hour": "A pod has held shares of the GPU for an hour, and no sample found it at "
    "work. Not known where fewer than 50 of the 60 minutes were sampled.",
}


def node_legend(standings: Mapping[str, str]) -> Element:
    """Of the page of one node. standings: what is said of how the node is, to what that means."""
    marks = [_swatch(mark, word) for mark, word in MARKS.items()]
    return _legend(marks, {**standings, **_SHARE_WORDS, **_NODE_WORDS})


def fleet_legend(standings: Mapping[str, str]) -> Element:
    """Of the page of many nodes, where each GPU is a small bar."""
    marks = [_swatch(mark, MARKS[mark]) for mark in (Mark.HELD, Mark.FREE, Mark.WITHDRAWN)]
    marks.append(_swatch("trouble", "lost or unhealthy"))
    return _legend(marks, {**standings, **_SHARE_WORDS, **_FLEET_WORDS})


def _legend(marks: Sequence[Element], words: Mapping[str, str]) -> Element:
    """The colours, always to be seen, and the words, to be opened."""
    pairs = (made for word, text in words.items() for made in (element("dt", word), element("dd", text)))
    return element(
        "div",
        element("details", element("summary", "What the words mean"), element("dl", *pairs), class_="words"),
        element("ul", *marks, *(_colour(strategy) for strategy in Strategy), class_="legend"),
        class_="key",
    )


def _swatch(mark: str, word: str) -> Element:
    return element("li", _box(mark), f" {word}", class_="none")


def _colour(strategy: Strategy) -> Element:
    return element("li", _box("held"), f" {strategy.traits.word}", class_=str(strategy))


def _box(mark: str) -> Element:
    return element(
        "svg",
        element("rect", x="1", y="1", width="20", height="12", rx="2", class_=mark),
        width="22",
        height="14",
        aria_hidden="true",
    )
