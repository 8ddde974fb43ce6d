"""The faults of ``make mutate`` are faults."""

import ast
from pathlib import Path

import pytest

from tools import mutate


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("a < b", ["a <= b"]),
        ("a == b", ["a != b"]),
        ("a not in b", ["a in b"]),
        ("a < b < c", []),
        ("a and b", ["b", "a"]),
        ("a or b or c", ["b or c", "a or c", "a or b"]),
        ("not a", ["a"]),
        ("f(a)", []),
    ],
)
def test_a_comparison_is_swapped_and_a_condition_dropped(text, faults):
    assert [ast.unparse(fault) for fault in mutate.faults(ast.parse(text, mode="eval").body)] == faults


def test_a_seed_draws_the_same_faults_and_none_of_an_assert(tmp_path):
    folder = tmp_path / "src/partage/plan"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("def f(a, b):\n    assert a == b\n    return not (a < b and b < 7)\n")
    drawn = mutate.drawn(tmp_path, 5, 5)
    assert drawn == mutate.drawn(tmp_path, 5, 5)
    nodes = list(ast.walk(ast.parse((folder / "a.py").read_text())))
    assert {ast.unparse(nodes[number]) for _, number, _ in drawn} == {
        "not (a < b and b < 7)",
        "a < b and b < 7",
        "a < b",
        "b < 7",
    }
    assert mutate.stages(tmp_path, Path(folder / "a.py"))[1:] == [["tests/plan"], ["tests"]]
