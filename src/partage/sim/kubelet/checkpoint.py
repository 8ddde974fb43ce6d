"""The file in which a kubelet keeps which container holds which device, as its device manager writes it.

Source: kubernetes, pkg/kubelet/cm/devicemanager/checkpoint. It is written after an admission and
when a plugin sends its list, not after the end of a pod: devices of pods that ended stay in it until then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from partage.edges.kubelet.checkpoint import CHECKPOINT
from partage.model.ids import PodUid, ShareId
from partage.sim.kubelet.pod_status import Holdings


def write_checkpoint(
    directory: Path,
    held: Mapping[str, Mapping[str, Holdings]],
    uids: Mapping[str, PodUid],
    listed: Mapping[str, Mapping[ShareId, bool]] | None = None,
) -> None:
    """Write it. held: by pod key and container name. uids: by pod key. listed: devices of each resource, and
    whether each is healthy. The answers to Allocate are left out.
    """
    healthy = {
        resource: [name for name, well in devices.items() if well]
        for resource, devices in (listed or {}).items()
    }
    entries = [
        {
            "PodUID": uids[pod],
            "ContainerName": container,
            "ResourceName": resource,
            "DeviceIDs": {"-1": list(holding.ids)},
            "AllocResp": "",
        }
        for pod, containers in held.items()
        for container, holdings in containers.items()
        for resource, holding in holdings.items()
    ]
    content = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": healthy}, "Checksum": 0}
    beside = directory / f"{CHECKPOINT}.new"
    beside.write_text(json.dumps(content), encoding="ascii")
    beside.replace(directory / CHECKPOINT)
