"""Checks of a node that Slurm manages: its files, its GPUs, what slurmctld has read. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from partage.doctor.decide.finding import Check, Finding, error, warning
from partage.doctor.decide.observation import Observation, SlurmState, Unseen
from partage.errors import Problem
from partage.text import listed

_SHOWN = 6


def _devices(now: Observation) -> Finding | None:
    state = _state(now)
    if not state.strangers:
        return None
    return error(
        "slurm-devices-stale",
        "The list of devices for Slurm's prolog is older than the GPUs of this node: jobs would get a wrong "
        "GPU or none",
        f"{state.devices_file} names {listed(state.strangers, 3)}, which no GPU or MIG device here has",
        "Drain the node, then write the files anew: partage slurm config --output DIR, or let partage agent "
        "--slurm keep them true",
    )


def _differ(now: Observation) -> Finding | None:
    return _found(
        "slurm-gpus-differ",
        "Slurm's files do not describe the GPUs of this node",
        _state(now).differs,
        "Drain the node, write gres.conf anew with partage slurm config, and have slurmd read it",
    )


def _files(now: Observation) -> Finding | None:
    return _found(
        "slurm-files-wrong",
        "Slurm's files have mistakes that slurmd does not report",
        _state(now).problems,
        "Correct them; partage slurm check FILE... judges them again",
    )


def _live(now: Observation) -> Finding | Unseen | None:
    state = _state(now)
    if state.live_unseen:
        return Unseen(state.live_unseen)
    return _found(
        "slurm-live-differs",
        "slurmctld has read something else than what is in the files, or does not use this node",
        state.live,
        "partage slurm check --live FILE... says who has to read what anew",
    )


def _records(now: Observation) -> Finding | None:
    state = _state(now)
    if not state.unreadable:
        return None
    return error(
        "slurm-record-unreadable",
        "A job's record cannot be read: nobody knows which GPUs it has, so all others with GPUs go back into "
        "the queue",
        listed(state.unreadable, 3),
        "It goes when its job ends. Sooner: scontrol requeue that job, or cancel it",
    )


def _found(code: str, message: str, problems: Sequence[Problem], fix: str) -> Finding | None:
    if not problems:
        return None
    graver = [problem for problem in problems if problem.severity == "error"]
    shown = graver or list(problems)
    hints = list(dict.fromkeys(problem.hint for problem in shown if problem.hint))
    advice = "; ".join(hints[:2])
    told = tuple(
        ": ".join(part for part in (problem.file, problem.path, problem.message) if part)
        for problem in shown[:_SHOWN]
    )
    kind = error if graver else warning
    return kind(code, message, told, advice[:1].upper() + advice[1:] or fix)


def _state(now: Observation) -> SlurmState:
    assert isinstance(now.slurm, SlurmState)
    return now.slurm


_SLURM = "Slurm's files"

CHECKS = (
    Check("slurm-devices-stale", _SLURM, ("slurm",), _devices),
    Check("slurm-files-wrong", _SLURM, ("slurm",), _files, frozenset({"slurm-live-differs"})),
    Check("slurm-gpus-differ", _SLURM, ("slurm",), _differ, frozenset({"slurm-live-differs"})),
    Check("slurm-record-unreadable", "the records of jobs", ("slurm",), _records),
    Check("slurm-live-differs", "the running Slurm", ("slurm",), _live),
)  # fmt: skip
"""Files that are wrong are corrected first: what slurmctld has read of them follows."""
