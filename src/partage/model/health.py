"""The life cycle of a GPU's health: healthy -> suspect -> unhealthy -> probation -> healthy.

One table says which state follows (``NEXT``); ``_may_leave`` says when a state may be left for a better one.
The reasons are in docs/adr/0021. The driver's own word (a Condition) outranks the table of XIDs, both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from partage.model.gpu import RecoveryAction
from partage.model.xid import DEFAULT_RULES, XidClass, XidRules, describe

SUSPECT_S = 300.0
"""How long a suspect GPU has to be quiet before it is healthy."""
PROBATION_S = 60.0
"""How long a GPU that was unhealthy has to be quiet before it is offered again; doubled by a fault in it."""
PROBATION_CAP_S = 3600.0
FORGIVEN_S = 3600.0
"""After so long in health, the next probation is the short one again."""
OVERRULED_S = 600.0
"""How long the driver has to say that nothing is needed before it overrules a fault of the reset class."""


@dataclass(frozen=True, slots=True)
class GpuCondition:
    """What the driver says of one GPU now (``nvmlDeviceGetFieldValues``); cheap to ask every few seconds.

    gpu: UUID. lost: why it does not answer, None where it does.
    recovery: None where the driver has no such field.
    rows_pending: remapped rows wait for a reset; rows_failed: remapping failed.
    fabric_ok: None on GPUs without a fabric. resets: how often this GPU was provably reset since the
    node booted, None where that cannot be known.
    """

    gpu: str
    lost: str | None = None
    recovery: RecoveryAction | None = None
    rows_pending: bool = False
    rows_failed: bool = False
    fabric_ok: bool | None = None
    resets: int | None = None


@dataclass(frozen=True, slots=True)
class Xid:
    """One XID event. gpu: UUID, or None where the driver did not say. gi, ci: None for the whole GPU."""

    gpu: str | None
    code: int
    gi_id: int | None = None
    ci_id: int | None = None


@dataclass(frozen=True, slots=True)
class NodeBooted:
    """The node has booted since the last event: proof of a reset."""


@dataclass(frozen=True, slots=True)
class Unresponsive:
    """Nobody can say how the GPU is: the helper or the driver does not answer."""

    reason: str


Event = Xid | GpuCondition | NodeBooted | Unresponsive


class HealthState(StrEnum):
    """healthy and suspect are offered; unhealthy and probation are not."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    PROBATION = "probation"
    UNHEALTHY = "unhealthy"

    @property
    def offered(self) -> bool:
        """Shares go to the kubelet as Healthy."""
        return self in (HealthState.HEALTHY, HealthState.SUSPECT)

    @property
    def severity(self) -> int:
        """0 for healthy up to 3 for unhealthy."""
        return list(HealthState).index(self)


class HealthFinding(StrEnum):
    """What an event says, in one word.

    well:    the driver was asked, and finds nothing wrong.
    remark:  it was asked, and remarks something under which the GPU can be used.
    silence: nobody could be asked.
    doubt:   something happened, and nobody knows what it means.
    fault, reset: as ``XidClass``.
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
"""State and finding to the next state. ``well`` and ``remark`` lead on only once time and proof are there."""


@dataclass(frozen=True, slots=True)
class HealthStatus:
    """Where a GPU, or one GPU instance of it, stands.

    reason:      a sentence, empty while healthy.
    since_s:     when it came into this state.
    quiet_until_s: when suspicion or probation ends if nothing more happens.
    probation_s: length of the present or next probation.
    needs_proof: only proof of a reset ends this.
    action_seen: the driver has asked for a recovery action since; its taking that back is proof.
    fault_s:     the last fault of the reset class that the driver has not confirmed.
    passed_s:    when the last probation was passed.
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

    @property
    def waits_for(self) -> str:
        """What has to happen before it is healthy, in words; empty while healthy."""
        match self.state:
            case HealthState.HEALTHY:
                return ""
            case HealthState.UNHEALTHY if self.needs_proof:
                return "proof of a reset of the GPU or a reboot of the node"
            case HealthState.UNHEALTHY:
                return "the driver to find nothing wrong"
            case _:
                return "a time without another fault"


@dataclass(frozen=True, slots=True)
class Health:
    """Health of one GPU.

    instances: GPU instances, by GI id, that have had an XID of their own.
    resets: the count of the last Condition that had one.
    """

    gpu: HealthStatus = field(default_factory=HealthStatus)
    instances: Mapping[int, HealthStatus] = field(default_factory=dict)
    resets: int | None = None

    def status(self, gi_id: int | None = None) -> HealthStatus:
        """The worse of GPU and GPU instance; of the GPU alone without gi_id."""
        own = None if gi_id is None else self.instances.get(gi_id)
        return own if own is not None and own.state.severity > self.gpu.state.severity else self.gpu

    def offered(self, gi_id: int | None = None) -> bool:
        """Whether shares of it go to the kubelet as Healthy."""
        return self.status(gi_id).state.offered


