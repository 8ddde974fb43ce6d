"""Held ids from the kubelet's own checkpoint, for when PodResources cannot be reached.

The device manager writes ``kubelet_internal_checkpoint`` into its plugin directory after every Allocate. It
names pods by UID, so it shows that an id is held, but not by which container. Source: kubernetes,
pkg/kubelet/cm/devicemanager/checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from partage.model.ids import ResourceName, ShareId

CHECKPOINT = "kubelet_internal_checkpoint"
LIMIT_BYTES = 64 * 2**20
"""The file contains the answer to every Allocate; 1,000 containers with long answers stay far below this."""


def held_in_checkpoint(kubelet_dir: Path) -> dict[ResourceName, frozenset[ShareId]] | None:
    """Held ids by resource; None if there is no readable checkpoint."""
    try:
        with (kubelet_dir / CHECKPOINT).open("rb") as stream:
            content = json.loads(stream.read(LIMIT_BYTES))
        entries = content["Data"]["PodDeviceEntries"] or []
        held: dict[ResourceName, set[ShareId]] = {}
        for entry in entries:
            held.setdefault(ResourceName(str(entry["ResourceName"])), set()).update(_ids(entry["DeviceIDs"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return {resource: frozenset(ids) for resource, ids in held.items()}


def _ids(devices: object) -> Iterator[ShareId]:
    """A mapping by NUMA node since Kubernetes 1.20, a plain list before. Raises TypeError for anything
    else.
    """
    for part in devices.values() if isinstance(devices, dict) else [devices]:
        if not isinstance(part, list):
            raise TypeError(f"{type(part).__name__} instead of a list of ids")
        yield from (ShareId(str(one)) for one in part)
