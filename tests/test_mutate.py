"""The faults of ``make mutate`` are faults, and it says which of them no test finds."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.mutate.faults import DECISIONS, faults, put_into

REPOSITORY = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("text", "wrong"),
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
def test_a_comparison_is_swapped_and_a_condition_dropped(text, wrong):
    assert [ast.unparse(fault) for fault in faults(ast.parse(text, mode="eval").body)] == wrong


def test_a_fault_sleeps_until_its_number_is_woken(tmp_path):
    decisions = tmp_path / DECISIONS
    decisions.mkdir(parents=True)
    (decisions / "a.py").write_text(
        '"""Doc."""\nfrom __future__ import annotations\nLAST = not 7\ndef is_free(a, b):\n'
        "    assert a != b\n    return not (a < b and b < 7)\n"
    )
    put = put_into(tmp_path)
    assert [fault.place for fault in put] == [f"{DECISIONS}/a.py:6"] * 5
    code = compile((decisions / "a.py").read_text(), "a.py", "exec")
    answers = {}
    for number, (_, _, change) in enumerate(put):
        module: dict[str, Any] = {}
        exec(code, module)
        asked = [(1, 2), (2, 1), (1, 7), (7, 7.5)]
        assert [module["is_free"](*pair) for pair in asked] == [False, True, True, True]
        module["PARTAGE_FAULTS"].add(number)
        answers[change.split("  ->  ")[1]] = [module["is_free"](*pair) for pair in asked]
    assert answers == {
        "a <= b": [False, True, True, True],
        "b <= 7": [False, True, False, True],
        "b < 7": [False, False, True, True],
        "a < b": [False, True, False, False],
        "a < b and b < 7": [True, False, False, False],
    }


def mutate(directory: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for name, text in {"src/partage/__init__.py": "", **files}.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *command], cwd=directory, check=True)
    return subprocess.run(
        [sys.executable, "-m", "tools.mutate", "--seed", "5"],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_no_test_finds_is_shown_and_a_test_that_starts_a_process_may_find_it(tmp_path):
    done = mutate(
        tmp_path,
        {
            f"{DECISIONS}/a.py": "def is_free(a):\n    return a < 7\n\ndef is_last(a):\n    return a == 7\n\n"
            "def is_even(a):\n    return a not in (1, 3)\n",
            "tests/test_a.py": "import subprocess, sys\nfrom partage.plan.a import is_free, is_last\n"
            "def test_free():\n    assert is_free(6) and not is_free(8)\n"
            "def test_last():\n    assert is_last(7)\n"
            "def test_even():\n    asked = 'from partage.plan.a import is_even; assert is_even(2)'\n"
            "    subprocess.run([sys.executable, '-c', asked], check=True)\n",
        },
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"NOT    {DECISIONS}/a.py:2  a < 7  ->  a <= 7\n" in done.stdout
    assert "  a == 7  ->  a != 7\n       by tests/test_a.py::test_last\n" in done.stdout
    assert "       by tests/test_a.py::test_even\n" in done.stdout
    assert done.stdout.endswith("mutate: 2 of 3 are found (seed 5)\n")


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("import os\ndef test_a():\n    os._exit(0)\n", "tests/test_a.py::test_a"),
        ("def test_a():\n    assert False\n", "tests/test_a.py::test_a"),
        ("import partage.none\n", "1 files of tests, which cannot be collected"),
    ],
    ids=["it ends its process", "it fails", "it cannot be collected"],
)
def test_nothing_is_tried_while_a_test_fails_without_a_fault(tmp_path, test, said):
    done = mutate(tmp_path, {f"{DECISIONS}/a.py": "def f(a):\n    return a < 7\n", "tests/test_a.py": test})
    assert (done.returncode, said in done.stderr) == (2, True), done.stdout + done.stderr
