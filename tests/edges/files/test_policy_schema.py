"""The published JSON Schema and the reader agree: what the schema refuses, the reader refuses."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args, get_origin

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import FieldInfo, fields

from partage.codec.reader import Reader
from partage.edges.files.native import RESOURCES
from partage.edges.files.policy import parse_policy
from partage.errors import InputError
from tests.edges.files.policy_texts import NATIVE, STRANGERS, places, removed, replaced
from tests.examples import examples, some, variants

ROOT = Path(__file__).parents[3]


@cache
def validator() -> jsonschema.protocols.Validator:
    text = files("partage.edges.files").joinpath("schema/policy.schema.json").read_text()
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def by_schema(document: Any) -> bool:
    return validator().is_valid(document)


def by_reader(document: Any) -> bool:
    try:
        policy = parse_policy(json.dumps(document), "p").policy
    except InputError:
        return False
    return policy.format == "partage/v1"


def documented() -> list[tuple[str, str]]:
    """The policies of docs/reference/policy.md and of the examples, by name."""
    blocks = re.findall(
        r"```yaml\n(.*?)```", (ROOT / "docs" / "reference" / "policy.md").read_text(), re.DOTALL
    )
    named = [(f"docs-{n}", block) for n, block in enumerate(blocks)]
    named += [(str(file.relative_to(ROOT)), file.read_text()) for file in ROOT.glob("examples/*/*.yaml")]
    named = [(name, text) for name, text in named if "kind: ConfigMap" not in text and "broken" not in name]
    return [(name, text) for name, text in named if "version: partage/v1" in text]


@pytest.mark.parametrize("text", [text for _, text in documented()], ids=[name for name, _ in documented()])
def test_both_accept_every_example(text: str) -> None:
    import yaml

    assert parse_policy(text, "p").policy.format == "partage/v1"
    assert by_schema(yaml.load(text, Loader=yaml.BaseLoader)) or by_schema(yaml.safe_load(text))


def test_both_accept_a_policy_that_uses_every_key() -> None:
    assert by_schema(NATIVE)
    assert by_reader(NATIVE)


def test_the_schema_knows_exactly_the_keys_of_the_reader() -> None:
    """Every key of the schema stands in the policy that uses every key. The names of labels are anybody's."""
    used = {
        path[-1] for path in places(NATIVE) if path and isinstance(path[-1], str) and "label" not in path[:-1]
    }
    known: set[str] = set()

    def collect(schema: Any) -> None:
        if isinstance(schema, dict):
            if schema.get("type") == "object":
                known.update(schema.get("properties", {}))
            for inner in schema.values():
                collect(inner)
        elif isinstance(schema, list):
            for inner in schema:
                collect(inner)

    collect(validator().schema)
    assert known == used


@pytest.mark.parametrize("key", RESOURCES.keys)
def test_the_schema_of_the_resources_is_that_of_the_annotations_of_the_options(key: str) -> None:
    info = dict(zip(RESOURCES.keys, fields_read(RESOURCES), strict=True))[key]
    whole: Any = validator().schema
    schema = whole["$defs"]["resources"]["properties"][key]
    kind, default = info.type, info.default
    if get_origin(kind) is tuple:  # one way, or a list of them
        kind, (default,) = get_args(kind)[0], default
        schema, items = {**schema["oneOf"][0], "default": schema["default"]}, schema["oneOf"][1]["items"]
        assert items["enum"] == schema["enum"]
    if issubclass(kind, StrEnum):
        assert schema["enum"] == [member.value for member in kind]
    else:
        assert schema["type"] == {bool: "boolean", str: "string"}[kind]
    assert schema["default"] == default


def fields_read(reader: Reader[Any]) -> list[FieldInfo]:
    infos = {info.name: info for info in fields(reader.kind)}
    return [infos[name] for name in reader.only]


PLACES = list(places(NATIVE))


@pytest.mark.parametrize("path", variants(map(pytest.param, PLACES), 3), ids=[str(path) for path in PLACES])
def test_a_wrong_type_at_any_key_is_refused_by_the_reader_wherever_the_schema_refuses_it(
    path: tuple[str | int, ...],
) -> None:
    for stranger in some(STRANGERS, PLACES.index(path)):
        document = replaced(NATIVE, path, stranger)
        if not by_schema(document):
            assert not by_reader(document), stranger


@pytest.mark.parametrize("path", [path for path in places(NATIVE) if path], ids=str)
def test_a_missing_key_is_refused_by_the_reader_wherever_the_schema_refuses_it(
    path: tuple[str | int, ...],
) -> None:
    document = removed(NATIVE, path)
    if not by_schema(document):
        assert not by_reader(document)


_KEYS = st.sampled_from(
    sorted({path[-1] for path in places(NATIVE) if path and isinstance(path[-1], str)} | {"x", ""})
)
_LEAVES = st.sampled_from(
    [
        "partage/v1",
        "all",
        "rest",
        "1g.10gb",
        "3g.40gb@4",
        "8Gi",
        "20%",
        "short",
        "off",
        "wait",
        "mixed",
        "packed",
        "/x",
    ]
) | st.one_of(st.none(), st.booleans(), st.integers(-2, 5), st.floats(allow_nan=False, allow_infinity=False))
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=12,
)


@given(
    st.fixed_dictionaries(
        {"version": st.just("partage/v1")}, optional={"gpus": _VALUES, "resources": _VALUES}
    )
)
@settings(max_examples=examples(300), deadline=None)
def test_the_reader_refuses_whatever_the_schema_refuses(document: Any) -> None:
    if not by_schema(document):
        assert not by_reader(document)


@given(st.data())
@settings(max_examples=examples(300), deadline=None)
def test_the_reader_refuses_whatever_the_schema_refuses_near_a_valid_policy(data: st.DataObject) -> None:
    document: Any = NATIVE
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(places(document))))
        document = replaced(document, path, data.draw(_VALUES))
    if not by_schema(document):
        assert not by_reader(document)
