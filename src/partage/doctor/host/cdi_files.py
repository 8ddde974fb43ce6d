"""The CDI specifications of NVIDIA's devices on a node, and the files that they name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from partage.codec.yaml_document import read_document
from partage.doctor.decide.observation import CdiFile
from partage.doctor.host.root import NodeRoot
from partage.errors import InputError

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
