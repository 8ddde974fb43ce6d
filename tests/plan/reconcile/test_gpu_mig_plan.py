"""The steps from one MIG layout to another: tables, and laws against plain enumeration."""

from __future__ import annotations

from collections import Counter, defaultdict
from copy import deepcopy
from functools import cache
from itertools import product
from typing import get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.codec.values import decode, encode
from partage.edges.files.catalogue import load_catalogue
from partage.model.geometry import MigProfile, Placement
from partage.model.gpu import ComputeMode, Driver, Inventory, MigMode
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.ids import ContainerId, GpuUuid, MigUuid
from partage.model.layout import LayoutItem, MisfitKind, compute_choices, place
from partage.model.mps import DaemonSpec, MpsNamespace
from partage.model.policy import DesiredMig
from partage.model.step import (
    CreateCompute,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    EndClient,
    EndProcess,
    Reset,
    SetComputeMode,
    SetMemoryLimit,
    SetMigMode,
    SetNamespace,
    SetTimeSlice,
    StartDaemon,
    Step,
    StopDaemon,
    Verify,
    undo,
)
from partage.model.strategy import Interval
from partage.plan.reconcile.blocked import Blocked, BlockKind
from partage.plan.reconcile.mig_plan import GpuMigPlan, live_layout, plan_mig
from tests.examples import examples
from tests.oracle import enumerate_mig as oracle
from tests.plan.reconcile.mig_card import Card, geometry

GPU_0 = GpuUuid("GPU-0")
GPU_1 = GpuUuid("GPU-1")

MODELS = sorted(oracle.models_with_placements())
H100 = "h100-sxm5-80gb"
A100 = "a100-40gb"


def desired(*names, enabled=True):
    return DesiredMig(tuple(LayoutItem.parse(name) for name in names), enabled)


def holds(device, name="default/train", kind=UseKind.POD):
    return GpuUse(GPU_0, kind, name, device=device)


def has_gpu(name="default/train", kind=UseKind.POD):
    return GpuUse(GPU_0, kind, name)


def plan_of(gpu, wanted, geometry, uses=(), renew=()):
    """Either answer: which of the two a test expects, it says by what it reads."""
    node = Inventory(Driver("550.163.01", "12.4"), (gpu,))
    return plan_mig(node, {gpu.uuid: wanted}, lambda gpu: geometry, uses, renew={gpu.uuid: renew}).of(
        gpu.uuid
    )


def uses_of(card):
    whole = [has_gpu()] if card.in_use else []
    return [*whole, *(holds(uuid) for uuid in sorted(card.busy))]


def plan(card, wanted, **more):
    uses = more.pop("uses", uses_of(card))
    return plan_of(card.gpu(), wanted, card.geometry, uses, **more)


def done(card, wanted, **more):
    """The plan, after it was carried out."""
    answer = plan(card, wanted, **more)
    assert isinstance(answer, GpuMigPlan), answer
    for step in answer.steps:
        card.does(step)
    assert plan(card, wanted).steps == ()
    return answer


def words(answer):
    return [str(step) for step in answer.steps]


def uuid_at(card, start, which=0):
    return sorted(d.uuid for d in card.gpu().mig_devices if d.placement.start == start)[which]


# --- one GPU, by example -------------------------------------------------------------------------


def test_on_an_empty_gpu_the_layout_sits_where_the_rule_puts_it():
    answer = done(Card(H100), desired("1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"))
    assert answer.layout == ("2g.20gb@0", "1g.10gb@2", "1g.10gb@3", "3g.40gb@4")
    assert words(answer)[:2] == [
        "create a GPU instance 2g.20gb at 0:2",
        "create the MIG device 2g.20gb at 0:2",
    ]
    assert isinstance(answer.steps[-1], Verify)


def unplaced(*names):
    """An H100 with this layout, as somebody without root sees it."""
    card = Card(H100)
    done(card, desired(*names))
    gpu = card.gpu()
    return replace(gpu, mig_devices=tuple(replace(one, placement=None) for one in gpu.mig_devices))


def test_without_root_a_layout_that_is_there_needs_nothing():
    gpu = unplaced("3g.40gb@0", "2g.20gb@4")
    answer = plan_of(gpu, desired("2g.20gb", "3g.40gb"), geometry(H100))
    assert isinstance(answer, GpuMigPlan)
    assert (answer.steps, answer.gone, answer.layout) == ((), (), ("3g.40gb", "2g.20gb"))
    assert set(answer.kept) == {one.uuid for one in gpu.mig_devices}


