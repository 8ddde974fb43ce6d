"""The steps for a node: GPUs by themselves, and GPUs that share a reset."""

from __future__ import annotations

import random
from copy import deepcopy
from itertools import combinations
from time import process_time

import pytest

from partage.model.gpu import Driver, Inventory, Link, LinkPath
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.ids import GpuUuid
from partage.model.layout import LayoutItem
from partage.model.policy import DesiredMig
from partage.model.step import (
    CreateInstance,
    DestroyInstance,
    Reset,
    SetMigMode,
    Verify,
    blast_radius,
    gpus_of,
)
from partage.plan.reconcile.blocked import BlockKind
from partage.plan.reconcile.mig_plan import NOTHING, plan_mig
from partage.plan.reconcile.resets import reset_sets
from tests.oracle import enumerate_mig as oracle
from tests.plan.reconcile.mig_card import Card, geometry

A100, A100_PCIE, H100 = "NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "NVIDIA H100 80GB HBM3"
OFF = (False, False)


def desired(*names, enabled=True):
    return DesiredMig(tuple(LayoutItem.parse(name) for name in names), enabled)


def cards(product, number, **more):
    model = {A100: "a100-40gb", A100_PCIE: "a100-40gb", H100: "h100-sxm5-80gb"}[product]
    return [Card(model, index, product=product, **more) for index in range(number)]


def node(cards, nvlinks=12, fabric_manager=None, virtual=None):
    gpus = tuple(card.gpu() for card in cards)
    links = tuple(Link(a.uuid, b.uuid, LinkPath.SAME_CPU, nvlinks) for a, b in combinations(gpus, 2))
    return Inventory(
        Driver("550.163.01", "12.4"), gpus, links=links, fabric_manager=fabric_manager, virtual=virtual
    )


def plan(cards, desired_layouts, uses=(), renew=NOTHING, **facts):
    known = {card.gpu().uuid: card.geometry for card in cards}
    named = {GpuUuid(f"GPU-{index}"): one for index, one in desired_layouts.items()}
    return plan_mig(node(cards, **facts), named, lambda gpu: known[gpu.uuid], uses, renew=renew)


def run(cards, steps):
    for step in steps:
        for uuid in gpus_of(step):
            cards[int(uuid[4:])].does(step)


def kinds(steps):
    return [type(step) for step in steps]


def pod(gpu, name="default/train"):
    return GpuUse(GpuUuid(f"GPU-{gpu}"), UseKind.POD, name)


# --- GPUs by themselves --------------------------------------------------------------------------


def test_only_gpus_with_a_desired_layout_are_touched_and_only_where_something_differs():
    some = cards(H100, 3)
    some[0].live("3g.40gb", 0)
    some[1].live("3g.40gb", 0)
    answer = plan(some, {0: desired("3g.40gb"), 2: desired("1g.10gb")})
    assert [unit.gpus for unit in answer.transactions] == [("GPU-2",)]
    assert [one.gpu for one in answer.planned] == ["GPU-0", "GPU-2"]
    assert answer.planned[0].steps == ()


def test_a_blocked_gpu_does_not_block_the_others():
    some = cards(H100, 2)
    answer = plan(some, {0: desired("9g.90gb"), 1: desired("1g.10gb")})
    assert [(one.gpu, one.kind) for one in answer.blocked] == [("GPU-0", BlockKind.DOES_NOT_FIT)]
    assert [unit.gpus for unit in answer.transactions] == [("GPU-1",)]


def test_a_gpu_that_needs_no_reset_changes_its_mode_beside_busy_neighbours():
    some = cards(H100, 8, mode=OFF)
    answer = plan(some, {3: desired("7g.80gb")}, [pod(gpu) for gpu in range(8) if gpu != 3])
    assert [unit.gpus for unit in answer.transactions] == [("GPU-3",)]
    assert SetMigMode in kinds(answer.transactions[0].steps)
    assert Reset not in kinds(answer.transactions[0].steps)


# --- GPUs that share a reset ---------------------------------------------------------------------


