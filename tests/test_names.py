"""One name for one thing: no two classes of the package have the same name."""

import re
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "partage"


def test_no_class_name_is_given_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.parent.name == "_generated":  # the protocols say their names, in each version
            continue
        for name in re.findall(r"^ *class (\w+)[:(]", file.read_text(encoding="utf-8"), re.MULTILINE):
            places[name].append(str(file.relative_to(PACKAGE)))
    assert len(places) > 1000  # it looks in the right place
    assert {name: twice for name, twice in places.items() if len(twice) > 1} == {}
