"""Links lead somewhere, the pages that code names exist, and the site needs no other one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("bench", "deploy", "docs", "examples", "proto", "src", "tests", "tools")
FILES = sorted(
    path
    for path in [*ROOT.glob("*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    if path.is_file()
)
PAGES = [path for path in FILES if path.suffix == ".md"]
NAMING = [path for path in FILES if path.suffix in {".json", ".md", ".py", ".toml", ".yaml"}]
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def _name(path):
    return str(path.relative_to(ROOT))


def _anchors(page):
    """The anchors of a page, as GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _broken_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", FENCED.sub("", page.read_text()))):
        if target.startswith(("https://", "http://")):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        if not linked.exists():
            yield f"{target}: there is no such file"
        elif anchor and anchor not in _anchors(linked):
            yield f"{target}: {linked.name} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_the_links_of_a_page_lead_somewhere(page):
    assert list(_broken_links(page)) == []


def test_a_broken_link_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A heading\n[a](#a-heading) [b](#b) [c](gone.md) [d](https://example.org)\n")
    (tmp_path / "other.md").write_text("")
    assert len(list(_broken_links(page))) == 2


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=_name)
def test_lists_and_tables_begin_after_an_empty_line(page):
    """The site's Markdown takes them for text otherwise."""
    text = FENCED.sub("", page.read_text())
    item, row = r"(?:-|\*|\d+\.) ", r"\|"
    assert re.findall(rf"^(?!{item}|\s|#|$).*\n(?={item})", text, re.MULTILINE) == []
    assert re.findall(rf"^(?!{row}|\s|#|$).*\n(?={row})", text, re.MULTILINE) == []


def test_pages_that_the_repository_names_exist():
    """docs/adr/0005 stands for the page that begins so."""
    missing = {
        f"{_name(path)}: {named}"
        for path in NAMING
        for named in re.findall(r"(?<![\w./-])docs/[\w/.-]*\w", path.read_text())
        if not any(ROOT.glob(f"{named}*"))
    }
    assert missing == set()


def test_tests_that_the_evidence_names_exist():
    """A file, or a function: of a long name the beginning is enough, ``test_scenario_01_...``."""
    files = list((ROOT / "tests").rglob("test_*.py"))
    defined = {path.stem for path in files} | {
        name
        for path in files
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    named = {
        (page.name, name, bool(more))
        for page in (ROOT / "docs" / "evidence").glob("*.md")
        if page.name != "nvidia-dra-tests.md"  # the tests are NVIDIA's
        for name, more in re.findall(r"`(test_\w+?)(_?\.\.\.)?`", page.read_text())
    }
    missing = [
        (page, name)
        for page, name, more in named
        if not (any(known.startswith(name) for known in defined) if more else name in defined)
    ]
    assert sorted(missing) == []
    assert {page for page, *_ in named} >= {"driver-limits.md", "scenarios.md"}


@pytest.mark.real
def test_a_reader_of_the_site_fetches_nothing_from_elsewhere(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, timeout=60)
    pages = list(tmp_path.rglob("*.html"))
    assert tmp_path / "index.html" in pages
    fetched = re.compile(r"<(?:script|img|iframe)[^>]*\bsrc=.(?:https?:)?//|<link[^>]*\bhref=.(?:https?:)?//")
    assert [page.name for page in pages if fetched.search(page.read_text())] == []
    styles = list(tmp_path.rglob("*.css"))
    assert [
        sheet.name for sheet in styles if re.search(r"url\([\"']?(?:https?:)?//|@import", sheet.read_text())
    ] == []


def test_all_decisions_are_listed():
    listed = re.findall(r"\]\((\d{4}-.*?\.md)\)", (ROOT / "docs" / "adr" / "README.md").read_text())
    assert listed == sorted(path.name for path in (ROOT / "docs" / "adr").glob("0*.md"))
