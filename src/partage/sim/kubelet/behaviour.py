"""How an embedded kubelet behaves where kubelets differ, or fail."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from partage.sim.kubelet.device_manager import GRACE_S
from partage.sim.kubelet.pod_resources import RateLimit


class PodResourcesMode(StrEnum):
    """How the PodResources API is. absent: no socket, from the next start on."""

    SERVES = "serves"
    REFUSES = "refuses"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What this kubelet does differently; the default is a usual one.

    May be replaced while it runs, save for the last four, which count from the construction on.
    answers_registration: False never answers Register.
    lists_ended_pods:     PodResources names pods that ended, as kubelets before 1.36 may.
    named_s:              how long after its admission PodResources names a pod.
    start_s:              how long sandbox and image take, after that: then containers start.
    list_s:               how long an answer of PodResources is on its way: so old is what it says.
    list_rate:            None for no limit.
    grace_s, asks_always, forgiving: see DeviceManager.
    """

    answers_registration: bool = True
    pod_resources: PodResourcesMode = PodResourcesMode.SERVES
    lists_ended_pods: bool = False
    named_s: float = 0.0
    start_s: float = 0.0
    list_s: float = 0.0
    list_rate: RateLimit | None = None
    grace_s: float = GRACE_S
    asks_always: bool = True
    forgiving: bool = False
