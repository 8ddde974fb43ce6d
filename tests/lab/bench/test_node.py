"""Which part of a machine is measured, and which Python has what it takes."""

from partage.answers import common_node
from partage.lab.bench import node
from partage.lab.bench.model import BenchSettings
from partage.lab.gpus import find_gpu, guard_directory
from partage.model.gpu import ComputeMode
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.ids import GpuUuid
from partage.units import GIB
from tests.answers.nodes import gpu
from tests.answers.nodes import node as inventory_of

MIGS = (("3g.40gb", 4, 4, 40), ("1g.10gb", 0, 1, 10))


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


def test_what_disturbs_a_measurement_is_remarked():
    here = gpu(0)
    uses = [
        GpuUse(here.uuid, UseKind.PROCESS, "python", 7),
        GpuUse(here.uuid, UseKind.PROCESS, "nvidia-cuda-mps-server", 8),
        GpuUse(here.uuid, UseKind.MONITOR, "dcgm", 9),
        GpuUse(GpuUuid("GPU-elsewhere"), UseKind.PROCESS, "python", 10),
    ]
    machine = node.gpu_machine(inventory_of(here), here, uses)
    assert machine.others == 1
    assert machine.compute_mode == ComputeMode.DEFAULT.name.lower()
    said = " ".join(node.remarks_on(machine, node.gpu_place(here, BenchSettings(), None), BenchSettings()))
    assert "1 other process had the GPU open" in said
    assert "MPS was not measured" in said


def test_a_simulated_node_of_every_kind_has_a_place():
    for machine in ("8xh100-sxm5-80gb", "8xl4"):
        inventory, uses = common_node.observe_with_uses(machine)
        chosen = find_gpu(inventory, None)
        place = node.gpu_place(chosen, BenchSettings(guard=True), None)
        assert place.guard == guard_directory()
        assert node.gpu_machine(inventory, chosen, uses).gpu == chosen.product
