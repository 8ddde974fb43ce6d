"""How an embedded kubelet behaves where kubelets differ or fail."""

from __future__ import annotations

from enum import StrEnum

from partage.sim.kubelet.device_manager import GRACE_S
from partage.sim.kubelet.pod_resources import RateLimit
from partage.values import Frozen


class PodResourcesMode(StrEnum):
    """How the PodResources API answers. absent: there is no socket, from the next start on."""

    SERVES = "serves"
    REFUSES = "refuses"
    ABSENT = "absent"


class Behaviour(Frozen):
    """What a kubelet does; the default is a usual one.

    It can be replaced while the kubelet runs, except for the last five fields: these are read once.
    answers_registration: False: Register is never answered.
    lists_ended_pods:     PodResources names pods that ended, as kubelets before 1.36 can.
    knows_pods:           False: pods from before the last start are not named, and their ends not noticed: as
                          after a start until the API server answers.
    unlisted_s:           how long after its admission PodResources does not name a pod yet.
    start_delay_s:        how long sandbox and image take after that; then containers start.
    list_delay_s:         how long after its making an answer of PodResources arrives.
    list_rate:            limit of calls to PodResources; None: no limit.
    grace_s, allocate_delay_s, always_asks_preference, ignores_late_ends: see DeviceManager.
    """

    answers_registration: bool = True
    pod_resources: PodResourcesMode = PodResourcesMode.SERVES
    lists_ended_pods: bool = False
    knows_pods: bool = True
    unlisted_s: float = 0.0
    start_delay_s: float = 0.0
    list_delay_s: float = 0.0
    list_rate: RateLimit | None = None
    grace_s: float = GRACE_S
    allocate_delay_s: float = 0.0
    always_asks_preference: bool = True
    ignores_late_ends: bool = False