@pytest.mark.parametrize(
    "wanted",
    [desired("3g.40gb"), desired("3g.40gb@0", "2g.20gb@4"), desired(), desired(enabled=False)],
)
def test_without_root_a_change_of_mig_devices_is_refused_and_says_so(wanted):
    answer = plan_of(unplaced("3g.40gb@0", "2g.20gb@4"), wanted, geometry(H100))
    assert isinstance(answer, Blocked)
    assert answer.kind is BlockKind.NOT_PERMITTED
    assert answer.reason.startswith("GPU 0: only root may read where its MIG devices are")


@pytest.mark.parametrize("model_id", MODELS)
def test_on_an_empty_gpu_nothing_is_searched(model_id):
    for multiset in list(oracle.feasible(model_id))[:20]:
        wanted = desired(*(name for name, many in multiset for _ in range(many)))
        answer = plan(Card(model_id), wanted)
        seats = place(geometry(model_id), wanted.items)
        assert sorted(answer.layout) == sorted(f"{one.item}@{one.placement.start}" for one in seats)


def test_what_is_wanted_and_lives_there_already_takes_no_step():
    card = Card(H100).live("3g.40gb", 0).live("1g.10gb", 6)
    answer = plan(card, desired("1g.10gb", "3g.40gb"))
    assert answer.steps == ()
    assert set(answer.kept) == {device.uuid for device in card.gpu().mig_devices}


def test_only_what_is_in_the_way_is_destroyed():
    card = Card(H100).live("3g.40gb", 4).live("1g.10gb", 0).live("1g.10gb", 1)
    kept = uuid_at(card, 4)
    answer = done(card, desired("3g.40gb", "2g.20gb", "1g.10gb"))
    assert kept in answer.kept
    assert len(answer.gone) == 1
    assert answer.layout == ("1g.10gb@0", "2g.20gb@2", "3g.40gb@4")


def test_everything_is_destroyed_before_anything_is_created():
    card = Card(H100).live("2g.20gb", 0).live("2g.20gb", 2).live("3g.40gb", 4)
    steps = done(card, desired("4g.40gb", "1g.10gb", "1g.10gb", "1g.10gb")).steps
    kinds = [type(step) for step in steps]
    assert kinds[:6] == [DestroyCompute, DestroyInstance] * 3
    assert kinds[6:] == [CreateInstance, CreateCompute] * 4 + [Verify]


def test_what_an_item_fixes_is_where_it_comes_to_sit():
    card = Card(H100).live("3g.40gb", 0)
    answer = done(card, desired("3g.40gb@4"))
    assert answer.layout == ("3g.40gb@4",)
    assert answer.kept == ()


def test_an_empty_gpu_instance_is_adopted_where_it_fits():
    card = Card(H100).live("3g.40gb", 4, computes=[]).live("1g.10gb", 2, computes=[])
    answer = done(card, desired("3g.40gb", "1g.10gb"))
    assert words(answer)[:2] == [
        "create the MIG device 1g.10gb at 2:1",
        "create the MIG device 3g.40gb at 4:4",
    ]


def test_an_empty_gpu_instance_that_fits_nowhere_is_destroyed():
    card = Card(H100).live("4g.40gb", 0, computes=[])
    assert words(done(card, desired("3g.40gb", "3g.40gb")))[0] == "destroy the GPU instance 4g.40gb at 0:4"


def test_a_mig_device_stays_rather_than_an_empty_gpu_instance():
    card = Card(H100).live("1g.10gb", 0, computes=[]).live("1g.10gb", 6)
    assert done(card, desired("1g.10gb")).layout == ("1g.10gb@6",)


def test_of_two_instances_of_which_one_can_stay_the_larger_one_stays():
    card = Card(H100).live("1g.10gb", 0).live("2g.20gb", 4)
    assert done(card, desired("3g.40gb", "2g.20gb", "1g.10gb")).layout == (
        "3g.40gb@0",
        "2g.20gb@4",
        "1g.10gb@6",
    )


def test_nothing_wanted_empties_the_gpu_and_leaves_the_mode_on():
    card = Card(H100).live("3g.40gb", 0).live("1g.10gb", 4, computes=[])
    done(card, desired())
    assert (card.mode, card.instances) == ((True, True), {})


