"""Machines by name."""

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.edges.files.catalogue import geometry_of, load_catalogue
from partage.edges.files.policy import parse_policy
from partage.errors import InputError, Unsatisfiable
from partage.model.gpu import Driver, Inventory, LinkPath
from partage.plan.offer.desired import resolve
from partage.sim.node.files.load import load_machine
from partage.sim.node.machine import MOST_GPUS
from partage.sim.node.machine_names import parse_machine
from tests.oracle import enumerate_mig as oracle

GPUS_WITHOUT_MIG = tuple(model.id for model in load_catalogue().models if not model.mig)


def inventory_of(name: str) -> Inventory:
    return parse_machine(name).inventory


def refusal(name: str) -> str:
    with pytest.raises((InputError, Unsatisfiable)) as caught:
        load_machine(name)
    return str(caught.value)


def nvlinks(inventory, a, b):
    ends = {inventory.gpus[a].uuid, inventory.gpus[b].uuid}
    return next(link.nvlinks for link in inventory.links if {link.a, link.b} == ends)


@pytest.mark.parametrize("model_id", [*oracle.models_with_placements(), *GPUS_WITHOUT_MIG])
def test_every_model_with_a_name_makes_a_machine(model_id):
    inventory = inventory_of(f"2x{model_id}")
    model = load_catalogue().by_id(model_id)
    assert model is not None
    assert [gpu.product for gpu in inventory] == [model.products[0]] * 2
    assert all(gpu.memory_bytes == model.memory_bytes > 0 for gpu in inventory)
    assert all((gpu.mig_mode is not None) is model.mig for gpu in inventory)
    known = r"0x[0-9a-f]{4}10de" if model.pci_device_ids else "0x00000000"
    assert all(re.fullmatch(known, gpu.pci_device_id) for gpu in inventory)


def test_a_machine_of_eight_is_a_healthy_simulated_node():
    inventory = inventory_of("8xa100-40gb")
    assert inventory.simulated
    assert isinstance(inventory.driver, Driver)
    assert [(gpu.index, gpu.minor, gpu.numa_node) for gpu in inventory] == [
        (n, n, 0 if n < 4 else 1) for n in range(8)
    ]
    assert len(inventory.control_nodes) == 4
    assert inventory.lost == ()


def test_models_are_joined_in_the_order_of_the_name():
    products = [gpu.product for gpu in inventory_of("2xh200-141gb+1xL40S+t4")]
    assert products == ["NVIDIA H200", "NVIDIA H200", "NVIDIA L40S", "Tesla T4"]


@pytest.mark.parametrize(
    "name",
    [
        "8xA100-SXM4-40GB",
        "8XA100-40GB",
        "8xnvidia a100-sxm4-40gb",
        " 8 x a100-40gb ",
        "4xa100-40gb+4xa100-40gb",
    ],
)
def test_one_machine_has_many_names(name):
    assert inventory_of(name) == inventory_of("8xa100-40gb")


def test_uuids_follow_from_model_and_position():
    uuids = [gpu.uuid for gpu in inventory_of("8xa100-40gb+8xa30-24gb")]
    assert len(set(uuids)) == 16
    assert uuids[:2] == [gpu.uuid for gpu in inventory_of("2xa100-40gb")]
    assert all(re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid) for uuid in uuids)


def test_the_largest_machine_has_distinct_addresses():
    inventory = inventory_of(f"{MOST_GPUS}xt4")
    assert len({gpu.pci_bus_id for gpu in inventory}) == MOST_GPUS
    assert len(inventory.links) == MOST_GPUS * (MOST_GPUS - 1) // 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("8xa100-40g", "a100-40gb"),
        ("h100-sxmm", "nearest"),
        ("2xh100", "choose one: h100-sxm5-80gb, h100-pcie-80gb, h100-nvl-94gb, h100-sxm5-94gb"),
        ("8xv100", "choose one: v100-sxm2-16gb, v100-sxm2-32gb, v100-pcie-16gb, v100-pcie-32gb"),
        ("8xA100", "choose one: a100-40gb, a100-80gb"),
        ("q100", "write a machine file"),
        ("0xl40s", "no GPU"),
        ("65xl40s", "at most 64"),
        ("40xl40s+40xt4", "80 GPUs"),
        ("999999999xl40s", "at most 64"),
        ("8xl40s+", "8xa100-40gb"),
        ("", "8xa100-40gb"),
        ("8x", "8x"),
        ("thor-igpu", "record a node that has one"),
        ("8xa100-40gb" + "+l4" * 1000, "too long"),
        ("nowhere/machine.yaml", "no such file"),
        ("/", "directory"),
    ],
)
def test_what_is_no_machine_is_refused_with_advice(name, words):
    assert words in refusal(name)


def test_a_model_without_published_placements_can_do_all_but_mig_layouts():
    inventory = inventory_of("2xrtx-pro-5000-blackwell-48gb")
    assert [gpu.mig_mode is not None for gpu in inventory] == [True, True]
    for text, possible in (("time-slicing: {replicas: 4}", True), ("mig: {layout: [1g.24gb]}", False)):
        policy = parse_policy(f"version: partage/v1\ngpus: [{{select: all, {text}}}]", "p").policy
        if possible:
            assert resolve(policy, inventory, geometry_of).offer
            continue
        with pytest.raises(Unsatisfiable, match="only its driver knows them"):
            resolve(policy, inventory, geometry_of)


@given(st.text(max_size=40))
def test_no_text_ends_in_a_traceback(text):
    try:
        machine = parse_machine(text)
    except (InputError, Unsatisfiable):
        return
    assert machine.inventory.gpus


# --- topology ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "count"),
    {
        "a100-40gb": 12,
        "h100-sxm5-80gb": 18,
        "h200-141gb": 18,
        "b200-180gb": 18,
        "A100-PCIE-40GB": 0,
        "h100-pcie-80gb": 0,
        "l40s": 0,
        "rtx-3090": 0,
    }.items(),
)
def test_boards_with_a_switch_reach_each_other_with_all_their_links(model, count):
    assert nvlinks(inventory_of(f"2x{model}"), 0, 1) == count


def test_eight_v100_form_the_hybrid_cube_mesh():
    inventory = inventory_of("8xv100-sxm2-16gb")
    for gpu in range(8):
        assert sum(nvlinks(inventory, gpu, other) for other in range(8) if other != gpu) == 6
    assert nvlinks(inventory, 0, 4) == 2
    assert nvlinks(inventory, 0, 5) == 0


def test_gpus_of_different_models_have_no_nvlink():
    assert nvlinks(inventory_of("h100-sxm5-80gb+h200-141gb"), 0, 1) == 0


def test_a_path_across_the_numa_nodes_is_longer():
    inventory = inventory_of("8xl40s")
    path = {(link.a, link.b): link.path for link in inventory.links}
    uuid = [gpu.uuid for gpu in inventory]
    assert path[uuid[0], uuid[3]] is LinkPath.SAME_CPU
    assert path[uuid[3], uuid[4]] is LinkPath.CROSS_CPU


def test_a_named_machine_takes_no_yaml():
    code = (
        "import sys; from partage.sim.node.hardware import SimulatedHardware;"
        "from partage.sim.node.files.load import load_machine;"
        "SimulatedHardware(load_machine('8xa100-40gb')); sys.exit('yaml' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
