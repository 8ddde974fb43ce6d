"""A machine with one GPU: the C stand-ins for NVML and CUDA, NVIDIA's real MPS programs where they are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from partage.edges.host import procfs
from partage.units import GIB, MIB
from tests.edges.hardware.conftest import compiled_stub
from tests.edges.hardware.stub import StubNode
from tests.nvidia.packages import BRANCHES, unpacked

HOME = Path(__file__).parents[2]
CUDA = HOME / "tests/lab/cuda_stub.c"
SMI = """
import json, os, time
if "--set-timeslice" in sys.argv and os.path.exists({answers!r} + ".wait") and sys.argv[5] == "2":
    open({answers!r} + ".waits", "w").close()
    while os.path.exists({answers!r} + ".wait"):
        time.sleep(0.05)
    sys.exit(3)
if sys.argv[1].startswith("--query-gpu="):
    with open({answers!r}) as file:
        field = sys.argv[1].partition("=")[2]
        text = json.load(file).get(field)
    print("Field is not a valid field to query: " + field if text is None else text)
    sys.exit(2 if text is None else 0)
if sys.argv[1:] == ["topo", "-m"]:
    print("\\tGPU0\\tCPU Affinity\\tNUMA Affinity\\tGPU NUMA ID\\nGPU0\\t X \\t0-31\\tN/A\\t\\tN/A\\nLegend:")
    sys.exit(0)
"""


@dataclass
class Machine:
    """node: what the driver says. answers: nvidia-smi's, by field. state: where the journal is."""

    node: StubNode
    state: Path
    folder: Path
    command: tuple[str, ...] = (sys.executable, "-m", "tools.on_gpu")

    @property
    def result(self) -> Path:
        return self.folder / "hardware-test.json"

    def answers(self, **changes: str | None) -> None:
        """What nvidia-smi says."""
        sub = {name.replace("__", "."): text for name, text in changes.items()}
        answers = {name: text for name, text in {**ANSWERS, **sub}.items() if text is not None}
        (self.node.root / "smi.json").write_text(json.dumps(answers))

    def environment(self, **more: str) -> dict[str, str]:
        library = self.node.library.parent
        return {**os.environ, "LD_LIBRARY_PATH": str(library), "STUB_BYTES": str(8 * GIB), **more}

    def argv(self, *options: str) -> list[str]:
        where = ["--driver-root", self.node.root, "--state-dir", self.state, "--result", self.result]
        return [*self.command, *map(str, where), *options]

    def start(self, *options: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(*options), cwd=HOME, env=self.environment(**more), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *options: str, code: int = 0, **more: str) -> str:
        """What it says."""
        process = self.start(*options, **more)
        said, _ = process.communicate(timeout=500)
        assert process.returncode == code, said
        return said

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.result.read_text())
        return found

    def findings(self) -> dict[str, tuple[str, str]]:
        """Row to verdict and words, of the last run of each step."""
        return {
            one["row"]: (one["verdict"], one["words"])
            for run in self.document()["runs"] for one in run["findings"]
        }  # fmt: skip

    def left(self) -> list[str]:
        """What runs have left on this machine: directories, a journal, processes of its driver."""
        mine = str(self.node.root)
        processes = [
            f"{pid} {' '.join(procfs.command_of(Path('/proc'), pid))}" for pid in procfs.pids(Path("/proc"))
        ]
        directories = [str(path) for path in Path("/tmp").glob("pog-*") if _is_mine(path, mine)]
        return [*directories, *map(str, self.state.glob("*")), *(one for one in processes if mine in one)]

    def interval(self) -> str:
        """The time slice, as the driver says it."""
        return self._smi("compute-policy", "-i", StubNode.uuid(0), "--list")

    def _smi(self, *arguments: str) -> str:
        program = self.node.root / "usr/bin/nvidia-smi"
        return subprocess.run(
            [program, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()


def _is_mine(directory: Path, root: str) -> bool:
    """Others may run on the same computer: what is in it says whose it is."""
    return any(root in path.read_text(errors="replace") for path in directory.glob("*.log"))


ANSWERS = {
    "index": "0",
    "uuid": StubNode.uuid(0),
    "name": "NVIDIA H100 80GB HBM3",
    "pci.bus_id": StubNode.bus(0),
    "pci.device_id": "0x233010DE",
    "pci.sub_device_id": "0x16C110DE",
    "memory.total": "81559",
    "compute_mode": "Default",
    "compute_cap": "9.0",
    "persistence_mode": "Disabled",
    "mig.mode.current": "Disabled",
    "mig.mode.pending": "Disabled",
    "serial": "[N/A]",
    "vbios_version": "[N/A]",
    "driver_version": "550.163.01",
    "memory.used": "1024",
    "utilization.gpu": "0",
    "temperature.gpu": "41",
    "power.draw": "71.50",
    "power.limit": "700.00",
    "clocks.sm": "345",
    "clocks.mem": "2619",
}


@pytest.fixture(scope="session")
def cuda_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, CUDA], check=True)
    return library


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_stub(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(nvml_library: Path, cuda_library: Path, tmp_path: Path) -> Machine:
    """One H100, idle, in default mode, whose MIG mode changes without a reset."""
    node = StubNode(tmp_path / "root", nvml_library).add_h100s(1).with_live_mig()
    node.write(**{
        "gpu.0.used": 1024 * MIB, "gpu.0.util": "0 0", "gpu.0.celsius": 41,
        "gpu.0.power": 71500, "gpu.0.limit": 700000, "gpu.0.clock.1": 345, "gpu.0.clock.2": 2619,
    })  # fmt: skip
    shutil.copyfile(cuda_library, node.library.parent / "libcuda.so.1")
    node.add_nvidia_smi(SMI.format(answers=str(node.root / "smi.json")))
    made = Machine(node, tmp_path / "state", tmp_path)
    made.answers()
    return made


@pytest.fixture(params=BRANCHES)
def programs(request: pytest.FixtureRequest, machine: Machine) -> Machine:
    """The same with NVIDIA's control program and server, by branch; without a GPU its server ends at once."""
    root = unpacked(request.param)
    for name in ("bin/nvidia-cuda-mps-control", "sbin/nvidia-cuda-mps-server"):
        target = machine.node.root / "usr" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / "usr" / name, target)
    return machine
