"""Checks of what memory limits of containers have left on the node. Pure."""

from __future__ import annotations

from partage.doctor.decide.finding import Check, Finding, warning
from partage.doctor.decide.observation import Agent, LimitFile, Observation
from partage.text import listed

_SHOWN = 5


def _left(now: Observation) -> Finding | None:
    """After an uninstall: an agent that runs removes what no pod needs, and needs the hook."""
    assert isinstance(now.agent, Agent)
    assert isinstance(now.limits, tuple)
    if now.agent.runs or not now.limits:
        return None
    free = [file.path for file in now.limits if file.pods == ()]
    used = [file.path for file in now.limits if file.pods]
    unknown = [file.path for file in now.limits if file.pods is None]
    fixes = []
    if free:
        fixes.append(f"Remove what no pod needs: rm {' '.join(free)}")
    if used:
        fixes.append(
            "Leave the rest until the last of these pods has ended: its containers need it to start again"
        )
    if unknown:
        fixes.append(f"When no pod of this node has a GPU: rm {' '.join(unknown)}")
    more = [f"and {len(now.limits) - _SHOWN} more"] if len(now.limits) > _SHOWN else []
    return warning(
        "limit-files-left",
        "The hook of memory limits and its CDI files are left on the node, and no agent of Partage runs",
        (*(_seen(file) for file in now.limits[:_SHOWN]), *more),
        ". ".join(fixes),
    )


def _seen(file: LimitFile) -> str:
    if file.pods is None:
        return f"{file.path}: whether a pod needs it is not known"
    return (
        f"{file.path}: {listed(file.pods, 3)} may need it" if file.pods else f"{file.path}: no pod needs it"
    )


CHECKS = (Check("limit-files-left", "files of memory limits", ("agent", "limits"), _left),)
