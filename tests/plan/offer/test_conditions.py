"""Which entries count on a node, by its labels."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.errors import InputError
from partage.model.gpu import Inventory
from partage.model.node_labels import ACK_SCHEDULE, STOOD_FOR
from partage.model.policy import AllDevices, GpuEntry, LabelCondition, Policy
from partage.plan.offer.assign import assign
from partage.plan.offer.policy_choice import MOST_VARIANTS, asked_labels, for_node, variants
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware

TWO_TYPES = """
version: partage/v1
gpus:
  - {select: all, when: {label: {pool: inference}}, mps: {replicas: 4}}
  - {select: {index: 0}, when: {label: {pool: [training, research]}}, time-slicing: {replicas: 2}}
  - {select: rest, exclusive: {}}
"""


def read(text: str) -> Policy:
    return parse_policy(text, "p.yaml").policy


def node(machine: str = "2xa100-sxm4-40gb") -> Inventory:
    return asyncio.run(SimulatedHardware(load_machine(machine)).observe())


def counting(policy: Policy) -> list[str]:
    return [entry.origin for entry in policy.entries]


@pytest.mark.parametrize(
    ("labels", "origins"),
    [
        ({}, ["gpus[2]"]),
        ({"pool": "inference"}, ["gpus[0]", "gpus[2]"]),
        ({"pool": "training"}, ["gpus[1]", "gpus[2]"]),
        ({"pool": "research", "zone": "a"}, ["gpus[1]", "gpus[2]"]),
        ({"pool": "Inference"}, ["gpus[2]"]),
        ({"pool": ""}, ["gpus[2]"]),
    ],
)
def test_entries_that_do_not_hold_are_left_out(labels: dict[str, str], origins: list[str]) -> None:
    there = for_node(read(TWO_TYPES), labels)
    assert counting(there) == origins
    assert all(not entry.when for entry in there.entries if isinstance(entry, GpuEntry))
    assert assign(there, node(), geometry_of).targets


def test_several_labels_have_to_match_together_and_an_empty_value_is_one() -> None:
    policy = read(
        "version: partage/v1\ngpus: [{select: all, when: {label: {a: x, b: [y, '']}}, exclusive: {}}]"
    )
    assert [bool(counting(for_node(policy, labels))) for labels in (
        {"a": "x", "b": "y"}, {"a": "x", "b": ""}, {"a": "x"}, {"b": "y"},
    )] == [True, True, False, False]  # fmt: skip


@pytest.mark.parametrize(("asked", "stands"), [(next(iter(STOOD_FOR)), True), ("what is here", False)])
def test_only_an_entry_that_the_schedulers_label_chooses_stands_in_for_what_it_asks(
    asked: str, stands: bool
) -> None:
    condition = LabelCondition(ACK_SCHEDULE, tuple({asked, *STOOD_FOR}))
    chosen = GpuEntry("gpus[0]", AllDevices(), when=(condition,))
    other = GpuEntry("gpus[1]", AllDevices(), when=(LabelCondition("pool", ("a",)),))
    there = for_node(Policy((chosen, other)), {ACK_SCHEDULE: asked, "pool": "a"}).entries
    said = [entry.in_place_of for entry in there if isinstance(entry, GpuEntry)]
    assert said == [asked if stands else "", ""]


def test_items_of_nvidias_format_count_on_every_node() -> None:
    items = read("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}")
    chosen = GpuEntry("gpus[0]", AllDevices(), when=(LabelCondition("pool", ("a",)),))
    beside = Policy((chosen, *items.entries))
    assert for_node(items, {"pool": "b"}) == items
    assert for_node(beside, {"pool": "b"}).entries == items.entries


def test_labels_that_are_not_known_are_never_guessed() -> None:
    policy = read(TWO_TYPES)
    with pytest.raises(InputError) as refused:
        for_node(policy, None)
    assert [problem.path for problem in refused.value.problems] == ["gpus[0].when", "gpus[1].when"]
    with pytest.raises(InputError, match="labels"):
        assign(policy, node(), geometry_of)  # also where somebody forgot to ask


def test_a_policy_without_conditions_needs_no_labels() -> None:
    policy = read("version: partage/v1\ngpus: [{select: all, exclusive: {}}]")
    assert for_node(policy, None) is policy
    assert asked_labels(policy) == frozenset()
    assert asked_labels(read(TWO_TYPES)) == {"pool"}


def test_two_entries_that_both_hold_must_not_overlap() -> None:
    policy = read(
        "version: partage/v1\ngpus:\n"
        "  - {select: {index: 0}, when: {label: {a: x}}, exclusive: {}}\n"
        "  - {select: {index: 0}, when: {label: {b: y}}, mps: {replicas: 2}}\n"
    )
    for labels in ({"a": "x"}, {"b": "y"}):
        assert assign(for_node(policy, labels), node(), geometry_of).targets
    with pytest.raises(InputError, match=r"selected by gpus\[0\] already"):
        assign(for_node(policy, {"a": "x", "b": "y"}), node(), geometry_of)


def test_two_rests_that_both_hold_are_an_error() -> None:
    policy = read(
        "version: partage/v1\ngpus:\n"
        "  - {select: rest, when: {label: {a: x}}, exclusive: {}}\n"
        "  - {select: rest, when: {label: {b: y}}, mps: {replicas: 2}}\n"
    )
    with pytest.raises(InputError, match="rest is selected by"):
        assign(for_node(policy, {"a": "x", "b": "y"}), node(), geometry_of)


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ("{select: all, when: W, exclusive: {}} | {select: rest, mps: {replicas: 2}}", ""),
        ("{select: all, when: W, exclusive: {}} | {select: all, when: V, exclusive: {}}", ""),
        ("{select: {index: 0}, when: W, exclusive: {}} | {select: {index: 0}, when: V, exclusive: {}}", ""),
        ("{select: all, when: W, exclusive: {}} | {select: {index: 0}, mps: {replicas: 2}}", "all GPUs"),
        ("{select: all, exclusive: {}} | {select: rest, when: W, mps: {replicas: 2}}", "all GPUs"),
        ("{select: all, when: W, exclusive: {}} | {select: rest, when: W, mps: {replicas: 2}}", "all GPUs"),
        ("{select: all, when: W, exclusive: {}} | {select: all, mps: {replicas: 2}}", "all GPUs"),
        ("{select: rest, exclusive: {}} | {select: rest, when: W, mps: {replicas: 2}}", "rest is selected"),
        ("{select: {index: 0}, exclusive: {}} | {select: {index: 0}, when: W, exclusive: {}}", "index 0"),
    ],
)
def test_contradictions_on_every_node_are_found_in_the_file(entries: str, error: str) -> None:
    rows = entries.replace("W", "{label: {a: x}}").replace("V", "{label: {a: y}}").split(" | ")
    text = "version: partage/v1\ngpus:\n" + "".join(f"  - {row}\n" for row in rows)
    if not error:
        assert len(read(text).entries) == 2
        return
    with pytest.raises(InputError, match=error):
        read(text)


@pytest.mark.parametrize(
    ("when", "path", "said"),
    [
        ("{}", "when", "'label' is missing"),
        ("{label: {}}", "when.label", "names no label"),
        ("{label: {pool: []}}", "when.label.pool", "lists no value"),
        ("{label: {pool: 4}}", "when.label.pool", "quotes"),
        ("{label: {pool: true}}", "when.label.pool", "quotes"),
        ("{label: {pool: 'a b'}}", "when.label.pool", "not the value of a label"),
        ("{label: {'-pool': a}}", "when.label", "not the key of a label"),
        ("{labels: {pool: a}}", "when.labels", "did you mean 'label'"),
        ("pool", "when", "has to be"),
    ],
)
def test_what_is_wrong_with_a_condition_is_said(when: str, path: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        read(f"version: partage/v1\ngpus: [{{select: all, when: {when}, exclusive: {{}}}}]")
    assert any(
        problem.path.startswith(f"gpus[0].{path}") and said in str(problem)
        for problem in refused.value.problems
    ), refused.value


def test_each_variant_comes_with_the_labels_of_a_node_that_has_it() -> None:
    found = variants(read(TWO_TYPES))
    assert [(dict(labels), counting(policy)) for labels, policy in found] == [
        ({}, ["gpus[2]"]),
        ({"pool": "inference"}, ["gpus[0]", "gpus[2]"]),
        ({"pool": "research"}, ["gpus[1]", "gpus[2]"]),
    ]


_CONDITIONS = st.lists(
    st.builds(
        LabelCondition,
        st.sampled_from("abc"),
        st.lists(st.sampled_from("xyz"), min_size=1, max_size=2, unique=True).map(tuple),
    ),
    max_size=3,
    unique_by=lambda one: one.key,
).map(tuple)
_POLICIES = st.lists(_CONDITIONS, max_size=4).map(
    lambda rows: Policy(tuple(GpuEntry(f"gpus[{n}]", AllDevices(), when=row) for n, row in enumerate(rows)))
)


@given(_POLICIES, st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyzw"), max_size=3))
@settings(deadline=None)
def test_every_node_has_one_of_the_variants(policy: Policy, labels: dict[str, str]) -> None:
    found = variants(policy)
    assert len(found) <= MOST_VARIANTS
    assert for_node(policy, labels) in [variant for _, variant in found]
    relevant = {key: value for key, value in labels.items() if key in asked_labels(policy)}
    assert for_node(policy, relevant) == for_node(policy, labels)
