"""On which GPUs anything is tried: where driver, kubelet and agent know of nobody."""

import pytest

from partage.errors import InputError, Unsatisfiable
from partage.lab.gpus import free_gpus, holders, require_visible_processes
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.ids import GpuUuid
from tests.answers.nodes import gpu, node

NODE = node(gpu(0), gpu(1), gpu(2))
PODS = {1: ["lab/anna"]}


def test_monitors_and_mps_servers_hold_nothing():
    uses = [
        GpuUse(GpuUuid("GPU-0"), UseKind.MONITOR, "nv-hostengine", 7),
        GpuUse(GpuUuid("GPU-0"), UseKind.PROCESS, "nvidia-cuda-mps-server", 8),
        GpuUse(GpuUuid("GPU-2"), UseKind.PROCESS, "python", 9),
    ]
    assert holders(NODE, uses, {}) == {"GPU-2": ["process python (pid 9)"]}


def test_a_pod_holds_its_gpu_though_it_has_not_opened_it():
    assert holders(NODE, [], PODS) == {"GPU-1": ["pod lab/anna"]}


def test_all_gpus_are_tried_where_nobody_is():
    assert free_gpus(NODE, None, {}) == NODE.gpus
    assert free_gpus(NODE, "GPU-2", {}) == NODE.gpus[2:]


def test_where_somebody_is_those_without_are_named():
    held = holders(NODE, [], PODS)
    with pytest.raises(Unsatisfiable, match=r"GPU 1 is held by pod lab/anna.*GPUs 0, 2"):
        free_gpus(NODE, None, held)
    assert free_gpus(NODE, "2", held) == NODE.gpus[2:]
    with pytest.raises(Unsatisfiable, match="pod lab/anna"):
        free_gpus(NODE, "1", held)


def test_where_everybody_is_busy_no_other_gpu_is_named():
    held = {one.uuid: ["process python"] for one in NODE}
    with pytest.raises(Unsatisfiable, match="wait until"):
        free_gpus(NODE, None, held)


def test_a_node_without_gpus_and_a_gpu_that_is_none():
    with pytest.raises(Unsatisfiable, match="no GPU answers"):
        free_gpus(node(), None, {})
    with pytest.raises(InputError, match="no GPU '7'"):
        free_gpus(NODE, "7", {})


def test_who_cannot_see_others_has_to_say_that_there_are_none():
    require_visible_processes("")
    with pytest.raises(Unsatisfiable, match="--alone"):
        require_visible_processes("the pid namespace is not the node's")