def test_an_instance_to_be_renewed_is_made_again_in_its_place():
    card = Card(H100).live("3g.40gb", 4, computes=["1c.3g.40gb"])
    gi_id = next(iter(card.instances))
    answer = done(card, desired("2c.3g.40gb@4", "1c.3g.40gb@4"), renew=[gi_id])
    assert [type(step) for step in answer.steps][:3] == [DestroyCompute, DestroyInstance, CreateInstance]


def test_an_instance_in_use_is_not_renewed():
    card = Card(H100).live("3g.40gb", 4)
    card.busy = {uuid_at(card, 4)}
    assert plan(card, desired("3g.40gb"), renew=list(card.instances)).steps == ()


# --- compute instances ---------------------------------------------------------------------------


def test_compute_instances_fill_a_gpu_instance_before_they_open_the_next():
    answer = done(Card(H100), desired(*["1c.3g.40gb"] * 4))
    assert [type(step) for step in answer.steps].count(CreateInstance) == 2
    assert Counter(answer.layout) == {"1c.3g.40gb@4": 3, "1c.3g.40gb@0": 1}


def test_they_fill_the_gpu_instance_that_lives_before_a_new_one():
    card = Card(H100).live("3g.40gb", 0, computes=["1c.3g.40gb"])
    answer = done(card, desired(*["1c.3g.40gb"] * 3))
    assert [type(step) for step in answer.steps] == [CreateCompute, CreateCompute, Verify]


def test_compute_instances_that_are_spread_already_are_left_where_they_are():
    card = (
        Card(H100).live("3g.40gb", 0, computes=["1c.3g.40gb"]).live("3g.40gb", 4, computes=["1c.3g.40gb"] * 2)
    )
    assert plan(card, desired(*["1c.3g.40gb"] * 3)).steps == ()


@pytest.mark.parametrize(
    ("live", "wanted", "kept", "steps"),
    [
        ([["1c.3g.40gb"], ["1c.3g.40gb"] * 2], ["1c.3g.40gb"] * 2, 2, [DestroyCompute, Verify]),
        (
            [["1c.2g.20gb"], ["1c.2g.20gb"]],
            ["1c.2g.20gb", "1c.2g.20gb", "3g.40gb"],
            2,
            [CreateInstance, CreateCompute, Verify],
        ),
        ([[], ["1c.3g.40gb"] * 3], ["2c.3g.40gb", *["1c.3g.40gb"] * 3], 3, [CreateCompute, Verify]),
    ],
    ids=["one too many", "beside another profile", "a full one and an empty one"],
)
def test_compute_instances_are_grouped_so_that_most_of_those_that_are_there_stay(live, wanted, kept, steps):
    card = Card(H100)
    instance, size = ("2g.20gb", 2) if "2g" in wanted[0] else ("3g.40gb", 4)
    for number, computes in enumerate(live):
        card.live(instance, number * size, computes=computes)
    first = card.instances.values()
    card.busy = {uuid for _, _, computes in first for ci_id, (_, uuid) in computes.items() if not ci_id}
    answer = done(card, desired(*wanted))
    assert (len(answer.kept), [type(step) for step in answer.steps]) == (kept, steps)


def test_compute_instances_that_are_fixed_are_not_grouped_elsewhere():
    card = Card(H100).live("3g.40gb", 0, computes=["1c.3g.40gb"])
    card.live("3g.40gb", 4, computes=["1c.3g.40gb"] * 2)
    answer = done(card, desired("1c.3g.40gb@0", "1c.3g.40gb@0", "1c.3g.40gb"))
    assert Counter(answer.layout) == {"1c.3g.40gb@0": 2, "1c.3g.40gb@4": 1}


def test_a_surplus_compute_instance_is_destroyed_and_its_neighbours_stay():
    card = Card(H100).live("3g.40gb", 0, computes=["1c.3g.40gb"] * 3)
    answer = done(card, desired("1c.3g.40gb"))
    assert [type(step) for step in answer.steps] == [DestroyCompute, DestroyCompute, Verify]


def test_of_equal_compute_instances_the_one_in_use_stays():
    card = Card(H100).live("3g.40gb", 0, computes=["1c.3g.40gb"] * 3)
    card.busy = {uuid_at(card, 0, 2)}
    assert done(card, desired("1c.3g.40gb")).kept == tuple(card.busy)


