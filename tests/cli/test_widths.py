"""What verbs print in terminals of any width, and in locales without block letters."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from partage.answers.render.tables import plain_table, shared_out
from partage.answers.render.terminal import ASCII_SIGNS, needs_ascii
from partage.cli.main import run
from partage.lab.bench.report import bench_lines
from partage.lab.prove.report import proof_lines
from tests.lab.bench.runs import full as bench_report
from tests.lab.prove.reports import full as proof_report

WIDTHS = (40, 60, 80, 100, 200)
EXAMPLES = Path(__file__).parents[2] / "examples"
DAY = str(EXAMPLES / "10-mig-by-difference" / "day.yaml")
NIGHT = str(EXAMPLES / "10-mig-by-difference" / "night.yaml")
H100 = ("--machine", "4xh100-sxm5-80gb")

VERBS = {
    "show": ["show", *H100, "--policy", DAY],
    "show without a policy": ["show", "--machine", "8xh100-sxm5-80gb+2xl4"],
    "plan": ["plan", *H100, "--policy", DAY],
    "apply": ["apply", "--dry-run", *H100, "--policy", NIGHT],
    "assert": ["assert", *H100, "--policy", DAY],
    "demand": ["plan", *H100, "--demand", "1g.10gb=7,3g.40gb=2", "--time-limit", "60"],
    "check": ["check", DAY],
    "story": ["simulate", str(EXAMPLES / "02-time-slicing" / "story.yaml")],
    "story of MIG": ["simulate", str(EXAMPLES / "06-mig" / "story-mixed.yaml")],
}
"""Every verb that prints tables or pictures from a laptop, in one way at least."""
DROPPED = {"Resource", "Requests", "Limits", "--------", "------"}
"""The header of kubectl's table, which becomes a list; requests and limits of devices are always equal."""


def _lines(text):
    return [line.rstrip() for line in text.splitlines()]


def _words(text):
    """Words without those that are drawn: edges, bars."""
    return {word.strip(":,;") for word in text.split() if any(letter.isalnum() for letter in word)}


