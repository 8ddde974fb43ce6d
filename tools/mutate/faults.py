"""What may stand wrongly in the code, and a copy of it in which each fault waits for its number."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DECISIONS = "src/partage/plan"
AWAKE = "PARTAGE_FAULTS"
"""The variable, and in each module the set, that has the numbers of the faults that are awake."""
_OTHER = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_SLEEPING = (
    f"from os import environ as _environ\n{AWAKE} = {{*map(int, _environ.get('{AWAKE}', '').split())}}\n"
)


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
                yield copy.deepcopy(rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))
        case ast.UnaryOp(op=ast.Not()):
            yield copy.deepcopy(node.operand)


class Fault(NamedTuple):
    """One that stands in the code."""

    number: int
    place: str
    """File and line."""
    change: str
    """What stands there, and what would."""


def put_into(root: Path) -> list[Fault]:
    """Writes all faults into the decisions below ``root``, asleep."""
    put: list[Fault] = []
    for path in sorted((root / DECISIONS).rglob("*.py")):
        before = len(put)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        _Put(str(path.relative_to(root)), put).visit(tree)
        if len(put) > before:
            # After the docstring and the imports from __future__, which have to be first.
            at = next(
                index for index, node in enumerate(tree.body)
                if not (isinstance(node, ast.ImportFrom) and node.module == "__future__")
                and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            )  # fmt: skip
            tree.body[at:at] = ast.parse(_SLEEPING).body
            path.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
    return put


class _Put(ast.NodeTransformer):
    """``a < b`` becomes ``a <= b if 7 in PARTAGE_FAULTS else a < b``. Asserts decide nothing, and what runs
    while a module is imported is over when a fault awakes.
    """

    def __init__(self, file: str, put: list[Fault]) -> None:
        self._file = file
        self._put = put
        self._functions = 0

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Assert):
            return node
        kinds = list(faults(node)) if self._functions else []
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        line, text = getattr(node, "lineno", 0), ast.unparse(node) if kinds else ""
        self._functions += is_function
        node = self.generic_visit(node)
        self._functions -= is_function
        for fault in kinds:
            self._put.append(
                Fault(len(self._put), f"{self._file}:{line}", f"{text}  ->  {ast.unparse(fault)}")
            )
            awake = ast.Compare(ast.Constant(self._put[-1].number), [ast.In()], [ast.Name(AWAKE, ast.Load())])
            assert isinstance(node, ast.expr)
            node = ast.IfExp(awake, fault, node)
        return node
