"""The kubelet's own checkpoint of held ids.

The device manager writes ``kubelet_internal_checkpoint`` into its plugin directory after every Allocate and
after every list that a plugin sends, but not when a pod ends: its ids stay until the next question to
PodResources has made the kubelet forget them. It names pods by UID only. A restarted kubelet reads it before
anything else, so it is complete while PodResources does not know the pods yet. Source: kubernetes,
pkg/kubelet/cm/devicemanager (manager.go, checkpoint/).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from partage.edges.host.read_file import read_regular
from partage.errors import Unreachable
from partage.model.ids import PodUid, ResourceName, ShareId
from partage.model.share import CheckpointHolds
from partage.values import Frozen

CHECKPOINT = "kubelet_internal_checkpoint"
T = TypeVar("T")
LIMIT_BYTES = 64 * 2**20
"""The file contains the answer to every Allocate; 1,000 containers with long answers stay far below this."""


class CheckpointIdentity(Frozen):
    """Tells one writing of the file from the next: the kubelet replaces the file each time."""

    inode: int
    written_ns: int


class CheckpointFile:
    """The checkpoint in the kubelet's plugin directory."""

    def __init__(self, kubelet_dir: Path) -> None:
        self._path = kubelet_dir / CHECKPOINT

    def identity(self) -> CheckpointIdentity | None:
        """Of the file as it is now; None if there is none."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return CheckpointIdentity(status.st_ino, status.st_mtime_ns)

    def listed(self) -> Mapping[ResourceName, frozenset[ShareId]] | None:
        """The healthy ids of each resource in the last list that a plugin sent; None: there is no file.

        A resource stays named for some minutes after its plugin has gone. Raises Unreachable.
        """
        return self._read(_listed)

    def held(self) -> CheckpointHolds | None:
        """Held ids by resource, with the UIDs of their pods; None: there is no file, which says nothing.

        No kubelet writes it before the first list of a plugin; later somebody may have removed it. Raises
        Unreachable if it cannot be read or is in an unknown format.
        """
        return self._read(_holds)

    def _read(self, part: Callable[[dict[str, Any]], T]) -> T | None:
        """A part of the file's data; None without a file. Raises Unreachable."""
        try:
            return part(json.loads(read_regular(self._path, LIMIT_BYTES))["Data"])
        except FileNotFoundError:
            return None
        except OSError as error:
            reason = error.strerror or str(error)
        except (ValueError, KeyError, TypeError, RecursionError):
            reason = "its format is not known"
        raise Unreachable(f"the kubelet's checkpoint {self._path} cannot be read: {reason}")


def _listed(data: dict[str, Any]) -> Mapping[ResourceName, frozenset[ShareId]]:
    """Raises TypeError for another format."""
    rows = data.get("RegisteredDevices") or {}
    if not isinstance(rows, dict):
        raise TypeError("no mapping of resources")
    return {ResourceName(str(name)): frozenset(_ids(ids or [])) for name, ids in rows.items()}


def _holds(data: dict[str, Any]) -> CheckpointHolds:
    """Raises KeyError or TypeError for another format."""
    held: dict[ResourceName, dict[ShareId, set[PodUid]]] = {}
    entries: list[dict[str, object]] = data["PodDeviceEntries"] or []
    for entry in entries:
        by_id = held.setdefault(ResourceName(str(entry["ResourceName"])), {})
        for share in _ids(entry["DeviceIDs"]):
            by_id.setdefault(share, set()).add(PodUid(str(entry["PodUID"])))
    return {
        resource: {share: frozenset(pods) for share, pods in by_id.items()}
        for resource, by_id in held.items()
    }


def _ids(devices: object) -> Iterator[ShareId]:
    """A mapping by NUMA node since Kubernetes 1.20, a plain list before. Raises TypeError for anything
    else.
    """
    for part in devices.values() if isinstance(devices, dict) else [devices]:
        if not isinstance(part, list):
            raise TypeError(f"{type(part).__name__} instead of a list of ids")
        yield from (ShareId(str(text)) for text in part)
