"""What the colours, marks and words of the page of a node mean."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree.ElementTree import Element

from partage.faces.web.markup import element
from partage.faces.wording import GUARANTEES, strategy_word
from partage.model.health import HealthState
from partage.model.policy import Strategy
from partage.plan.serve.ledger_entry import Certainty

MARKS = {
    "held": "held",
    "free": "free",
    "withdrawn": "not usable",
    "planned": "planned",
    "cut": "MIG device, not offered",
    "uncut": "no MIG device",
    "idle": "compute slice without a use",
}
"""Class of a box in the drawings to what it is called."""

CERTAINTIES: Mapping[Certainty, str] = {
    Certainty.TENTATIVE: "pod not known yet",
    Certainty.UNCONFIRMED: "not confirmed",
    Certainty.ENDING: "pod ended",
}
"""What is said beside a holder. Nothing is where the kubelet names it."""

_WORDS = {
    "upper bar": "The memory of a GPU, and its shares.",
    "lower bar": "The compute slices of a GPU in MIG mode. A GPU has fewer of them than memory slices.",
    "held": "A pod has it.",
    "free": "The next pod gets it.",
    "not usable": "No pod has it, and none gets it now: its GPU is lost, unhealthy or cordoned, or about to "
    "change.",
    "compute slice without a use": "It goes with the memory of a MIG device that has fewer compute slices.",
    "planned": "A MIG device that the policy wants and that does not exist yet.",
    **{f"{one}": f"Guarantee of a share's memory: {said}." for one, said in GUARANTEES.items()},
    str(
        HealthState.SUSPECT
    ): "Something was reported of the GPU that may mean nothing. Pods still get shares of it.",
    str(HealthState.UNHEALTHY): "The GPU cannot be used. No pod gets a share of it.",
    str(
        HealthState.PROBATION
    ): "The GPU was reset. It has to go some time without a fault before pods get shares of it.",
    "lost": "The GPU does not answer the driver.",
    "cordoned": "An administrator has closed the GPU: no pod gets a share of it; pods on it keep theirs.",
    "degraded": "Something is wrong with the node, and it goes on giving shares to pods.",
    "not healthy": "The node gives no shares to pods, or a fault would not be noticed.",
    CERTAINTIES[
        Certainty.TENTATIVE
    ]: "The kubelet has given the share away and has not named the container yet.",
    CERTAINTIES[Certainty.UNCONFIRMED]: "The kubelet has just started and does not name the container yet.",
    CERTAINTIES[Certainty.ENDING]: "The kubelet has forgotten the pod. The share is free when none of its "
    "processes is left.",
    "busy": "The part of the GPU's time that a container took.",
    "not known": "Nobody has measured it. It is never shown as 0.",
    "red figure": "A container uses, or has used, more memory than its shares have.",
    "utilisation": "Part of the time in which a GPU worked. In MIG mode, of the busiest MIG device, on "
    "Hopper and later.",
    "peak": "The most memory that a container used since it began.",
    "curves": "The last hour, a minute each: the highest of its samples. A gap was not sampled. A click "
    "leads to the numbers.",
}
"""Each word of the page that needs it, and what it means. The bars are explained beside their colours."""


def legend() -> Element:
    """The colours, always to be seen, and the words, to be opened."""
    return element(
        "div",
        element(
            "details",
            element("summary", "What the words mean"),
            element("dl", *(made for word, said in _WORDS.items() for made in _word(word, said))),
            class_="words",
        ),
        element(
            "ul",
            *(_swatch(mark, word) for mark, word in MARKS.items()),
            *(_colour(one) for one in Strategy),
            class_="legend",
        ),
        class_="key",
    )


def _word(word: str, said: str) -> tuple[Element, Element]:
    return element("dt", word), element("dd", said)


def _swatch(mark: str, word: str) -> Element:
    return element("li", _box(mark), f" {word}", class_="none")


def _colour(strategy: Strategy) -> Element:
    return element("li", _box("held"), f" {strategy_word(strategy)}", class_=str(strategy))


def _box(mark: str) -> Element:
    return element(
        "svg",
        element("rect", x="1", y="1", width="20", height="12", rx="2", class_=mark),
        width="22",
        height="14",
        aria_hidden="true",
    )
