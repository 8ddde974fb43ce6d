"""The states of a GPU's health: healthy -> suspect -> unhealthy -> probation -> healthy.

The table ``NEXT`` gives the next state; ``_may_leave`` says when a GPU may change to a better state.
Reasons: docs/adr/0021. What the driver reports (GpuCondition) has precedence over the table of XIDs.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import field
from msgspec.structs import replace

from partage.model.gpu import RecoveryAction
from partage.model.ids import GpuUuid
from partage.model.xid import DEFAULT_RULES, XidClass, XidRules, describe
from partage.values import Frozen, Tagged

SUSPECT_S = 300.0
"""A suspect GPU is healthy again after this time without events."""
PROBATION_S = 60.0
"""An unhealthy GPU is offered again after this time without events. A fault in that time doubles it."""
PROBATION_CAP_S = 3600.0
FORGIVEN_S = 3600.0
"""After this time in good health the next probation has its shortest length again."""
OVERRULED_S = 600.0
"""If the driver reports for this long that nothing is needed, a fault of the class ``reset`` is over."""


class GpuCondition(Tagged):
    """What the driver reports about one GPU now (``nvmlDeviceGetFieldValues``). Cheap: asked every few
    seconds.

    gpu: UUID. lost: why it does not answer; None if it answers.
    recovery: None if the driver has no such field.
    rows_pending: remapped memory rows wait for a reset. rows_failed: remapping a row failed.
    fabric_ok: None for GPUs without a fabric.
    mig_mode: MIG mode is on. The driver then suspends the search for the fabric, reports it as in progress,
    and uses the GPU without it (open driver, ``gpuFabricProbeSuspend``).
    resets: how often the GPU was reset since the node booted, as far as that is proven; None if not known.
    """

    gpu: GpuUuid
    lost: str | None = None
    recovery: RecoveryAction | None = None
    rows_pending: bool = False
    rows_failed: bool = False
    fabric_ok: bool | None = None
    mig_mode: bool = False
    resets: int | None = None


class Xid(Tagged):
    """One XID event. gpu: UUID; None if the driver did not name the GPU. gi_id, ci_id: None for the whole
    GPU. resets: ``GpuCondition.resets`` when it was raised; None if not known.
    """

    gpu: GpuUuid | None
    code: int
    gi_id: int | None = None
    ci_id: int | None = None
    resets: int | None = None


class NodeBooted(Tagged):
    """The node has booted since the last event, which is proof of a reset."""


class Unresponsive(Tagged):
    """The helper or the driver does not answer, so the state of the GPU is not known."""

    reason: str


Event = Xid | GpuCondition | NodeBooted | Unresponsive


class HealthState(StrEnum):
    """The states. Shares of healthy and suspect GPUs are offered, of unhealthy GPUs and those on probation
    not.
    """

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    PROBATION = "probation"
    UNHEALTHY = "unhealthy"

    @property
    def offered(self) -> bool:
        """Whether the shares are Healthy for the kubelet."""
        return self in (HealthState.HEALTHY, HealthState.SUSPECT)

    @property
    def severity(self) -> int:
        """0 for healthy up to 3 for unhealthy."""
        return list(HealthState).index(self)


class HealthFinding(StrEnum):
    """What an event means for the health.

    ok:        the driver was asked and reports no problem.
    warning:   the driver reports a problem, but the GPU can be used.
    no-answer: helper or driver did not answer.
    unknown:   an event whose meaning is not known.
    fault, reset: as in ``XidClass``.
    """

    OK = "ok"
    WARNING = "warning"
    NO_ANSWER = "no-answer"
    UNKNOWN = "unknown"
    FAULT = "fault"
    RESET = "reset"


_HEALTHY, _SUSPECT, _PROBATION, _UNHEALTHY = HealthState
_FAULTS = {HealthFinding.FAULT: _UNHEALTHY, HealthFinding.RESET: _UNHEALTHY}

NEXT: Mapping[HealthState, Mapping[HealthFinding, HealthState]] = {
    _HEALTHY: {
        HealthFinding.OK: _HEALTHY,
        HealthFinding.WARNING: _SUSPECT,
        HealthFinding.NO_ANSWER: _SUSPECT,
        HealthFinding.UNKNOWN: _SUSPECT,
        **_FAULTS,
    },
    _SUSPECT: {
        HealthFinding.OK: _HEALTHY,
        HealthFinding.WARNING: _SUSPECT,
        HealthFinding.NO_ANSWER: _SUSPECT,
        HealthFinding.UNKNOWN: _SUSPECT,
        **_FAULTS,
    },
    _UNHEALTHY: {
        HealthFinding.OK: _PROBATION,
        HealthFinding.WARNING: _PROBATION,
        HealthFinding.NO_ANSWER: _UNHEALTHY,
        HealthFinding.UNKNOWN: _UNHEALTHY,
        **_FAULTS,
    },
    _PROBATION: {
        HealthFinding.OK: _HEALTHY,
        HealthFinding.WARNING: _SUSPECT,
        HealthFinding.NO_ANSWER: _PROBATION,
        HealthFinding.UNKNOWN: _PROBATION,
        **_FAULTS,
    },
}
"""State and finding to the next state. ``ok`` and ``warning`` take effect only after ``_may_leave``."""


class HealthStatus(Frozen):
    """The health of a GPU or of one GPU instance. Times are seconds of the caller's clock.

    reason:      a sentence; empty if healthy.
    since_s:     when this state began.
    quiet_until_s: when the state suspect or probation ends if there are no further events.
    probation_s: length of the current or the next probation.
    needs_proof: only proof of a reset ends this state.
    action_seen: the driver has asked for a recovery action since the fault; when it no longer asks, that is
    proof.
    fault_s:     time of the last fault of class ``reset`` that the driver has not confirmed.
    passed_s:    when the last probation ended well.
    """

    state: HealthState = HealthState.HEALTHY
    reason: str = ""
    since_s: float = 0.0
    quiet_until_s: float | None = None
    probation_s: float = PROBATION_S
    needs_proof: bool = False
    action_seen: bool = False
    fault_s: float | None = None
    passed_s: float | None = None


class Health(Frozen):
    """Health of one GPU.

    instances: by GI id, the GPU instances that had an XID of their own.
    resets: ``GpuCondition.resets`` as last reported.
    """

    gpu: HealthStatus = field(default_factory=HealthStatus)
    instances: Mapping[int, HealthStatus] = field(default_factory=dict)
    resets: int | None = None

    def status(self, gi_id: int | None = None) -> HealthStatus:
        """The worse one of the GPU and the GPU instance; without gi_id that of the GPU."""
        own = None if gi_id is None else self.instances.get(gi_id)
        return own if own is not None and own.state.severity > self.gpu.state.severity else self.gpu

    def offered(self, gi_id: int | None = None) -> bool:
        """Whether its shares are Healthy for the kubelet."""
        return self.status(gi_id).state.offered


def next_health(health: Health, event: Event, now_s: float, rules: XidRules = DEFAULT_RULES) -> Health:
    """The health after ``event``. now_s: seconds of a clock that never goes back.

    A state improves only with GpuConditions (every few seconds): without an answer from the driver nothing
    improves. The caller passes events of this GPU only, and an Xid without a GPU to all GPUs.
    """
    match event:
        case GpuCondition():
            return _after_condition(health, event, now_s, rules)
        case Xid():
            return _after_xid(health, event, now_s, rules)
        case NodeBooted():
            return Health(replace(health.gpu, needs_proof=False, action_seen=False))
        case Unresponsive():
            return _after_silence(health, event.reason, now_s)


def keep_instances(health: Health, gi_ids: frozenset[int]) -> Health:
    """Remove GPU instances that no longer exist (the driver reuses their ids)."""
    if health.instances.keys() <= gi_ids:
        return health
    return replace(health, instances={gi: status for gi, status in health.instances.items() if gi in gi_ids})


# --- events to findings --------------------------------------------------------------------------


def _after_xid(health: Health, xid: Xid, now_s: float, rules: XidRules) -> Health:
    meaning = rules.class_of(xid.code)
    if meaning is XidClass.IGNORED:
        return health
    health = _at_count(health, xid.resets)
    # The driver did not name the GPU. All GPUs become suspect, and their conditions decide. Withdrawing every
    # GPU of the node until it is reset would be worse than the fault.
    finding = HealthFinding.UNKNOWN if xid.gpu is None else HealthFinding(meaning.value)
    if finding is HealthFinding.RESET and xid.resets is not None and xid.resets != health.resets:
        finding = HealthFinding.FAULT  # it arrives late: the driver has reported a reset since
    if xid.gi_id is None:
        return replace(health, gpu=_after_finding(health.gpu, finding, describe(xid.code), now_s))
    own = health.instances.get(xid.gi_id, HealthStatus(since_s=now_s))
    status = _after_finding(own, finding, describe(xid.code), now_s)
    return replace(health, instances={**health.instances, xid.gi_id: status})


def _at_count(health: Health, resets: int | None) -> Health:
    """The health when that many resets were counted, before any fault of then. A lower count is of before."""
    if resets is None or (health.resets is not None and resets <= health.resets):
        return health
    if health.resets is None:
        return replace(health, resets=resets)
    instances = {gi: _proven(status) for gi, status in health.instances.items()}
    return Health(_proven(health.gpu), instances, resets)


def _proven(status: HealthStatus) -> HealthStatus:
    """There is proof of a reset, if it needs one."""
    return replace(status, needs_proof=False, action_seen=False) if status.needs_proof else status


def _after_silence(health: Health, reason: str, now_s: float) -> Health:
    gpu = _after_finding(health.gpu, HealthFinding.NO_ANSWER, reason, now_s)
    instances = {
        gi: _after_finding(status, HealthFinding.NO_ANSWER, reason, now_s)
        for gi, status in health.instances.items()
    }
    return replace(health, gpu=gpu, instances=instances)


def _after_condition(health: Health, condition: GpuCondition, now_s: float, rules: XidRules) -> Health:
    known = health.resets is not None and condition.resets is not None
    was_reset = known and (condition.resets or 0) > (health.resets or 0)
    finding, reason = _driver_finding(condition, rules)
    gpu = _after_finding(_with_proof(health.gpu, condition, was_reset, now_s), finding, reason, now_s)
    # The driver reports about the whole GPU; for an instance that can only be an improvement.
    instances = {
        gi: _after_finding(_with_proof(status, condition, was_reset, now_s), HealthFinding.OK, "", now_s)
        for gi, status in health.instances.items()
    }
    return Health(
        gpu=_remember_action(gpu, condition),
        instances={
            gi: _remember_action(status, condition)
            for gi, status in instances.items()
            if status.state is not HealthState.HEALTHY or not _is_forgiven(status, now_s)
        },
        resets=health.resets if condition.resets is None else condition.resets,
    )


def _driver_finding(condition: GpuCondition, rules: XidRules) -> tuple[HealthFinding, str]:
    """What the driver reports, the worst first."""
    if condition.lost is not None:
        return HealthFinding.FAULT, f"does not answer: {condition.lost}"
    if rules.off:
        return HealthFinding.OK, ""
    if _asks_for_action(condition):
        return (
            HealthFinding.RESET,
            f"the driver asks for {_ACTIONS[condition.recovery or RecoveryAction.NONE]}",
        )
    if condition.rows_failed:
        return HealthFinding.FAULT, "a memory row could not be remapped"
    if condition.fabric_ok is False and not condition.mig_mode:
        return HealthFinding.FAULT, "the NVLink fabric is not ready"
    if condition.rows_pending:
        # "New workloads can be launched": NVIDIA, GPU memory error management, row-remapping pending flag.
        return HealthFinding.WARNING, "remapped memory rows wait for a reset"
    return HealthFinding.OK, ""


_ACTIONS = {
    RecoveryAction.NONE: "nothing",
    RecoveryAction.GPU_RESET: "a reset of the GPU",
    RecoveryAction.NODE_REBOOT: "a reboot of the node",
    RecoveryAction.DRAIN_P2P: "an end of peer-to-peer traffic",
    RecoveryAction.DRAIN_AND_RESET: "draining and a reset of the GPU",
    RecoveryAction.RECOVER_IMEX: "a recovery of the IMEX domain",
    RecoveryAction.BUS_RESET: "a reset of the PCIe bus",
    RecoveryAction.SYSTEM_REBOOT: "a reboot of the system",
}


def _asks_for_action(condition: GpuCondition) -> bool:
    return condition.recovery not in (None, RecoveryAction.NONE)


def _with_proof(status: HealthStatus, condition: GpuCondition, was_reset: bool, now_s: float) -> HealthStatus:
    """Use the proof of a reset in a GpuCondition, if there is one."""
    if not status.needs_proof:
        return status
    content = condition.recovery is RecoveryAction.NONE and condition.lost is None
    long_ago = status.fault_s is not None and now_s - status.fault_s >= OVERRULED_S
    return _proven(status) if was_reset or (content and (status.action_seen or long_ago)) else status


def _remember_action(status: HealthStatus, condition: GpuCondition) -> HealthStatus:
    asked = status.needs_proof and not status.action_seen and _asks_for_action(condition)
    return replace(status, action_seen=True) if asked else status


# --- one status -----------------------------------------------------------------------------------


def _after_finding(status: HealthStatus, finding: HealthFinding, reason: str, now_s: float) -> HealthStatus:
    """The status after one finding."""
    state = NEXT[status.state][finding]
    match finding:
        case HealthFinding.FAULT | HealthFinding.RESET:
            return _after_fault(status, finding, reason, now_s)
        case HealthFinding.UNKNOWN if state is HealthState.SUSPECT:
            since_s = status.since_s if status.state is state else now_s
            until_s = now_s + SUSPECT_S
            return replace(status, state=state, reason=reason, since_s=since_s, quiet_until_s=until_s)
        case HealthFinding.UNKNOWN | HealthFinding.NO_ANSWER if state is HealthState.PROBATION:
            return replace(status, quiet_until_s=now_s + status.probation_s)
        case _ if state is status.state or not _may_leave(status, now_s):
            return status
        case _:
            return _enter(status, state, reason, now_s)


def _may_leave(status: HealthStatus, now_s: float) -> bool:
    """Whether a change to a better state is allowed now."""
    return not status.needs_proof and (status.quiet_until_s is None or now_s >= status.quiet_until_s)


def _enter(status: HealthStatus, state: HealthState, reason: str, now_s: float) -> HealthStatus:
    """Change to a better state, or from healthy to suspect after a warning of the driver."""
    if state is HealthState.PROBATION:
        return replace(status, state=state, since_s=now_s, quiet_until_s=now_s + status.probation_s)
    return HealthStatus(
        state=state,
        reason=reason,
        since_s=now_s,
        probation_s=status.probation_s,
        passed_s=now_s if status.state is HealthState.PROBATION else status.passed_s,
    )


def _after_fault(status: HealthStatus, finding: HealthFinding, reason: str, now_s: float) -> HealthStatus:
    """Unhealthy after a fault. A fault that needs a reset keeps its reason if a lesser one follows."""
    resets = finding is HealthFinding.RESET
    fresh = status.state is not HealthState.UNHEALTHY
    keeps_reason = not fresh and status.needs_proof and not resets
    return replace(
        status,
        state=HealthState.UNHEALTHY,
        reason=status.reason if keeps_reason else reason,
        since_s=now_s if fresh else status.since_s,
        quiet_until_s=None,
        probation_s=_next_probation_s(status, now_s),
        needs_proof=resets or (status.needs_proof and not fresh),
        fault_s=now_s if resets and not status.action_seen else status.fault_s,
    )


def _next_probation_s(status: HealthStatus, now_s: float) -> float:
    if status.state is HealthState.PROBATION:
        return min(2 * status.probation_s, PROBATION_CAP_S)
    return PROBATION_S if _is_forgiven(status, now_s) else status.probation_s


def _is_forgiven(status: HealthStatus, now_s: float) -> bool:
    """Healthy for so long that earlier faults no longer count."""
    if not status.state.offered:
        return False
    return status.passed_s is None or now_s - status.passed_s >= FORGIVEN_S
