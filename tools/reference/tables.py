"""Tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table. What Markdown or HTML would take for its own is escaped; a line's end is a blank."""
    lines = [heads, ["---"] * len(heads), *rows]
    return (
        "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines).replace("| --- ", "|---")
        + "\n"
    )


def _cell(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(
        part if part.startswith("`") else part.replace("|", r"\|").replace("<", "&lt;") for part in parts
    )


def code(text: str) -> str:
    """Text as code; nothing for nothing."""
    return f"`{text}`" if text else ""


def plain(docstring: str | None) -> str:
    """A docstring's first paragraph, in one line, with Markdown's backticks."""
    return " ".join((docstring or "").split("\n\n")[0].replace("``", "`").split())
