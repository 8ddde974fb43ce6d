"""Valid policies of every format that use every key, and ways to break them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

NATIVE: dict[str, Any] = {
    "version": "partage/v1",
    "gpus": [
        {"select": {"index": [0, 1]}, "mps": {"replicas": 4, "exclusive-process": False, "users": "single"}},
        {
            "select": {"index": 2, "model": "A100*", "pci": "07:00.0", "uuid": ["GPU-x"]},
            "mps": {
                "clients": [
                    {"name": "big", "memory": "8Gi", "threads": "20%"},
                    {"name": "nvidia.com/small", "memory": "4Gi"},
                ],
                "protocol": 3,
            },
        },
        {
            "select": {"index": [4, 5]},
            "mig": {"layout": ["3g.40gb@4", "1g.10gb+me", "1c.2g.20gb"], "time-slicing": {"replicas": 4}},
        },
        {"select": {"index": 7}, "mig": {"layout": ["1g.10gb"], "mps": {"replicas": 2}}},
        {
            "select": {"index": [6]},
            "name": "nvidia.com/gpu.notebooks",
            "guard": True,
            "watch": "kill",
            "change": {"drain": "30m", "also": ["bare", "system-critical"]},
            "time-slicing": {"replicas": 10, "interval": "short"},
        },
        {
            "select": {"index": 8},
            "when": {"label": {"pool": "inference", "example.com/zone": ["a", "b"]}},
            "mig": {"layout": "all-balanced"},
        },
        {"select": {"index": 9}, "mps": {"unit": "1Gi", "placement": "spread", "protocol": 3}},
        {"select": {"index": 10}, "time-slicing": {"unit": "512Mi"}, "name": "example.com/half-gib"},
        {"select": {"index": 11}, "via": "claims", "mps": {"unit": "1Gi"}},
        {"select": {"index": 12}, "via": "claims", "mig": {"on-demand": True}},
        {
            "select": {"index": 13},
            "time-slicing": {
                "clients": [{"name": "big", "memory": "40Gi"}, {"name": "small"}],
                "memory": "hard",
            },
        },
        {"select": "rest", "exclusive": {}},
    ],
    "resources": {
        "rename-shared": False,
        "fail-requests-greater-than-one": False,
        "mig-strategy": "mixed",
        "allocation": "packed",
        "device-list-strategy": ["envvar", "cdi-cri"],
        "device-id-strategy": "index",
        "pass-device-specs": True,
        "cdi-annotation-prefix": "cdi.k8s.io/",
        "nvidia-ctk-path": "/usr/bin/nvidia-ctk",
        "driver-root": "/run/nvidia/driver",
    },
}

NVIDIA: dict[str, Any] = {
    "version": "v1",
    "flags": {
        "migStrategy": "single",
        "failOnInitError": False,
        "mpsRoot": "/run/nvidia/mps",
        "nvidiaDriverRoot": "/run/nvidia/driver",
        "nvidiaDevRoot": "/run/dev",
        "gdrcopyEnabled": True,
        "gdsEnabled": True,
        "mofedEnabled": True,
        "useNodeFeatureAPI": False,
        "deviceDiscoveryStrategy": "nvml",
        "plugin": {
            "passDeviceSpecs": True,
            "deviceListStrategy": ["envvar", "volume-mounts"],
            "deviceIDStrategy": "index",
            "cdiAnnotationPrefix": "cdi.example/",
            "nvidiaCTKPath": "/opt/nvidia-ctk",
            "containerDriverRoot": "/driver-root",
            "sharedDevicesAllocationPolicy": "packed",
        },
        "gfd": {
            "oneshot": True,
            "noTimestamp": True,
            "sleepInterval": "1h30m",
            "outputFile": "/x",
            "machineTypeFile": "/y",
        },
    },
    "resources": {
        "gpus": [{"pattern": "*A100*", "name": "a100"}],
        "mig": [{"pattern": "1g.*", "name": "nvidia.com/small"}],
    },
    "sharing": {
        "timeSlicing": {
            "renameByDefault": True,
            "failRequestsGreaterThanOne": True,
            "resources": [
                {"name": "nvidia.com/gpu", "replicas": 4, "devices": [0, "1", "0:1", "GPU-x", "MIG-y"]},
                {"name": "gpu", "replicas": 2, "devices": [5], "rename": "nvidia.com/gpu.two"},
                {"name": "nvidia.com/a100", "replicas": 3, "devices": 2},
            ],
        },
        "mps": {
            "renameByDefault": False,
            "failRequestsGreaterThanOne": False,
            "resources": [{"name": "nvidia.com/small", "replicas": 2, "devices": "all"}],
        },
    },
    "imex": {"channelIDs": [0], "required": False},
}

MIG_PARTED: dict[str, Any] = {
    "version": "v1",
    "mig-configs": {
        "all-disabled": [{"devices": "all", "mig-enabled": False}],
        "mixed": [
            {
                "devices": [0, 1],
                "device-filter": ["0x20B010DE", "0x233010DE:0x16C110DE"],
                "mig-enabled": True,
                "mig-devices": {"1g.10gb": 2, "2g.20gb": 0, "1c.3g.40gb": 1},
            },
            {"devices": [2], "device-filter": "0x20B210DE", "mig-enabled": True, "mig-devices": {}},
        ],
    },
}

ALL = {"native": NATIVE, "nvidia": NVIDIA, "mig-parted": MIG_PARTED}

STRANGERS: tuple[Any, ...] = (
    None, True, -1, 0, 1, 3.5, 10**9, "", "all", "4", "\x00", "x" * 3000, "nvidia.com/gpu",
    [], [None], [[]], {}, {"": None}, {"a": 1},
)  # fmt: skip
"""Unexpected values of a key: one of every type."""

Path = tuple[str | int, ...]


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every place in a document, its root first."""
    yield path
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield from places(child, (*path, key))


def replaced(document: Any, path: Path, value: Any) -> Any:
    """A copy with another value in one place."""
    if not path:
        return value
    changed = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def removed(document: Any, path: Path) -> Any:
    """A copy without one place."""
    changed = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return changed
