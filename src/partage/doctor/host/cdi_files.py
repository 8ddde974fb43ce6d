"""The CDI files on a node: the specifications of NVIDIA's devices, and the files that they name; those of
ResourceClaims, and the pods that the kubelet says to run with these; those of memory limits, their copies,
and the hook that they name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from partage.claims.decide.cdi import KIND, record_in
from partage.codec.yaml_document import read_document
from partage.doctor.decide.observation import CdiFile, ClaimFile, LimitFile
from partage.doctor.host.kubelet import KubeletHolds, kubelet_holds
from partage.doctor.host.root import NodeRoot
from partage.edges.cdi.limit_files import PREFIX
from partage.errors import InputError
from partage.model.claim import ClaimHold
from partage.model.ids import GpuUuid, device_of
from partage.plan.serve.limit_edits import set_in

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
"""The directories of runtimes, in their order."""

_OURS = "k8s.device-plugin.nvidia.com-"
_VERSION = re.compile(r"\.so\.(\d{3,}\.\d+(?:\.\d+)?)$", re.ASCII)
"""Libraries of the driver have its version in their names; others have smaller numbers."""

_MOST_FILES = 200
_MOST_MISSING = 20


def cdi_files(root: NodeRoot) -> tuple[CdiFile, ...]:
    """All of them; those of other vendors are left out."""
    return tuple(
        file
        for order, directory in enumerate(DIRECTORIES)
        for name in _names(root, directory)
        if (file := _file(root, f"{directory}/{name}", order)) is not None
    )


def _names(root: NodeRoot, directory: str) -> list[str]:
    try:
        entries = sorted(path.name for path in root.at(directory).iterdir())
    except OSError:
        return []
    return [entry for entry in entries if entry.endswith((".json", ".yaml", ".yml"))][:_MOST_FILES]


def _file(root: NodeRoot, path: str, order: int) -> CdiFile | None:
    try:
        spec = _parsed(root, path)
    except _Broken as error:
        return CdiFile(path, str(error), order=order) if "nvidia" in path else None
    kind = str(spec.get("kind") or "")
    if "nvidia" not in kind:
        return None
    devices = [row for row in _list(spec.get("devices")) if isinstance(row, dict)]
    edits = [spec.get("containerEdits"), *(device.get("containerEdits") for device in devices)]
    named = tuple(dict.fromkeys(place for part in edits for place in _places(part)))
    versions = (match[1] for file in named if (match := _VERSION.search(file)))
    return CdiFile(
        path,
        devices=tuple(f"{kind}={device.get('name')}" for device in devices),
        missing=tuple(file for file in named if not root.exists(file))[:_MOST_MISSING],
        versions=tuple(dict.fromkeys(versions)),
        ours=_is_ours(root, path),
        order=order,
    )


def _parsed(root: NodeRoot, path: str) -> dict[str, Any]:
    try:
        text = root.text(path)
    except OSError as error:
        raise _Broken(f"cannot be read: {error.strerror}") from error
    try:
        value = json.loads(text) if path.endswith(".json") else read_document(text.encode(), path).value
    except (ValueError, RecursionError) as error:
        raise _Broken(f"is no JSON: {error}") from error
    except InputError as error:
        raise _Broken(f"is no YAML: {error.problems[0].message}") from error
    if not isinstance(value, dict):
        raise _Broken("is no CDI specification")
    return value


class _Broken(Exception):
    """A specification that no runtime can use."""


def _places(edits: object) -> Iterator[str]:
    """The files of the node that a part of a specification names."""
    part = edits if isinstance(edits, dict) else {}
    for key, names in (
        ("deviceNodes", ("hostPath", "path")),
        ("mounts", ("hostPath",)),
        ("hooks", ("path",)),
    ):
        for item in _list(part.get(key)):
            found = (
                next((item[name] for name in names if item.get(name)), None)
                if isinstance(item, dict)
                else None
            )
            if isinstance(found, str) and found.startswith("/"):
                yield found


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_ours(root: NodeRoot, path: str) -> bool:
    """Partage writes a digest beside a specification, after it; one that was changed later has another."""
    if not path.rpartition("/")[2].startswith(_OURS):
        return False
    spec: Path = root.at(path)
    try:
        return spec.stat().st_mtime_ns <= spec.with_suffix(".digest").stat().st_mtime_ns
    except OSError:
        return False


_CLAIM_FILE = re.compile(rf"{re.escape(KIND.replace('/', '-'))}_([0-9A-Za-z-]{{1,64}})\.json", re.ASCII)


def claim_files(root: NodeRoot, directories: Sequence[str], pod_resources: Path) -> tuple[ClaimFile, ...]:
    """All of them, with the pods that have their claims. pod_resources: the kubelet's socket, here; it is
    asked only where there are files.
    """
    found = {
        path: _claim(root, path) for directory in directories for path in root.files(directory, _CLAIM_FILE)
    }
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
    name = _CLAIM_FILE.fullmatch(path.rpartition("/")[2])
    assert name is not None, "only such files are listed"
    try:
        record = record_in(root.text(path).encode(), name[1])
    except OSError:
        return ""
    return "" if record is None else str(record.claim)


def _pods(claim: str, holds: Sequence[ClaimHold]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{hold.namespace}/{hold.pod}" for hold in holds if hold.claim == claim))


_LIMIT_FILE = re.compile(rf"{re.escape(PREFIX)}_set-[0-9a-f]{{1,64}}\.json", re.ASCII)


def limit_files(
    root: NodeRoot, directories: Sequence[str], program: str, pod_resources: Path
) -> tuple[LimitFile, ...]:
    """All of them, with the pods that have a share of their GPUs; the hook last. program: its path."""
    paths = [path for directory in directories for path in root.files(directory, _LIMIT_FILE)]
    hook = [program] if _is_there(root, program) else []
    if not paths and not hook:
        return ()
    holds = kubelet_holds(pod_resources)
    found = [LimitFile(path, _pods_with(_gpus(root, path), holds)) for path in paths]
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


def _pods_with(gpus: frozenset[GpuUuid], holds: KubeletHolds | None) -> tuple[str, ...] | None:
    if holds is None:
        return None
    return tuple(
        dict.fromkeys(
            f"{hold.namespace}/{hold.pod}"
            for hold in holds.containers
            if any(device_of(share) in gpus for share in hold.ids)
        )
    )
