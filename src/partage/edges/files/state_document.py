"""What ``state.json`` holds, as types, and how it is made of the agent's values and read back.

The caller's clock means nothing to the next process, so times are written as seconds passed or left. Time in
which no agent runs does not count: the node was not watched.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from partage.model.health import PROBATION_CAP_S, PROBATION_S, Health, HealthState, HealthStatus
from partage.model.ids import GpuUuid, parse_resource_name
from partage.model.share import DeviceOffer
from partage.plan.reconcile.settings_steps import OriginalSettings
from partage.plan.reconcile.transition import GpuServing
from partage.values import Frozen

MOST_SHARES = 1_000_000
"""More than any kubelet message holds."""

Seconds = Annotated[float, Meta(ge=0)]
Probation = Annotated[float, Meta(ge=PROBATION_S, le=PROBATION_CAP_S)]


class WrittenPolicy(Frozen):
    """The last good policy. sha256: of the text, in hexadecimal. Older agents wrote no labels or layouts."""

    text: str
    source: str
    config: str | None
    sha256: str
    labels: dict[str, str] = field(default_factory=dict)
    layouts: str = ""
    layouts_source: str = ""


class WrittenServing(Frozen):
    """One GPU's serving. How long it has been empty is not written: the next agent waits for itself."""

    offer: tuple[DeviceOffer, ...]
    leaving: tuple[DeviceOffer, ...]
    draining: bool
    draining_for_s: Seconds | None

    @classmethod
    def of(cls, serving: GpuServing, now_s: float) -> WrittenServing:
        """What is written of it."""
        drains_for_s = _passed(serving.draining_since_s, now_s)
        return cls(serving.offer, serving.leaving, serving.draining, drains_for_s)

    def serving(self, now_s: float) -> GpuServing:
        """Inverse of ``of``. Raises ValueError for offers that cannot be."""
        serving = GpuServing(self.offer, self.leaving, self.draining, _since(self.draining_for_s, now_s))
        check_offers(serving)
        return serving


class WrittenStatus(Frozen):
    """A HealthStatus: times are for how long, ``left_s`` is the time until it is quiet."""

    state: HealthState
    reason: str
    for_s: Seconds
    left_s: Seconds | None
    probation_s: Probation
    needs_proof: bool
    action_seen: bool
    fault_for_s: Seconds | None
    passed_for_s: Seconds | None

    @classmethod
    def of(cls, status: HealthStatus, now_s: float) -> WrittenStatus:
        """What is written of it."""
        quiet_s = status.quiet_until_s
        return cls(
            state=status.state,
            reason=status.reason,
            for_s=max(0.0, now_s - status.since_s),
            left_s=None if quiet_s is None else max(0.0, quiet_s - now_s),
            probation_s=status.probation_s,
            needs_proof=status.needs_proof,
            action_seen=status.action_seen,
            fault_for_s=_passed(status.fault_s, now_s),
            passed_for_s=_passed(status.passed_s, now_s),
        )

    def status(self, now_s: float) -> HealthStatus:
        """Inverse of ``of``."""
        return HealthStatus(
            state=self.state,
            reason=self.reason,
            since_s=now_s - self.for_s,
            quiet_until_s=None if self.left_s is None else now_s + self.left_s,
            probation_s=self.probation_s,
            needs_proof=self.needs_proof,
            action_seen=self.action_seen,
            fault_s=_since(self.fault_for_s, now_s),
            passed_s=_since(self.passed_for_s, now_s),
        )


class WrittenHealth(Frozen):
    """One GPU's health. instances: by GI id."""

    gpu: WrittenStatus
    instances: dict[int, WrittenStatus]
    resets: int | None

    @classmethod
    def of(cls, health: Health, now_s: float) -> WrittenHealth:
        """What is written of it."""
        instances = {gi: WrittenStatus.of(one, now_s) for gi, one in health.instances.items()}
        return cls(WrittenStatus.of(health.gpu, now_s), instances, health.resets)

    def health(self, now_s: float) -> Health:
        """Inverse of ``of``."""
        instances = {gi: one.status(now_s) for gi, one in self.instances.items()}
        return Health(self.gpu.status(now_s), instances, self.resets)


class StateDocument(Frozen, kw_only=True):
    """The whole file. original, serving, health: by GPU UUID."""

    version: Literal["partage-state/2"] = "partage-state/2"
    boot_id: str
    policy: WrittenPolicy | None
    original: dict[GpuUuid, OriginalSettings]
    serving: dict[GpuUuid, WrittenServing]
    health: dict[GpuUuid, WrittenHealth]


def check_offers(serving: GpuServing) -> None:
    """Raises ValueError. Shares are written out id by id later, so their number had better be sane."""
    for offer in (*serving.offer, *serving.leaving):
        parse_resource_name(offer.resource)
        for number in (offer.replicas, offer.first, offer.count):
            if not 0 <= number <= MOST_SHARES:
                raise ValueError(f"{number} shares of {offer.device}")


def _passed(since_s: float | None, now_s: float) -> float | None:
    return None if since_s is None else max(0.0, now_s - since_s)


def _since(passed_s: float | None, now_s: float) -> float | None:
    return None if passed_s is None else now_s - passed_s