def test_a_compute_instance_in_use_that_is_not_wanted_is_named():
    card = Card(H100).live("3g.40gb", 0, computes=["1c.3g.40gb", "1c.3g.40gb"])
    card.busy = {uuid_at(card, 0)}
    answer = plan(card, desired("2c.3g.40gb", "2g.20gb"))
    assert (answer.kind, answer.blockers[0].devices) == (BlockKind.HELD, tuple(card.busy))


# --- refusals ------------------------------------------------------------------------------------


def blocked(card, *names):
    answer = plan(card, desired(*names))
    assert isinstance(answer, Blocked)
    assert answer.kind is BlockKind.HELD
    return answer


def test_an_instance_in_use_that_is_not_wanted_blocks_and_is_named_with_its_user():
    card = Card(H100).live("1g.10gb", 3).live("1g.10gb", 6)
    card.busy = {uuid_at(card, 3)}
    answer = blocked(card, "4g.40gb")
    assert answer.reason == (
        "GPU 0 cannot have 1 x 4g.40gb: 1g.10gb at 3:1 is used by pod default/train, "
        "and the wanted layout has no 1g.10gb"
    )
    assert [one.users for one in answer.blockers] == [(holds(uuid_at(card, 3)),)]


def test_an_instance_in_use_blocks_by_where_it_sits():
    card = Card(H100).live("1g.10gb", 2)
    card.busy = {uuid_at(card, 2)}
    assert "cannot be placed around it" in blocked(card, "4g.40gb", "1g.10gb").reason


def test_an_instance_in_use_blocks_where_it_is_wanted_elsewhere():
    card = Card(H100).live("3g.40gb", 0)
    card.busy = {uuid_at(card, 0)}
    assert "at other memory slices" in blocked(card, "3g.40gb@4").reason
    card.live("3g.40gb", 4)
    assert "at other memory slices" in blocked(card, "3g.40gb@4").reason, "the one there is free"
    card = Card(H100).live("3g.40gb", 0).live("1g.10gb", 4)
    card.busy = {uuid_at(card, 0), uuid_at(card, 4)}
    assert "at other memory slices" in blocked(card, "3g.40gb@4").reason, "one 3g.40gb is in use, no more"


def test_more_in_use_than_wanted_blocks():
    card = Card(H100).live("3g.40gb", 0).live("3g.40gb", 4)
    card.busy = {uuid_at(card, 0), uuid_at(card, 4)}
    assert "only 1 x 3g.40gb" in blocked(card, "3g.40gb").reason


def test_no_more_is_blamed_than_has_to_go():
    card = Card(H100).live("1g.10gb", 0).live("1g.10gb", 4).live("1g.10gb", 5)
    card.busy = {device.uuid for device in card.gpu().mig_devices}
    answer = blocked(card, "3g.40gb", "1g.10gb", "1g.10gb")
    assert [one.placement for one in answer.blockers] == [Placement(0, 1)]


def test_a_layout_that_no_empty_gpu_has_does_not_fit():
    answer = plan(Card(H100), desired("3g.40gb", "3g.40gb", "1g.10gb"))
    assert (answer.kind, answer.misfit) == (BlockKind.DOES_NOT_FIT, MisfitKind.MEMORY)
    assert answer.reason.startswith("GPU 0: ")


def test_a_process_is_known_by_its_instances():
    card = Card(H100).live("3g.40gb", 0, computes=["1c.3g.40gb"] * 2).live("2g.20gb", 4)
    gi_id, other = card.instances
    in_compute = GpuUse(GPU_0, UseKind.PROCESS, "python", 4711, gi_id=gi_id, ci_id=1)
    answer = plan(card, desired("4g.40gb"), uses=[in_compute])
    assert answer.blockers[0].devices == (card.instances[gi_id][2][1][1],)
    assert "process python (pid 4711)" in answer.reason
    in_instance = GpuUse(GPU_0, UseKind.PROCESS, "python", 4711, gi_id=gi_id)
    assert len(plan(card, desired("4g.40gb"), uses=[in_instance]).blockers[0].devices) == 2
    assert isinstance(
        plan(card, desired(), uses=[GpuUse(GPU_1, UseKind.PROCESS, "x", gi_id=other)]), GpuMigPlan
    )


