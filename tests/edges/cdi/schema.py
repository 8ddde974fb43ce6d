"""The shape of a CDI spec, as the specification's versions 0.3 to 0.8 have it; what we use of it."""

from __future__ import annotations

from typing import Any

_TEXTS = {"type": "array", "items": {"type": "string"}}
_NODE = {
    "type": "object",
    "required": ["path"],
    "additionalProperties": False,
    "properties": {
        "path": {"type": "string", "pattern": "^/"},
        "hostPath": {"type": "string", "pattern": "^/"},
        "type": {"type": "string"},
        "major": {"type": "integer"},
        "minor": {"type": "integer"},
        "fileMode": {"type": "integer"},
        "permissions": {"type": "string"},
        "uid": {"type": "integer"},
        "gid": {"type": "integer"},
    },
}
_MOUNT = {
    "type": "object",
    "required": ["hostPath", "containerPath"],
    "additionalProperties": False,
    "properties": {
        "hostPath": {"type": "string"},
        "containerPath": {"type": "string"},
        "options": _TEXTS,
        "type": {"type": "string"},
    },
}
_HOOK = {
    "type": "object",
    "required": ["hookName", "path"],
    "additionalProperties": False,
    "properties": {
        "hookName": {"type": "string"},
        "path": {"type": "string"},
        "args": _TEXTS,
        "env": _TEXTS,
        "timeout": {"type": "integer"},
    },
}
_EDITS = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "env": {"type": "array", "items": {"type": "string", "pattern": "^[^=]+="}},
        "deviceNodes": {"type": "array", "items": _NODE},
        "mounts": {"type": "array", "items": _MOUNT},
        "hooks": {"type": "array", "items": _HOOK},
    },
}
CDI_SPEC: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["cdiVersion", "kind", "devices"],
    "additionalProperties": False,
    "properties": {
        "cdiVersion": {"enum": ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0"]},
        "kind": {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z][A-Za-z0-9._-]*$"},
        "containerEdits": _EDITS,
        "devices": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "containerEdits"],
                "additionalProperties": False,
                "properties": {
                    "name": {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._:-]*$"},
                    "containerEdits": _EDITS,
                },
            },
        },
    },
}
