"""Reading a document field by field: exact types, every problem at once, each with its path and line.

A ``Table`` is a mapping whose keys are known, a ``Field`` is one value of it. A field that is wrong is noted
in the ``Notes`` and answers None; the reader goes on, so that one run names everything that has to be mended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from msgspec import field

from partage.codec.yaml_document import LIMIT_PROBLEMS, OldBool, Value, YamlDocument, describe, join_path
from partage.errors import InputError, Problem, Severity
from partage.text import listed
from partage.values import Frozen

T = TypeVar("T")
D = TypeVar("D")
E = TypeVar("E", bound=StrEnum)

LONGEST_TEXT = 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SEPARATORS = re.compile(r"[-_ ]")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OLD_TRUE = frozenset({"y", "yes", "on"})


class Dialect(Frozen):
    """How strict a file format is.

    as_in_go:       as Go's decoders read (NVIDIA's format): keys match in any case, an unquoted ``yes`` is a
                    boolean, and 2.0 is a whole number, with a warning.
    unknown:        what an unknown key is; None: it is passed over.
    null_is_absent: ``key:`` without a value stands for no key.
    any_spelling:   ``memory-bytes``, ``memoryBytes`` and ``memory_bytes`` are one key.
    homes:          key to the place where it belongs, for keys that people put somewhere else.
    ignored_by:     who ignores unknown keys, so that a warning says what is lost.
    """

    as_in_go: bool = False
    unknown: Severity | None = "error"
    null_is_absent: bool = False
    any_spelling: bool = False
    homes: Mapping[str, str] = field(default_factory=dict)
    ignored_by: str = ""


class Notes:
    """What is wrong or doubtful in one file, so far. errors: how many errors."""

    def __init__(self, document: YamlDocument, file: str, dialect: Dialect) -> None:
        self.document = document
        self.file = file
        self.dialect = dialect
        self._problems: list[Problem] = []
        self._unlisted = 0
        self.errors = 0

    def note(self, place: Place, severity: Severity, message: str, hint: str = "") -> None:
        """Something about one place; beyond LIMIT_PROBLEMS only counted."""
        self.errors += severity == "error"
        if self.full:
            self._unlisted += severity == "error"
            return
        text = f"line {place.line}: {message}" if place.line else message
        self._problems.append(Problem(place.file, place.path, severity, text, hint))

    def top(self) -> Field:
        """The whole document."""
        return Field(self.document.value, Place(self.file, ""), self)

    def top_table(self, keys: Sequence[str]) -> Table:
        """The whole document, which has to be a mapping. Raises InputError if it is none."""
        top = self.top().table(keys)
        if top is None:
            self.finish()
            raise AssertionError("a root that is no mapping has been noted")
        return top

    @property
    def full(self) -> bool:
        """Enough problems are listed."""
        return len(self._problems) >= LIMIT_PROBLEMS

    def finish(self) -> tuple[Problem, ...]:
        """The warnings. Raises InputError with everything if there is one error."""
        problems = list(self._problems)
        if self._unlisted:
            problems.append(Problem(self.file, "", "error", f"and {self._unlisted} more problems"))
        if any(problem.severity == "error" for problem in problems):
            raise InputError(problems)
        return tuple(problems)


class Place(Frozen):
    """The place of a value. file: ``environment`` for variables. line: 0 where there is none."""

    file: str
    path: str
    line: int = 0


class Field(Frozen):
    """One value and where it stands. Every method notes what is wrong and then answers None."""

    value: Value
    place: Place
    notes: Notes

    def error(self, message: str, hint: str = "") -> None:
        """Note an error here."""
        self.notes.note(self.place, "error", message, hint)

    def warn(self, message: str, hint: str = "") -> None:
        """Note a doubt here."""
        self.notes.note(self.place, "warning", message, hint)

    def unfit(self, wanted: str, hint: str = "") -> None:
        """Note that something else was expected here. wanted: ``a whole number``."""
        if self.value is None:
            self.error(f"has no value, and has to be {wanted}", hint or "give it one, or remove the key")
        else:
            self.error(f"has to be {wanted}, not {describe(self.value)}", hint)

    def boolean(self) -> bool | None:
        """True or false."""
        if isinstance(self.value, bool):
            return self.value
        if isinstance(self.value, OldBool) and self.notes.dialect.as_in_go:
            return self.value.lower() in _OLD_TRUE
        quoted = isinstance(self.value, str) and self.value.lower() in ("true", "false")
        self.unfit("true or false", "remove the quotes" if quoted else "")
        return None

    def integer(self, at_least: int | None = None, at_most: int | None = None) -> int | None:
        """A whole number."""
        number = self.whole_number()
        if number is None:
            quoted = isinstance(self.value, str) and self.value.isdecimal()
            self.unfit("a whole number", "remove the quotes" if quoted else "")
            return None
        too_small = at_least is not None and number < at_least
        too_large = at_most is not None and number > at_most
        if too_small or too_large:
            bounds = (
                f"{at_least} or more" if at_most is None else f"a whole number from {at_least} to {at_most}"
            )
            self.error(f"has to be {bounds}, not {number}")
            return None
        return number

    def whole_number(self) -> int | None:
        """A whole number, or None for anything else, of which nothing is noted."""
        if isinstance(self.value, float) and self.notes.dialect.as_in_go and self.value.is_integer():
            self.warn(f"{self.value} is read as {int(self.value)}", "write it without a fraction")
            return int(self.value)
        return self.value if type(self.value) is int else None

    def seconds(self) -> float | None:
        """A number of seconds, 0 or more."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or self.value < 0:
            self.unfit("a number of seconds")
            return None
        return float(self.value)

    def text(self, like: str = "") -> str | None:
        """Text without control characters; may be empty. like: an example, for the message."""
        if not isinstance(self.value, str):
            number = isinstance(self.value, int | float) and not like
            self.unfit(f"text such as {like}" if like else "text", "put it in quotes" if number else "")
            return None
        if len(self.value) > LONGEST_TEXT or _CONTROL.search(self.value):
            self.error(f"has to be one line of at most {LONGEST_TEXT} characters")
            return None
        return str(self.value)

    def some_text(self) -> str | None:
        """Text that is not empty."""
        if self.value == "":
            self.unfit("text")
            return None
        return self.text()

    def matching(self, pattern: re.Pattern[str], wanted: str) -> str | None:
        """Text of that pattern. wanted: what it is, for the message."""
        if not isinstance(self.value, str) or not pattern.fullmatch(self.value):
            self.unfit(wanted)
            return None
        return str(self.value)

    def parsed(self, parse: Callable[[str], T], like: str = "") -> T | None:
        """Text that ``parse`` understands (it raises ValueError for the rest). like: an example."""
        text = self.text(like)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            self.error(str(error))
            return None

    def choice(self, kind: type[E]) -> E | None:
        """One of the values of ``kind``."""
        return self.word({member.value: member for member in kind})

    def word(self, words: Mapping[str, T]) -> T | None:
        """What one of these words stands for."""
        if isinstance(self.value, str) and self.value in words:
            return words[self.value]
        names = list(words)
        near = nearest_word(self.value, names) if isinstance(self.value, str) else None
        wanted = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        self.unfit(wanted, f"did you mean {near!r}?" if near else "")
        return None

    def table(self, keys: Sequence[str], example: str = "", *, exact: bool = False) -> Table | None:
        """A mapping in which ``keys`` may stand. example: for the hint, ``{replicas: 4}``. exact: the case of
        keys counts, whatever the dialect says.
        """
        if not isinstance(self.value, dict):
            empty = "write {} for an empty one" if self.value is None else ""
            self.unfit(
                "a mapping", f"write {self.place.path.rpartition('.')[2]}: {example}" if example else empty
            )
            return None
        return Table(self, self.value, keys, exact=exact)

    def mapping(self) -> dict[str, Field] | None:
        """A mapping with keys of the operator's choice."""
        if not isinstance(self.value, dict):
            self.unfit("a mapping")
            return None
        return {key: self.member(key, value) for key, value in self.value.items()}

    def items(self, at_most: int | None = None, hint: str = "") -> list[Field] | None:
        """The items of a list."""
        if not isinstance(self.value, list):
            self.unfit("a list", hint)
            return None
        if at_most is not None and len(self.value) > at_most:
            self.error(f"has {len(self.value)} items, and at most {at_most} are read")
            return None
        return [self.member(index, value) for index, value in enumerate(self.value)]

    def one_or_many(self) -> list[Field] | None:
        """The items of a list, or the one value that stands in its place."""
        if isinstance(self.value, list):
            return self.items()
        return [self]

    def member(self, key: str | int, value: Value) -> Field:
        """A value inside this one."""
        line = self.notes.document.line(self.value, key) or 0
        return Field(value, Place(self.place.file, join_path(self.place.path, key), line), self.notes)


