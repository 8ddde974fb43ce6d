"""JSON patches (RFC 6902) of a pod, as far as they are made here: ``add``, ``remove``, ``replace``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from partage.values import Frozen


class PatchStep(Frozen, omit_defaults=True):
    """One operation, in JSON as the API server takes it."""

    op: Literal["add", "remove", "replace"]
    path: str
    value: Any = UNSET


def pointer(*keys: str | int) -> str:
    """A JSON pointer to this place."""
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)


def patched(document: Mapping[str, Any], steps: Sequence[PatchStep]) -> dict[str, Any]:
    """A copy with these changes. Raises LookupError for a place that is not there."""
    changed: dict[str, Any] = _copied(document)
    for step in steps:
        *above, last = [part.replace("~1", "/").replace("~0", "~") for part in step.path.split("/")[1:]]
        place: Any = changed
        for key in above:
            place = place[int(key)] if isinstance(place, list) else place[key]
        value = None if isinstance(step.value, UnsetType) else _copied(step.value)
        if isinstance(place, list):
            _in_list(place, last, step.op, value)
        elif step.op == "add":
            place[last] = value
        else:
            if last not in place:
                raise LookupError(step.path)
            if step.op == "remove":
                del place[last]
            else:
                place[last] = value
    return changed


def _copied(value: Any) -> Any:  # noqa: ANN401 - JSON has no better type
    """What stands at two places (YAML's anchors) becomes two."""
    if isinstance(value, Mapping):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def _in_list(place: list[Any], last: str, op: str, value: object) -> None:
    if op == "add":
        place.insert(len(place) if last == "-" else int(last), value)
    elif op == "remove":
        del place[int(last)]
    else:
        place[int(last)] = value
