"""The faults of ``make mutate`` are faults."""

import ast

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


def test_tests_that_import_the_file_come_before_all_of_them(tmp_path):
    for name, text in {
        "plan/offer/test_b.py": "from partage.plan.offer.b import f\n",
        "agent/test_a.py": "from partage.plan.a import f\n",
        "agent/test_b.py": "from partage.plan.offer.b import f\n",
    }.items():
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).write_text(text)
    stages = mutate.stages(tmp_path, tmp_path / "src/partage/plan/offer/b.py")
    assert stages == [["tests/plan/offer"], ["tests/plan"], ["tests/agent/test_b.py"], ["tests"]]
    assert mutate.stages(tmp_path, tmp_path / "src/partage/plan/a.py")[0] == []
