"""GPUs on the bus, CDI specifications, processes, clock and disks."""

import json
import os
from pathlib import Path

import pytest

from partage.doctor.decide.observation import Clock, Kubelet, PciGpu, Unseen
from partage.doctor.host.cdi_files import cdi_files
from partage.doctor.host.kubelet import kubelet_seen
from partage.doctor.host.machine import clock_seen, disks_seen, nvidia_gpus
from partage.doctor.host.processes import HIDDEN, agent_processes, kubelet_process, mps_processes
from partage.doctor.host.root import NodeRoot
from partage.edges.host.procfs import INITIAL_PID_NAMESPACE


def _file(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def _process(root: Path, pid: int, *words: str) -> None:
    _file(root, f"proc/{pid}/cmdline", "\0".join(words) + "\0")
    _file(root, f"proc/{pid}/comm", Path(words[0]).name[:15] + "\n")


@pytest.fixture
def root(tmp_path: Path) -> NodeRoot:
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to(INITIAL_PID_NAMESPACE)
    return NodeRoot(tmp_path)


def test_only_gpus_of_nvidia_count(root: NodeRoot) -> None:
    for address, vendor, kind in (
        ("0", "0x10de", "0x030200"),
        ("1", "0x10de", "0x040300"),
        ("2", "0x8086", "0x030000"),
    ):
        _file(root.path, f"sys/bus/pci/devices/{address}/vendor", vendor)
        _file(root.path, f"sys/bus/pci/devices/{address}/class", kind)
    (root.path / "sys/bus/pci/devices/0/driver").symlink_to("../../drivers/vfio-pci")
    _file(root.path, "sys/bus/pci/devices/3/vendor", "0x10de")
    _file(root.path, "sys/bus/pci/devices/3/class", "0x030200")
    (root.path / "sys/bus/pci/devices/3/physfn").symlink_to("../0")
    assert nvidia_gpus(root) == (PciGpu("0", "vfio-pci"),), "and no virtual function of one"


def test_without_a_bus_there_is_no_card_and_without_sysfs_it_is_not_known(root: NodeRoot) -> None:
    assert isinstance(nvidia_gpus(root), Unseen)
    (root.path / "sys/bus").mkdir(parents=True)
    assert nvidia_gpus(root) == ()


def test_of_cdi_only_nvidias_devices_count(root: NodeRoot) -> None:
    _file(root.path, "etc/cdi/a.json", json.dumps({"kind": "vendor.com/x", "devices": [{"name": "0"}]}))
    _file(root.path, "etc/cdi/b.yaml", "kind: [\n")
    _file(root.path, "etc/cdi/nvidia.json", "{")
    _file(root.path, "etc/cdi/c.txt", "no specification")
    _file(root.path, "usr/lib/libcuda.so.580.95.05", "")
    mounts = [{"hostPath": path} for path in ("/usr/lib/libcuda.so.580.95.05", "/usr/lib/libgbm.so.1.1.0")]
    spec = {
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "0"}, 7],
        "containerEdits": {"mounts": [*mounts, 3]},
    }
    _file(root.path, "var/run/cdi/good.json", json.dumps(spec))
    broken, good = cdi_files(root)
    assert (broken.path, bool(broken.problem)) == ("/etc/cdi/nvidia.json", True)
    assert (good.devices, good.missing) == (("nvidia.com/gpu=0",), ("/usr/lib/libgbm.so.1.1.0",))
    assert (good.versions, good.ours, good.order) == (("580.95.05",), False, 1)


def test_an_agent_is_not_who_waits_for_it_nor_a_simulated_one(root: NodeRoot) -> None:
    _process(root.path, 1, "tini", "--", "partage", "agent")
    _process(root.path, 2, "/usr/bin/sudo", "partage", "agent")
    _process(
        root.path, 3, "/opt/venv/bin/python3", "-m", "partage", "agent", "--http-token", "hunter2hunter2"
    )
    _process(root.path, 4, "/usr/bin/python3", "/usr/bin/partage", "agent", "--machine", "x")
    _process(root.path, 5, "/usr/bin/python3", "/usr/bin/partage", "hardware")
    _process(root.path, 6, "/usr/bin/python3", "/usr/bin/partage", "doctor", "agent")
    (found,) = agent_processes(root)
    assert (found.pid, found.command) == (3, "partage agent --http-token [removed]")


def test_the_kubelets_options(root: NodeRoot) -> None:
    assert kubelet_process(root) is None
    _process(root.path, 9, "/usr/bin/kubelet", "--root-dir=/data", "--config", "/etc/k.yaml")
    _file(root.path, "etc/k.yaml", "cgroupDriver: cgroupfs\n")
    found = kubelet_seen(root, "/var/lib/kubelet/device-plugins")
    assert isinstance(found, Kubelet)
    assert (found.running, found.own_directory) == (True, "/data/device-plugins")
    assert (found.there, found.listens, found.cgroup_driver) == (False, False, "cgroupfs")


def test_a_node_without_kubernetes_has_no_kubelet(root: NodeRoot) -> None:
    assert kubelet_seen(root, "/var/lib/kubelet/device-plugins") is None
    (root.path / "etc/kubernetes").mkdir(parents=True)
    assert kubelet_seen(root, "/var/lib/kubelet/device-plugins") is not None


def test_processes_that_cannot_be_seen_are_said(tmp_path: Path) -> None:
    assert mps_processes(NodeRoot(tmp_path)) == HIDDEN
    assert kubelet_process(NodeRoot(tmp_path)) == HIDDEN


def test_mps_without_a_variable_has_the_drivers_directory(root: NodeRoot) -> None:
    _process(root.path, 7, "nvidia-cuda-mps-control", "-d")
    _file(root.path, "proc/7/environ", "A=b\0")
    found = mps_processes(root)
    assert not isinstance(found, Unseen)
    assert [(one.name, one.pipe) for one in found] == [("nvidia-cuda-mps-control", "/tmp/nvidia-mps")]


def test_clock_and_disks_of_this_machine(tmp_path: Path) -> None:
    clock = clock_seen()
    assert isinstance(clock, Clock)
    assert clock.error_s >= 0
    (disk,) = disks_seen(NodeRoot(), [str(tmp_path / "not/there/yet")])
    told = os.statvfs(tmp_path)
    assert disk.path.endswith("yet")
    assert abs(disk.free_bytes - told.f_bavail * told.f_frsize) < 2**30
    assert not disk.read_only