def test_a_use_of_the_whole_gpu_is_a_use_of_all_its_instances():
    card = Card(H100).live("1g.10gb", 6)
    answer = plan(card, desired(), uses=[has_gpu()])
    assert answer.kind is BlockKind.HELD
    assert "cannot have no MIG device" in answer.reason
    assert isinstance(plan(card, desired("1g.10gb", "2g.20gb"), uses=[has_gpu()]), GpuMigPlan)


def test_a_monitor_is_no_user_of_an_instance():
    card = Card(H100).live("1g.10gb", 6)
    assert isinstance(plan(card, desired(), uses=[has_gpu("dcgm", UseKind.MONITOR)]), GpuMigPlan)


def test_the_first_instance_waits_for_an_idle_gpu():
    card = Card(H100)
    card.in_use = True
    assert plan(card, desired("1g.10gb")).kind is BlockKind.HELD
    assert plan(card, DesiredMig(named="all-1g.10gb")).kind is BlockKind.HELD
    assert plan(card, desired()).steps == ()
    gone = GpuUse(GPU_0, UseKind.PROCESS, "python", 4711, gi_id=9)
    assert isinstance(plan(card, desired("1g.10gb"), uses=[gone]), GpuMigPlan), "it has not the whole GPU"


def test_without_a_geometry_a_layout_is_not_plannable_unless_it_lives_already():
    card = Card(H100).live("3g.40gb", 4, computes=["1c.3g.40gb"] * 2).live("1g.10gb", 0)
    live = plan_of(card.gpu(), desired("1g.10gb", *["1c.3g.40gb"] * 2), None)
    assert (live.steps, len(live.kept)) == ((), 3)
    assert plan_of(card.gpu(), desired("2g.20gb"), None).kind is BlockKind.UNKNOWN_GEOMETRY
    assert len(plan_of(card.gpu(), desired(), None).gone) == 3
    assert len(plan_of(card.gpu(), desired(enabled=False), None).gone) == 3


def test_what_lives_there_is_possible_whatever_the_catalogue_says():
    card = Card(H100).live("3g.40gb", 4).live("1g.10gb", 0)
    less = replace(card.geometry, compute_slices=3)
    assert plan_of(card.gpu(), desired("3g.40gb", "1g.10gb"), less).steps == ()
    assert plan_of(Card(H100).gpu(), desired("3g.40gb", "1g.10gb"), less).kind is BlockKind.DOES_NOT_FIT


def test_an_empty_instance_in_use_is_not_destroyed():
    card = Card(H100).live("3g.40gb", 0, computes=[]).live("1g.10gb", 6)
    empty = next(iter(card.instances))
    in_use = GpuUse(GPU_0, UseKind.PROCESS, "x", gi_id=empty)
    assert plan_of(card.gpu(), desired("1g.10gb"), card.geometry, [in_use]).kind is BlockKind.HELD


def test_a_gpu_without_mig_has_no_layout_and_needs_none():
    gpu = replace(Card(H100).gpu(), mig_mode=None)
    assert plan_of(gpu, desired("1g.10gb"), None).kind is BlockKind.NO_MIG
    assert plan_of(gpu, desired(enabled=False), None).steps == ()


def test_a_named_layout_is_what_it_means_on_this_model():
    assert len(done(Card(H100), DesiredMig(named="all-1g.10gb")).layout) == 7
    assert plan(Card(H100), DesiredMig(named="all-1g.5gb")).kind is BlockKind.DOES_NOT_FIT
    assert plan_of(Card(H100).gpu(), DesiredMig(named="all-1g.5gb"), None).kind is BlockKind.UNKNOWN_GEOMETRY


# --- mode ----------------------------------------------------------------------------------------

OFF, ON, TO_ON, TO_OFF = (False, False), (True, True), (False, True), (True, False)


@pytest.mark.parametrize(
    ("model_id", "mode", "enabled", "expected"),
    [
        (H100, OFF, True, [SetMigMode]),
        (H100, ON, False, [SetMigMode]),
        (H100, ON, True, []),
        (H100, OFF, False, []),
        (H100, TO_ON, True, [SetMigMode]),
        (H100, TO_OFF, False, [SetMigMode]),
        (H100, TO_ON, False, [SetMigMode]),
        (A100, OFF, True, [SetMigMode, Reset]),
        (A100, ON, False, [SetMigMode, Reset]),
        (A100, TO_ON, True, [Reset]),
        (A100, TO_OFF, False, [Reset]),
        (A100, TO_ON, False, [SetMigMode]),
        (A100, TO_OFF, True, [SetMigMode]),
    ],
)
def test_the_mode_changes_by_as_little_as_it_takes(model_id, mode, enabled, expected):
    answer = plan(Card(model_id, mode=mode), desired(enabled=enabled))
    assert [type(step) for step in answer.steps] == ([*expected, Verify] if expected else [])


