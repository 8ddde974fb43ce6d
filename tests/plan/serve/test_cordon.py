"""Which GPUs a cordon names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.plan.serve.cordon import cordon_sentence, cordoned_gpus, names_in
from tests.plan.reconcile.test_planner import observe


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", set()),
        ("GPU-a,GPU-b", {"GPU-a", "GPU-b"}),
        (" GPU-a , 3 ", {"GPU-a", "3"}),
        ("GPU-a\n# not GPU-b\n\n3\n", {"GPU-a", "3"}),
    ],
)
def test_names_stand_on_lines_or_between_commas(text: str, names: set[str]) -> None:
    assert names_in(text) == names


def test_a_gpu_is_named_by_uuid_in_any_case_or_by_index() -> None:
    known = {gpu.uuid: gpu for gpu in observe()}
    first, second = known
    assert cordoned_gpus({first.lower()}, known) == {first}
    assert cordoned_gpus({"1"}, known) == {second}
    assert cordoned_gpus({"7", "GPU-gone"}, known) == frozenset()


@given(st.text(max_size=200))
def test_any_text_names_only_gpus_that_are_there(text: str) -> None:
    known = {gpu.uuid: gpu for gpu in observe()}
    assert cordoned_gpus(names_in(text), known) <= known.keys()


def test_what_people_are_told() -> None:
    assert cordon_sentence([]) == ""
    assert (
        cordon_sentence([3]) == "GPU 3 is cordoned: who holds a share keeps it, and nobody gets another one"
    )
    assert cordon_sentence([0, 1]).startswith("GPUs 0-1 are cordoned")
