"""What the loader takes, what it refuses, where it says the fault is, and how long it takes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from partage.codec.yaml_document import LIMIT_BYTES, LIMIT_VALUES, OldBool, join_path, read_document
from partage.errors import InputError
from tests.examples import examples


def read(text: str) -> object:
    return read_document(text.encode(), "p.yaml").value


def refusal(text: str | bytes) -> str:
    with pytest.raises(InputError) as caught:
        read_document(text if isinstance(text, bytes) else text.encode(), "p.yaml")
    assert all(problem.file == "p.yaml" for problem in caught.value.problems)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 12:30", "12:30"),
        ("a: 07:00.0", "07:00.0"),
        ("a: 010", "010"),
        ("a: 0x10", 16),
        ("a: 0o17", 15),
        ("a: -5", -5),
        ("a: 1_000", "1_000"),
        ("a: 1e3", 1000.0),
        ("a: 1.5", 1.5),
        ("a: .5", 0.5),
        ("a: 1.2.3", "1.2.3"),
        ("a: 2020-01-01", "2020-01-01"),
        ("a: ~", None),
        ("a:", None),
        ("a: true", True),
        ("a: 'true'", "true"),
        ("a: yes", "yes"),
        ("a: !!str 4", "4"),
        ("a: !!int 4", 4),
        ("a: !!float 4", 4),
        ("a: NaN", "NaN"),
        ('{\n\t"a": [1,\n\t2]}', [1, 2]),
        ("%YAML 1.1\n---\na: 1\n...", 1),
        ("\ufeffa: 1", 1),
    ],
)
def test_scalars_mean_what_they_look_like(text: str, value: object) -> None:
    document = read(text)
    assert isinstance(document, dict)
    assert document["a"] == value
    assert type(document["a"]) in (type(value), OldBool)


def test_unquoted_yes_is_told_from_quoted_yes() -> None:
    document = read("a: off\nb: 'off'")
    assert isinstance(document, dict)
    assert isinstance(document["a"], OldBool)
    assert not isinstance(document["b"], OldBool)


def test_aliases_and_merge_keys_work_and_written_keys_outrank_merged_ones() -> None:
    assert read("a: &x {b: 1, c: 2}\nd: {<<: *x, b: 3}\ne: {<<: [{z: 1}, *x]}\nf: *x") == {
        "a": {"b": 1, "c": 2},
        "d": {"b": 3, "c": 2},
        "e": {"z": 1, "b": 1, "c": 2},
        "f": {"b": 1, "c": 2},
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty file"),
        ("# nothing\n", "empty file"),
        ("---\n", "empty file"),
        ("a: 1\nb:\n  a: 2\n  a: 3\n", "b: line 4, column 3: duplicate key 'a', first on line 3"),
        ("1: a", "line 1, column 1: a key has to be text, not 1"),
        ("true: a", "a key has to be text, not true"),
        ("? [a]\n: b", "a key has to be text, not a list"),
        ("? {a: b}\n: b", "a key has to be text, not a mapping"),
        ("a: .nan", "a: line 1, column 4: .nan is not a finite number"),
        ("a: [-.inf]", "a[0]: line 1, column 5: -.inf is not a finite number"),
        ("a: 1e999", "1e999 is not a finite number"),
        ("a: 12345678901234567890", "a number of 20 digits"),
        ("a: 1\n---\nb: 1", "line 2, column 1: a second document begins here"),
        ("a: !!python/object:os.system x", "unknown or unfitting tag"),
        ("a: !!binary aGk=", "unknown or unfitting tag"),
        ("a: !!int x", "unknown or unfitting tag"),
        ("a: !mine {b: 1}", "unknown tag '!mine'"),
        ("a: *b", "'*b' refers to nothing"),
        ("a: &b [*b]", "'*b' stands inside itself"),
        ("a: {<<: 4}", "'<<' takes a mapping"),
        ("a: {<<: [4]}", "'<<' takes a mapping"),
        ("%TAG !a! tag:x,2000:\n---\na: 1", "%TAG directives are not supported"),
        ("a:\n\t- b", "line 2, column 1: not YAML"),
        ("a: b: c", "line 1, column 5: not YAML: mapping values are not allowed"),
        ("a: [1, 2", "not YAML"),
        ("a: '", "not YAML"),
        ("\x01", "not YAML"),
        ("[" * 100_000, "nested more than 64 levels deep"),
        ("{a: " * 100_000, "nested more than 64 levels deep"),
        ("- " * 100_000, "nested more than 64 levels deep"),
        (b"a\0b", "binary: byte 1 is NUL"),
        (b"a: \xff", "not UTF-8: byte 3 is 0xff"),
        (b"\xff\xfea\0", "binary"),
        (b"\x7fELF\x80", "not UTF-8"),
        (b"a" * (10 << 20), f"too large: 10485760 bytes, and at most {LIMIT_BYTES} are read"),
    ],
    ids=lambda value: repr(value[:24]),
)
def test_a_fault_is_refused_with_its_place(text: str | bytes, said: str) -> None:
    assert said in refusal(text)


def test_all_duplicate_keys_are_named_at_once() -> None:
    assert refusal("a: 1\na: 2\nb: 1\nb: 2").count("duplicate key") == 2


def test_the_value_of_a_duplicate_key_cannot_confuse_what_follows() -> None:
    """Its mapping is thrown away, and Python may give its address to the next one."""
    many = "".join(f"k{n}: {{<<: {{x: 1}}, x: 2}}\n" for n in range(500))
    document = read(many)
    assert isinstance(document, dict)
    assert len(document) == 500


def _bomb(levels: int) -> str:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(rows)


def _deep_by_alias(levels: int) -> str:
    return "\n".join(["- &a0 [x]", *(f"- &a{n} [*a{n - 1}]" for n in range(1, levels))])


def test_a_yaml_bomb_counts_in_full() -> None:
    assert "values, aliases counted in full" in refusal(_bomb(9))
    assert isinstance(read(_bomb(3)), dict)


def test_depth_reached_through_aliases_counts_too() -> None:
    assert "nested more than 64" in refusal(_deep_by_alias(100))


_LARGE = {
    "many values": "[" + "a," * (LIMIT_BYTES // 2 - 2) + "]",
    "as many values as are allowed": "[" + "a," * (LIMIT_VALUES - 2) + "]",
    "as many keys as are allowed": "".join(f"k{n}: {n}\n" for n in range(LIMIT_VALUES // 2 - 1)),
    "as many duplicate keys as are allowed": "a: 1\n" * (LIMIT_VALUES // 2 - 1),
    "anchors": "".join(f"- &a{n} x\n" for n in range(LIMIT_VALUES - 2)),
    "tag directives": "".join(f"%TAG !{n:x}! b\n" for n in range(LIMIT_BYTES // 16)),
    "blank": " " * LIMIT_BYTES,
    "newlines": "\n" * LIMIT_BYTES,
    "one long text": "a: '" + "x" * (LIMIT_BYTES - 5) + "'",
    "one long key": "x" * (LIMIT_BYTES - 4) + ": 1",
    "one long number": "a: " + "9" * (LIMIT_BYTES - 3),
    "one long anchor": "&" + "a" * (LIMIT_BYTES - 1),
    "folded": "a: >\n" + " x\n" * (LIMIT_BYTES // 3 - 5),
    "brackets": "[" * LIMIT_BYTES,
    "questions": "? " * (LIMIT_BYTES // 2),
    "closing": "[]" * (LIMIT_BYTES // 2),
}


@pytest.mark.parametrize("text", _LARGE.values(), ids=_LARGE)
def test_any_file_of_any_size_is_judged_in_half_a_second(text: str) -> None:
    """CPU time of the best of three: other tests share the machine."""

    def once() -> float:
        began = time.process_time()
        with contextlib.suppress(InputError):
            read(text)
        return time.process_time() - began

    assert min(once() for _ in range(3)) < 0.5


WITHOUT_LIBYAML = """
import sys
sys.modules["yaml._yaml"] = None
from partage.codec.yaml_document import read_document
from partage.errors import InputError
for text in sys.argv[1:]:
    try:
        print(read_document(text.encode(), "p").value)
    except InputError as error:
        print(error.problems[0].message)