def test_instances_go_before_the_mode_and_come_after_the_reset():
    card = Card(A100).live("3g.20gb", 0)
    assert [type(step) for step in done(card, desired(enabled=False)).steps] == [
        DestroyCompute, DestroyInstance, SetMigMode, Reset, Verify,
    ]  # fmt: skip
    assert [type(step) for step in done(card, desired("3g.20gb")).steps] == [
        SetMigMode, Reset, CreateInstance, CreateCompute, Verify,
    ]  # fmt: skip


def test_a_change_that_is_taken_back_keeps_the_instances():
    card = Card(A100, mode=ON).live("3g.20gb", 0)
    card.mode = TO_OFF
    answer = done(card, desired("3g.20gb"))
    assert words(answer)[0] == "turn MIG mode on"
    assert len(answer.kept) == 1


@pytest.mark.parametrize("model_id", [H100, A100])
def test_the_mode_is_not_changed_under_anybody(model_id):
    card = Card(model_id, mode=OFF)
    card.in_use = True
    assert plan(card, desired("1c.7g.80gb")).kind is BlockKind.HELD
    busy = Card(model_id).live(str(geometry(model_id).profiles[0].profile), 0)
    busy.busy = {uuid_at(busy, 0)}
    assert "MIG mode is to be off" in plan(busy, desired(enabled=False)).reason


def test_a_monitor_blocks_a_reset_and_no_other_change_of_mode():
    dcgm = has_gpu("nv-hostengine", UseKind.MONITOR)
    refused = plan(Card(A100, mode=OFF), desired(), uses=[dcgm])
    assert refused.reason == (
        "GPU 0 cannot be reset: it is used by monitor nv-hostengine, and GPU 0 has to be idle"
    )
    assert isinstance(plan(Card(H100, mode=OFF), desired(), uses=[dcgm]), GpuMigPlan)


# --- laws ----------------------------------------------------------------------------------------


@cache
def layouts(model_id):
    return [*sorted(oracle.fixed_layouts(model_id)), ()]


@cache
def by_multiset(model_id):
    found = defaultdict(list)
    for layout in layouts(model_id):
        found[tuple(sorted(name for name, _ in layout))].append(layout)
    return dict(found)


@cache
def sizes(model_id):
    return {str(spec.profile): spec.size for spec in geometry(model_id).profiles}


@st.composite
def scenes(draw, models=MODELS):
    """A card with whole instances, some in use, some empty; and a layout with some starts fixed."""
    model_id = draw(st.sampled_from(models))
    card = Card(model_id)
    for name, start in draw(st.permutations(draw(st.sampled_from(layouts(model_id))))):
        card.live(name, start, computes=draw(st.sampled_from([[name]] * 5 + [[]])))
    devices = [device.uuid for device in card.gpu().mig_devices]
    card.busy = set(draw(st.lists(st.sampled_from(devices), max_size=3))) if devices else set()
    target = draw(st.permutations(draw(st.sampled_from(layouts(model_id)))))
    names = [f"{name}@{start}" if draw(st.integers(0, 4)) == 0 else name for name, start in target]
    return card, desired(*names)


def best_by_enumeration(card, wanted):
    """(kept devices, kept memory slices, reused, negative starts) of the best layout; None: there is none."""
    model_id, size = card.geometry.model, sizes(card.geometry.model)
    multiset = tuple(sorted(str(item.profile) for item in wanted.items))
    fixed = Counter((str(i.profile), i.start) for i in wanted.items if i.start is not None)
    live = {(name, at.start): list(computes.values()) for name, at, computes in card.instances.values()}
    busy = {key for key, computes in live.items() if any(uuid in card.busy for _, uuid in computes)}

    def worth(layout):
        kept = [key for key in layout if live.get(key)]
        starts = sorted(-start for _, start in layout)[::-1]
        return len(kept), sum(size[name] for name, _ in kept), sum(key in live for key in layout), starts

    fitting = [
        layout
        for layout in by_multiset(model_id)[multiset]
        if fixed <= Counter(layout) and busy <= set(layout)
    ]
    return max(map(worth, fitting), default=None)


