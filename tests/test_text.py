"""Numbers and lists as parts of a sentence."""

import json

import pytest

from partage import text
from partage.text import shortened


@pytest.mark.parametrize(
    ("values", "said"),
    [([], ""), ([3], "3"), ([0, 1], "0-1"), ([5, 0, 1, 2, 7], "0-2, 5, 7"), ([2, 2, 3], "2-3")],
)
def test_consecutive_numbers_are_said_as_a_run(values, said):
    assert text.numbers(values) == said


def test_one_gpu_is_singular():
    assert text.gpus([4]) == "GPU 4"
    assert text.gpus([4, 5]) == "GPUs 4-5"


def test_a_long_list_ends_in_how_many_more_there_are():
    assert text.listed(["a", "b", "c"], 2) == "a, b and 1 more"
    assert text.listed(["a", "b"], 2) == "a, b"


def test_a_long_text_is_cut_and_says_so():
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abc..."


def test_what_would_change_a_terminal_is_written_as_an_escape():
    assert text.printable("größe/a b") == "größe/a b"
    assert text.printable("a\u202eb\x1b[31m\n") == "a\\u202eb\\x1b[31m\\n"


def test_escapes_of_json_say_the_same():
    said = "größe \u202e \x9b \U000e0001 \ud800 \u00a0"
    shown = text.printable_json(json.dumps({"a": said}, ensure_ascii=False, indent=2))
    assert all(map(str.isprintable, shown.split("\n")))
    assert "größe" in shown
    assert json.loads(shown) == {"a": said}


def test_lines_stay_lines():
    assert text.printable_lines("a\x1b\nb\r\n") == "a\\x1b\nb\\r\n"
    assert text.printable("a\udcff") == "a\\udcff"
