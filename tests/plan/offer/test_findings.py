"""Findings of a policy: which end it, and how many are told."""

from __future__ import annotations

import pytest

from partage.errors import InputError, Unsatisfiable
from partage.plan.offer.findings import MOST_PROBLEMS, Findings


def test_what_is_wrong_ends_a_policy_before_what_is_impossible_and_all_is_told() -> None:
    findings = Findings("p.yaml")
    findings.add("doubtful", "a", "perhaps", gpus=[1])
    findings.raise_any()
    findings.add("impossible", "b", "no room", gpus=[0])
    with pytest.raises(Unsatisfiable):
        findings.raise_any()
    findings.add("wrong", "c", "no such key")
    with pytest.raises(InputError) as caught:
        findings.raise_any()
    said = [(problem.severity, problem.message) for problem in caught.value.problems]
    assert said == [("error", "no such key"), ("error", "GPU 0: no room"), ("warning", "GPU 1: perhaps")]
    assert [problem.message for problem in findings.warnings()] == ["GPU 1: perhaps"]


@pytest.mark.parametrize(("more", "last"), [(0, f"number {MOST_PROBLEMS - 1}"), (2, "and 2 more problems")])
def test_problems_beyond_a_number_are_counted(more: int, last: str) -> None:
    findings = Findings("p.yaml")
    for number in range(MOST_PROBLEMS + more):
        findings.add("doubtful", "", f"number {number}")
    assert findings.warnings()[-1].message == last