def worth_of(card, answer):
    size = sizes(card.geometry.model)
    live = {(name, at.start) for name, at, _ in card.instances.values()}
    layout = [(name, int(start)) for name, _, start in (one.partition("@") for one in answer.layout)]
    kept = [d for d in card.gpu().mig_devices if d.uuid in answer.kept]
    starts = sorted(-start for _, start in layout)[::-1]
    return len(kept), sum(size[d.profile] for d in kept), sum(one in live for one in layout), starts


@settings(max_examples=examples(200), deadline=None)
@given(scenes())
def test_as_much_stays_as_enumeration_finds_possible_and_nothing_in_use_is_touched(scene):
    card, wanted = scene
    answer, best = plan(card, wanted), best_by_enumeration(card, wanted)
    if best is None:
        assert answer.kind is BlockKind.HELD
        assert {uuid for one in answer.blockers for uuid in one.devices} <= card.busy
        return
    assert isinstance(answer, GpuMigPlan), answer
    if card.instances:
        assert worth_of(card, answer) == best
    assert card.busy <= set(answer.kept)
    done(card, wanted)  # the card refuses to destroy what is in use
    assert Counter(one.partition("@")[0] for one in card.content()) == Counter(
        str(item.profile) for item in wanted.items
    )
    assert set(answer.kept) <= {device.uuid for device in card.gpu().mig_devices}


@settings(max_examples=examples(100), deadline=None)
@given(scenes())
def test_interrupted_after_any_step_and_planned_again_it_ends_in_what_is_wanted(scene):
    card, wanted = scene
    answer = plan(card, wanted)
    assume(isinstance(answer, GpuMigPlan))
    for step in answer.steps:
        done(deepcopy(card), wanted)
        card.does(step)
    assert plan(card, wanted).steps == ()


@settings(max_examples=examples(100), deadline=None)
@given(scenes())
def test_undone_after_any_step_the_old_devices_are_back_in_their_places(scene):
    card, wanted = scene
    answer = plan(card, wanted)
    assume(isinstance(answer, GpuMigPlan))
    before = sorted((name, at, len(computes)) for name, at, computes in card.instances.values())
    history = []
    for step in answer.steps:
        history.append((step, card.does(step)))
        for known in (True, False):
            copy = deepcopy(card)
            for back in undo([(step, made if known else None) for step, made in history]):
                copy.does(back)
            after = [(name, at, len(computes)) for name, at, computes in copy.instances.values()]
            assert sorted(after) == before


@settings(max_examples=examples(60), deadline=None)
@given(scenes())
def test_what_is_written_down_of_a_live_gpu_is_a_plan_without_steps(scene):
    card, _ = scene
    assume(not card.gpu().empty_instances)
    assert plan(card, live_layout(card.gpu())).steps == ()


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(MODELS), st.data())
def test_the_layout_after_a_change_of_mode_is_undone_by_the_mode_and_a_reset(model_id, data):
    card = Card(model_id, mode=data.draw(st.sampled_from([OFF, ON])))
    if card.mode == ON:
        for name, start in data.draw(st.sampled_from(layouts(model_id))):
            card.live(name, start)
        wanted = desired(enabled=False)
    else:
        wanted = desired(*(name for name, _ in data.draw(st.sampled_from(layouts(model_id)))))
    answer = plan(card, wanted)
    before, mode = card.content(), card.mode
    history = []
    for step in answer.steps:
        history.append((step, card.does(step)))
        copy = deepcopy(card)
        for back in undo(history):
            copy.does(back)
        assert (copy.content(), copy.mode) == (before, mode)
        done(deepcopy(card), wanted)


# --- laws of compute instances, by brute force on small cases --------------------------------------


@st.composite
def split_scenes(draw):
    """GPU instances that are split, some compute instances in use; and a layout of such items."""
    model_id = draw(st.sampled_from([A100, "a30-24gb", "rtx-pro-6000-blackwell-server"]))
    card = Card(model_id)
    base = [spec for spec in geometry(model_id).profiles if not spec.profile.attributes]
    for name, start in draw(st.sampled_from(layouts(model_id))):
        if MigProfile.parse(name).attributes:
            continue
        card.live(name, start, computes=[str(one) for one in draw(computes_of(MigProfile.parse(name)))])
    devices = [device.uuid for device in card.gpu().mig_devices]
    card.busy = set(draw(st.lists(st.sampled_from(devices), max_size=2))) if devices else set()
    kinds = [
        MigProfile(spec.profile.gpu_slices, spec.profile.gigabytes, slices)
        for spec in base
        for slices in compute_choices(spec.compute_slices)
    ]
    names = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4))
    return card, desired(*map(str, names))