"""


def test_the_fallback_without_libyaml_reads_the_same() -> None:
    text = "a: &x {b: [1, yes, 'c']}\nd: *x\n"
    command = [sys.executable, "-c", WITHOUT_LIBYAML, text, "a: 1\na: 2", "a: ["]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert found[0] == str(read(text))
    assert "duplicate key" in found[1]
    assert "not YAML" in found[2]


def test_lines_are_those_of_keys_and_items() -> None:
    document = read_document(b"a:\n  - b: 1\n\n  - c:\n      d: 1\n", "p")
    assert isinstance(document.value, dict)
    items = document.value["a"]
    assert isinstance(items, list)
    assert document.line(document.value, "a") == 1
    assert [document.line(items, n) for n in (0, 1)] == [2, 4]
    assert isinstance(items[1], dict)
    assert document.line(items[1], "c") == 4
    assert document.line(items[1], "nothing") is None


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        (("gpus", 1, "mps", "replicas"), "gpus[1].mps.replicas"),
        (("mig-configs", "all-1g.10gb", 0), 'mig-configs["all-1g.10gb"][0]'),
        (('a"b\n',), '["a\\"b\\n"]'),
    ],
)
def test_paths_read_as_people_write_them(keys: tuple[str | int, ...], path: str) -> None:
    joined = ""
    for key in keys:
        joined = join_path(joined, key)
    assert joined == path


def judge(data: bytes) -> None:
    with contextlib.suppress(InputError):
        read_document(data, "p")


@given(st.text(max_size=200) | st.text(alphabet=" \n-:?[]{},&*!|>'\"%#ab1.<", max_size=200))
@example("? !<")
@example("- !!map &a\n- *a")
@example("<<: *")
@settings(max_examples=examples(400), deadline=None)
def test_no_text_gives_anything_but_a_value_or_an_input_error(text: str) -> None:
    judge(text.encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=200))
@settings(max_examples=examples(200), deadline=None)
def test_no_bytes_give_anything_but_a_value_or_an_input_error(data: bytes) -> None:
    judge(data)
