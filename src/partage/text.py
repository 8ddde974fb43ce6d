"""Numbers and lists as parts of a sentence. Text only; every layer may use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


def numbers(values: Iterable[int]) -> str:
    """``0-3, 6`` for 0, 1, 2, 3, 6."""
    runs: list[tuple[int, int]] = []
    for value in sorted(set(values)):
        if runs and runs[-1][1] == value - 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def gpus(values: Iterable[int]) -> str:
    """``GPU 3``, ``GPUs 0-3, 6``."""
    distinct = set(values)
    return f"{'GPU' if len(distinct) == 1 else 'GPUs'} {numbers(distinct)}"


def count_of(amount: int, noun: str, plural: str = "") -> str:
    """``1 share``, ``4 shares``."""
    return f"{amount} {noun if amount == 1 else plural or noun + 's'}"


def shortened(text: str, most: int) -> str:
    """The text, at most that many characters long."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def printable(text: str) -> str:
    """The text in one line, with characters that would change its surroundings (control characters, line
    ends, the direction of writing) written as escapes: for a terminal, a log, a plot or a comment.

    Texts from outside (names of pods and processes, errors, answers) go through this, or one of the two
    functions below, before they are shown.
    """
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode()
        for sign in text
    )


def printable_lines(text: str) -> str:
    """The same for several lines."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    """The same for a JSON document: its escapes, so that the document says what it said."""
    escapes = {
        ord(sign): "".join(f"\\u{unit:04x}" for unit in _utf16(sign))
        for sign in set(text)
        if not sign.isprintable() and sign != "\n"
    }
    return text.translate(escapes)


def _utf16(sign: str) -> Iterable[int]:
    units = sign.encode("utf-16-be", "surrogatepass")
    return (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))


def listed(items: Sequence[str], most: int = 6) -> str:
    """``a, b, c and 4 more``. most: names in a sentence."""
    shown = ", ".join(items[:most])
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"


def counted(things: Iterable[object]) -> str:
    """``2 x 3g.40gb + 1 x 1g.10gb``: equal things are counted, in the order in which they come first."""
    return " + ".join(f"{count} x {thing}" for thing, count in Counter(things).items())


def one_or_each(values: Sequence[int]) -> str:
    """One number if all are equal, else all of them with commas between."""
    return ",".join(map(str, values if len(set(values)) > 1 else values[:1]))
