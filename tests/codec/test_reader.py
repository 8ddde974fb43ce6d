"""Values are read by the annotations of their class."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pytest
from msgspec import field

from partage.codec.fields import Dialect, Notes
from partage.codec.reader import Reader, members, number, one_or_many, parsed, word_of
from partage.codec.yaml_document import read_document
from partage.errors import InputError
from partage.values import Frozen


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Box(Frozen):
    name: str
    boxes: int = 1
    wait_s: float = 0.5
    colour: Colour = Colour.RED
    open: bool | None = True
    counts: Mapping[str, int] = field(default_factory=dict)


def read(reader: Reader[Any], text: str) -> Any:
    notes = Notes(read_document(text.encode(), "f"), "f", Dialect())
    value = reader.read(notes.top(), "{name: a}")
    notes.finish()
    return value


def wrong(reader: Reader[Any], text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(reader, text)
    return [f"{problem.path}: {problem.message}" for problem in caught.value.problems]


def test_a_key_is_the_name_of_its_field_and_an_absent_one_has_the_default() -> None:
    assert read(Reader(Box), "name: a") == Box("a")
    assert read(
        Reader(Box), "{name: a, boxes: 0, wait-s: 2, colour: blue, open: false, counts: {x: 3}}"
    ) == Box("a", 0, 2.0, Colour.BLUE, False, {"x": 3})


def test_every_problem_is_noted_with_line_and_path_in_the_order_of_the_class() -> None:
    said = wrong(Reader(Box), "colour: green\ncounts: {x: -1}\nwait-s: a\nboxes: 1.5\nbox: 1")
    assert said == [
        "box: line 5: unknown key",
        ": 'name' is missing",
        "boxes: line 4: has to be a whole number, not 1.5",
        'wait-s: line 3: has to be a number of seconds, not the text "a"',
        'colour: line 1: has to be red or blue, not the text "green"',
        "counts.x: line 2: has to be 0 or more, not -1",
    ]


def test_what_the_types_do_not_say_is_given_by_field() -> None:
    reader = Reader(
        Box,
        ("boxes", "name", "colour"),
        named={"boxes": "how-many"},
        reads={"boxes": number(2, 3), "colour": word_of({"sky": Colour.BLUE})},
    )
    assert reader.keys == ("how-many", "name", "colour")
    assert read(reader, "{name: a, how-many: 3, colour: sky}") == Box("a", 3, colour=Colour.BLUE)
    assert [
        re.sub("line .: ", "", text) for text in wrong(reader, "{name: 1, how-many: 4, colour: red}")
    ] == [
        "how-many: has to be a whole number from 2 to 3, not 4",
        "name: has to be text, not 1",
        'colour: has to be sky, not the text "red"',
    ]


def test_null_is_none_only_where_the_reader_and_the_field_say_so() -> None:
    assert read(Reader(Box, nulls=True), "{name: a, open: null}").open is None
    assert wrong(Reader(Box), "{name: a, open: null}") == [
        "open: line 1: has no value, and has to be true or false"
    ]
    assert wrong(Reader(Box, nulls=True), "{name: a, boxes: null}") == [
        "boxes: line 1: has no value, and has to be a whole number"
    ]


def test_what_is_known_is_not_read() -> None:
    notes = Notes(read_document(b"name: [1]", "f"), "f", Dialect())
    assert Reader(Box).fill(notes.top_table(Reader(Box).keys), name="b") == Box("b")
    assert notes.finish() == ()


def test_wrong_members_and_items_are_noted_and_left_out() -> None:
    notes = Notes(read_document(b"{a: {x: 1, y: -1}, b: [1, -1, 2], c: 5, d: '7'}", "f"), "f", Dialect())
    top = notes.top_table(("a", "b", "c", "d"))
    assert top.value("a", members(number(0)), {}) == {"x": 1}
    assert top.value("b", one_or_many(number(0)), ()) == (1, 2)
    assert top.value("c", one_or_many(number(0)), ()) == (5,)
    assert top.value("d", parsed(int), 0) == 7
    assert notes.errors == 2


def test_a_type_that_needs_a_reader_of_its_own_is_found_at_once() -> None:
    class Odd(Frozen):
        value: bytes = b""

    with pytest.raises(KeyError):
        read(Reader(Odd), "value: 1")
