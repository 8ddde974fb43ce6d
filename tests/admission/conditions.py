"""Which pods are sent to the webhook: those with a name of these systems. As the expression for the API
server (``matchConditions``, CEL) that the chart has to have, and as a function, to compare with what is
translated.

``nvidia.com/gpu`` alone is no such name, but beside a scheduler of theirs it is. What is sent and was not
meant is left as it is; what is not sent and was meant would stay Pending.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from partage.admission.decide import ack, hami, kai, nos_gke, volcano
from partage.admission.decide.pod import asking_pod
from partage.admission.decide.refusals import LEAST, NVIDIA, THEIR_SCHEDULERS
from partage.admission.decide.settings import DialectSettings
from partage.values import Frozen

CONDITION = "asks-in-words-of-another-system"
TOGETHER = "wants-pods-that-start-together"


class SentNames(Frozen):
    """By what pods are known. resources, annotations: one is enough. marked: an annotation that counts beside
    this resource. selected: keys of nodeSelector that count beside this resource. schedulers: that count
    beside any resource of ``nvidia.com/``.
    """

    resources: tuple[str, ...]
    annotations: tuple[str, ...]
    marked: tuple[str, tuple[str, ...]]
    selected: tuple[str, tuple[str, ...]]
    schedulers: tuple[str, ...]


def sent_names(settings: DialectSettings) -> SentNames:
    """With HAMi's names as they are configured."""
    parts = (
        settings.hami_memory,
        settings.hami_percentage,
        settings.hami_cores,
        settings.hami_priority,
    )
    resources = (*dict.fromkeys(parts), *sorted(volcano.RESOURCES), *sorted(ack.RESOURCES))
    return SentNames(
        resources,
        kai.MARKS,
        (settings.hami_count, hami.MARKS),
        (nos_gke.GKE_GPU, nos_gke.SELECTORS),
        tuple(sorted(THEIR_SCHEDULERS)),
    )


def is_sent(pod: Mapping[str, Any], settings: DialectSettings) -> bool:
    """What the expression says of a pod."""
    names, asking = sent_names(settings), asking_pod(pod)
    asked = {name for container in asking.containers for name in container.amounts}
    return (
        any(name in names.resources or re.fullmatch(nos_gke.NOS_SLICE, name) for name in asked)
        or any(mark in names.annotations for mark in asking.annotations)
        or (names.marked[0] in asked and any(mark in asking.annotations for mark in names.marked[1]))
        or (names.selected[0] in asked and any(key in asking.selector for key in names.selected[1]))
        or (asking.scheduler in names.schedulers and any(name.startswith(NVIDIA) for name in asked))
    )


def match_condition(settings: DialectSettings) -> dict[str, str]:
    """The one condition of the webhook. Kubernetes allows 64, all of which have to hold; these names are
    alternatives, so they are one.
    """
    names = sent_names(settings)
    either = (
        _asked(f"k in {_list(names.resources)} || k.matches({_text(f'^{nos_gke.NOS_SLICE}$')})"),
        _has("metadata", "annotations", names.annotations),
        f"{_asked(f'k == {_text(names.marked[0])}')} && {_has('metadata', 'annotations', names.marked[1])}",
        f"{_asked(f'k == {_text(names.selected[0])}')} && {_has('spec', 'nodeSelector', names.selected[1])}",
        f"{_asked(f'k.startsWith({_text(NVIDIA)})')} && "
        f"object.spec.?schedulerName.orValue('') in {_list(names.schedulers)}",
    )
    return {"name": CONDITION, "expression": " || ".join(either)}


def makers_condition() -> dict[str, str]:
    """Of what makes pods, that which says of them what no pod says."""
    return {"name": TOGETHER, "expression": _has("metadata", "annotations", LEAST)}


def _asked(which: str) -> str:
    containers = "(object.spec.?containers.orValue([]) + object.spec.?initContainers.orValue([]))"
    amounts = "c.?resources[?p].orValue({})"
    return f"{containers}.exists(c, ['limits', 'requests'].exists(p, {amounts}.exists(k, {which})))"


def _has(part: str, key: str, names: Iterable[str]) -> str:
    return f"object.{part}.?{key}.orValue({{}}).exists(k, k in {_list(names)})"


def _list(names: Iterable[str]) -> str:
    return json.dumps([*names], separators=(",", ":"))


def _text(name: str) -> str:
    """HAMi's names are an admin's, and may be anything."""
    return json.dumps(name)
