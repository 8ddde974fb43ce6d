"""The keys of a policy, from the JSON Schema that is published for editors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from tools.reference.tables import code, table

Schema = dict[str, Any]


def policy_keys() -> str:
    """One table: every key with its path, what it may be, its default, and what it means."""
    schema: Schema = json.loads(
        files("partage.edges.files").joinpath("schema/policy.schema.json").read_text(encoding="utf-8")
    )
    return table(("key", "value", "default", "means"), _rows(schema, schema, "", {}))


def _rows(
    schema: Schema, whole: Schema, path: str, shown: dict[str, str]
) -> Iterator[tuple[str, str, str, str]]:
    """The rows of the keys of an object, and of the objects in it. shown: where an object was described."""
    for name, given in schema.get("properties", {}).items():
        found = _resolved(given, whole)
        here = f"{path}{name}"
        default = found.get("default")
        before = shown.get(given.get("$ref", "")) if "properties" in found else None
        means = found.get("description", "") if before is None else f"As {code(before)}."
        shown_default = "" if default is None else code(json.dumps(default).strip('"'))
        yield code(here), _value(found, whole), shown_default, means
        if before is None:
            shown |= {given["$ref"]: here} if "$ref" in given else {}
            for inner, mark in _objects(found, whole):
                yield from _rows(inner, whole, f"{here}{mark}.", shown)


def _resolved(schema: Schema, whole: Schema) -> Schema:
    """With what it refers to; its own description comes first."""
    if "$ref" not in schema:
        return schema
    return {**whole["$defs"][schema["$ref"].rpartition("/")[2]], **schema}


def _objects(schema: Schema, whole: Schema) -> Iterator[tuple[Schema, str]]:
    """The objects that a value may be, or be a list of."""
    for one in [schema, *(_resolved(choice, whole) for choice in schema.get("oneOf", []))]:
        if "properties" in one:
            yield one, ""
        elif "items" in one and "properties" in (item := _resolved(one["items"], whole)):
            yield item, "[]"


def _value(schema: Schema, whole: Schema) -> str:
    """What a value may be, in words."""
    schema = _resolved(schema, whole)
    if "const" in schema:
        return code(str(schema["const"]))
    if "enum" in schema:
        return ", ".join(code(str(one)) for one in schema["enum"])
    if "oneOf" in schema and "type" not in schema:
        return " or ".join(dict.fromkeys(_value(one, whole) for one in schema["oneOf"]))
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_value(schema['items'], whole)}"
    if kind == "integer":
        least = schema.get("minimum")
        return "number" if not least else f"number, {least} or more"
    if kind == "string" and "examples" in schema:
        return "text, such as " + ", ".join(code(str(one)) for one in schema["examples"])
    return {"object": "mapping", "string": "text", "boolean": "`true`, `false`"}.get(str(kind), str(kind))
