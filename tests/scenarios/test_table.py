"""The table of scenarios: every number is a test that exists, or has a reason."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("README.md")
PAGE = ROOT / "docs" / "evidence" / "scenarios.md"
NUMBERS = list(range(1, 23))


def _rows(page: Path) -> list[tuple[int, str]]:
    """Number and last cell of each row."""
    found = re.findall(r"^\| (\d+) \|.*\| (.*?) \|$", page.read_text(), re.MULTILINE)
    return [(int(number), cell) for number, cell in found]


def _tests(cell: str) -> list[tuple[str, str]]:
    """File and name."""
    return re.findall(r"`([\w/.]+)::(\w+)`", cell)


def test_every_number_has_a_test_that_exists_or_a_reason() -> None:
    rows = _rows(TABLE)
    assert [number for number, _ in rows] == NUMBERS
    for number, cell in rows:
        assert _tests(cell) or re.match(r"none: .{20,}", cell), number
        for file, name in _tests(cell):
            assert f"def {name}(" in (ROOT / file).read_text(), f"{number}: {file} has no {name}"


def test_every_test_that_is_named_by_a_number_is_in_its_row() -> None:
    listed = {(number, name) for number, cell in _rows(TABLE) for _, name in _tests(cell)}
    defined = {
        (int(number), f"test_scenario_{number}_{rest}")
        for path in (ROOT / "tests").rglob("test_*.py")
        for number, rest in re.findall(r"def test_scenario_(\d\d)_(\w+)\(", path.read_text())
    }
    assert defined
    assert {one for one in listed if one[1].startswith("test_scenario_")} == defined


def test_the_page_says_of_every_number_what_happens() -> None:
    assert [number for number, _ in _rows(PAGE)] == NUMBERS
