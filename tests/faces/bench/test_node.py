"""Which part of a machine is measured, and which Python has what it takes."""

import sys

import pytest

from partage.errors import HardwareError, InputError, Unsatisfiable
from partage.faces.bench import node
from partage.faces.bench.interpreter import find_python
from partage.faces.bench.model import Settings
from partage.faces.cli import common
from partage.model.gpu import ComputeMode
from partage.model.step import GpuUse, UseKind
from partage.units import GIB
from tests.faces.nodes import gpu
from tests.faces.nodes import node as inventory_of

MIGS = (("3g.40gb", 4, 4, 40), ("1g.10gb", 0, 1, 10))


@pytest.fixture(autouse=True)
def _outside_of_any_share(monkeypatch):
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)


def test_a_gpu_is_chosen_by_index_or_uuid_and_is_the_first_otherwise():
    inventory = inventory_of(gpu(0), gpu(2))
    assert node.chosen(inventory, None).index == 0
    assert node.chosen(inventory, "2").index == 2
    assert node.chosen(inventory, gpu(2).uuid).index == 2
    with pytest.raises(InputError, match="there are 0, 2"):
        node.chosen(inventory, "1")
    with pytest.raises(Unsatisfiable):
        node.chosen(inventory_of(), None)


def test_a_share_is_half_of_the_device_unless_it_is_said():
    whole = gpu(0)
    assert node.gpu_place(whole, Settings(), None).share_bytes == whole.memory_bytes // 2
    assert node.gpu_place(whole, Settings(memory_bytes=8 * GIB), None).share_bytes == 8 * GIB


def test_under_mig_the_first_device_stands_for_the_gpu():
    place = node.gpu_place(gpu(0, *MIGS), Settings(), None)
    devices = gpu(0, *MIGS).mig_devices
    assert place.device == devices[0].uuid
    assert place.memory_bytes == devices[0].memory_bytes
    assert place.mig == tuple(device.uuid for device in devices)


def test_the_daemon_of_the_agent_is_found_by_itself(tmp_path):
    assert node.pipe_of(gpu(0), str(tmp_path), None) is None
    pipe = tmp_path / "mps" / gpu(0).uuid / "pipe"
    pipe.mkdir(parents=True)
    assert node.pipe_of(gpu(0), str(tmp_path), None) is None, "a directory is no daemon"
    (pipe / "control").touch()
    assert node.pipe_of(gpu(0), str(tmp_path), None) == pipe
    assert node.pipe_of(gpu(1), str(tmp_path), None) is None


def test_in_a_share_the_containers_own_daemon_is_taken(tmp_path, monkeypatch):
    (tmp_path / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert node.pipe_of(gpu(0), "/nonexistent", None) == tmp_path


def test_a_named_pipe_directory_has_to_be_there(tmp_path):
    assert node.pipe_of(gpu(0), "/nonexistent", str(tmp_path)) == tmp_path
    with pytest.raises(InputError, match="--mps-pipe"):
        node.pipe_of(gpu(0), "/nonexistent", str(tmp_path / "gone"))


def test_what_disturbs_a_measurement_is_remarked():
    here = gpu(0)
    uses = [
        GpuUse(here.uuid, UseKind.PROCESS, "python", 7),
        GpuUse(here.uuid, UseKind.PROCESS, "nvidia-cuda-mps-server", 8),
        GpuUse(here.uuid, UseKind.MONITOR, "dcgm", 9),
        GpuUse("GPU-elsewhere", UseKind.PROCESS, "python", 10),
    ]
    machine = node.gpu_machine(inventory_of(here), here, uses)
    assert machine.others == 1
    assert machine.compute_mode == ComputeMode.DEFAULT.name.lower()
    said = " ".join(node.remarks_on(machine, node.gpu_place(here, Settings(), None), Settings()))
    assert "1 other process had the GPU open" in said
    assert "MPS was not measured" in said


def test_a_simulated_node_of_every_kind_has_a_place():
    for machine in ("8xh100-sxm5-80gb", "8xl4"):
        inventory, uses = common.look(machine)
        chosen = node.chosen(inventory, None)
        place = node.gpu_place(chosen, Settings(guard=True), None)
        assert place.guard == node.guard_directory()
        assert node.gpu_machine(inventory, chosen, uses).gpu == chosen.product


def test_the_guard_is_found_where_it_is_installed():
    directory = node.guard_directory()
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
