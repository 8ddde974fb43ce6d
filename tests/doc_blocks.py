"""The fenced blocks of the Markdown pages, with their marks.

Commands stand in ``console`` blocks, each after ``$``. Below it stands what it prints; ``...`` is for lines
that are left out, and ``$ echo $?`` shows its exit code, which is else 0. A block whose first line is
``# NAME.yaml`` is that file. A mark is an HTML comment in the line above a block,
``<!-- untested: needs a GPU -->``: its commands are not carried out, and a file is not checked. Options of
``partage`` are parsed all the same.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md") if (ROOT / name).exists()]
    + [path for folder in ("docs", "examples", "deploy") for path in (ROOT / folder).rglob("*.md")]
)
LANGUAGES = {"console", "dockerfile", "json", "python", "text", "toml", "yaml"}

_MARK = re.compile(r"^\s*<!-- (\w+): (.+) -->\s*$")


class Block(NamedTuple):
    """One block. line: of its first fence, from 1. marks: word to text."""

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str]

    @property
    def place(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file_name(self):
        """The name of the file that it is; empty for none."""
        found = re.match(r"# (\S+\.(?:ya?ml|json))\n", self.text)
        return found.group(1) if found else ""


class Shown(NamedTuple):
    """A command as it is shown. code: its exit code. output: the lines below it."""

    block: Block
    words: list[str]
    code: int
    output: list[str]

    @property
    def place(self):
        return f"{self.block.place}: {shlex.join(self.words)}"


def blocks_of(page):
    """The blocks of a page, in order."""
    lines = page.read_text().splitlines()
    found, number = [], 0
    while number < len(lines):
        opened = re.match(r"^(\s*)```(.*)$", lines[number])
        if opened is None:
            number += 1
            continue
        indent, first = len(opened.group(1)), number + 1
        number = first
        while lines[number].strip() != "```":
            number += 1
        text = "".join(line[indent:] + "\n" for line in lines[first:number])
        found.append(Block(page, first, opened.group(2).strip(), text, _marks_above(lines, first - 1)))
        number += 1
    return found


def _marks_above(lines, fence):
    marks = {}
    while fence and (found := _MARK.match(lines[fence - 1])):
        marks[found.group(1)] = found.group(2)
        fence -= 1
    return marks


def outside_of_blocks(page):
    """The lines of a page that are in no block."""
    return re.sub(r"^\s*```.*?^\s*```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL).splitlines()


def commands_of(block):
    """The commands of a console block."""
    found: list[Shown] = []
    text = re.sub(r" \\\n\s*", " ", block.text)
    for line, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
        words = shlex.split(line, comments=True)
        if words == ["echo", "$?"]:
            found[-1] = found[-1]._replace(code=int(output))
        else:
            found.append(Shown(block, words, 0, output.splitlines()))
    return found