@st.composite
def computes_of(draw, whole):
    left, found = whole.gpu_slices, []
    for slices in draw(st.lists(st.sampled_from(compute_choices(whole.gpu_slices)), max_size=4)):
        if slices <= left:
            left -= slices
            found.append(MigProfile(whole.gpu_slices, whole.gigabytes, slices))
    return found


def most_kept_by_enumeration(card, wanted):
    """The largest number of MIG devices that can stay, those in use among them; None: they cannot all."""
    specs = {str(spec.profile): spec for spec in card.geometry.profiles}
    possible = set(layouts(card.geometry.model))
    places = [[(str(i.profile.gpu_instance), at) for at in specs[str(i.profile.gpu_instance)].starts]
              for i in wanted.items]  # fmt: skip
    best = None
    for choice in product(*places):
        if tuple(sorted(set(choice))) not in possible:
            continue
        content: dict[tuple[str, int], Counter[int]] = defaultdict(Counter)
        for item, seat in zip(wanted.items, choice, strict=True):
            content[seat][item.profile.compute_slices] += 1
        if any(sum((+c).elements()) > specs[name].compute_slices for (name, _), c in content.items()):
            continue
        kept = 0
        for name, at, computes in card.instances.values():
            want = content.get((name, at.start), Counter())
            live = Counter(MigProfile.parse(one).compute_slices for one, _ in computes.values())
            busy = Counter(
                MigProfile.parse(one).compute_slices for one, u in computes.values() if u in card.busy
            )
            if not busy <= want:
                break
            kept += (want & live).total()
        else:
            best = kept if best is None else max(best, kept)
    return best


@settings(max_examples=examples(150), deadline=None)
@given(split_scenes())
def test_as_many_compute_instances_stay_as_enumeration_finds_possible(scene):
    card, wanted = scene
    answer, most = plan(card, wanted), most_kept_by_enumeration(card, wanted)
    if isinstance(answer, Blocked):
        assert most is None
        return
    assert len(answer.kept) == most
    assert card.busy <= set(answer.kept)
    for step in answer.steps:
        done(deepcopy(card), wanted)
        card.does(step)
    assert Counter(one.partition("@")[0] for one in card.content()) == Counter(
        str(i.profile) for i in wanted.items
    )


# --- the rest ------------------------------------------------------------------------------------


def test_a_profile_is_named_after_its_compute_slices_on_every_model():
    """Compute instances are named by it."""
    for model in load_catalogue().models:
        for spec in model.geometry.profiles if model.geometry else ():
            assert spec.profile.gpu_slices == spec.profile.compute_slices == spec.compute_slices


def test_a_mode_of_now_and_one_to_come_are_told_apart():
    assert Card(A100, mode=TO_ON).gpu().mig_mode == MigMode(current=False, pending=True)


def test_every_step_crosses_to_the_helper_and_back():
    card = Card(A100, mode=OFF)
    steps = [*done(card, desired("3g.20gb")).steps, *done(card, desired("1c.3g.20gb")).steps]
    steps += done(card, desired(enabled=False)).steps
    steps += [
        SetComputeMode(GPU_1, ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT),
        SetTimeSlice(GPU_1, Interval.LONG, Interval.DEFAULT),
        EndProcess(GPU_1, 4711, 12345, ContainerId("0" * 64)),
        StartDaemon(GPU_1, DaemonSpec(GPU_1, GPU_1, 2**30, 25, multi_user=True)),
        StopDaemon(GPU_1, MigUuid("MIG-1")),
        EndClient(GPU_1, GPU_1, 10, 11),
        SetNamespace(GPU_1, GPU_1, MpsNamespace("slot0", 2**30, 25)),
        SetMemoryLimit(GPU_1, ContainerId("0" * 64), 2**30),
    ]
    assert {type(step) for step in steps} == set(get_args(Step))
    assert decode(tuple[Step, ...], encode(tuple(steps))) == tuple(steps)
