"""What a check of a node is, what it finds, and what may be repaired without asking. Values only."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from partage.doctor.decide.observation import Observation, Unseen
from partage.errors import Severity
from partage.model.ids import DeviceUuid
from partage.values import Frozen, Tagged


class RemoveMpsDirectory(Tagged):
    """Remove the directory of a daemon that does not run."""

    path: str
    device: DeviceUuid


class RemoveSocket(Tagged):
    """Remove a socket at which nobody listens."""

    path: str


class RemoveCdiFile(Tagged):
    """Remove a CDI specification that Partage wrote and that no longer fits; the agent writes a new one."""

    path: str


class RemoveClaimFile(Tagged):
    """Remove the CDI file of a claim that no running pod has, where no agent runs."""

    path: str


class MakeDirectory(Tagged):
    """Make a directory of Partage that is gone. mode: its permissions."""

    path: str
    mode: int = 0o700


Repair = RemoveMpsDirectory | RemoveSocket | RemoveCdiFile | RemoveClaimFile | MakeDirectory
"""What ``--fix`` may do: nothing that a running program, a GPU or somebody else's file would notice."""

_DOES = {
    RemoveMpsDirectory: "remove {}",
    RemoveSocket: "remove the socket {}",
    RemoveCdiFile: "remove the CDI specification {}",
    RemoveClaimFile: "remove the claim's CDI file {}",
    MakeDirectory: "make the directory {}",
}


def repair_sentence(repair: Repair) -> str:
    """What it does, ``remove /run/partage/mps/GPU-...``."""
    return _DOES[type(repair)].format(repair.path)


class Trouble(Frozen):
    """One thing that is wrong.

    code: stable, for programs. message: what is wrong, a sentence. evidence: what was seen and where, one
    clause each. fix: what to do next, a sentence.
    """

    code: str
    severity: Severity
    message: str
    evidence: tuple[str, ...]
    fix: str


class Finding(Trouble):
    """What a check has found. repairs: what ``--fix`` does about it."""

    repairs: tuple[Repair, ...] = ()


class Check(Frozen):
    """One row of the table of checks.

    code: of its finding. what: it looks at, a noun. needs: fields of the observation without which it cannot
    look. judge: its finding, None, or why it could not look. explains: codes of findings that follow from
    its own, or would be worth nothing beside it; ``*``: all others.
    """

    code: str
    what: str
    needs: tuple[str, ...]
    judge: Callable[[Observation], Finding | Unseen | None]
    explains: frozenset[str] = frozenset()


EVERYTHING = "*"
"""In ``Check.explains``: nothing else has to be looked at."""


def error(code: str, message: str, evidence: str | Iterable[str], fix: str, *repairs: Repair) -> Finding:
    """A finding that keeps GPUs, pods or jobs from working. evidence: a clause, or several."""
    return Finding(code, "error", message, _clauses(evidence), fix, repairs)


def warning(code: str, message: str, evidence: str | Iterable[str], fix: str, *repairs: Repair) -> Finding:
    """A finding that works now and costs something, or will fail one day."""
    return Finding(code, "warning", message, _clauses(evidence), fix, repairs)


def _clauses(evidence: str | Iterable[str]) -> tuple[str, ...]:
    return (evidence,) if isinstance(evidence, str) else tuple(evidence)
