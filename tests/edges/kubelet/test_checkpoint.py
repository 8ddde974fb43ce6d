"""The kubelet's checkpoint says what is held when PodResources does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partage.edges.kubelet.checkpoint import CHECKPOINT, CheckpointFile
from partage.errors import Unreachable
from partage.model.ids import ResourceName
from partage.sim.kubelet.device_manager import write_checkpoint

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
    again = {**ENTRY, "PodUID": "b", "DeviceIDs": ["GPU-a::0"]}
    whole = {**ENTRY, "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"1": ["GPU-c"]}}
    data = {"PodDeviceEntries": [ENTRY, other, again, whole], "RegisteredDevices": {}}
    first = ENTRY["PodUID"]
    assert CheckpointFile(written(tmp_path, {"Data": data, "Checksum": 1})).held() == {
        ResourceName("nvidia.com/gpu.shared"): {
            "GPU-a::0": {first, "b"},
            "GPU-a::1": {first},
            "GPU-b::0": {"b"},
        },
        ResourceName("nvidia.com/gpu"): {"GPU-c": {first}},
    }


def test_an_empty_checkpoint_means_that_nothing_is_held(tmp_path: Path) -> None:
    content = {"Data": {"PodDeviceEntries": None, "RegisteredDevices": {}}, "Checksum": 1}
    assert CheckpointFile(written(tmp_path, content)).held() == {}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "nonsense",
        [],
        {"Data": 7},
        {"Data": {"PodDeviceEntries": [{**ENTRY, "DeviceIDs": "GPU-a"}]}},
        {"Data": {"PodDeviceEntries": [{**ENTRY, "DeviceIDs": {"0": "GPU-a"}}]}},
        {"Data": {"PodDeviceEntries": ["GPU-a"]}},
    ],
)
def test_an_unknown_format_is_no_answer(tmp_path: Path, content: object) -> None:
    with pytest.raises(Unreachable, match="its format is not known"):
        CheckpointFile(written(tmp_path, content)).held()


def test_a_checkpoint_that_cannot_be_read_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT).mkdir()
    with pytest.raises(Unreachable, match="Is a directory"):
        CheckpointFile(tmp_path).held()


def test_no_checkpoint_says_nothing(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path)
    assert file.held() is None
    assert file.listed() is None
    assert file.identity() is None


def test_each_writing_has_an_identity_of_its_own(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {}, {})
    file = CheckpointFile(tmp_path)
    before = file.identity()
    assert file.identity() == before is not None
    write_checkpoint(tmp_path, {}, {})
    assert file.identity() != before
