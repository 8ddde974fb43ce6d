"""Every command in every document is carried out, or parsed and marked with the reason why it is not."""

import re
import shlex
from contextlib import ExitStack, redirect_stdout
from pathlib import Path

import click
import pytest

from partage.cli.main import partage, run
from tests.doc_blocks import LANGUAGES, PAGES, ROOT, Block, Shown, blocks_of, commands_of, outside_of_blocks

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
CONSOLES = [block for block in BLOCKS if block.language == "console"]
COMMANDS = [shown for block in CONSOLES for shown in commands_of(block)]
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
OWN = ("partage", ".venv/bin/partage")


def _is_ours(shown):
    return shown.words[0] in OWN


def _arguments(shown):
    """The arguments of ``partage``, ``sudo`` or not; None for another command."""
    words = shown.words[1:] if shown.words[0] == "sudo" else shown.words
    return words[1:] if words[0] in OWN else None


def _pages(blocks):
    return sorted({block.page for block in blocks})


def _name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_blocks_say_what_they_are(page):
    """An unmarked block of commands would be missed by the tests below."""
    wrong = [
        f"{block.place}: {block.language!r}" for block in blocks_of(page) if block.language not in LANGUAGES
    ]
    wrong += [
        f"{block.place}: has commands, and is no console block"
        for block in blocks_of(page)
        if block.language != "console"
        and re.search(r"^(\$ |partage [a-z]+ -|\.venv/bin/|make [a-z]+$)", block.text, re.MULTILINE)
    ]
    wrong += [
        f"{block.place}: has no command"
        for block in blocks_of(page)
        if block.language == "console" and not commands_of(block)
    ]
    indented = re.compile(r"^ {4,}(\$ )?(partage|make|python|kubectl|pip|sudo) ")
    wrong += [f"{page.name}: {line}" for line in outside_of_blocks(page) if indented.match(line)]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_marks_are_known(page):
    """A mark with a typing error would have no effect."""
    marks = {mark for block in blocks_of(page) for mark in block.marks}
    assert marks <= {"untested"}


def why_not_parsed(words, *, whole=True):
    """Why ``partage`` refuses these words before it does anything; empty if it takes them.

    whole: nothing may be left out.
    """
    words = words[: words.index(">")] if ">" in words else words
    name, *arguments = words
    try:
        if name.startswith("-"):
            partage.make_context("partage", words)
            return ""
        with click.Context(partage, help_option_names=["-h", "--help"]) as ctx:
            verb = partage.get_command(ctx, name)
            if verb is None:
                return f"there is no verb {name}"
            verb.make_context(name, arguments, parent=ctx)
    except click.exceptions.Exit:
        pass  # --version, --help
    except (click.MissingParameter, click.BadOptionUsage) as error:  # an argument or a value is missing
        return error.format_message() if whole else ""
    except click.ClickException as error:
        return error.format_message()
    return ""


def test_the_options_of_every_command_are_known():
    ours = {shown.place: arguments for shown in COMMANDS if (arguments := _arguments(shown)) is not None}
    wrong = {place: why_not_parsed(arguments) for place, arguments in ours.items()}
    assert {place: why for place, why in wrong.items() if why} == {}


def test_a_wrong_option_is_seen():
    assert "no-such" in why_not_parsed(["plan", "--no-such", "x"])
    assert "no-such" in why_not_parsed(["no-such"])
    assert why_not_parsed(["record"]) == ""


def test_targets_of_make_exist():
    named = {
        (shown.place, word) for shown in COMMANDS if shown.words[0] == "make" for word in shown.words[1:]
    }
    assert {place for place, word in named if "=" not in word and word not in TARGETS} == set()


def test_other_commands_are_marked():
    """Only ``partage`` is carried out here; ``make TARGET`` is checked by name."""
    others = [shown for shown in COMMANDS if not _is_ours(shown) and shown.words[0] != "make"]
    assert [shown.place for shown in others if "untested" not in shown.block.marks] == []


