"""Who else offers the GPUs of a node: by sockets, and by the kubelet's checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partage.edges.kubelet.other_plugins import serving_gpus
from partage.edges.kubelet.sockets import socket_identity
from partage.model.ids import GpuUuid, ResourceName
from tests.edges.kubelet.shelf import listening_child
from tests.edges.kubelet.test_endpoint import GPU
from tests.kubelet_script import scripted_kubelet

OURS = ResourceName("example.com/share")
DEVICES = frozenset({GpuUuid(GPU)})
ELSEWHERE = "GPU-00000000-0000-4000-8000-00000000000f"


@pytest.mark.parametrize(
    ("listed", "name", "said"),
    [
        ({}, "nvidia-gpu.sock", "another process serves {}"),
        ({}, "nvidia-mig-1g.10gb.shared.sock", "another process serves {}"),
        ({}, "example.com-share.sock", "another process serves {}"),
        (
            {"nvidia.com/gpu": ["nvidia0"]},
            "nvidiaGPU-1.sock",
            "another process seems to serve nvidia.com/gpu",
        ),
        ({"aliyun.com/gpu-mem": [f"{GPU}-_-0"]}, "aliyungpushare.sock", "another process serves {}"),
        ({"acme.com/part": [f"{GPU}-3"]}, "acme.sock", "seems to serve acme.com/part"),
        ({"acme.com/gpu": [GPU]}, "acme.com-gpu.sock", "offers the same GPUs as acme.com/gpu"),
        ({"acme.com/gpu": [ELSEWHERE]}, "acme.com-gpu.sock", ""),
        ({"nvidia.com/gpu": [GPU]}, "rdma.sock", ""),
        ({"rdma/hca": ["mlx5_0"]}, "rdma.sock", ""),
        ({"nvidia.com/gpu": ["nvidia0"]}, "", ""),
        ({}, "kubelet.sock", ""),
    ],
    ids=[
        "NVIDIA's name",
        "NVIDIA's name of a MIG device",
        "the name of a resource of ours",
        "foreign ids of GPUs",
        "gpushare",
        "ids with the UUID of a GPU",
        "another name",
        "other GPUs",
        "our own of before",
        "no GPUs",
        "nobody listens",
        "the kubelet",
    ],
)
def test_who_else_offers_gpus(short_dir: Path, listed: dict[str, list[str]], name: str, said: str) -> None:
    content = {"Data": {"PodDeviceEntries": None, "RegisteredDevices": listed}, "Checksum": 0}
    (short_dir / "kubelet_internal_checkpoint").write_text(json.dumps(content))
    with listening_child(short_dir / name if name else None):
        found = serving_gpus(short_dir, {OURS}, DEVICES)
        assert (found is not None) == bool(said)
        if found is not None:
            assert said.format(short_dir / name) in str(found)
            assert "(python" in str(found)
            identity = socket_identity(short_dir / name)
            assert identity is not None
            assert serving_gpus(short_dir, {OURS}, DEVICES, [identity]) is None
    assert serving_gpus(short_dir, {OURS}, DEVICES) is None, "a socket that nobody serves does not count"


def test_a_checkpoint_that_cannot_be_read_says_nothing(short_dir: Path) -> None:
    (short_dir / "kubelet_internal_checkpoint").write_text("no JSON")
    with listening_child(short_dir / "rdma.sock"):
        assert serving_gpus(short_dir, {OURS}, DEVICES) is None
    assert serving_gpus(short_dir / "missing", {OURS}, DEVICES) is None


def test_the_process_of_the_kubelet_itself_does_not_count(short_dir: Path) -> None:
    with scripted_kubelet(short_dir):
        assert serving_gpus(short_dir, {OURS}, DEVICES) is None
