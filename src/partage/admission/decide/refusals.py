"""What no system's pod can be with a claim: placed by hand, or started together with others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from partage.admission.decide import hami, kai, nos_gke, volcano
from partage.admission.decide.need import CannotMean
from partage.admission.decide.pod import AskingPod
from partage.units import whole_quantity

DEFAULT_SCHEDULER = "default-scheduler"
NVIDIA = "nvidia.com/"
"""How names of resources begin that device plugins list: whole GPUs, MIG devices."""
THEIR_SCHEDULERS: Mapping[str, str] = {
    hami.SCHEDULER: hami.SYSTEM,
    volcano.SCHEDULER: volcano.SYSTEM,
    **dict.fromkeys(kai.SCHEDULERS, kai.SYSTEM),
    nos_gke.NOS_SCHEDULER: nos_gke.NOS,
}
"""By name: the system."""
_GROUPS = (
    "scheduling.k8s.io/group-name",
    "scheduling.volcano.sh/group-name",
    "pod-group-name",
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
    "scheduling.x-k8s.io/pod-group",
)
"""Annotations or labels that name the pods which start together."""
LEAST = ("kai.scheduler/batch-min-member", "scheduling.volcano.sh/group-min-member")
"""Annotations of what makes the pods: so many of them start together. Sources: KAI's ``job_grouper.go``,
Volcano's pod-group controller."""
_ONE_BY_ONE = (
    "let the pods start one by one, or keep them with their scheduler, if it is there: --keep-scheduler NAME"
)
_QUEUES = (
    "kai.scheduler/queue",
    "runai/queue",
    "scheduling.volcano.sh/queue-name",
    "volcano.sh/queue-name",
    "kueue.x-k8s.io/queue-name",
)


def refuse_what_cannot_be(pod: AskingPod, owner: Mapping[str, str], *, stays: bool = False) -> None:
    """owner: annotations of what makes the pod, as far as they are known. stays: with the scheduler of its
    system, which starts pods together. Raises CannotMean.
    """
    if pod.node:
        raise CannotMean(
            f"the pod names its node ({pod.node[:63]}), and so never meets the scheduler, which gives claims "
            "their devices",
            "nodeSelector: {kubernetes.io/hostname: NAME} in place of nodeName",
        )
    if stays:
        return
    marks = {**pod.labels, **pod.annotations}
    for key in _GROUPS:
        if marks.get(key):
            raise CannotMean(
                f"the pod belongs to the group {marks[key][:63]} ({key}), whose pods start together or not "
                "at all, which the default scheduler does not do",
                _ONE_BY_ONE,
            )
    for key in LEAST:
        if (whole_quantity({**marks, **owner}.get(key)) or 0) > 1:
            raise CannotMean(
                f"{key} wants pods that start together or not at all, which the default scheduler "
                "does not do",
                _ONE_BY_ONE,
            )


def pod_warnings(pod: AskingPod, kept_schedulers: Collection[str] = ()) -> Iterator[str]:
    """What the pod keeps, and what has no effect any more, clauses. kept_schedulers: of these systems."""
    marks = {**pod.labels, **pod.annotations}
    for key in _QUEUES:
        if marks.get(key):
            yield f"{key}: {marks[key][:63]} is kept, and no quota of that queue counts the pod's GPUs"
    if pod.scheduler not in ("", DEFAULT_SCHEDULER, *(THEIR_SCHEDULERS.keys() - {*kept_schedulers})):
        yield f"the scheduler {pod.scheduler[:63]} is kept: it has to give claims their devices"
