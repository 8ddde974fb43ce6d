"""Small faults in the heart's decisions, one at a time, and whether ``make test`` finds each.

python -m tools.mutate [--seed N] [--count 40]. A fault that no test finds is shown: a test is missing, or the
fault changes no answer. Exit code 1: more than one in twenty was not
found; 2: a test fails without a fault, too.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_DECISIONS = "src/partage/plan"
_FOUND = 0.95
_OTHER = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def faults(node: ast.AST) -> Iterator[ast.expr]:
    """What may stand wrongly in place of this expression: a comparison swapped, a condition dropped."""
    match node:
        case ast.Compare(ops=[only]):
            fault = copy.deepcopy(node)
            fault.ops = [_OTHER[type(only)]()]
            yield fault
        case ast.BoolOp():
            for index in range(len(node.values)):
                rest = [value for at, value in enumerate(node.values) if at != index]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand


class _Place(ast.NodeTransformer):
    """Puts a fault in place of the expression with this number, as ``ast.walk`` counts them."""

    def __init__(self, place: ast.AST, fault: ast.expr) -> None:
        self.place = place
        self.fault = fault

    def visit(self, node: ast.AST) -> ast.AST:
        return self.fault if node is self.place else super().generic_visit(node)


def drawn(root: Path, seed: int, count: int) -> list[tuple[Path, int, int]]:
    """Files, and in each the number of an expression and of its fault."""
    places = []
    for path in sorted((root / _DECISIONS).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        asserted = {
            id(part) for node in ast.walk(tree) if isinstance(node, ast.Assert) for part in ast.walk(node)
        }
        for number, node in enumerate(ast.walk(tree)):
            if id(node) not in asserted:
                places += [(path, number, index) for index, _ in enumerate(faults(node))]
    return random.Random(seed).sample(places, count)  # noqa: S311 - a sample of code


def stages(root: Path, path: Path) -> list[list[str]]:
    """What is run, until a test fails: the tests beside the file, of all decisions, those elsewhere that
    import the file, all."""
    beside = root / "tests" / path.relative_to(root / "src/partage").parent
    own = [str(beside.relative_to(root))] if beside.is_dir() and beside != root / "tests/plan" else []
    module = ".".join(path.relative_to(root / "src").with_suffix("").parts)
    importing = [
        str(test.relative_to(root))
        for test in sorted((root / "tests").rglob("test_*.py"))
        if root / "tests/plan" not in test.parents and f"from {module} import" in test.read_text("utf-8")
    ]
    return [own, ["tests/plan"], importing, ["tests"]]


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutate", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--count", type=int, default=40)
    given = parser.parse_args()
    print(f"mutate: seed {given.seed}, {given.count} faults in {_DECISIONS}", flush=True)
    with tempfile.TemporaryDirectory(prefix="partage-mutate-") as folder:
        root = Path(folder)
        for name in subprocess.run(
            ["git", "ls-files"], check=True, capture_output=True, text=True
        ).stdout.split("\n"):
            if name and Path(name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(name, root / name)
        if failed := _failed(root, ["tests"]):
            print(f"mutate: without a fault, too, a test fails: {failed}", file=sys.stderr)
            return 2
        found = sum(_is_found(root, *place) for place in drawn(root, given.seed, given.count))
    print(f"mutate: {found} of {given.count} are found (seed {given.seed})")
    return 0 if found >= _FOUND * given.count else 1


def _is_found(root: Path, path: Path, number: int, index: int) -> bool:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    place = list(ast.walk(tree))[number]
    fault = list(faults(place))[index]
    line = f"{path.relative_to(root)}:{getattr(place, 'lineno', 0)}"
    what = f"{line}  {ast.unparse(place)}  ->  {ast.unparse(fault)}"
    path.write_text(
        ast.unparse(ast.fix_missing_locations(_Place(place, fault).visit(tree))), encoding="utf-8"
    )
    try:
        for tests in filter(None, stages(root, path)):
            failed = _failed(root, tests)
            if failed and _failed(root, [failed]):  # alone, too: it was not only that the machine is busy
                print(f"found  {what}\n       by {failed}", flush=True)
                return True
        print(f"NOT    {what}", flush=True)
        return False
    finally:
        path.write_text(text, encoding="utf-8")


def _failed(root: Path, tests: list[str]) -> str:
    """The first test that fails, or all of them if it has no name; empty: none does."""
    workers = "0" if "::" in tests[0] else str(os.cpu_count() or 1)
    options = ["-x", "-n", workers, "--dist", "loadgroup", "-m", "not real", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src"), "PARTAGE_QUICK": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return ""
    names = re.findall(r"^(?:FAILED|ERROR) (\S+?\.py(?:::[^\s\[]+)?)", done.stdout, re.MULTILINE)
    return names[0] if names else tests[0]


if __name__ == "__main__":
    sys.exit(main())
