"""Text from outside on a terminal and in a log: it is no markup, and it moves nothing."""

import io
import json
import logging

import pytest
import yaml
from rich.text import Text

from partage.agent.log import JsonFormatter, TextFormatter
from partage.answers import common_output
from partage.answers.render.tables import plain_table
from partage.answers.render.terminal import Console
from partage.cli.main import run
from partage.codec.values import encode
from partage.errors import Problem
from partage.model.ids import ResourceName
from tests.answers.reports import a_document, a_report

NAMES = ("[/red]", "[link=file:///etc]x", "a\x1b[31mred", "b\x9b2Jc", "d\u202eevil\u2066", "e\nGPU 9 free")
"""Markup of rich, a colour, a cleared screen, the direction of writing, a line of its own."""
SHOWN = (
    "[/red]",
    "[link=file:///etc]x",
    r"a\x1b[31mred",
    r"b\x9b2Jc",
    r"d\u202eevil\u2066",
    r"e\nGPU 9 free",
)
MACHINE = "4xh100-sxm5-80gb"
POLICY = "version: partage/v1\ngpus: [{select: all, time-slicing: {replicas: 4}}]\n"


def _harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.fixture
def run_dir(tmp_path):
    """The report of an agent: pods with such names hold shares."""
    pods = [("ns", name, "main") for name in NAMES]
    report = a_report(
        MACHINE, POLICY, held={ResourceName("nvidia.com/gpu.shared"): range(len(pods))}, pods=pods
    )
    (tmp_path / "report.json").write_bytes(encode(a_document(report)))
    return str(tmp_path)


def _said(capsys, *arguments: str) -> str:
    assert run([*arguments]) == 0, capsys.readouterr().err
    said = capsys.readouterr()
    assert _harmless(said.out)
    assert _harmless(said.err)
    return str(said.out)


@pytest.mark.parametrize("verb", ["show", "plan"])
@pytest.mark.parametrize("output", ["table", "json", "yaml"])
def test_no_name_is_markup_or_reaches_the_terminal_as_more_than_text(verb, output, run_dir, capsys):
    said = _said(capsys, verb, "--machine", MACHINE, "--run-dir", run_dir, "-o", output)
    if verb == "show" and output == "table":
        assert all(name in said for name in SHOWN)
    if verb == "show" and output != "table":
        node = json.loads(said) if output == "json" else yaml.safe_load(said)
        assert {row["holders"][0] for row in node["held"]} == {f"ns/{name}/main" for name in NAMES}


@pytest.mark.parametrize("output", ["table", "json"])
def test_so_does_explain_share(output, run_dir, capsys):
    _said(capsys, "explain", "share", "0", "--machine", MACHINE, "--run-dir", run_dir, "-o", output)


def _printed(*things: object) -> str:
    text = io.StringIO()
    console = Console(width=100)
    console.file = text
    for thing in things:
        console.print(thing)
    return text.getvalue()


@pytest.mark.parametrize("name", NAMES)
def test_a_console_prints_texts_and_no_markup(name):
    table = plain_table(name, "Pod", "Words")
    table.add_row(name, Text(name, style="red"))
    table.add_row("plain", "words")
    assert _harmless(printed := _printed(name, Text(name), table))
    assert len(printed.splitlines()) >= 6
    assert printed.splitlines()[0] in SHOWN


def test_cells_are_as_wide_as_they_are_shown():
    table = plain_table("", "Pod", "Words")
    table.add_row("a\x1b\x1bb", "x")
    assert r"a\x1b\x1bb   x" in _printed(table)


@pytest.mark.parametrize("name", NAMES)
def test_a_problem_is_one_line_of_text(name, capsys):
    common_output.print_problems([Problem(name, name, "error", name, name)])
    said = capsys.readouterr().err
    assert _harmless(said)
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_an_event_is_one_line_of_text(name, formatter):
    record = logging.makeLogRecord({"msg": name, "levelname": "INFO", "pod": name})
    said = formatter.format(record)
    assert said.isprintable()
    if isinstance(formatter, JsonFormatter):
        assert (json.loads(said)["event"], json.loads(said)["pod"]) == (name, name)
