"""CDI specs that others have written on this node: by NVIDIA's toolkit, for the driver that is installed.

The agent's image has neither ``nvidia-ctk`` nor the driver's files; the node's own toolkit writes its spec at
every boot and after every change of the driver (``nvidia-cdi-refresh``). Its libraries and hooks are right
for Partage's devices, too. They are paths of the node, so nothing is looked for here.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from partage.edges.cdi.spec import Spec, spec_error, version_numbers
from partage.edges.host.read_file import read_regular
from partage.errors import InputError
from partage.plan.serve.allocate_response import CDI_VENDOR

KINDS = ("nvidia.com/gpu", "management.nvidia.com/gpu")
"""Kinds of the specs of NVIDIA's toolkit and of the GPU Operator that hold the driver's libraries."""

STATIC_DIRECTORY, DIRECTORY = DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""The directories of container runtimes for specs; those in ``/etc/cdi`` stay after a reboot."""

_SUFFIXES = (".json", ".yaml", ".yml")
_LARGEST_BYTES = 16 * 2**20
_MOST_FILES = 200
_LIBRARY = "libcuda.so"
_VERSION = re.compile(r"\.so\.(\d{3,}\.\d+(?:\.\d+)?)$", re.ASCII)
"""Libraries of the driver have its version in their names; others have smaller numbers."""


def library_error(spec: Spec, driver: str) -> str:
    """Why containers with this spec have no libraries of the driver, a clause; empty if they have.

    driver: its version.
    """
    mounts = [path for edits in _all_edits(spec) for path in _mounted(edits)]
    if not any(path.rpartition("/")[2].startswith(_LIBRARY) for path in mounts):
        return f"it names no {_LIBRARY}"
    versions = (match[1] for path in mounts if (match := _VERSION.search(path)))
    other = next((version for version in versions if version != driver), "")
    return f"it is for driver {other}, and {driver} is loaded" if other else ""


def host_spec(directories: Iterable[Path], driver: str) -> tuple[Spec | None, str]:
    """The first spec of the node whose libraries fit this driver; or None and why there is none, a clause."""
    reasons = []
    for path in _files(directories):
        spec = _read(path)
        if spec is None or spec.get("kind") not in KINDS:
            continue
        wrong = spec_error(spec, str(spec["kind"])) or library_error(spec, driver)
        if not wrong:
            return spec, ""
        reasons.append(f"{path}: {wrong}")
    return None, "; ".join(reasons) or f"no CDI spec of {KINDS[0]} is on the node"


def with_libraries_of(theirs: Spec, ours: Spec) -> Spec:
    """Our devices with the libraries and hooks of another spec.

    A device of theirs that has our name and all our device files is taken as it is: it may have more of them.
    """
    known = {device["name"]: device for device in theirs["devices"]}
    devices = [
        known[device["name"]]
        if device["name"] in known and _nodes(device) <= _nodes(known[device["name"]])
        else device
        for device in ours["devices"]
    ]
    version = max(str(theirs["cdiVersion"]), str(ours["cdiVersion"]), key=version_numbers)
    edits = {**(theirs.get("containerEdits") or {})}
    nodes = {node["path"]: node for node in ours["containerEdits"].get("deviceNodes", ())}
    nodes |= {node["path"]: node for node in edits.get("deviceNodes") or ()}
    edits["deviceNodes"] = list(nodes.values())
    return {**ours, "cdiVersion": version, "devices": devices, "containerEdits": edits}


def files_of_others(directories: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    """The specs of others, with size and time of the last change: they were written anew if this differs."""
    found = []
    for path in _files(directories):
        with contextlib.suppress(OSError):
            now = path.stat()
            found.append((str(path), now.st_size, now.st_mtime_ns))
    return tuple(found)


def _files(directories: Iterable[Path]) -> Iterator[Path]:
    for directory in directories:
        try:
            names = sorted(path for path in directory.iterdir() if path.suffix in _SUFFIXES)
        except OSError:
            continue
        yield from [path for path in names if not path.name.startswith(CDI_VENDOR)][:_MOST_FILES]


def _read(path: Path) -> Spec | None:
    try:
        data = read_regular(path, _LARGEST_BYTES)
        if path.suffix == ".json":
            spec = json.loads(data)
        else:
            from partage.codec.yaml_document import (
                read_document,
            )  # takes 10 ms; only specs of others are YAML

            spec = read_document(data, str(path)).value
    except (OSError, ValueError, RecursionError, InputError):
        return None
    return spec if isinstance(spec, dict) else None


def _all_edits(spec: Spec) -> Iterator[Any]:
    yield spec.get("containerEdits")
    for device in spec["devices"]:
        yield device.get("containerEdits")


def _mounted(edits: object) -> Iterator[str]:
    mounts = edits.get("mounts") if isinstance(edits, dict) else None
    for mount in mounts if isinstance(mounts, list) else ():
        path = mount.get("hostPath") if isinstance(mount, dict) else None
        if isinstance(path, str):
            yield path


def _nodes(device: Spec) -> set[str]:
    return {node["path"] for node in device["containerEdits"].get("deviceNodes") or ()}