def next_health(health: Health, event: Event, now_s: float, rules: XidRules = DEFAULT_RULES) -> Health:
    """What the health is after ``event``. now_s: seconds of any clock that never goes back.

    Time passes only with Conditions (every few seconds): a GPU that nobody can ask gets no better.
    An event of another GPU is the caller's mistake; an Xid without GPU is to be given to all of them.
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
    """Forget GPU instances that no longer exist (ids are reused)."""
    if health.instances.keys() <= gi_ids:
        return health
    return replace(health, instances={gi: one for gi, one in health.instances.items() if gi in gi_ids})


# --- events to findings --------------------------------------------------------------------------


def _after_xid(health: Health, xid: Xid, now_s: float, rules: XidRules) -> Health:
    meaning = rules.class_of(xid.code)
    if meaning is XidClass.IGNORED:
        return health
    # The driver did not say which GPU: all are watched, and their Conditions tell. To take every GPU of the
    # node away until it is reset would be worse than the fault.
    finding = HealthFinding.UNKNOWN if xid.gpu is None else HealthFinding(meaning.value)
    if xid.gi_id is None:
        return replace(health, gpu=_find(health.gpu, finding, describe(xid.code), now_s))
    own = health.instances.get(xid.gi_id, HealthStatus(since_s=now_s))
    found = _find(own, finding, describe(xid.code), now_s)
    return replace(health, instances={**health.instances, xid.gi_id: found})


def _after_silence(health: Health, reason: str, now_s: float) -> Health:
    gpu = _find(health.gpu, HealthFinding.NO_ANSWER, reason, now_s)
    silent = {gi: _find(one, HealthFinding.NO_ANSWER, reason, now_s) for gi, one in health.instances.items()}
    return replace(health, gpu=gpu, instances=silent)


def _after_condition(health: Health, condition: GpuCondition, now_s: float, rules: XidRules) -> Health:
    known = health.resets is not None and condition.resets is not None
    was_reset = known and (condition.resets or 0) > (health.resets or 0)
    finding, reason = _verdict(condition, rules)
    gpu = _find(_weigh(health.gpu, condition, was_reset, now_s), finding, reason, now_s)
    # The driver's word is about the whole GPU; an instance of it only gets better by it.
    instances = {
        gi: _find(_weigh(one, condition, was_reset, now_s), HealthFinding.OK, "", now_s)
        for gi, one in health.instances.items()
    }
    return Health(
        gpu=_remember_action(gpu, condition),
        instances={
            gi: _remember_action(one, condition)
            for gi, one in instances.items()
            if one.state is not HealthState.HEALTHY or not _is_forgiven(one, now_s)
        },
        resets=health.resets if condition.resets is None else condition.resets,
    )


def _verdict(condition: GpuCondition, rules: XidRules) -> tuple[HealthFinding, str]:
    """What the driver says, the worst first."""
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
    if condition.fabric_ok is False:
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


def _weigh(status: HealthStatus, condition: GpuCondition, was_reset: bool, now_s: float) -> HealthStatus:
    """Take the proof of a reset that is in a Condition, if any."""
    if not status.needs_proof:
        return status
    content = condition.recovery is RecoveryAction.NONE and condition.lost is None
    long_ago = status.fault_s is not None and now_s - status.fault_s >= OVERRULED_S
    if was_reset or (content and (status.action_seen or long_ago)):
        return replace(status, needs_proof=False, action_seen=False)
    return status


def _remember_action(status: HealthStatus, condition: GpuCondition) -> HealthStatus:
    asked = status.needs_proof and not status.action_seen and _asks_for_action(condition)
    return replace(status, action_seen=True) if asked else status


# --- one status -----------------------------------------------------------------------------------


def _find(status: HealthStatus, finding: HealthFinding, reason: str, now_s: float) -> HealthStatus:
    """The status after one finding."""
    state = NEXT[status.state][finding]
    match finding:
        case HealthFinding.FAULT | HealthFinding.RESET:
            return _struck(status, finding, reason, now_s)
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
    """Whether a state may be left for a better one."""
    return not status.needs_proof and (status.quiet_until_s is None or now_s >= status.quiet_until_s)


def _enter(status: HealthStatus, state: HealthState, reason: str, now_s: float) -> HealthStatus:
    """Up a step by the driver's word, or from health to suspicion by a remark of it."""
    if state is HealthState.PROBATION:
        return replace(status, state=state, since_s=now_s, quiet_until_s=now_s + status.probation_s)
    return HealthStatus(
        state=state,
        reason=reason,
        since_s=now_s,
        probation_s=status.probation_s,
        passed_s=now_s if status.state is HealthState.PROBATION else status.passed_s,
    )


def _struck(status: HealthStatus, finding: HealthFinding, reason: str, now_s: float) -> HealthStatus:
    """Unhealthy by a fault. What needs proof of a reset keeps its reason against lesser faults."""
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
    """Healthy for so long that earlier faults count for nothing."""
    if not status.state.offered:
        return False
    return status.passed_s is None or now_s - status.passed_s >= FORGIVEN_S
