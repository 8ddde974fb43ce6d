"""The kubelet's checkpoint says what is held when PodResources cannot be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partage.edges.kubelet.checkpoint import CHECKPOINT, held_in_checkpoint
from partage.model.ids import ResourceName

ENTRY = {
    "PodUID": "8f0c9c1e-0000-4000-8000-000000000001",
    "ContainerName": "main",
    "ResourceName": "nvidia.com/gpu.shared",
    "DeviceIDs": {"-1": ["GPU-a::1"], "0": ["GPU-a::0"]},
    "AllocResp": "CgA=",
}


def written(folder: Path, content: object) -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / CHECKPOINT).write_text(text, encoding="utf-8")
    return folder


def test_ids_are_read_over_all_numa_nodes_and_pods(tmp_path: Path) -> None:
    other = {**ENTRY, "PodUID": "b", "DeviceIDs": ["GPU-b::0"]}
    whole = {**ENTRY, "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"1": ["GPU-c"]}}
    data = {"PodDeviceEntries": [ENTRY, other, whole], "RegisteredDevices": {}}
    assert held_in_checkpoint(written(tmp_path, {"Data": data, "Checksum": 1})) == {
        ResourceName("nvidia.com/gpu.shared"): frozenset({"GPU-a::0", "GPU-a::1", "GPU-b::0"}),
        ResourceName("nvidia.com/gpu"): frozenset({"GPU-c"}),
    }


def test_an_empty_checkpoint_means_that_nothing_is_held(tmp_path: Path) -> None:
    content = {"Data": {"PodDeviceEntries": None, "RegisteredDevices": {}}, "Checksum": 1}
    assert held_in_checkpoint(written(tmp_path, content)) == {}


@pytest.mark.parametrize(
    "content",
    ["", "nonsense", [], {"Data": 7}, {"Data": {"PodDeviceEntries": [{**ENTRY, "DeviceIDs": "GPU-a"}]}}],
)
def test_what_cannot_be_understood_says_nothing(tmp_path: Path, content: object) -> None:
    assert held_in_checkpoint(written(tmp_path, content)) is None


def test_no_checkpoint_says_nothing(tmp_path: Path) -> None:
    assert held_in_checkpoint(tmp_path) is None
