"""Checks of what ResourceClaims and memory limits of containers have left on the node. Pure."""

from __future__ import annotations

from partage.doctor.decide.finding import Check, Finding, RemoveClaimFile, warning
from partage.doctor.decide.observation import Agent, ClaimFile, LimitFile, Observation
from partage.text import listed

_MOST_SHOWN = 5


def _claim_files_left(now: Observation) -> Finding | None:
    """After an uninstall: an agent that runs removes them by itself."""
    assert isinstance(now.agent, Agent)
    assert isinstance(now.claims, tuple)
    if now.agent.runs or not now.claims:
        return None
    free = [file for file in now.claims if file.pods == ()]
    used = [file for file in now.claims if file.pods]
    unknown = [file for file in now.claims if file.pods is None]
    fixes = []
    if free:
        fixes.append(f"partage doctor --fix removes {_files(free)} (rm {_paths(free)})")
    if used:
        fixes.append(
            f"Leave {_files(used)} until the last of these pods has ended: a container that is started again "
            "needs it. Then run this again"
        )
    if unknown:
        fixes.append(f"Remove {_files(unknown)} when no pod of this node has a claim: rm {_paths(unknown)}")
    shown = sorted(now.claims, key=lambda file: not file.pods)
    more = [f"and {len(shown) - _MOST_SHOWN} more"] if len(shown) > _MOST_SHOWN else []
    return warning(
        "claim-files-left",
        "CDI files of ResourceClaims are left on the node, and no agent of Partage runs to remove them",
        (*(_claim_file(file) for file in shown[:_MOST_SHOWN]), *more),
        ". ".join(fixes),
        *(RemoveClaimFile(file.path) for file in free),
    )


def _claim_file(file: ClaimFile) -> str:
    whose = f"claim {file.claim}" if file.claim else "a claim that it does not name"
    if file.pods is None:
        return f"{file.path}: of {whose}; whether a pod has it is not known"
    if not file.pods:
        return f"{file.path}: of {whose}, which no running pod has"
    pods = f"pod {file.pods[0]} has" if len(file.pods) == 1 else f"pods {listed(file.pods, 3)} have"
    return f"{file.path}: of {whose}, which {pods}"


def _files(files: list[ClaimFile]) -> str:
    return "1 file" if len(files) == 1 else f"{len(files)} files"


def _paths(files: list[ClaimFile]) -> str:
    return " ".join(file.path for file in files[:_MOST_SHOWN]) + (" ..." if len(files) > _MOST_SHOWN else "")


def _limit_files_left(now: Observation) -> Finding | None:
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
    more = [f"and {len(now.limits) - _MOST_SHOWN} more"] if len(now.limits) > _MOST_SHOWN else []
    return warning(
        "limit-files-left",
        "The hook of memory limits and its CDI files are left on the node, and no agent of Partage runs",
        (*(_limit_file(file) for file in now.limits[:_MOST_SHOWN]), *more),
        ". ".join(fixes),
    )


def _limit_file(file: LimitFile) -> str:
    if file.pods is None:
        return f"{file.path}: whether a pod needs it is not known"
    return (
        f"{file.path}: {listed(file.pods, 3)} may need it" if file.pods else f"{file.path}: no pod needs it"
    )


CHECKS = (
    Check("claim-files-left", "CDI files of claims", ("agent", "claims"), _claim_files_left),
    Check("limit-files-left", "files of memory limits", ("agent", "limits"), _limit_files_left),
)
