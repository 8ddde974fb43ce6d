"""One name for one thing: no two classes of the package have the same name."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "partage"


def test_no_class_name_is_given_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.parent.name == "_generated":  # the protocols say their names, in each version
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{file.relative_to(PACKAGE)}:{node.lineno}")
    assert len(places) > 1000  # it looks in the right place
    assert {name: twice for name, twice in places.items() if len(twice) > 1} == {}
