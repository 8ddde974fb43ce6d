"""A policy laid over a node: whose devices, under which name, and what cannot be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.errors import InputError, PartageError, Problem, Unsatisfiable
from partage.model.geometry import MigProfile, Placement
from partage.model.gpu import Gpu, Inventory, LostGpu, MigDevice, MigMode, NoDriver
from partage.model.ids import MigUuid
from partage.model.policy import (
    ALL_EXCLUSIVE,
    Exclusive,
    GpuCriteria,
    GpuEntry,
    MigStrategy,
    Mps,
    Policy,
    TimeSlicing,
    WatchAction,
)
from partage.model.strategy import Strategy
from partage.plan.offer.assign import Assignment, assign
from partage.plan.offer.gpu_devices import PlannedDevice, Target
from partage.plan.offer.select import glob_matches
from partage.text import gpus
from tests.plan.offers import gpu, node

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
L40S = "NVIDIA L40S"


def without_mig(index: int, product: str = L40S) -> Gpu:
    return replace(
        gpu(index), product=product, mig_mode=None, pci_device_id="0x26b910de", memory_bytes=46068 << 20
    )


def mig_on(of: Gpu) -> Gpu:
    """MIG mode on, no instances."""
    return replace(of, mig_mode=MigMode(current=True, pending=True))


def with_devices(of: Gpu, *profiles: str) -> Gpu:
    """Live MIG devices, one behind the other, as large as their names say on an H100."""
    size = {"1g": 1, "2g": 2, "3g": 4, "4g": 4, "7g": 8}
    devices, start = [], 0
    for n, profile in enumerate(profiles):
        slices = size[str(MigProfile.parse(profile).gpu_slices) + "g"]
        devices.append(
            MigDevice(
                MigUuid(f"MIG-{of.index}-{n}"), n, 7 + n, 0, profile, Placement(start, slices), slices << 33
            )
        )
        start += slices
    return replace(mig_on(of), mig_devices=tuple(devices))


def eight() -> Inventory:
    return node(*(gpu(index) for index in range(8)))


def lost(inventory: Inventory, index: int, *, known: bool = True) -> Inventory:
    """One GPU of the node no longer answers."""
    gone = next(one for one in inventory if one.index == index)
    row = LostGpu(index, gone.uuid if known else None, gone.pci_bus_id if known else None, "fell off the bus")
    return replace(inventory, gpus=tuple(one for one in inventory if one is not gone), lost=(row,))


def native(entries: str, resources: str = "{}") -> Policy:
    return parse_policy(f"version: partage/v1\ngpus: [{entries}]\nresources: {resources}", "p.yaml").policy


def nvidia(sharing: str, rest: str = "") -> Policy:
    return parse_policy(f"version: v1\nsharing: {sharing}\n{rest}", "n.yaml").policy


def mig_parted(*entries: str) -> Policy:
    return parse_policy(f"version: v1\nmig-configs: {{c: [{', '.join(entries)}]}}", "m.yaml").policy


def lay(policy: Policy, inventory: Inventory) -> Assignment:
    return assign(policy, inventory, geometry_of)


def rows(assignment: Assignment) -> list[tuple[str, str, str]]:
    """(index, resource, sharing) of every target."""
    return [(_index(target), target.resource, _sharing(target)) for target in assignment.targets]


def _index(target: Target) -> str:
    match target.mig:
        case None:
            return str(target.gpu.index)
        case MigDevice() as mig:
            return f"{target.gpu.index}:{mig.index}"
        case PlannedDevice() as planned:
            return f"{target.gpu.index}@{planned.placement.start}"


def _sharing(target: Target) -> str:
    match target.sharing:
        case Exclusive():
            return "-"
        case TimeSlicing(replicas=n):
            return f"ts{n}"
        case sharing:
            return f"{sharing.strategy}{sharing.replicas}"


def refused(kind: type[PartageError], policy: Policy, inventory: Inventory) -> list[Problem]:
    with pytest.raises(kind) as caught:
        lay(policy, inventory)
    return [problem for problem in caught.value.problems if problem.severity == "error"]


# --- Partage's own format ----------------------------------------------------------------------


def test_without_a_policy_every_gpu_is_exclusive() -> None:
    assignment = lay(ALL_EXCLUSIVE, eight())
    assert rows(assignment) == [(str(n), GPU, "-") for n in range(8)]
    assert set(assignment.strategies.values()) == {Strategy.EXCLUSIVE}
    assert (assignment.pending, assignment.warnings) == ({}, ())


def test_a_node_shared_in_four_ways_at_once() -> None:
    policy = native(
        """{select: {index: [0, 1, 2, 3]}, mps: {replicas: 4}},
        {select: {index: [4, 5]},
         mig: {layout: [3g.40gb, 2g.20gb, 1g.10gb, 1g.10gb], time-slicing: {replicas: 4}}},
        {select: {index: [6]}, name: nvidia.com/gpu.notebooks, time-slicing: {replicas: 10, interval: short}},
        {select: rest, exclusive: {}}"""
    )
    assignment = lay(policy, eight())
    assert [row for row in rows(assignment) if "@" not in row[0]] == [
        *((str(n), SHARED, "mps4") for n in range(4)),
        ("6", "nvidia.com/gpu.notebooks", "ts10"),
        ("7", GPU, "-"),
    ]
    profiles = ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]
    planned = [(row[0][0], row[1], row[2]) for row in rows(assignment) if "@" in row[0]]
    assert sorted(planned) == [(n, f"nvidia.com/mig-{p}.shared", "ts4") for n in "45" for p in profiles]
    by_index = {one.index: assignment.strategies[one.uuid] for one in eight()}
    assert [by_index[n] for n in (0, 4, 6, 7)] == ["mps", "mig", "time-slicing", "exclusive"]
    assert set(assignment.pending) == {eight().gpus[4].uuid, eight().gpus[5].uuid}
    assert all(target.single for target in assignment.targets if not isinstance(target.sharing, Exclusive))


def test_the_suffix_and_the_limit_of_one_share_can_be_switched_off() -> None:
    policy = native(
        "{select: all, time-slicing: {replicas: 2}}",
        "{rename-shared: false, fail-requests-greater-than-one: false}",
    )
    (target,) = lay(policy, node(gpu(0))).targets
    assert (target.resource, target.single) == (GPU, False)


@pytest.mark.parametrize(
    ("select", "chosen"),
    [
        ("all", [0, 1, 2]),
        ("{index: 1}", [1]),
        ("{index: [2, 0]}", [0, 2]),
        ("{uuid: GPU-00000001-0000-0000-0000-000000000000}", [1]),
        ("{pci: 01:00.0}", [1]),
        ("{pci: [0000:00:00.0, '00000000:02:00.0']}", [0, 2]),
        ("{model: NVIDIA H100 80GB HBM3}", [0, 1]),
        ("{model: h100}", [0, 1]),
        ("{model: h100-sxm5-80gb}", [0, 1]),
        ("{model: '*H100*'}", [0, 1]),
        ("{model: [l40s, H100*]}", [0, 1, 2]),
        ("{model: h100, index: [1, 2]}", [1]),
    ],
)
def test_gpus_are_selected_by_what_they_are(select: str, chosen: list[int]) -> None:
    inventory = node(gpu(0), gpu(1), without_mig(2))
    policy = native(f"{{select: {select}, time-slicing: {{replicas: 2}}}}")
    assignment = lay(policy, inventory)
    assert [target.gpu.index for target in assignment.targets if target.origin] == chosen
    assert assignment.warnings == ()


@pytest.mark.parametrize(
    "select",
    [
        "{model: V100}",
        "{model: l4}",
        "{model: H10}",
        "{index: 2, uuid: GPU-00000001-0000-0000-0000-000000000000}",
    ],
)
def test_a_selector_that_matches_nothing_is_a_warning(select: str) -> None:
    inventory = node(gpu(0), gpu(1), without_mig(2))
    (warning,) = lay(native(f"{{select: {select}, exclusive: {{}}}}"), inventory).warnings
    assert (warning.path, warning.file) == ("gpus[0].select", "p.yaml")
    assert "matches no GPU" in warning.message


@pytest.mark.parametrize(
    ("select", "path", "said"),
    [
        ("{index: [0, 8, 9]}", "gpus[0].select.index", "no GPU 8"),
        ("{uuid: GPU-x}", "gpus[0].select.uuid", "no GPU GPU-x"),
        ("{pci: 99:00.0}", "gpus[0].select.pci", "no GPU 00000000:99:00.0"),
        ("{index: 8, model: h100}", "gpus[0].select.index", "no GPU 8"),
    ],
)
def test_a_gpu_that_the_node_does_not_have_is_impossible(select: str, path: str, said: str) -> None:
    first, *_ = refused(Unsatisfiable, native(f"{{select: {select}, exclusive: {{}}}}"), eight())
    assert first.path == path
    assert said in first.message
    assert first.hint


def test_a_selector_that_matches_nothing_because_its_gpu_is_lost_is_no_warning() -> None:
    policy = native(f"{{select: {{index: 3, uuid: {gpu(0).uuid}}}, exclusive: {{}}}}")
    (warning,) = lay(policy, eight()).warnings
    assert warning.hint == "all criteria have to hold"
    assert lay(policy, lost(eight(), 3)).warnings == ()


@pytest.mark.parametrize(
    ("inventory", "has"), [(node(), "none"), (node(gpu(0), without_mig(1)), f"{gpu(0).product}, {L40S}")]
)
def test_a_model_that_no_gpu_has_is_told_with_what_the_node_has(inventory: Inventory, has: str) -> None:
    (warning,) = lay(native("{select: {model: v100}, exclusive: {}}"), inventory).warnings
    assert warning.hint == f"the node has: {has}; * matches any text"


def test_a_filter_of_device_ids_counts_in_an_entry_of_any_format() -> None:
    entry = GpuEntry("gpus[0]", GpuCriteria(device_filter=("0x26b910de",)), TimeSlicing(2))
    assignment = lay(Policy((entry,)), node(gpu(0), without_mig(1)))
    assert rows(assignment) == [("0", GPU, "-"), ("1", SHARED, "ts2")]


def test_overlapping_selectors_are_an_error_that_names_gpus_and_both_entries() -> None:
    policy = native(
        "{select: {model: h100}, exclusive: {}}, {select: {index: [1, 2, 5]}, mps: {replicas: 2}}"
    )
    (problem,) = refused(InputError, policy, eight())
    assert problem.path == "gpus[1].select"
    assert problem.message == "GPUs 1-2, 5: selected by gpus[0] already"


def test_rest_is_what_no_other_entry_selects_wherever_it_stands() -> None:
    policy = native(
        "{select: rest, mps: {replicas: 2}}, {select: {index: [0, 1, 2, 3, 4, 5, 6]}, exclusive: {}}"
    )
    assert rows(lay(policy, eight()))[6:] == [("6", GPU, "-"), ("7", SHARED, "mps2")]


def test_all_problems_of_a_policy_are_raised_at_once_and_wrong_outranks_impossible() -> None:
    policy = native(
        "{select: {index: [0]}, mig: {layout: [5g.50gb]}}, {select: {model: h100}, exclusive: {}},"
        "{select: {index: 11}, exclusive: {}}"
    )
    said = [problem.message for problem in refused(InputError, policy, eight())]
    assert [text.partition(";")[0] for text in said] == [
        "GPU 0: selected by gpus[0] already",
        "the node has no GPU 11",
        "GPU 0: h100-sxm5-80gb has no profile 5g.50gb",
    ]


# --- MIG ---------------------------------------------------------------------------------------


def test_mig_devices_that_live_are_offered_by_profile() -> None:
    inventory = node(gpu(0), with_devices(gpu(1), "3g.40gb", "1g.10gb+me", "1c.2g.20gb"))
    assert rows(lay(ALL_EXCLUSIVE, inventory)) == [
        ("0", GPU, "-"),
        ("1:0", "nvidia.com/mig-3g.40gb", "-"),
        ("1:1", "nvidia.com/mig-1g.10gb.me", "-"),
        ("1:2", "nvidia.com/mig-1c.2g.20gb", "-"),
    ]


def test_a_strategy_applies_to_the_devices_that_a_gpu_presents() -> None:
    inventory = node(with_devices(gpu(0), "3g.40gb", "3g.40gb"))
    assignment = lay(native("{select: all, time-slicing: {replicas: 2}}"), inventory)
    assert rows(assignment) == [(f"0:{n}", "nvidia.com/mig-3g.40gb.shared", "ts2") for n in (0, 1)]
    assert {target.strategy for target in assignment.targets} == {Strategy.MIG}


def test_under_mig_strategy_none_mig_is_only_turned_off_and_nothing_is_made_on_demand() -> None:
    divided = with_devices(gpu(0), "3g.40gb")
    off = lay(native("{select: all, mig: {layout: all-disabled}}", "{mig-strategy: none}"), node(divided))
    assert [layout.enabled for layout in off.layouts.values()] == [False]
    made = native("{select: all, via: claims, mig: {on-demand: true}}")
    none = replace(made, options=replace(made.options, mig_strategy=MigStrategy.NONE))
    assert (len(lay(made, node(divided)).on_demand), len(lay(none, node(divided)).on_demand)) == (1, 0)


def test_one_share_for_each_container_is_said_of_shares_alone() -> None:
    """Not of whole GPUs, of units of memory, nor of what claims ask for."""
    one = "{fail-requests-greater-than-one: true}"
    ways = {
        "time-slicing: {replicas: 2}": True,
        "exclusive: {}": False,
        "mps: {unit: 1Gi}": False,
        "via: claims, time-slicing: {replicas: 2}": False,
    }
    for way, single in ways.items():
        (target,) = lay(native(f"{{select: all, {way}}}", one), node(gpu(0))).targets
        assert target.single is single, way


def test_under_mig_strategy_none_the_whole_gpu_is_offered() -> None:
    inventory = node(with_devices(gpu(0), "3g.40gb", "3g.40gb"))
    assignment = lay(native("{select: all, time-slicing: {replicas: 2}}", "{mig-strategy: none}"), inventory)
    assert rows(assignment) == [("0", SHARED, "ts2")]
    assert set(assignment.strategies.values()) == {Strategy.TIME_SLICING}


def test_a_mig_gpu_without_instances_offers_nothing_and_is_a_mig_gpu() -> None:
    inventory = node(mig_on(gpu(0)))
    assignment = lay(ALL_EXCLUSIVE, inventory)
    assert (assignment.targets, list(assignment.strategies.values())) == ((), [Strategy.MIG])


def test_a_layout_that_lives_already_is_what_is_offered() -> None:
    inventory = node(with_devices(gpu(0), "3g.40gb", "1g.10gb", "2g.20gb"))
    assignment = lay(native("{select: all, mig: {layout: [1g.10gb, 2g.20gb, 3g.40gb@0]}}"), inventory)
    assert [row[0] for row in rows(assignment)] == ["0:0", "0:1", "0:2"]
    assert assignment.pending == {}


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (gpu(0), "MIG mode has to be turned on, and the layout has still to be made: 2 x 3g.40gb"),
        (with_devices(gpu(0), "7g.80gb"), "the layout has still to be made: 2 x 3g.40gb"),
    ],
)
def test_a_layout_that_does_not_live_is_planned(of: Gpu, says: str) -> None:
    assignment = lay(native("{select: all, mig: {layout: [3g.40gb, 3g.40gb]}}"), node(of))
    assert [row[0] for row in rows(assignment)] == ["0@0", "0@4"]
    assert assignment.pending == {of.uuid: says}
    assert assignment.strategies == {of.uuid: Strategy.MIG}


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("[3g.40gb, 3g.40gb, 1g.10gb]", "need 9 memory slices"),
        ("[1g.5gb]", "has no profile 1g.5gb"),
        ("[3g.40gb@1]", "can start at memory slice 0, 4 only"),
        ("[" + "1g.10gb, " * 8 + "]", "8 MIG devices"),
    ],
)
def test_a_layout_that_does_not_fit_is_impossible_with_its_reason(layout: str, said: str) -> None:
    (problem,) = refused(Unsatisfiable, native(f"{{select: all, mig: {{layout: {layout}}}}}"), eight())
    assert problem.path == "gpus[0].mig.layout"
    assert problem.message.startswith("GPUs 0-7: ")
    assert said in problem.message


def test_a_layout_on_a_gpu_without_mig_is_impossible() -> None:
    (problem,) = refused(
        Unsatisfiable, native("{select: all, mig: {layout: [1g.10gb]}}"), node(without_mig(0))
    )
    assert problem.message == "GPU 0: NVIDIA L40S has no MIG"


def test_a_layout_on_a_model_without_known_placements_is_not_plannable_offline() -> None:
    unknown = replace(gpu(0), product="NVIDIA X900", pci_device_id="0x999910de")
    (problem,) = refused(Unsatisfiable, native("{select: all, mig: {layout: [1g.10gb]}}"), node(unknown))
    assert "not plannable offline" in problem.message


def test_a_layout_on_a_model_whose_profiles_have_no_known_places_is_not_plannable_offline() -> None:
    known = geometry_of(gpu(0))
    assert known is not None
    placeless = replace(known, profiles=tuple(replace(spec, starts=()) for spec in known.profiles))
    with pytest.raises(Unsatisfiable, match="not plannable offline"):
        assign(native("{select: all, mig: {layout: [1g.10gb]}}"), node(gpu(0)), lambda _: placeless)


def test_a_live_layout_needs_no_known_placements() -> None:
    unknown = replace(with_devices(gpu(0), "1g.10gb"), product="NVIDIA X900", pci_device_id="0x999910de")
    assert rows(lay(native("{select: all, mig: {layout: [1g.10gb]}}"), node(unknown)))[0][0] == "0:0"


@pytest.mark.parametrize(
    "entry",
    ["{select: all, mps: {replicas: 2}}", "{select: all, mig: {layout: [3g.40gb], mps: {replicas: 2}}}"],
)
def test_each_mig_device_can_be_shared_by_mps(entry: str) -> None:
    (one,) = lay(native(entry), node(with_devices(gpu(0), "3g.40gb"))).targets
    assert (one.sharing, one.strategy) == (Mps(2), Strategy.MIG)
    assert one.mig is not None


@pytest.mark.parametrize(
    "policy",
    [
        native("{select: all, mps: {replicas: 2}}", "{mig-strategy: none}"),
        nvidia("{mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}", "flags: {migStrategy: none}"),
    ],
    ids=["partage", "nvidia"],
)
def test_mps_on_a_whole_gpu_in_mig_mode_is_impossible_too(policy: Policy) -> None:
    (problem,) = refused(Unsatisfiable, policy, node(with_devices(gpu(0), "3g.40gb")))
    assert problem.path in ("gpus[0].mps", "sharing.mps.resources[0]")


SINGLE = parse_policy("version: v1\nflags: {migStrategy: single}", "n.yaml").policy


def test_single_calls_equal_mig_devices_gpus() -> None:
    inventory = node(*(with_devices(gpu(n), "3g.40gb", "3g.40gb") for n in (0, 1)))
    assert rows(lay(SINGLE, inventory)) == [(i, GPU, "-") for i in ("0:0", "0:1", "1:0", "1:1")]


def test_single_on_a_node_without_mig_offers_whole_gpus() -> None:
    assert rows(lay(SINGLE, eight())) == [(str(n), GPU, "-") for n in range(8)]


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ([with_devices(gpu(0), "3g.40gb"), gpu(1)], "same migEnabled value"),
        ([with_devices(gpu(0), "3g.40gb"), mig_on(gpu(1))], "device 1 has no MIG devices configured"),
        ([with_devices(gpu(0), "3g.40gb", "1g.10gb")], "more than one MIG device type"),
        ([with_devices(gpu(0), "3g.40gb"), with_devices(gpu(1), "7g.80gb")], "more than one MIG device type"),
        ([mig_on(gpu(0))], "device 0 has no MIG devices configured"),
    ],
)
def test_single_is_impossible_on_unequal_devices(gpus: list[Gpu], said: str) -> None:
    (problem,) = refused(Unsatisfiable, SINGLE, node(*gpus))
    assert (problem.path, problem.file) == ("flags.migStrategy", "n.yaml")
    assert said in problem.message


def test_single_judges_planned_layouts_like_live_ones() -> None:
    entry = "{select: {index: [0]}, mig: {layout: [3g.40gb, 1g.10gb]}}"
    problems = refused(Unsatisfiable, native(entry, "{mig-strategy: single}"), node(gpu(0), gpu(1)))
    assert {problem.path for problem in problems} == {"resources.mig-strategy"}
    assert len(problems) == 2


def test_two_mig_devices_for_48_clients_are_96_gpus() -> None:
    policy = nvidia(
        "{timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 48}]}}", "flags: {migStrategy: single}"
    )
    targets = lay(policy, node(with_devices(gpu(0), "3g.40gb", "3g.40gb"))).targets
    assert [(target.resource, target.sharing) for target in targets] == [(GPU, TimeSlicing(48))] * 2


# --- NVIDIA's format ---------------------------------------------------------------------------


def items(*texts: str, kind: str = "timeSlicing", flags: str = "") -> str:
    return f"{{{kind}: {{{flags}resources: [{', '.join(texts)}]}}}}"


@pytest.mark.parametrize(
    ("devices", "shared"),
    [
        ("all", "01234567"),
        ("2", "01"),
        ("[0, '3']", "03"),
        ("[GPU-00000005-0000-0000-0000-000000000000]", "5"),
        ("[0, GPU-00000000-0000-0000-0000-000000000000]", "0"),
    ],
)
def test_devices_are_honoured_and_the_others_keep_the_plain_name(devices: str, shared: str) -> None:
    policy = nvidia(items(f"{{name: gpu, replicas: 2, devices: {devices}}}", flags="renameByDefault: true, "))
    assert [row[0] for row in rows(lay(policy, eight())) if row[1:] == (SHARED, "ts2")] == list(shared)
    assert [row[0] for row in rows(lay(policy, eight())) if row[1:] == (GPU, "-")] == [
        n for n in "01234567" if n not in shared
    ]


def test_rename_names_the_shares_whole() -> None:
    policy = nvidia(items("{name: gpu, replicas: 2, rename: notebooks}", flags="renameByDefault: true, "))
    assert {row[1] for row in rows(lay(policy, eight()))} == {"nvidia.com/notebooks"}


def test_several_items_and_both_kinds_of_sharing_on_one_node() -> None:
    policy = nvidia(
        "{timeSlicing: {renameByDefault: true, failRequestsGreaterThanOne: false, resources: ["
        "{name: gpu, replicas: 2, devices: [0], rename: two}, {name: gpu, replicas: 3, devices: [1]}]},"
        "mps: {resources: [{name: gpu, replicas: 4, devices: [2, 3], rename: four}]}}",
        "flags: {mpsRoot: /r}",
    )
    assignment = lay(policy, eight())
    assert rows(assignment)[:5] == [
        ("0", "nvidia.com/two", "ts2"),
        ("1", SHARED, "ts3"),
        ("2", "nvidia.com/four", "mps4"),
        ("3", "nvidia.com/four", "mps4"),
        ("4", GPU, "-"),
    ]
    assert [target.single for target in assignment.targets[:4]] == [False, False, True, True]
    assert assignment.warnings == ()


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ("9", "requested 9 devices to be replicated, but only 8 devices available"),
        ("[8]", "no matching device at index: 8"),
        ("['0:0']", "no matching device at index: 0:0"),
        ("[GPU-x]", "no matching device with UUID: GPU-x"),
        ("[MIG-x]", "no matching device with UUID: MIG-x"),
    ],
)
def test_devices_that_are_not_there_are_impossible(devices: str, said: str) -> None:
    policy = nvidia(items(f"{{name: gpu, replicas: 2, devices: {devices}}}"))
    (problem,) = refused(Unsatisfiable, policy, eight())
    assert (problem.path, problem.message) == ("sharing.timeSlicing.resources[0].devices", said)


def test_an_index_and_a_uuid_of_one_gpu_overlap_once_the_node_is_known() -> None:
    policy = nvidia(
        "{timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [0]}]},"
        "mps: {resources: [{name: gpu, replicas: 2, devices: [GPU-00000000-0000-0000-0000-000000000000]}]}}"
    )
    (problem,) = refused(InputError, policy, eight())
    assert problem.path == "sharing.mps.resources[0]"
    assert "cannot be shared by time-slicing and MPS" in problem.message


def test_mig_devices_are_named_by_index_by_uuid_and_by_the_older_uuid() -> None:
    inventory = node(with_devices(gpu(0), "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb"))
    uuid = inventory.gpus[0].uuid
    policy = nvidia(
        items(f"{{name: mig-1g.10gb, replicas: 2, devices: ['0:0', MIG-0-1, MIG-{uuid}/9/0]}}"),
        "flags: {migStrategy: mixed}",
    )
    assert [row[2] for row in rows(lay(policy, inventory))] == ["ts2", "ts2", "ts2", "-"]


def test_a_resource_that_the_node_does_not_have_is_a_warning() -> None:
    policy = nvidia(items("{name: mig-1g.5gb, replicas: 2, devices: [0]}", "{name: gpu, replicas: 2}"))
    assignment = lay(policy, eight())
    (warning,) = assignment.warnings
    assert warning.path == "sharing.timeSlicing.resources[0].name"
    assert {row[2] for row in rows(assignment)} == {"ts2"}


def test_patterns_rename_before_sharing_and_the_first_match_wins() -> None:
    policy = nvidia(
        items("{name: big, replicas: 2}"),
        "resources: {gpus: [{pattern: '*H100*', name: big}, {pattern: '*', name: other}]}",
    )
    inventory = node(gpu(0), without_mig(1))
    assert rows(lay(policy, inventory)) == [("0", "nvidia.com/big", "ts2"), ("1", "nvidia.com/other", "-")]


def test_patterns_of_mig_devices_are_anchored() -> None:
    policy = nvidia(
        "{}",
        "flags: {migStrategy: mixed}\n"
        "resources: {mig: [{pattern: 1g.10gb, name: small}, {pattern: 1g*, name: me}]}",
    )
    inventory = node(with_devices(gpu(0), "1g.10gb", "1g.10gb+me", "2g.20gb"))
    assert [row[1] for row in rows(lay(policy, inventory))] == [
        "nvidia.com/small",
        "nvidia.com/me",
        "nvidia.com/mig-2g.20gb",
    ]


# --- mig-parted --------------------------------------------------------------------------------

BALANCED = "mig-enabled: true, mig-devices: {1g.10gb: 2, 2g.20gb: 1, 3g.40gb: 1}"
H100, A100 = "device-filter: '0x233010DE'", "device-filter: '0x20B010DE'"


def test_a_configuration_becomes_layouts() -> None:
    assignment = lay(mig_parted(f"{{devices: all, {H100}, {BALANCED}}}"), node(gpu(0)))
    assert sorted(row[1] for row in rows(assignment)) == [
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-2g.20gb",
        "nvidia.com/mig-3g.40gb",
    ]
    assert len(assignment.pending) == 1


def test_entries_for_other_products_are_passed_over() -> None:
    policy = mig_parted(
        f"{{devices: [0, 40], {A100}, mig-enabled: true, mig-devices: {{1g.5gb: 7}}}}",
        f"{{devices: all, {H100}, mig-enabled: true, mig-devices: {{7g.80gb: 1}}}}",
    )
    assignment = lay(policy, node(gpu(0)))
    assert [row[1] for row in rows(assignment)] == ["nvidia.com/mig-7g.80gb"]
    assert assignment.warnings == ()


def test_the_last_entry_that_matches_wins_with_a_warning() -> None:
    policy = mig_parted("{devices: all, mig-enabled: false}", f"{{devices: [1], {BALANCED}}}")
    assignment = lay(policy, node(gpu(0), gpu(1)))
    assert list(assignment.strategies.values()) == [Strategy.EXCLUSIVE, Strategy.MIG]
    (warning,) = assignment.warnings
    assert warning.message == "GPU 1: overrules mig-configs.c[0]: the last entry that matches wins"
    assert warning.path == "mig-configs.c[1]"


def test_all_passes_over_gpus_without_mig() -> None:
    assignment = lay(mig_parted(f"{{devices: all, {BALANCED}}}"), node(gpu(0), without_mig(1)))
    assert rows(assignment)[-1] == ("1", GPU, "-")
    assert assignment.warnings == ()


def test_a_filter_alone_passes_over_gpus_without_mig() -> None:
    l40s = f"{{devices: all, device-filter: '0x26B910DE', {BALANCED}}}"
    (problem,) = refused(Unsatisfiable, mig_parted(l40s), node(gpu(0), without_mig(1)))
    assert "no GPU of this node has MIG" in problem.message


def test_a_configuration_without_entries_or_for_a_node_without_gpus_says_nothing() -> None:
    nothing = replace(mig_parted(f"{{devices: all, {BALANCED}}}"), entries=())
    assert lay(nothing, node(gpu(0))).warnings == ()
    assert lay(mig_parted(f"{{devices: all, {BALANCED}}}"), node()) == Assignment(())


def test_a_gpu_without_mig_that_is_listed_is_impossible() -> None:
    (problem,) = refused(
        Unsatisfiable, mig_parted(f"{{devices: [1], {BALANCED}}}"), node(gpu(0), without_mig(1))
    )
    assert problem.message == "GPU 1: NVIDIA L40S has no MIG"
    assert problem.path == "mig-configs.c[0].mig-devices"


def test_a_profile_that_no_gpu_has_is_impossible_and_nothing_is_cleared() -> None:
    policy = mig_parted("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}")
    (problem,) = refused(Unsatisfiable, policy, node(gpu(0)))
    assert "has no profile 1g.5gb" in problem.message


@pytest.mark.parametrize(
    ("entry", "path", "said"),
    [
        (f"{{devices: all, {A100}, {BALANCED}}}", "mig-configs.c", "matches no GPU of this node"),
        (f"{{devices: [0, 7], {BALANCED}}}", "mig-configs.c[0].devices", "no GPU 7"),
    ],
)
def test_a_configuration_that_does_not_mean_this_node_is_impossible(entry: str, path: str, said: str) -> None:
    (problem,) = refused(Unsatisfiable, mig_parted(entry), node(gpu(0), without_mig(1)))
    assert problem.path == path
    assert said in problem.message


BOARD = "device-filter: '0x233010DE:0x16C110DE'"


def test_a_filter_with_a_subsystem_id_selects_only_such_boards() -> None:
    boards = node(
        replace(gpu(0), pci_subsystem_id="0x16c110de"), replace(gpu(1), pci_subsystem_id="0x16c010de"), gpu(2)
    )
    assignment = lay(mig_parted(f"{{devices: all, {BOARD}, {BALANCED}}}"), boards)
    assert list(assignment.strategies.values()) == [Strategy.MIG, Strategy.EXCLUSIVE, Strategy.EXCLUSIVE]
    (unknown,) = [one for one in assignment.warnings if one.path.endswith("device-filter")]
    assert unknown.message.startswith("GPU 2: passed over: the filter names boards")
    every = lay(mig_parted(f"{{devices: all, {H100}, {BALANCED}}}"), boards)
    assert list(every.strategies.values()) == [Strategy.MIG] * 3, "a filter without one selects all boards"


def test_a_gpu_that_the_filter_names_by_its_model_is_not_passed_over() -> None:
    both = "device-filter: ['0x233010DE:0x16C110DE', '0x233010DE']"
    assert lay(mig_parted(f"{{devices: all, {both}, {BALANCED}}}"), node(gpu(0))).warnings == ()


def test_a_configuration_for_other_boards_names_those_of_the_node() -> None:
    other = node(replace(gpu(0), pci_subsystem_id="0x16c010de"))
    (problem,) = refused(Unsatisfiable, mig_parted(f"{{devices: all, {BOARD}, {BALANCED}}}"), other)
    assert problem.hint == "their PCI device ids: 0x233010de:0x16c010de"


def test_a_list_and_a_filter_that_contradict_each_other_are_wrong() -> None:
    entry = f"{{devices: [0, 1], {H100}, {BALANCED}}}"
    (problem,) = refused(InputError, mig_parted(entry), node(gpu(0), without_mig(1)))
    assert problem.path == "mig-configs.c[0].device-filter"
    assert "GPU 1: listed, but" in problem.message


def test_a_configuration_for_mig_on_a_node_without_mig_is_impossible() -> None:
    (problem,) = refused(Unsatisfiable, mig_parted(f"{{devices: all, {BALANCED}}}"), node(without_mig(0)))
    assert problem.message == "no GPU of this node has MIG: NVIDIA L40S"


def test_switching_mig_off_is_fine_where_there_is_none_and_pending_where_it_is_on() -> None:
    off = mig_parted("{devices: all, mig-enabled: false}")
    assert rows(lay(off, node(without_mig(0)))) == [("0", GPU, "-")]
    on = with_devices(gpu(0), "3g.40gb")
    assignment = lay(off, node(on))
    assert rows(assignment) == [("0", GPU, "-")]
    assert assignment.pending[on.uuid] == "MIG mode has to be turned off"


def test_a_gpu_whose_layout_has_still_to_be_made_says_what_its_devices_are_meanwhile() -> None:
    busy = with_devices(gpu(0), "3g.40gb", "1g.10gb", "1g.10gb")
    assignment = lay(
        mig_parted("{devices: all, mig-enabled: true, mig-devices: {3g.40gb: 2}}"), node(busy, gpu(1))
    )
    assert [target.gpu.index for target in assignment.targets] == [0, 0, 1, 1]
    assert [(one.gpu.index, one.resource) for one in assignment.existing] == [
        (0, "nvidia.com/mig-3g.40gb"),
        (0, "nvidia.com/mig-1g.10gb"),
        (0, "nvidia.com/mig-1g.10gb"),
    ]


def test_gpus_that_no_entry_matches_are_left_with_a_warning() -> None:
    assignment = lay(mig_parted(f"{{devices: [0], {BALANCED}}}"), node(gpu(0), gpu(1), without_mig(2)))
    (warning,) = assignment.warnings
    assert warning.message == "GPU 1: matched by no entry, and left as found"


def test_mig_enabled_without_devices_offers_nothing() -> None:
    assignment = lay(mig_parted("{devices: all, mig-enabled: true, mig-devices: {}}"), node(mig_on(gpu(0))))
    assert (assignment.targets, assignment.pending) == ((), {})


# --- lost GPUs, no driver ----------------------------------------------------------------------


def test_a_lost_gpu_is_no_reason_to_refuse_a_policy_that_names_it() -> None:
    inventory = lost(eight(), 3)
    uuid = "GPU-00000003-0000-0000-0000-000000000000"
    for select in ("{index: 3}", f"{{uuid: {uuid}}}", "{pci: 03:00.0}"):
        policy = native(f"{{select: {select}, mps: {{replicas: 2}}}}")
        assert len(lay(policy, inventory).targets) == 7
    for devices in ("[3]", f"[{uuid}]"):
        policy = nvidia(items(f"{{name: gpu, replicas: 2, devices: {devices}}}"))
        assert {row[2] for row in rows(lay(policy, inventory))} == {"-"}


def test_a_lost_gpu_without_a_uuid_makes_an_unknown_uuid_a_doubt() -> None:
    inventory = lost(eight(), 3, known=False)
    for policy in (
        native("{select: {uuid: GPU-x}, exclusive: {}}"),
        native("{select: {pci: 99:00.0}, exclusive: {}}"),
        nvidia(items("{name: gpu, replicas: 2, devices: [GPU-x]}")),
    ):
        (warning,) = lay(policy, inventory).warnings
        assert "lost" in warning.message


def test_lost_gpus_count_for_a_count_of_devices() -> None:
    policy = nvidia(items("{name: gpu, replicas: 2, devices: 2}", flags="renameByDefault: true, "))
    shared = [row[0] for row in rows(lay(policy, lost(eight(), 1))) if row[2] == "ts2"]
    assert shared == ["0"]
    assert len(lay(nvidia(items("{name: gpu, replicas: 2, devices: 8}")), lost(eight(), 1)).targets) == 7


def test_without_a_driver_nothing_is_judged() -> None:
    inventory = Inventory(NoDriver("driver-missing", "no driver"))
    assert lay(native("{select: {index: 3}, exclusive: {}}"), inventory) == Assignment(())


# --- shares that differ under one name -----------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "path", "said"),
    [
        (
            native("{select: {index: 0}, mps: {replicas: 2}}, {select: rest, time-slicing: {replicas: 4}}"),
            "gpus[1]",
            f"{SHARED} holds shares that guarantee different things: MPS x 2 on GPU 0; "
            "time-slicing x 4 on GPUs 1-7",
        ),
        (
            nvidia(items("{name: gpu, replicas: 2, devices: [0]}")),
            "sharing.timeSlicing.resources[0]",
            f"{GPU} holds shares that guarantee different things: time-slicing x 2 on GPU 0; "
            "exclusive on GPUs 1-7",
        ),
        (
            native("{select: all, name: nvidia.com/x, mig: {layout: [3g.40gb@0, 2g.20gb@4]}}"),
            "gpus[0]",
            "nvidia.com/x holds shares that guarantee different things: 3g.40gb exclusive on GPUs 0-7; "
            "2g.20gb exclusive on GPUs 0-7",
        ),
    ],
    ids=["strategies", "shared-and-not", "profiles"],
)
def test_shares_that_differ_under_one_name_are_a_warning(policy: Policy, path: str, said: str) -> None:
    (warning,) = lay(policy, eight()).warnings
    assert (warning.path, warning.message) == (path, said)
    assert "name" in warning.hint


def test_clients_of_one_name_that_differ_between_entries_are_a_warning() -> None:
    """``big`` has 8 GiB on one GPU and 16 GiB on the other; ``small`` is alike, and held by less on one."""
    policy = native(
        "{select: {index: 0}, mps: {clients: [{name: big, memory: 8Gi}, {name: small, memory: 2Gi}]}}, "
        "{select: {index: 1}, mps: {clients: [{name: big, memory: 16Gi}, {name: small, memory: 2Gi}]}}, "
        "{select: {index: 2}, mps: {clients: [{name: small, memory: 2Gi}, {name: small, memory: 2Gi}]}}"
    )
    said = [warning.message for warning in lay(policy, eight()).warnings]
    assert [message.split()[0] for message in said] == ["nvidia.com/gpu.big", "nvidia.com/gpu.small"]
    assert "MPS with 8 GiB and 50% of the SMs on GPU 0; MPS with 16 GiB" in said[0]
    assert "2 GiB and 50% of the SMs, held by the environment alone on GPUs 0-1; MPS with 2 GiB" in said[1]


def test_mps_that_limits_nothing_beside_mps_that_does_is_a_warning() -> None:
    node = eight()
    old = replace(node.gpus[0], compute_capability=(6, 1))
    inventory = replace(node, gpus=(old, *node.gpus[1:]))
    (warning,) = lay(native("{select: all, mps: {replicas: 2}}"), inventory).warnings
    assert "MPS x 2 without limits on GPU 0; MPS x 2 on GPUs 1-7" in warning.message


def test_a_client_whose_name_makes_no_resource_name_is_refused_elsewhere() -> None:
    long = "a" * 40
    clients = f"clients: [{{name: {long}}}, {{name: {long}}}]"
    policy = native(f"{{select: all, name: nvidia.com/{long}, mps: {{{clients}}}}}")
    assert lay(policy, eight()).warnings == ()


def test_shares_that_differ_under_names_of_their_own_are_not() -> None:
    policy = native(
        "{select: {index: 0}, name: x, mps: {replicas: 2}}, {select: rest, time-slicing: {replicas: 4}}"
    )
    assert lay(policy, eight()).warnings == ()


# --- small rules -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("indexes", "text"),
    [([3], "GPU 3"), ([1, 0], "GPUs 0-1"), ([5, 1, 2, 3, 3], "GPUs 1-3, 5"), ([0, 2, 4], "GPUs 0, 2, 4")],
)
def test_gpus_are_named_in_runs(indexes: list[int], text: str) -> None:
    assert gpus(indexes) == text


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("", "", True), ("", "a", False), ("a", "a", True), ("a", "ab", False), ("*", "", True),
        ("a*", "ab", True), ("*b", "ab", True), ("a*b", "ab", True), ("a*b*c", "axbxc", True),
        ("a*b*b", "ab", False), ("ab*ba", "aba", False), ("a.c", "abc", False), ("[a]", "a", False),
        ("*a*", "bab", True), ("*a*", "abb", True),
    ],
)  # fmt: skip
def test_only_the_star_is_special_and_both_ends_are_anchored(pattern: str, text: str, matches: bool) -> None:
    assert glob_matches(pattern, text) is matches


@given(st.text("ab", max_size=8).flatmap(lambda text: st.tuples(st.just(text), st.text("ab*", max_size=8))))
def test_patterns_agree_with_a_plain_recursion(case: tuple[str, str]) -> None:
    text, pattern = case

    def slow(pattern: str, text: str) -> bool:
        if not pattern:
            return not text
        if pattern[0] == "*":
            return any(slow(pattern[1:], text[at:]) for at in range(len(text) + 1))
        return text[:1] == pattern[0] and slow(pattern[1:], text[1:])

    assert glob_matches(pattern, text) == slow(pattern, text)


def test_a_pattern_of_many_stars_takes_no_time() -> None:
    assert not glob_matches("*a" * 400 + "b", "a" * 1000)


@given(st.permutations(range(8)), st.data())
def test_every_gpu_is_offered_exactly_once_whatever_the_split(order: list[int], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, 8), max_size=3)))
    groups = [order[a:b] for a, b in zip([0, *cuts], [*cuts, 8], strict=True)]
    strategies = ["exclusive: {}", "time-slicing: {replicas: 2}", "mps: {replicas: 3}", "exclusive: {}"]
    entries = [
        f"{{select: {{index: {group}}}, {strategy}}}"
        for group, strategy in zip(groups, strategies, strict=False)
        if group
    ]
    targets = lay(native(", ".join(entries)), eight()).targets
    assert [target.gpu.index for target in targets] == list(range(8))


def test_every_gpu_that_offers_something_is_watched_as_its_entry_says() -> None:
    killed = "{select: {index: [0]}, watch: kill, time-slicing: {replicas: 2}}"
    unseen = "{select: {index: [1]}, watch: off, guard: true, time-slicing: {replicas: 2}}"
    laid = lay(native(f"{killed}, {unseen}"), eight())
    assert list(laid.watch_of.values()) == [WatchAction.KILL, WatchAction.OFF] + [WatchAction.WARN] * 6
    assert laid.warnings == ()
