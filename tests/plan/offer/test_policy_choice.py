"""Which policy of a directory a node takes: NVIDIA's rules, and what they leave open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model.node_labels import NVIDIA_POLICY, PARTAGE_POLICY
from partage.plan.offer.policy_choice import (
    ChoiceRules,
    Fallback,
    LabelsUnknown,
    NothingChosen,
    TakeNone,
    TakePolicy,
    UnknownName,
    choose_policy,
)

NAMED, SINGLE, EMPTY = Fallback.NAMED, Fallback.SINGLE, Fallback.EMPTY
TWO = ("default", "shared")
NO_RULE = ChoiceRules(None, ())


@pytest.mark.parametrize(
    ("names", "labels", "rules", "chosen"),
    [
        # A label decides, Partage's before NVIDIA's; one without a value is none.
        (TWO, {NVIDIA_POLICY: "shared"}, ChoiceRules("default"),
         TakePolicy("shared", f"label {NVIDIA_POLICY}")),
        (TWO, {PARTAGE_POLICY: "shared"}, ChoiceRules(), TakePolicy("shared", f"label {PARTAGE_POLICY}")),
        (TWO, {PARTAGE_POLICY: "default", NVIDIA_POLICY: "shared"}, ChoiceRules(),
         TakePolicy("default", f"label {PARTAGE_POLICY}")),
        (TWO, {NVIDIA_POLICY: ""}, ChoiceRules("shared"), TakePolicy("shared", "default")),
        # Without a label: the default, which has no fallback of its own.
        (TWO, {}, ChoiceRules("shared", (NAMED,)), TakePolicy("shared", "default")),
        # Then the fallbacks, in order.
        (TWO, {}, ChoiceRules(), TakePolicy("default", "fallback named")),
        (("a",), {}, ChoiceRules(), TakePolicy("a", "fallback single")),
        (("default",), {}, ChoiceRules(None, (SINGLE, NAMED)), TakePolicy("default", "fallback single")),
        (("a", "b"), {}, ChoiceRules(None, (NAMED, SINGLE, EMPTY)), TakeNone("fallback empty")),
        ((), {}, ChoiceRules(None, (EMPTY,)), TakeNone("fallback empty")),
        (TWO, {}, ChoiceRules(None, (EMPTY, NAMED)), TakeNone("fallback empty")),
        # Labels that are not known yet: only what no label can change.
        (TWO, None, ChoiceRules("shared"), LabelsUnknown()),
        (("a",), None, ChoiceRules(), TakePolicy("a", "fallback single")),
        (("a",), None, ChoiceRules("a", ()), TakePolicy("a", "default")),
        (("a",), None, NO_RULE, LabelsUnknown()),
        (("a",), None, ChoiceRules(None, (EMPTY,)), LabelsUnknown()),
    ],
)  # fmt: skip
def test_what_is_chosen(names, labels, rules, chosen) -> None:
    assert choose_policy(names, labels, rules) == chosen


@pytest.mark.parametrize(
    ("labels", "rules", "by"),
    [
        ({NVIDIA_POLICY: "sharde"}, ChoiceRules("default"), f"label {NVIDIA_POLICY}"),
        ({}, ChoiceRules("sharde"), "default"),
    ],
)
def test_a_name_that_is_not_there_is_never_replaced_by_another(labels, rules, by) -> None:
    found = choose_policy(TWO, labels, rules)
    assert isinstance(found, UnknownName)
    assert found.message.startswith(f"{by} asks for 'sharde'")
    assert found.hint == "did you mean 'shared'? there is: default, shared"


@pytest.mark.parametrize("names", [(), ("a", "b")])
def test_nothing_that_applies_is_said_with_what_was_tried(names) -> None:
    found = choose_policy(names, {}, ChoiceRules())
    assert isinstance(found, NothingChosen)
    assert "named, single" in found.message
    found = choose_policy(names, {}, ChoiceRules(fallback=()))
    assert isinstance(found, NothingChosen)
    assert "applies (none)" in found.message


_NAMES = st.lists(st.sampled_from(["default", "a", "b"]), unique=True)
_LABELS = st.dictionaries(
    st.sampled_from([NVIDIA_POLICY, PARTAGE_POLICY, "other"]), st.sampled_from(["", "default", "a", "b", "c"])
)
_RULES = st.builds(
    ChoiceRules,
    st.none() | st.sampled_from(["default", "a", "c"]),
    st.lists(st.sampled_from(list(Fallback)), unique=True).map(tuple),
)


@given(_NAMES, _LABELS, _RULES)
def test_what_is_chosen_before_labels_are_known_stays_chosen_by_every_label_that_chooses(
    names, labels, rules
) -> None:
    before = choose_policy(names, None, rules)
    after = choose_policy(names, labels, rules)
    if isinstance(before, TakePolicy) and isinstance(after, TakePolicy):
        assert after.name == before.name
    assert isinstance(before, TakePolicy | LabelsUnknown)
    assert not isinstance(after, LabelsUnknown)
    if isinstance(after, TakePolicy):
        assert after.name in names