class Table:
    """A mapping whose keys are known. Unknown ones are noted at once.

    whole: the mapping as a field. keys: the known keys. exact: as in ``Field.table``.
    """

    def __init__(
        self, whole: Field, value: dict[str, Value], keys: Sequence[str], *, exact: bool = False
    ) -> None:
        self.whole = whole
        self.keys = keys
        self._folds = whole.notes.dialect.as_in_go and not exact
        self._spells = whole.notes.dialect.any_spelling
        self._members: dict[str, Field] = {}
        known = {self._fold(key): key for key in keys}
        for written, inner in value.items():
            member = whole.member(written, inner)
            key = known.get(self._fold(written))
            if key is None:
                self._unknown(written, member)
            elif key in self._members and self._spells:
                member.error(f"stands here twice, also as {self._members[key].place.path}")
            elif key in self._members:
                self._members[key] = _spelled_twice(self._members[key], member)
            else:
                self._members[key] = member

    def _fold(self, key: str) -> str:
        if self._spells:
            return kebab_case(key)
        return key.casefold() if self._folds else key

    def _unknown(self, written: str, member: Field) -> None:
        notes = self.whole.notes
        if notes.dialect.unknown is None:
            return
        hint = "" if notes.full else self._advice(written)
        lost = ""
        if notes.dialect.ignored_by and not notes.full:
            lost = f", which {notes.dialect.ignored_by} ignores: {_short(member.value)} has no effect"
        notes.note(member.place, notes.dialect.unknown, f"unknown key{lost}", hint)

    def _advice(self, written: str) -> str:
        near = nearest_word(written, self.keys)
        homes = self.whole.notes.dialect.homes
        elsewhere = nearest_word(written, list(homes))
        if elsewhere is not None and (near is None or _plain(elsewhere) == _plain(written) != _plain(near)):
            return f"{elsewhere!r} belongs under {homes[elsewhere]}"
        if near is not None:
            return f"did you mean {near!r}?"
        return f"known here: {', '.join(self.keys)}" if self.keys else "nothing can stand here"

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def get(self, key: str) -> Field | None:
        """The value of a known key; None where it does not stand here."""
        found = self.given(key)
        absent = found is None or (found.value is None and self.whole.notes.dialect.null_is_absent)
        return None if absent else found

    def given(self, key: str) -> Field | None:
        """As ``get``, with a null that counts."""
        assert key in self.keys, key
        return self._members.get(key)

    def here(self, key: str) -> Field:
        """The value of a known key, or the mapping itself: for saying something about it."""
        return self._members.get(key, self.whole)

    def required(self, key: str, what: str = "") -> Field | None:
        """As ``get``; its absence is an error. what: one sentence of advice."""
        found = self.get(key)
        if found is None:
            self.whole.error(f"{key!r} is missing", what)
        return found

    def value(self, key: str, read: Callable[[Field], T | None], default: D) -> T | D:
        """What ``read`` makes of the value; the default where the key is absent or wrong."""
        found = self.get(key)
        value = read(found) if found else None
        return default if value is None else value

    def nullable(self, key: str, read: Callable[[Field], T | None], default: D) -> T | D | None:
        """As ``value``, for a key whose null is None."""
        found = self.given(key)
        return None if found and found.value is None else self.value(key, read, default)

    def needed(self, key: str, read: Callable[[Field], T | None], what: str = "") -> T | None:
        """As ``value``; its absence is an error. what: one sentence of advice."""
        found = self.required(key, what)
        return read(found) if found else None

    def boolean(self, key: str, *, default: bool) -> bool:
        """True or false; the default where the key is absent or wrong."""
        return self.value(key, Field.boolean, default)

    def choice(self, key: str, default: E) -> E:
        """One of the values of the default's kind."""
        return self.value(key, lambda found: found.choice(type(default)), default)

    def text(self, key: str, default: str) -> str:
        """Text."""
        return self.value(key, Field.text, default)


