"""The life cycle of a GPU's health: healthy -> suspect -> unhealthy -> probation -> healthy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from partage.model.gpu import RecoveryAction
from partage.model.xid import DEFAULT_RULES, XidRules


@dataclass(frozen=True, slots=True)
class Condition:
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
class Booted:
    """The node has booted since the last event: proof of a reset."""


@dataclass(frozen=True, slots=True)
class Silent:
    """Nobody can say how the GPU is: the helper or the driver does not answer."""

    reason: str


Event = Xid | Condition | Booted | Silent


class State(StrEnum):
    """healthy and suspect are offered; unhealthy and probation are not."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    UNHEALTHY = "unhealthy"
    PROBATION = "probation"

    @property
    def offered(self) -> bool:
        """Shares go to the kubelet as Healthy."""
        return self in (State.HEALTHY, State.SUSPECT)


@dataclass(frozen=True, slots=True)
class Phase:
    """Where a GPU, or one GPU instance of it, stands. reason: a sentence, empty while healthy."""

    state: State = State.HEALTHY
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """Health of one GPU. instances: GPU instances (by GI id) that are not simply as their GPU is."""

    gpu: Phase = field(default_factory=Phase)
    instances: Mapping[int, Phase] = field(default_factory=dict)

    def phase(self, gi_id: int | None = None) -> Phase:
        """The worse of GPU and GPU instance; of the GPU alone without gi_id."""
        raise NotImplementedError

    def offered(self, gi_id: int | None = None) -> bool:
        """Whether shares of it go to the kubelet as Healthy."""
        return self.phase(gi_id).state.offered


def step(health: Health, event: Event, now_s: float, rules: XidRules = DEFAULT_RULES) -> Health:
    """What the health is after ``event``. now_s: seconds of any clock that never goes back.

    Time passes only with Conditions (every few seconds): a GPU that nobody can ask gets no better.
    An event of another GPU is the caller's mistake; an Xid without GPU may be given to all of them.
    """
    raise NotImplementedError


def keep_instances(health: Health, gi_ids: frozenset[int]) -> Health:
    """Forget GPU instances that no longer exist (ids are reused)."""
    raise NotImplementedError


def to_plain(health: Health, now_s: float) -> dict[str, object]:
    """As JSON values, for the state file. Times as seconds passed or left: time while nobody looked counts for nothing."""
    raise NotImplementedError


def from_plain(plain: object, now_s: float) -> Health:
    """Inverse of ``to_plain``. Raises ValueError for anything else."""
    raise NotImplementedError
