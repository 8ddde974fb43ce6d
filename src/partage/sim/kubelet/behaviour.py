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

    It can be replaced while the kubelet runs, except for the last six fields: these are read once.
    answers_registration: False: Register is never answered.
    registration_delay_s: how long after its arrival the kubelet acts on a Register.
    accepts_late:         a Register that its caller gave up before that is accepted all the same. False: it
                          fails, as it does in a kubelet that stood still.
    watch_delay_s:        how long after its arrival a plugin's list is taken over.
    answer_delay_s:       how long after its arrival an answer to Allocate is taken over.
    lists_ended_pods:     PodResources names pods that ended, as kubelets before 1.36 can.
    knows_pods:           False: pods from before the last start are not named, and their ends not noticed: as
                          after a start until the API server answers. They are admitted again when it does.
    sync_delay_s:         how long after a start its answer comes.
    unlisted_s:           how long after its admission PodResources does not name a pod yet.
    start_delay_s:        how long sandbox and image take after that; then containers start.
    list_delay_s:         how long after its making an answer of PodResources arrives.
    list_rate:            limit of calls to PodResources; None: no limit.
    grace_s, allocate_delay_s, always_asks_preference, keeps_by_path: see DeviceManager.
    """

    answers_registration: bool = True
    registration_delay_s: float = 0.0
    accepts_late: bool = False
    watch_delay_s: float = 0.0
    answer_delay_s: float = 0.0
    pod_resources: PodResourcesMode = PodResourcesMode.SERVES
    lists_ended_pods: bool = False
    knows_pods: bool = True
    sync_delay_s: float = 1.0
    unlisted_s: float = 0.0
    start_delay_s: float = 0.0
    list_delay_s: float = 0.0
    list_rate: RateLimit | None = None
    grace_s: float = GRACE_S
    allocate_delay_s: float = 0.0
    always_asks_preference: bool = True
    keeps_by_path: bool = False