def _played_elsewhere(shown):
    """Stories of the examples are played by test_examples.py."""
    arguments = shown.words[1:]
    story = arguments[0] == "simulate" and len(arguments) == 2 and arguments[1].startswith("examples/")
    return story and not shown.output and (ROOT / arguments[1]).is_file()


def _plain(line):
    """Without what depends on the width of the table."""
    return re.sub("─+", "─", " ".join(line.split()))


def run_shown(shown, capsys):
    """Carry a command out. Yields what differs from what is shown."""
    words = shown.words[1:]
    with ExitStack() as stack:
        if ">" in words:
            stream = stack.enter_context(Path(words[-1]).open("w", encoding="utf-8"))
            stack.enter_context(redirect_stdout(stream))
            words = words[: words.index(">")]
        code = run(words)
    printed = capsys.readouterr()
    if code != shown.code:
        yield f"{shown.place}: exit code {code}, not {shown.code}: {printed.err}"
    lines = {_plain(line) for line in (printed.out + printed.err).splitlines()}
    expected = [_plain(line) for line in shown.output if line.strip() != "..."]
    yield from (f"{shown.place}: not printed: {line}" for line in expected if line not in lines)


TRIED = _pages([block for block in CONSOLES if "untested" not in block.marks])
PROVES = ROOT / "docs/how-to/measure-and-prove.md"
"""It takes as long as all other pages together, for what tests/lab asserts."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.real] if page == PROVES else []) for page in TRIED],
    ids=[_name(page) for page in TRIED],
)
def test_a_page_does_what_it_shows(page, tmp_path, monkeypatch, capsys):
    """In an empty directory with the examples, and with the files that the page shows, in their order."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    differences = []
    for block in blocks_of(page):
        if block.file_name:
            (tmp_path / block.file_name).write_text(block.text)
        if block.language == "console" and "untested" not in block.marks:
            for shown in commands_of(block):
                if _is_ours(shown) and not _played_elsewhere(shown):
                    differences += run_shown(shown, capsys)
    assert differences == []


def test_a_wrong_output_and_a_wrong_exit_code_are_seen(capsys):
    block = Block(ROOT / "README.md", 1, "console", "$ partage check nothing.yaml\nall is well\n", {})
    (shown,) = commands_of(block)
    assert len(list(run_shown(shown, capsys))) == 2


@pytest.mark.parametrize(
    "block",
    [block for block in BLOCKS if block.language == "yaml" and "untested" not in block.marks],
    ids=lambda block: block.place,
)
def test_files_that_are_shown_are_right(block, tmp_path, monkeypatch, capsys):
    """Policies, machines, stories and manifests, as ``partage check`` knows them."""
    monkeypatch.chdir(tmp_path)
    for other in blocks_of(block.page):
        if other.file_name:
            (tmp_path / other.file_name).write_text(other.text)
    file = tmp_path / (block.file_name or "shown.yaml")
    file.write_text(block.text)
    assert run(["check", str(file)]) == 0, capsys.readouterr().out


def test_a_command_is_what_stands_after_the_prompt():
    block = Block(
        ROOT / "README.md",
        1,
        "console",
        "$ partage plan \\\n    --policy a.yaml  # why\nout\n$ echo $?\n3\n",
        {},
    )
    assert commands_of(block) == [Shown(block, ["partage", "plan", "--policy", "a.yaml"], 3, ["out"])]


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_in_sentences_are_known(page):
    """``partage plan --policy FILE`` between backticks; arguments may be left out."""
    text = "\n".join(outside_of_blocks(page))
    shown = [
        found for found in re.findall(r"`partage ([a-z][^`]*)`", text) if not re.search(r"\.\.\.|\[|;", found)
    ]
    wrong = {command: why_not_parsed(shlex.split(command), whole=False) for command in shown}
    wrong |= {
        f"make {word}": "no such target"
        for word in re.findall(r"`make ([a-z0-9-]+)", text)
        if word not in TARGETS
    }
    assert {command: why for command, why in wrong.items() if why} == {}
