"""The CDI files of ResourceClaims on a node, and the pods that the kubelet says to run with these claims."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from partage.claims.decide.cdi import KIND, record_in
from partage.doctor.decide.observation import ClaimFile
from partage.doctor.host.kubelet_holds import kubelet_holds
from partage.doctor.host.root import NodeRoot
from partage.model.claim import ClaimHold

_NAME = re.compile(rf"{re.escape(KIND.replace('/', '-'))}_([0-9A-Za-z-]{{1,64}})\.json", re.ASCII)


def claim_files(root: NodeRoot, directories: Sequence[str], pod_resources: Path) -> tuple[ClaimFile, ...]:
    """All of them, with the pods that have their claims. pod_resources: the kubelet's socket, here; it is
    asked only where there are files.
    """
    found = {path: _claim(root, path) for directory in directories for path in root.files(directory, _NAME)}
    if not found:
        return ()
    asked = kubelet_holds(pod_resources)
    holds = None if asked is None else asked.claims
    return tuple(
        ClaimFile(path, claim, None if holds is None or not claim else _pods(claim, holds))
        for path, claim in found.items()
    )


def _claim(root: NodeRoot, path: str) -> str:
    """Its name, ``team-a/part``; empty: the file does not say it."""
    name = _NAME.fullmatch(path.rpartition("/")[2])
    assert name is not None, "only such files are listed"
    try:
        record = record_in(root.text(path).encode(), name[1])
    except OSError:
        return ""
    return "" if record is None else str(record.claim)


def _pods(claim: str, holds: Sequence[ClaimHold]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{hold.namespace}/{hold.pod}" for hold in holds if hold.claim == claim))
