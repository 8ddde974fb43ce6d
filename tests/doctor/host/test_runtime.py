"""containerd's and CRI-O's files, in the shapes that they have."""

from pathlib import Path

import pytest

from partage.doctor.decide.observation import ContainerRuntime, Unseen
from partage.doctor.host.root import NodeRoot
from partage.doctor.host.runtime import container_runtime

V2 = """version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "nvidia"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
SystemdCgroup = true
"""
IMPORTS = """version = 3
imports = ["conf.d/*.toml"]
[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = false
"""
DROP_IN = """version = 3
[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
"""
CRIO = """[crio.runtime]
default_runtime = "nvidia"
cgroup_manager = "cgroupfs"
[crio.runtime.runtimes.nvidia]
runtime_path = "/usr/bin/nvidia-container-runtime"
"""


def _write(root: Path, path: str, text: str) -> NodeRoot:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)
    return NodeRoot(root)


def _runtime(root: NodeRoot) -> ContainerRuntime:
    found = container_runtime(root)
    assert isinstance(found, ContainerRuntime)
    return found


def test_containerd_1(tmp_path: Path) -> None:
    found = _runtime(_write(tmp_path, "etc/containerd/config.toml", V2))
    assert (found.name, found.default, found.cdi, found.problem) == ("containerd", "nvidia", None, "")
    assert found.of_nvidia == found.default_handler
    assert [(one.name, one.systemd_cgroup) for one in found.handlers] == [("runc", False), ("nvidia", True)]


def test_what_an_imported_file_says_counts(tmp_path: Path) -> None:
    _write(tmp_path, "etc/containerd/conf.d/99-nvidia.toml", DROP_IN)
    found = _runtime(_write(tmp_path, "etc/containerd/config.toml", IMPORTS))
    assert (found.cdi, found.default) == (True, "runc")
    assert found.of_nvidia is not None
    assert found.of_nvidia.name == "nvidia"


def test_the_default_one_of_several_of_nvidia(tmp_path: Path) -> None:
    more = V2.replace('_name = "nvidia"', '_name = "legacy"') + (
        '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.legacy.options]\n'
        'BinaryName = "/usr/bin/nvidia-container-runtime.legacy"\n'
    )
    found = _runtime(_write(tmp_path, "etc/containerd/config.toml", more))
    assert found.of_nvidia is not None
    assert found.of_nvidia.name == "legacy"


def test_cri_o(tmp_path: Path) -> None:
    _write(tmp_path, "etc/crio/crio.conf", "[crio.runtime]\ndefault_runtime = 'crun'\n")
    found = _runtime(_write(tmp_path, "etc/crio/crio.conf.d/99-nvidia.conf", CRIO))
    assert (found.name, found.default, found.cdi) == ("CRI-O", "nvidia", True)
    assert found.of_nvidia is not None
    assert found.of_nvidia.systemd_cgroup is False


@pytest.mark.parametrize("text", ["not [toml", '[plugins]\n"io.containerd.grpc.v1.cri" = 3\n', "x = 1\n"])
def test_strange_files(tmp_path: Path, text: str) -> None:
    found = _runtime(_write(tmp_path, "etc/containerd/config.toml", text))
    assert bool(found.problem) == text.startswith("not")


def test_no_runtime(tmp_path: Path) -> None:
    assert container_runtime(NodeRoot(tmp_path)) is None


def test_a_containerd_of_docker_says_nothing_of_pods(tmp_path: Path) -> None:
    root = _write(tmp_path, "etc/containerd/config.toml", 'disabled_plugins = ["cri"]\n')
    assert isinstance(container_runtime(root), Unseen)