def _printed(monkeypatch, capsys, arguments, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(arguments) in (0, 1), capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_is_wider_than_the_terminal_and_no_word_is_split(verb, monkeypatch, capsys):
    wide = _words(_printed(monkeypatch, capsys, VERBS[verb], 400))
    for width in WIDTHS:
        text = _printed(monkeypatch, capsys, VERBS[verb], width)
        assert max(map(len, _lines(text))) <= width
        kept = {word for word in wide if len(word) <= width - 4 and "…" not in word}  # names below a bar
        assert kept - _words(text) <= DROPPED, f"at {width}"


@pytest.mark.parametrize("lines", [lambda: bench_lines(bench_report()), lambda: proof_lines(proof_report())])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_tables_of_experiments_fit_too(lines, width):
    text = io.StringIO()
    console = Console(file=text, width=width, color_system=None)
    for line in lines():
        console.print(line)
    assert max(map(len, text.getvalue().splitlines())) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_every_count_stands_with_its_resource(width, monkeypatch, capsys):
    text = _printed(monkeypatch, capsys, VERBS["show"], width)
    words = text[text.index("What is offered") :].split()
    at = words.index("nvidia.com/mig-2g.20gb.shared")
    assert "12" in words[at : at + 3]


def test_the_items_of_an_expectation_are_not_torn_apart(monkeypatch, capsys):
    story = str(EXAMPLES / "06-mig" / "story-mixed.yaml")
    text = _printed(monkeypatch, capsys, ["simulate", story], 40)
    wide = _printed(monkeypatch, capsys, ["simulate", story], 200)
    items = [item for line in wide.splitlines() if "expect   " in line for item in line[11:].split(", ")]
    assert items
    assert all(item.strip(",") in text for item in items if len(item) < 36 and item.count(" ") <= 2)


def test_in_a_pipe_nothing_is_folded_and_a_picture_keeps_its_width(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert run(VERBS["plan"]) == 0
    text = capsys.readouterr().out
    assert run([*VERBS["plan"], "-o", "wide"]) == 0
    assert capsys.readouterr().out == text
    assert max(map(len, text.splitlines())) < 1000
    assert run(VERBS["show"]) == 0
    edges = [line for line in capsys.readouterr().out.splitlines() if line.startswith("╭")]
    assert edges
    assert max(map(len, edges)) <= 110


def test_wide_tables_are_not_folded_in_a_narrow_terminal(monkeypatch, capsys):
    wide = _printed(monkeypatch, capsys, [*VERBS["plan"], "-o", "wide"], 40)
    assert wide == _printed(monkeypatch, capsys, VERBS["plan"], 400)


def test_without_headers_there_are_rows_alone(monkeypatch, capsys):
    rows = _lines(_printed(monkeypatch, capsys, ["machines", "--no-headers"], 200))
    names = _printed(monkeypatch, capsys, ["machines", "-o", "name"], 200).split()
    assert len(names) > 20
    assert [row.split()[0] for row in rows[: len(names)]] == names


# --- one table -----------------------------------------------------------------------------------

cells = st.text(alphabet="abcd ", max_size=30)


@given(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=4), st.integers(12, 80))
@example([("", " aaaaaa", "aaaaaaaaaaaa")], 30)
def test_any_table_keeps_every_word_at_any_width(rows, width):
    table = plain_table("A heading of some words", "Resource", "Some words", "Count", right=("Count",))
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(table)
    printed = text.getvalue()
    assert max(map(len, printed.splitlines())) <= width
    fitting = {word for row in rows for cell in row for word in cell.split() if len(word) <= width - 2}
    assert fitting <= set(printed.split())


needs = st.tuples(st.integers(1, 20), st.integers(0, 20)).map(lambda pair: (pair[0], sum(pair)))


@given(st.lists(needs, min_size=1, max_size=8), st.integers(0, 100))
def test_columns_share_what_there_is_and_none_has_more_than_it_needs(columns, more):
    room = sum(least for least, _ in columns) + more
    widths = shared_out(columns, room)
    assert all(least <= width <= most for (least, most), width in zip(columns, widths, strict=True))
    assert sum(widths) == min(room, sum(most for _, most in columns))


# --- locales -------------------------------------------------------------------------------------


def test_signs_in_ascii_stay_apart():
    marks = [sign.translate(ASCII_SIGNS) for sign in "█░▒·"]
    assert len({*marks, "x", "-", "/"}) == len(marks) + 3
    assert all(len(chr(sign).translate(ASCII_SIGNS)) == 1 for sign in ASCII_SIGNS)


@pytest.mark.parametrize(
    ("encoding", "environment", "ascii_only"),
    [
        ("utf-8", {}, False),
        ("UTF-8", {"LANG": "de_DE.UTF-8"}, False),
        ("utf-8", {"LC_ALL": "C"}, True),
        ("utf-8", {"LC_ALL": "C.UTF-8", "LANG": "C"}, False),
        ("utf-8", {"LANG": "POSIX"}, True),
        ("utf-8", {"LC_ALL": "C", "PYTHONIOENCODING": "utf-8"}, False),
        ("ascii", {"LC_ALL": "en_US.UTF-8"}, True),
        ("iso8859-1", {}, True),
    ],
)
def test_where_only_ascii_is_safe(encoding, environment, ascii_only):
    assert needs_ascii(encoding, environment) is ascii_only


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}])
def test_an_ascii_locale_has_a_picture_with_a_legend(locale):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LC_")}
    done = subprocess.run(
        [sys.executable, "-m", "partage", *VERBS["show"]],
        env={**environment, **locale, "NO_COLOR": "1"},
        capture_output=True,
        timeout=60,
        check=True,
    )
    text = done.stdout.decode("ascii")
    assert "?" not in text
    assert "# held  . free  : planned  _ no MIG device" in text
    assert "| :::::::::" in text
    assert "+- GPU 0" in text


def test_no_color_is_honoured(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[3" in _printed(monkeypatch, capsys, VERBS["show"], 100)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not any(
        f"\x1b[{code}" in _printed(monkeypatch, capsys, VERBS["show"], 100) for code in (31, 35, 36)
    )
