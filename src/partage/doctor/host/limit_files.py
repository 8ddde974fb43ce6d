"""The CDI files of memory limits on a node, their copies, and the hook that they name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from partage.doctor.decide.observation import LimitFile
from partage.doctor.host.kubelet_holds import KubeletHolds, kubelet_holds
from partage.doctor.host.root import NodeRoot
from partage.edges.cdi.limit_files import PREFIX
from partage.model.ids import GpuUuid, device_of
from partage.plan.serve.limit_edits import set_in

_NAME = re.compile(rf"{re.escape(PREFIX)}_set-[0-9a-f]{{1,64}}\.json", re.ASCII)


def limit_files(
    root: NodeRoot, directories: Sequence[str], program: str, pod_resources: Path
) -> tuple[LimitFile, ...]:
    """All of them, with the pods that have a share of their GPUs; the hook last. program: its path."""
    paths = [path for directory in directories for path in root.files(directory, _NAME)]
    hook = [program] if _is_there(root, program) else []
    if not paths and not hook:
        return ()
    holds = kubelet_holds(pod_resources)
    found = [LimitFile(path, _pods(_gpus(root, path), holds)) for path in paths]
    every = None if holds is None else tuple(dict.fromkeys(pod for file in found for pod in file.pods or ()))
    return (*found, *(LimitFile(path, every) for path in hook))


def _is_there(root: NodeRoot, path: str) -> bool:
    """False also where this user may not look."""
    try:
        return root.at(path).exists()
    except OSError:
        return False


def _gpus(root: NodeRoot, path: str) -> frozenset[GpuUuid]:
    """Empty: it is damaged, and no runtime can use it."""
    try:
        given = set_in(root.text(path).encode())
    except OSError:
        return frozenset()
    return frozenset(limit.gpu for limit in given.limits) if given else frozenset()


def _pods(gpus: frozenset[GpuUuid], holds: KubeletHolds | None) -> tuple[str, ...] | None:
    if holds is None:
        return None
    return tuple(
        dict.fromkeys(
            f"{hold.namespace}/{hold.pod}"
            for hold in holds.containers
            if any(device_of(share) in gpus for share in hold.ids)
        )
    )
