"""Checks of what ResourceClaims have left on the node. Pure."""

from __future__ import annotations

from partage.doctor.decide.finding import Check, Finding, RemoveClaimFile, warning
from partage.doctor.decide.observation import Agent, ClaimFile, Observation
from partage.text import listed

_SHOWN = 5


def _left(now: Observation) -> Finding | None:
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
    more = [f"and {len(shown) - _SHOWN} more"] if len(shown) > _SHOWN else []
    return warning(
        "claim-files-left",
        "CDI files of ResourceClaims are left on the node, and no agent of Partage runs to remove them",
        (*(_seen(file) for file in shown[:_SHOWN]), *more),
        ". ".join(fixes),
        *(RemoveClaimFile(file.path) for file in free),
    )


def _seen(file: ClaimFile) -> str:
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
    return " ".join(file.path for file in files[:_SHOWN]) + (" ..." if len(files) > _SHOWN else "")


CHECKS = (Check("claim-files-left", "CDI files of claims", ("agent", "claims"), _left),)
