"""Broken nodes: what is done to a healthy one, by the code of the finding that names the cause."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from tests.doctor.node import KUBELET, LIBRARY, Node, ahead, mps_environ

POD_RESOURCES = "var/lib/kubelet/pod-resources/kubelet.sock"
UUID = "GPU-00000000-1111-2222-3333-444444444444"


def _no_gpu(node: Node) -> None:
    for index in range(3):
        for name in ("vendor", "class", "driver"):
            node.remove(f"sys/bus/pci/devices/0000:{0x1A + index:02x}:00.0/{name}")
        card = node.at(f"sys/bus/pci/devices/0000:{0x1A + index:02x}:00.0")
        if card.exists():
            card.rmdir()
    node.remove("proc/driver/nvidia/version")
    node.remove("usr/lib64/libnvidia-ml.so.1")
    node.machine.pop("no-driver", None)
    node.no_driver("library-missing")


def _nouveau(node: Node) -> None:
    for index in range(2):
        node.card(index, "nouveau")
    node.remove("proc/driver/nvidia/version")
    node.no_driver("driver-missing")


def _module(node: Node) -> None:
    node.remove("proc/driver/nvidia/version")
    node.no_driver("driver-missing", "the NVIDIA driver is not loaded")


def _library(node: Node) -> None:
    node.remove("usr/lib64/libnvidia-ml.so.1")
    node.no_driver("library-missing")


def _mismatch(node: Node) -> None:
    if node.at("proc/driver/nvidia/version").exists():
        node.module("575.57.08")
    node.no_driver("version-mismatch")


def _plain_file(node: Node) -> None:
    node.remove("dev/nvidia0")
    node.file("dev/nvidia0", "")


def _lost(node: Node) -> None:
    if gpus := node.machine.get("gpus"):
        gpus[0].setdefault("index", 0)
        node.machine["gpus"] = gpus[:1]
        node.machine["lost"] = [
            {"index": 1, "uuid": None, "pci-bus-id": None, "reason": "the GPU has fallen off the bus"}
        ]


def _runtime(node: Node) -> None:
    node.file("etc/containerd/config.toml", "version = 3\n")


def _cgroups(node: Node) -> None:
    node.file("var/lib/kubelet/config.yaml", "cgroupDriver: cgroupfs\n")


def _cdi_twice(node: Node) -> None:
    node.file("etc/cdi/zz-nvidia.yaml", node.at("etc/cdi/nvidia.yaml").read_text())


def _cdi_own(node: Node) -> None:
    """Ours, for MIG devices that are gone."""
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "k8s.device-plugin.nvidia.com/gpu",
        "devices": [
            {"name": "a", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia-caps/nvidia-cap9"}]}}
        ],
    }
    path = node.file("var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json", json.dumps(spec))
    digest = node.file("var/run/cdi/k8s.device-plugin.nvidia.com-gpu.digest", "0" * 64)
    os.utime(path, (1.0, 1.0))
    assert digest.exists()


def _claim_left(node: Node) -> None:
    """The kubelet says nothing of its pods."""
    if node.at(POD_RESOURCES).exists():
        node.remove(POD_RESOURCES)
        node.left_socket(POD_RESOURCES)
    node.file("var/run/cdi/gpu.partage.dev-claim_3f0e8a52-7f0b.json", "{}")


def _kubelet_down(node: Node) -> None:
    node.kubelet.close()
    node.remove("proc/100/comm")


def _kubelet_elsewhere(node: Node) -> None:
    node.process(100, "kubelet", "/usr/bin/kubelet", "--root-dir", "/data/kubelet")


def _agent_stopped(node: Node) -> None:
    node.served()


def _state(node: Node) -> None:
    """An agent runs: whether it has ended is another question."""
    node.agent_runs()
    node.file("var/lib/partage/state.json", '{"version": 1, ')


def _two_agents(node: Node) -> None:
    for pid in (301, 302):
        node.process(
            pid, "partage", "/usr/bin/python3", "/usr/bin/partage", "agent", "--policy", f"/etc/{pid}"
        )


def _disk(node: Node) -> None:
    node.free_bytes = 4096


def _clock_back(node: Node) -> None:
    path = node.file("run/partage/report.json", "{}")
    ahead(path, 7200.0)


def _mig_drift(node: Node) -> None:
    node.policy = "version: partage/v1\ngpus:\n  - {select: all, mig: {layout: [3g.40gb, 3g.40gb]}}\n"


def _limits(node: Node) -> None:
    """The driver of the simulated node is of a branch before 615."""
    node.policy = "version: partage/v1\ngpus:\n  - {select: all, time-slicing: {replicas: 4, memory: hard}}\n"


def _refused(node: Node) -> None:
    node.policy = "version: partage/v1\ngpus:\n  - {select: all, time-slicing: {replicas: 1000000}}\n"


def _long_path(node: Node) -> None:
    name = "nvidia.com/gpu." + "a" * 48
    node.policy = (
        f"version: partage/v1\ngpus:\n  - {{select: all, name: {name}, time-slicing: {{replicas: 2}}}}\n"
    )
    long = f"/var/lib/{'k' * 40}/device-plugins"
    if node.at(node.kubelet_dir).exists():
        node.at(long).parent.parent.mkdir(parents=True, exist_ok=True)
        node.link(long.removesuffix("/device-plugins"), "kubelet")
    node.kubelet_dir = long
    node.process(100, "kubelet", "/usr/bin/kubelet", "--root-dir", long.removesuffix("/device-plugins"))


def _mps_left(node: Node) -> None:
    node.file(f"run/partage/mps/{UUID}/pipe/control", "")


def _mps_other(node: Node) -> None:
    node.process(
        400, "nvidia-cuda-mps", "nvidia-cuda-mps-control", "-d", environ=mps_environ("/run/nvidia/mps")
    )


def _mode(node: Node) -> None:
    node.gpu(0, compute_mode=3)


def _label(key: str, value: str) -> Callable[[Node], None]:
    def fault(node: Node) -> None:
        node.labels = {**(node.labels or {}), key: value}

    return fault


def _slurm(node: Node) -> None:
    """Slurm has four GPUs here, and there are two."""
    node.file(
        "etc/slurm/slurm.conf",
        "ClusterName=c\nSelectType=select/cons_tres\nGresTypes=gpu\n"
        "NodeName=n1 CPUs=8 RealMemory=1000 Gres=gpu:4\n",
    )
    node.file("etc/slurm/gres.conf", "AutoDetect=off\nNodeName=n1 Name=gpu File=/dev/nvidia[0-3]\n")
    node.file("etc/slurm/cgroup.conf", "ConstrainDevices=yes\n")


def _other_plugin(node: Node) -> None:
    path = f"{node.kubelet_dir}/nvidia-gpu.sock"
    if not node.at(path).exists():
        node.other_listens(path)


FAULTS: dict[str, Callable[[Node], object]] = {
    "no-gpu": _no_gpu,
    "nouveau": _nouveau,
    "driver-missing": _module,
    "library-missing": _library,
    "version-mismatch": _mismatch,
    "no-permission": lambda node: node.no_driver("no-permission"),
    "driver-busy": lambda node: node.no_driver("paused", "the driver is paused: an upgrade"),
    "driver-failed": lambda node: node.no_driver("failed"),
    "device-file-missing": lambda node: node.remove("dev/nvidia-uvm"),
    "device-file-missing: a plain file": _plain_file,
    "gpu-without-driver": lambda node: node.card(2, ""),
    "gpu-lost": _lost,
    "gpu-needs-reset": lambda node: node.gpu(0, recovery=1),
    "persistence-off": lambda node: node.gpu(0, persistence=False),
    "mig-mode-pending": lambda node: node.gpu(0, mig_mode=[0, 1]),
    "mig-without-devices": lambda node: node.gpu(0, mig_mode=[1, 1]),
    "compute-mode-left": _mode,
    "compute-mode-left: nobody": lambda node: node.gpu(0, compute_mode=2),
    "disk-full": _disk,
    "clock-unsynchronised": lambda node: setattr(node, "clock", type(node.clock)(False, 16.0)),
    "clock-set-back": _clock_back,
    "two-agents": _two_agents,
    "agent-not-running": _agent_stopped,
    "state-unusable": _state,
    "kubelet-elsewhere": _kubelet_elsewhere,
    "kubelet-silent": _kubelet_down,
    "other-plugin": _other_plugin,
    "checkpoint-unreadable": lambda node: node.file(f"{KUBELET}/kubelet_internal_checkpoint", "x"),
    "pod-resources-missing": lambda node: node.remove("var/lib/kubelet/pod-resources/kubelet.sock"),
    "sockets-left": lambda node: node.left_socket(f"{KUBELET}/nvidia-gpu.shared.sock"),
    "runtime-unreadable": lambda node: node.file("etc/containerd/config.toml", "not [toml"),
    "runtime-without-nvidia": _runtime,
    "cdi-broken": lambda node: node.remove(LIBRARY),
    "cdi-broken: ours": _cdi_own,
    "cdi-conflict": _cdi_twice,
    "claim-files-left": _claim_left,
    "limit-files-left": lambda node: node.file("var/lib/partage/bin/partage-limit-hook", "a program"),
    "cgroup-drivers-differ": _cgroups,
    "gpus-lost-on-reload": lambda node: node.remove("dev/char/1:255"),
    "policy-refused": _refused,
    "socket-path-long": _long_path,
    "gpus-differ": _mig_drift,
    "limits-missing": _limits,
    "mps-left": _mps_left,
    "mps-of-others": _mps_other,
    "operator-plugin": _label("nvidia.com/gpu.deploy.device-plugin", "true"),
    "labels-stale": _label("nvidia.com/gpu.count", "8"),
    "mig-config-failed": _label("nvidia.com/mig.config.state", "failed"),
    "slurm-gpus-differ": _slurm,
}
"""Each fault alone makes a finding with this code (up to the colon), and it is the first."""

WITHOUT_NVML = {
    "no-gpu", "nouveau", "driver-missing", "library-missing", "version-mismatch", "no-permission",
    "driver-busy", "driver-failed",
}  # fmt: skip
"""NVML gives one reason why it cannot be opened."""

_EXCLUDE = (
    WITHOUT_NVML,
    {"no-gpu", "gpu-without-driver"},  # a card that is there
    {"policy-refused", "socket-path-long", "gpus-differ", "limits-missing", "sockets-left"},  # one policy
    {"kubelet-elsewhere", "kubelet-silent", "socket-path-long", "cgroup-drivers-differ"},  # one kubelet
    {"runtime-unreadable", "runtime-without-nvidia"},  # one file
    {"mig-mode-pending", "mig-without-devices"},  # one mode
    {"compute-mode-left", "compute-mode-left: nobody"},
    *({one, other} for one in ("two-agents", "state-unusable")  # an agent that runs looks after the rest
      for other in ("agent-not-running", "mps-left", "sockets-left", "claim-files-left", "limit-files-left")),
)  # fmt: skip


def exclude_each_other(one: str, other: str) -> bool:
    """Whether a node can have only one of the two faults."""
    return any({one, other} <= together for together in _EXCLUDE)
