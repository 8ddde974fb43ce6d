"""The tables of docs/reference are as the code says, and all codes of probes are described."""

import json
import re
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from partage.agent.status import readiness
from tools.reference.pages import REFERENCE, TABLES, names, stale, written

HOW_TO = Path(__file__).parent.parent / "docs" / "how-to"


def test_the_tables_are_current():
    assert [page.name for page in stale()] == [], "make reference writes them anew"


def test_every_table_stands_on_one_page():
    placed = [name for page in REFERENCE.glob("*.md") for name in names(page.read_text())]
    assert sorted(placed) == sorted(TABLES)


def test_a_table_that_is_not_current_is_seen():
    page = "before\n<!-- make reference: exit-codes -->\nold\n<!-- end -->\nafter\n"
    assert "| 130 |" in written(page)
    assert "old" not in written(page)
    assert written(written(page)) == written(page)


def test_no_row_of_a_document_is_called_as_another_or_as_a_document():
    headings = re.findall("^### (.*)$", (REFERENCE / "json.md").read_text(), re.MULTILINE)
    assert len(headings) > 100
    assert [one for one, times in Counter(headings).items() if times > 1] == []


@pytest.mark.parametrize("page", sorted(REFERENCE.glob("*.md")), ids=lambda page: page.name)
def test_links_of_tables_have_a_heading(page):
    """test_docs.py follows links between pages; rows of documents link to each other."""
    text = page.read_text()
    headings = {
        re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-")
        for one in re.findall("^#+ (.*)$", text, re.MULTILINE)
    }
    assert {link for link in re.findall(r"\]\(#([^)]+)\)", text) if link not in headings} == set()


def test_every_key_of_a_policy_is_described():
    schema = json.loads(files("partage.edges.files").joinpath("schema/policy.schema.json").read_text())

    def undescribed(value, path):
        for name, one in value.get("properties", {}).items():
            if "description" not in one and "$ref" not in one:
                yield f"{path}{name}"
            for inner in (one, *one.get("oneOf", ())):
                yield from undescribed(inner, f"{path}{name}.")
        for name, one in value.get("$defs", {}).items():
            yield from undescribed(one, f"{name}: ")

    assert list(undescribed(schema, "")) == []


def _codes():
    """The codes of /healthz: words with a dash in the module that makes them, and why there is no driver."""
    found = set(re.findall(r'"([a-z]+(?:-[a-z]+)+|starting)"', Path(readiness.__file__).read_text()))
    return found | {"library-missing", "driver-missing", "version-mismatch", "no-permission", "failed"}


@pytest.mark.parametrize(
    "page", [REFERENCE / "probes.md", HOW_TO / "troubleshoot.md"], ids=lambda page: page.name
)
def test_every_code_of_a_probe_is_described(page):
    text = page.read_text()
    assert {code for code in _codes() if f"`{code}`" not in text} == set()
