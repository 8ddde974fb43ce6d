"""A node as a directory tree with simulated GPUs, healthy at first, and ways to break it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from partage.doctor.decide.diagnose import Diagnosis, diagnose
from partage.doctor.decide.observation import Clock, Disk
from partage.doctor.gather import Sources, see
from partage.doctor.gather_policy import GivenPolicy
from partage.doctor.host.root import DoctorPlace, NodeRoot
from partage.edges.files.directory_lock import RUN_LOCK, take_lock
from partage.edges.files.state import SavedPolicy, SavedState, StateDir
from partage.edges.host.procfs import INITIAL_PID_NAMESPACE
from partage.units import GIB

VERSION = "580.95.05"
H100 = "NVIDIA H100 80GB HBM3"
KUBELET = "/var/lib/kubelet/device-plugins"
LIBRARY = f"/usr/lib64/libcuda.so.{VERSION}"
POLICY = "version: partage/v1\ngpus:\n  - {select: all, time-slicing: {replicas: 4}}\n"
CONTAINERD = """version = 3
[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "nvidia"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
SystemdCgroup = true
"""
LISTEN = """import socket, sys
one = socket.socket(socket.AF_UNIX); one.bind(sys.argv[1]); one.listen(); print("ready", flush=True)
sys.stdin.read()"""


class Node:
    """Everything is below ``root``. Close it: it has sockets, and processes that listen."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.open = contextlib.ExitStack()
        self.machine: dict[str, Any] = {"gpus": [{"name": H100}, {"name": H100}], "driver": VERSION}
        self.policy: str | None = POLICY
        self.labels: dict[str, str] | None = {"nvidia.com/gpu.count": "2"}
        self.clock = Clock(True, 0.1)
        self.free_bytes = 100 * GIB
        self.read_only = False
        self.kubelet_dir, self.run_dir = KUBELET, "/run/partage"
        self._driver()
        self._kubernetes()

    def close(self) -> None:
        self.open.close()

    # --- a healthy node ----------------------------------------------------------------------------

    def _driver(self) -> None:
        for index in range(2):
            self.card(index, "nvidia")
            self.device(f"dev/nvidia{index}")
        self.file("dev/null", "")  # where links of devices lead below the root
        for name in ("nvidiactl", "nvidia-uvm", "char/1:255"):
            self.device(f"dev/{name}")
        self.module(VERSION)
        self.file("proc/devices", "Character devices:\n  1 nvidia\n  1 nvidiactl\n  1 nvidia-uvm\n")
        self.library(VERSION)
        self.file(LIBRARY, "")
        self.link("proc/self/ns/pid", INITIAL_PID_NAMESPACE)
        self.file(
            "etc/cdi/nvidia.yaml",
            yaml.safe_dump(
                {
                    "cdiVersion": "0.6.0",
                    "kind": "nvidia.com/gpu",
                    "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
                    "containerEdits": {"mounts": [{"hostPath": LIBRARY, "containerPath": LIBRARY}]},
                }
            ),
        )

    def _kubernetes(self) -> None:
        self.file("etc/containerd/config.toml", CONTAINERD)
        self.file("var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\ncgroupDriver: systemd\n")
        self.process(100, "kubelet", "/usr/bin/kubelet", "--config=/var/lib/kubelet/config.yaml")
        self.kubelet = self.listen(f"{KUBELET}/kubelet.sock")
        self.listen("var/lib/kubelet/pod-resources/kubelet.sock")

    # --- what it is made of ------------------------------------------------------------------------

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def file(self, path: str, content: str) -> Path:
        target = self.at(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
        return target

    def link(self, path: str, to: str) -> None:
        target = self.at(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.symlink_to(to)

    def device(self, path: str) -> None:
        self.link(path, "/dev/null")  # a character device that needs no root

    def remove(self, path: str) -> None:
        self.at(path).unlink(missing_ok=True)

    def card(self, index: int, driver: str) -> None:
        device = f"sys/bus/pci/devices/0000:{0x1A + index:02x}:00.0"
        self.file(f"{device}/vendor", "0x10de\n")
        self.file(f"{device}/class", "0x030200\n")
        if driver:
            self.link(f"{device}/driver", f"../../../../bus/pci/drivers/{driver}")
        else:
            self.remove(f"{device}/driver")

    def module(self, version: str) -> None:
        text = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Sun Nov 22\n"
        self.file("proc/driver/nvidia/version", text)

    def library(self, version: str) -> None:
        name = f"libnvidia-ml.so.{version}"
        self.file(f"usr/lib64/{name}", "")
        self.link("usr/lib64/libnvidia-ml.so.1", name)

    def process(self, pid: int, name: str, *words: str, environ: str = "") -> None:
        self.file(f"proc/{pid}/comm", name + "\n")
        self.file(f"proc/{pid}/cmdline", "\0".join(words) + "\0")
        self.file(f"proc/{pid}/environ", environ + "\0")

    def listen(self, path: str) -> socket.socket:
        """A socket of this process."""
        target = self.at(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        made = self.open.enter_context(socket.socket(socket.AF_UNIX))
        made.bind(str(target))
        made.listen()
        return made

    def other_listens(self, path: str) -> None:
        """A socket of another process, which has begun to listen."""
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", LISTEN, self.at(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.open.callback(child.wait)
        assert child.stdin is not None
        assert child.stdout is not None
        self.open.callback(child.stdin.close)
        self.open.callback(child.stdout.close)
        assert child.stdout.readline() == b"ready\n"

    def left_socket(self, path: str) -> None:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(self.at(path)))

    def no_driver(self, kind: str, reason: str = "it does not answer") -> None:
        """NVML cannot be opened. Of several reasons the first one counts, as with NVML."""
        self.machine.setdefault("no-driver", {"kind": kind, "reason": reason, "hint": ""})
        self.machine.pop("gpus", None)
        self.machine.pop("lost", None)

    def gpu(self, index: int, **keys: object) -> None:
        """Keys of a GPU; none where there is no driver any more."""
        if gpus := self.machine.get("gpus"):
            gpus[index] |= {key.replace("_", "-"): value for key, value in keys.items()}

    def agent_runs(self) -> None:
        """Something holds the lock of the run directory."""
        directory = self.at("run/partage")
        directory.mkdir(parents=True, exist_ok=True)
        self.open.callback(os.close, take_lock(directory, RUN_LOCK))

    def served(self, text: str = POLICY) -> None:
        """An agent has served a policy here, and is not there any more."""
        state = StateDir(self.at("var/lib/partage"))
        assert state.save(SavedState(policy=SavedPolicy(text, "policy.yaml")), 0.0) is None
        state.close()

    # --- the doctor --------------------------------------------------------------------------------

    @property
    def place(self) -> DoctorPlace:
        machine = self.file("machine.yaml", yaml.safe_dump(self.machine))
        return DoctorPlace(
            NodeRoot(self.root), self.kubelet_dir, "/var/lib/partage", self.run_dir, str(machine),
            node_name="n1", slurm_version="24.11.5",
        )  # fmt: skip

    @property
    def given(self) -> GivenPolicy:
        if self.policy is None:
            return GivenPolicy()
        return GivenPolicy(str(self.file("policy.yaml", self.policy)))

    def diagnose(self) -> Diagnosis:
        def disks(_: NodeRoot, paths: Iterable[str]) -> tuple[Disk, ...]:
            return tuple(Disk(one, self.free_bytes, 10_000, self.read_only) for one in paths)

        sources = Sources(clock=lambda: self.clock, disks=disks, environ={})
        return diagnose(see(self.place, self.given, self.labels, sources))

    def arguments(self) -> list[str]:
        """The same on the command line."""
        return [
            "doctor", "--root", str(self.root), "--machine", str(self.place.machine),
            *(["--policy", str(self.given.file)] if self.policy is not None else []),
        ]  # fmt: skip


def codes(found: Diagnosis) -> list[str]:
    return [one.code for one in found.findings]


def json_file(path: Path) -> Any:
    return json.loads(path.read_text())


def mps_environ(home: str) -> str:
    return f"CUDA_MPS_PIPE_DIRECTORY={home}/pipe"


def ahead(path: Path, seconds: float) -> None:
    now = path.stat().st_mtime
    os.utime(path, (now + seconds, now + seconds))