def test_gpus_that_share_a_reset_are_reset_once_after_what_is_destroyed_and_before_what_is_created():
    some = cards(A100, 4, mode=OFF)
    some[2].mode = (True, True)
    some[2].live("3g.20gb", 4)
    answer = plan(some, {0: desired("7g.40gb"), 1: desired("7g.40gb"), 2: desired("3g.20gb")})
    (unit,) = answer.transactions
    assert unit.gpus == ("GPU-0", "GPU-1", "GPU-2", "GPU-3")
    counted = (DestroyInstance, SetMigMode, Reset, CreateInstance)
    assert [kind for kind in kinds(unit.steps) if kind in counted] == [
        DestroyInstance, SetMigMode, SetMigMode, Reset, CreateInstance, CreateInstance, CreateInstance,
    ]  # fmt: skip
    reset = next(step for step in unit.steps if isinstance(step, Reset))
    assert (reset.pending, reset.along) == (("GPU-0", "GPU-1"), ("GPU-2", "GPU-3"))
    assert blast_radius(reset).idle == unit.gpus
    run(some, unit.steps)
    assert [card.content() for card in some] == [["7g.40gb@0"], ["7g.40gb@0"], ["3g.20gb@4"], []]


def test_interrupted_anywhere_a_shared_reset_ends_in_what_is_wanted():
    some = cards(A100, 3, mode=OFF)
    some[2].mode = (True, True)
    some[2].live("3g.20gb", 4)
    desired_layouts = {0: desired("3g.20gb", "3g.20gb"), 1: desired(), 2: desired("3g.20gb", "1g.5gb")}
    steps = plan(some, desired_layouts).transactions[0].steps
    for done in range(len(steps) + 1):
        copy = deepcopy(some)
        run(copy, steps[:done])
        for unit in plan(copy, desired_layouts).transactions:
            run(copy, unit.steps)
        assert plan(copy, desired_layouts).transactions == ()
        assert [len(card.content()) for card in copy] == [2, 0, 2]


def test_a_peer_in_use_keeps_the_set_from_its_reset_and_is_named():
    some = cards(A100, 4, mode=OFF)
    answer = plan(some, {0: desired("7g.40gb")}, [pod(2), pod(3)])
    (refused,) = answer.blocked
    assert (refused.gpu, refused.kind) == ("GPU-0", BlockKind.HELD)
    assert [one.gpu for one in refused.blockers] == ["GPU-2", "GPU-3"]
    assert "spans 2 of the GPUs to be reset" in refused.reason
    assert answer.transactions == ()


def test_the_persistence_daemon_is_in_the_way_of_no_reset_and_other_monitors_are():
    some = cards(A100, 2, mode=OFF)
    persistenced = [GpuUse(GpuUuid(f"GPU-{gpu}"), UseKind.MONITOR, "nvidia-persiste", 70) for gpu in (0, 1)]
    (unit,) = plan(some, {0: desired("7g.40gb")}, persistenced).transactions
    assert Reset in kinds(unit.steps)
    dcgm = GpuUse(GpuUuid("GPU-1"), UseKind.MONITOR, "nv-hostengine", 71)
    (refused,) = plan(some, {0: desired("7g.40gb")}, [*persistenced, dcgm]).blocked
    assert [str(use) for one in refused.blockers for use in one.users] == ["monitor nv-hostengine (pid 71)"]


def test_a_peer_that_needs_no_reset_is_planned_by_itself_meanwhile():
    some = cards(A100, 3, mode=OFF)
    some[1].mode = (True, True)
    answer = plan(some, {0: desired("7g.40gb"), 1: desired("1g.5gb")}, [pod(2)])
    assert [one.gpu for one in answer.blocked] == ["GPU-0"]
    assert [unit.gpus for unit in answer.transactions] == [("GPU-1",)]


@pytest.mark.parametrize("lost", ["instances", "mode", "empty"])
def test_a_peer_without_a_desired_layout_loses_nothing(lost):
    some = cards(A100, 2, mode=OFF)
    some[1].mode = (False, True) if lost == "mode" else (True, True)
    if lost != "mode":
        some[1].live("3g.20gb", 0, computes=[] if lost == "empty" else None)
    (refused,) = plan(some, {0: desired("7g.40gb")}).blocked
    assert refused.kind is BlockKind.SHARED
    assert refused.reason.startswith("GPU 0 cannot be reset without GPU 1: its ")


def test_a_peer_whose_desired_layout_is_impossible_keeps_its_instances():
    some = cards(A100, 2, mode=OFF)
    some[1].mode = (True, True)
    some[1].live("3g.20gb", 0)
    answer = plan(some, {0: desired("7g.40gb"), 1: desired("8g.40gb")})
    assert [one.kind for one in answer.blocked] == [BlockKind.SHARED, BlockKind.DOES_NOT_FIT]