def _spelled_twice(first: Field, second: Field) -> Field:
    """Which value of a key in two spellings counts: the last one in the order of code points, as in Go."""
    text = f"stands here twice, also as {first.place.path}"
    if isinstance(first.value, dict) or isinstance(second.value, dict):
        second.error(text)  # Go would merge the two
        return first
    last = max(first, second, key=lambda one: one.place.path)
    second.warn(f"{text}; {last.place.path} counts", "remove one of the two")
    return last


def kebab_case(key: str) -> str:
    """``memory-bytes`` for ``memoryBytes``, ``memory_bytes`` and itself."""
    return _HUMP.sub("-", key).replace("_", "-").lower()


def _plain(key: str) -> str:
    return _SEPARATORS.sub("", key).casefold()


def nearest_word(text: str, known: Sequence[str]) -> str | None:
    """The known word that ``text`` was most likely meant to be, or None."""
    import difflib  # a third of a millisecond that only broken files have to pay

    plain = {_plain(word): word for word in known}
    near = difflib.get_close_matches(_plain(text[:64]), list(plain), n=1, cutoff=0.7)
    return plain[near[0]] if near else None


def _short(value: Value) -> str:
    """A value in a few words; of a mapping its keys."""
    if isinstance(value, dict) and value:
        return listed([str(key)[:30] for key in value], 5)
    return describe(value)
