"""Which part of a machine is measured, and which Python has what it takes."""

import sys
from pathlib import Path

import pytest

from partage.errors import HardwareError, InputError, Unsatisfiable
from partage.faces.cli import common
from partage.lab.bench import node
from partage.lab.bench.model import BenchSettings
from partage.lab.daemon import find_pipe
from partage.lab.gpus import find_gpu, guard_directory
from partage.lab.interpreter import find_python
from partage.model.gpu import ComputeMode
from partage.model.step import Use, UseKind
from partage.units import GIB
from tests.faces.nodes import gpu
from tests.faces.nodes import node as inventory_of

MIGS = (("3g.40gb", 4, 4, 40), ("1g.10gb", 0, 1, 10))


@pytest.fixture(autouse=True)
def _outside_of_any_share(monkeypatch):
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)


def test_a_gpu_is_chosen_by_index_or_uuid_and_is_the_first_otherwise():
    inventory = inventory_of(gpu(0), gpu(2))
    assert find_gpu(inventory, None).index == 0
    assert find_gpu(inventory, "2").index == 2
    assert find_gpu(inventory, gpu(2).uuid).index == 2
    with pytest.raises(InputError, match="there are 0, 2"):
        find_gpu(inventory, "1")
    with pytest.raises(Unsatisfiable):
        find_gpu(inventory_of(), None)


def test_a_share_is_half_of_the_device_unless_it_is_said():
    whole = gpu(0)
    assert node.gpu_place(whole, BenchSettings(), None).share_bytes == whole.memory_bytes // 2
    assert node.gpu_place(whole, BenchSettings(memory_bytes=8 * GIB), None).share_bytes == 8 * GIB


def test_under_mig_the_first_device_stands_for_the_gpu():
    place = node.gpu_place(gpu(0, *MIGS), BenchSettings(), None)
    devices = gpu(0, *MIGS).mig_devices
    assert place.device == devices[0].uuid
    assert place.memory_bytes == devices[0].memory_bytes
    assert place.mig == tuple(device.uuid for device in devices)


def test_the_daemon_of_the_agent_is_found_by_itself(tmp_path):
    assert find_pipe(gpu(0).uuid, tmp_path, None) is None
    pipe = tmp_path / "mps" / gpu(0).uuid / "pipe"
    pipe.mkdir(parents=True)
    assert find_pipe(gpu(0).uuid, tmp_path, None) is None, "a directory is no daemon"
    (pipe / "control").touch()
    assert find_pipe(gpu(0).uuid, tmp_path, None) == pipe
    assert find_pipe(gpu(1).uuid, tmp_path, None) is None


def test_in_a_share_the_containers_own_daemon_is_taken(tmp_path, monkeypatch):
    (tmp_path / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert find_pipe(gpu(0).uuid, Path("/nonexistent"), None) == tmp_path


def test_a_named_pipe_directory_is_taken_as_it_is(tmp_path):
    assert find_pipe(gpu(0).uuid, Path("/nonexistent"), tmp_path) == tmp_path


def test_what_disturbs_a_measurement_is_remarked():
    here = gpu(0)
    uses = [
        Use(here.uuid, UseKind.PROCESS, "python", 7),
        Use(here.uuid, UseKind.PROCESS, "nvidia-cuda-mps-server", 8),
        Use(here.uuid, UseKind.MONITOR, "dcgm", 9),
        Use("GPU-elsewhere", UseKind.PROCESS, "python", 10),
    ]
    machine = node.gpu_machine(inventory_of(here), here, uses)
    assert machine.others == 1
    assert machine.compute_mode == ComputeMode.DEFAULT.name.lower()
    said = " ".join(node.remarks_on(machine, node.gpu_place(here, BenchSettings(), None), BenchSettings()))
    assert "1 other process had the GPU open" in said
    assert "MPS was not measured" in said


def test_a_simulated_node_of_every_kind_has_a_place():
    for machine in ("8xh100-sxm5-80gb", "8xl4"):
        inventory, uses = common.look(machine)
        chosen = find_gpu(inventory, None)
        place = node.gpu_place(chosen, BenchSettings(guard=True), None)
        assert place.guard == guard_directory()
        assert node.gpu_machine(inventory, chosen, uses).gpu == chosen.product


def test_the_guard_is_found_where_it_is_installed():
    directory = guard_directory()
    assert directory is not None
    assert (directory / "sitecustomize.py").is_file()


# --- the interpreter ---------------------------------------------------------------------------


@pytest.fixture
def torch_that(tmp_path, monkeypatch):
    """A Python that has a torch which does this when it is imported, and nothing else."""

    def make(line):
        (tmp_path / "torch.py").write_text(line)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return sys.executable

    return make


SEES = "class cuda:\n    is_available = staticmethod(lambda: {})\n"


def test_a_python_whose_torch_sees_a_gpu_will_do(torch_that):
    python = torch_that(SEES.format(True))
    assert find_python(None, "cuda", "torch") == python


@pytest.mark.parametrize(
    ("line", "words"),
    [(SEES.format(False), "its torch sees no GPU"), ("raise ImportError", "its torch cannot be imported")],
)
def test_a_python_whose_torch_will_not_do_is_named_with_the_reason(torch_that, line, words):
    python = torch_that(line)
    with pytest.raises(HardwareError, match=f"{python}: {words}"):
        find_python(python, "cuda", "torch")


def test_for_the_cpu_torch_is_not_even_imported(torch_that):
    python = torch_that("raise SystemExit(9)")
    assert find_python(python, "cpu", "torch") == python


def test_without_pytorch_any_python_will_do():
    assert find_python(None, "cpu", "python") == sys.executable
    assert find_python("/opt/python", "cpu", "python") == "/opt/python"