def test_with_the_fabric_manager_each_gpu_is_reset_by_itself():
    answer = plan(cards(A100, 4, mode=OFF), {0: desired("7g.40gb")}, [pod(2)], fabric_manager=True)
    assert [unit.gpus for unit in answer.transactions] == [("GPU-0",)]


def test_a_reset_says_what_it_takes():
    (unit,) = plan(cards(A100, 4, mode=OFF), {0: desired("7g.40gb")}).transactions
    assert str(next(step for step in unit.steps if isinstance(step, Reset))) == (
        "reset the GPU, so that its MIG mode takes effect; 3 GPUs that share its NVLinks are reset along "
        "with it; in a virtual machine that may take a reboot"
    )
    (pair,) = plan(cards(A100, 2, mode=OFF), {0: desired("7g.40gb")}).transactions
    assert "1 GPU that shares its NVLinks is reset along with it" in " ".join(map(str, pair.steps))


@pytest.mark.parametrize(("virtual", "reboot"), [(True, None), (None, None), (False, False)])
def test_only_where_nothing_is_virtual_a_reset_is_known_to_do_without_a_reboot(virtual, reboot):
    (unit,) = plan(cards(A100, 1, mode=OFF), {0: desired("7g.40gb")}, virtual=virtual).transactions
    (reset,) = [step for step in unit.steps if isinstance(step, Reset)]
    assert reset.reboot is reboot


def test_a_gpu_instance_that_is_to_be_renewed_is_destroyed_and_created_on_that_gpu_alone():
    some = cards(H100, 2)
    for card in some:
        card.live("3g.40gb", 4)
    gi_id = some[0].gpu().mig_devices[0].gi_id
    desired_layouts = {0: desired("3g.40gb@4"), 1: desired("3g.40gb@4")}
    (unit,) = plan(some, desired_layouts, renew={"GPU-0": {gi_id}}).transactions
    assert unit.gpus == ("GPU-0",)
    assert DestroyInstance in kinds(unit.steps)
    run(some, unit.steps)
    assert [card.content() for card in some] == [["3g.40gb@4"], ["3g.40gb@4"]]


@pytest.mark.parametrize(
    ("product", "nvlinks", "fabric_manager", "size"),
    [(A100, 12, None, 4), (A100, 12, False, 4), (A100, 12, True, 1), (A100, 0, None, 4),
     (A100_PCIE, 0, None, 1), (A100_PCIE, 12, None, 4), (H100, 18, None, 1)],
)  # fmt: skip
def test_who_shares_a_reset(product, nvlinks, fabric_manager, size):
    sets = reset_sets(node(cards(product, 4), nvlinks, fabric_manager))
    assert {len(group) for group in sets.values()} == {size}


def test_two_gpus_joined_by_a_bridge_are_reset_one_by_one():
    assert reset_sets(node(cards(A100_PCIE, 2), 12)) == {"GPU-0": ("GPU-0",), "GPU-1": ("GPU-1",)}


def test_only_gpus_that_change_their_mode_by_a_reset_share_one():
    some = [Card("a100-40gb", 0, product=A100_PCIE), *(Card("h100-sxm5-80gb", index) for index in (1, 2))]
    for mixed in (some, some[::-1]):
        assert {len(group) for group in reset_sets(node(mixed)).values()} == {1}


# --- cost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_id", ["h100-sxm5-80gb", "a100-40gb", "rtx-pro-6000-blackwell-server"])
def test_eight_gpus_are_planned_within_fifty_milliseconds(model_id):
    """Random layouts to random layouts, everything live; the best of several runs."""
    dice = random.Random(model_id)
    layouts = sorted(oracle.fixed_layouts(model_id))
    some = [Card(model_id, index) for index in range(8)]
    for card in some:
        for name, start in dice.choice(layouts):
            card.live(name, start)
    desired_layouts = {
        GpuUuid(f"GPU-{index}"): desired(*(name for name, _ in dice.choice(layouts))) for index in range(8)
    }
    inventory, known = node(some), geometry(model_id)
    spent = []
    for _ in range(5):
        begun = process_time()
        answer = plan_mig(inventory, desired_layouts, lambda gpu: known)
        spent.append(process_time() - begun)
    assert all(isinstance(unit.steps[-1], Verify) for unit in answer.transactions)
    assert min(spent) < 0.05, spent
