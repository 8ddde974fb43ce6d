"""The table of checks, and the diagnosis: causes first, what follows from them left out. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from partage.doctor.decide import (
    agent,
    driver,
    gpus,
    host,
    kubernetes,
    left_files,
    policy,
    runtime,
    slurm,
)
from partage.doctor.decide.finding import EVERYTHING, Check, Finding, Repair
from partage.doctor.decide.observation import Observation, Unseen
from partage.values import Answer, Frozen

CHECKS: tuple[Check, ...] = (
    *driver.CHECKS,
    *gpus.CHECKS,
    *host.CHECKS,
    *agent.CHECKS,
    *kubernetes.KUBELET_CHECKS,
    *runtime.CHECKS,
    *left_files.CHECKS,
    *policy.CHECKS,
    *kubernetes.LABEL_CHECKS,
    *slurm.CHECKS,
    *agent.REASON_CHECKS,
)
"""In the order in which causes come before what follows from them."""


class Explained(Frozen):
    """A finding that is left out, because it follows from another one. by: codes of those."""

    finding: Finding
    by: tuple[str, ...]


class NotLooked(Answer):
    """What could not be looked at, and why. checks: codes that may be wrong without being seen."""

    what: tuple[str, ...]
    why: str
    checks: tuple[str, ...]


class Diagnosis(Frozen):
    """findings: errors first, then warnings, among these causes first. looked: how many checks could look."""

    findings: tuple[Finding, ...]
    explained: tuple[Explained, ...]
    not_looked: tuple[NotLooked, ...]
    looked: int

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """What ``--fix`` may do, each once."""
        return tuple(dict.fromkeys(repair for finding in self.findings for repair in finding.repairs))


def diagnose(now: Observation, checks: Sequence[Check] = CHECKS) -> Diagnosis:
    """Judge what was seen. A check that could not look is never counted as one that found nothing."""
    found: list[tuple[Check, Finding]] = []
    unseen: dict[str, list[Check]] = {}
    looked = 0
    for check in checks:
        answer = _answer(check, now)
        if isinstance(answer, Unseen):
            unseen.setdefault(answer.why, []).append(check)
            continue
        looked += all(getattr(now, name) is not None for name in check.needs)
        if answer is None:
            continue
        found.append((check, answer))
        if EVERYTHING in check.explains:
            return Diagnosis((answer,), (), (), looked)
    explained = tuple(
        Explained(finding, by) for check, finding in found if (by := _explained_by(check.code, found))
    )
    left_out = {explanation.finding.code for explanation in explained}
    kept = [finding for _, finding in found if finding.code not in left_out]
    return Diagnosis(
        tuple(sorted(kept, key=lambda finding: finding.severity != "error")),
        explained,
        tuple(_not_looked(why, those) for why, those in unseen.items()),
        looked,
    )


def _answer(check: Check, now: Observation) -> Finding | Unseen | None:
    for name in check.needs:
        seen = getattr(now, name)
        if seen is None or isinstance(seen, Unseen):
            return seen
    return check.judge(now)


def _not_looked(why: str, checks: Sequence[Check]) -> NotLooked:
    return NotLooked(
        tuple(dict.fromkeys(check.what for check in checks)), why, tuple(check.code for check in checks)
    )


def _explained_by(code: str, found: Sequence[tuple[Check, Finding]]) -> tuple[str, ...]:
    """Codes of findings that explain this one. A test sees to it that there are no circles."""
    return tuple(check.code for check, _ in found if code in check.explains)
