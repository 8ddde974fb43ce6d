"""How large the house is, in figures that should shrink: ``python -m tools.marks [CHECKOUT [PATTERN...]]``.

PATTERN: files below src/partage that are left out, ``claims/*``.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatch
from itertools import combinations
from pathlib import Path

_COMMON = 4
"""Two classes with so many fields of the same names may be one."""
_LONG_FILE = 350
_LONG_FUNCTION = 70
_FULL_FOLDER = 60
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def without_docstrings(tree: ast.AST) -> int:
    """How many nodes of syntax."""
    count = 0
    for node in ast.walk(tree):
        count += 1
        if isinstance(node, ast.Module | ast.ClassDef | _FUNCTIONS) and ast.get_docstring(node) is not None:
            count -= 2
    return count


def code_lines(text: str) -> set[int]:
    """The lines that are neither empty nor comment nor docstring."""
    nothing = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    lines: set[int] = set()
    begins = True  # of a statement: a string that stands there alone is a docstring
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in nothing:
            if not (begins and token.type == tokenize.STRING):
                lines.update(range(token.start[0], token.end[0] + 1))
            begins = False
        elif token.type not in (tokenize.COMMENT, tokenize.NL):
            begins = True
    return lines


def fields_of(node: ast.ClassDef) -> frozenset[str]:
    """The names of its annotated fields."""
    return frozenset(
        part.target.id
        for part in node.body
        if isinstance(part, ast.AnnAssign)
        and isinstance(part.target, ast.Name)
        and not part.target.id.isupper()
    )


def main(checkout: Path, without: Sequence[str]) -> None:
    """Print the marks of what is installed. without: patterns of files that are left out."""
    root = checkout / "src/partage"
    paths = [
        path
        for path in sorted(root.rglob("*.py"))
        if "_generated" not in path.parts
        and not any(fnmatch(str(path.relative_to(root)), pattern) for pattern in without)
    ]
    nodes = imports = 0
    classes: list[tuple[str, frozenset[str], Path]] = []
    long_files, long_functions = [], []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        tree, lines = ast.parse(text), code_lines(text)
        nodes += without_docstrings(tree)
        name = path.relative_to(checkout)
        if len(lines) > _LONG_FILE:
            long_files.append(f"{name} {len(lines)}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports += 1
            elif isinstance(node, ast.ClassDef):
                classes.append((node.name, fields_of(node), name))
            elif isinstance(node, _FUNCTIONS):
                length = len(lines & {*range(node.lineno, (node.end_lineno or node.lineno) + 1)})
                if length > _LONG_FUNCTION:
                    long_functions.append(f"{name}:{node.lineno} {node.name} {length}")
    pairs = [(a, b) for a, b in combinations(classes, 2) if len(a[1] & b[1]) >= _COMMON]
    twice = [name for name, count in Counter(name for name, _, _ in classes).items() if count > 1]
    full = [
        f"{folder.relative_to(checkout)} {count}"
        for folder, count in Counter(p.parent for p in paths).items()
        if count > _FULL_FOLDER
    ]
    rows = {
        "files": [str(len(paths))],
        "nodes of syntax, without docstrings": [str(nodes)],
        "imports": [str(imports)],
        f"pairs of classes with {_COMMON} common fields": [
            str(len(pairs)),
            *(f"{a[0]} {b[0]}: {a[2]} {b[2]}" for a, b in pairs),
        ],
        "class names that stand twice": [str(len(twice)), *sorted(twice)],
        f"files over {_LONG_FILE} code lines": [str(len(long_files)), *long_files],
        f"functions over {_LONG_FUNCTION} code lines": [str(len(long_functions)), *long_functions],
        f"folders with over {_FULL_FOLDER} files": [str(len(full)), *full],
    }
    for mark, (count, *examples) in rows.items():
        sys.stdout.write(f"{mark}: {count}\n" + "".join(f"    {line}\n" for line in examples))


if __name__ == "__main__":
    main(Path(*sys.argv[1:2]), sys.argv[2:])
