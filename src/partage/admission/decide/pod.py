"""A pod as plain values, as far as these systems look at it, and JSON patches (RFC 6902) of it.

What has another shape counts as not there: the API server refuses it. Patches are those that are made here:
``add``, ``remove``, ``replace``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, UnsetType, field

from partage.admission.decide.need import AmountWord, CannotMean, ContainerNeed, GpuNeed, NamedContainer
from partage.units import whole_quantity
from partage.values import Frozen

TRANSLATED = "partage.dev/translated"
"""Annotation of a pod that was translated: from what."""


class AskingContainer(NamedContainer):
    """amounts: by resource, its limit or else its request, as written."""

    amounts: Mapping[str, Any]
    limited: frozenset[str]
    privileged: bool = False

    def whole(self, resource: str) -> int:
        """The amount of a resource that is there. Raises CannotMean."""
        number = whole_quantity(self.amounts[resource])
        if number is None:
            raise CannotMean(
                f"{self.words} asks for {_short(self.amounts[resource])} of {resource}, "
                "no whole number up to 10^9"
            )
        return number

    def asking(self, need: GpuNeed, *words: AmountWord) -> ContainerNeed:
        """It with what it asks for. words: as it writes its amounts."""
        return ContainerNeed(self.group, self.index, self.name, self.kind, need, words)

    @property
    def words(self) -> str:
        """``container main``."""
        return f"{'init container' if self.kind == 'init' else self.kind} {self.name}"


class AskingPod(Frozen):
    """translated: it was, so that its annotations are history."""

    containers: tuple[AskingContainer, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    selector: Mapping[str, str] = field(default_factory=dict)
    scheduler: str = ""
    node: str = ""
    claims: tuple[str, ...] = ()

    @property
    def translated(self) -> bool:
        """Whether it was translated before, so that annotations of other systems are history."""
        return TRANSLATED in self.annotations

    def asks_for(self, *resources: str) -> bool:
        """Whether a container names one of them."""
        return any(name in container.amounts for container in self.containers for name in resources)


def asking_pod(pod: Mapping[str, Any]) -> AskingPod:
    """Of a Pod, or of the template of one."""
    metadata, spec = _mapping(pod.get("metadata")), _mapping(pod.get("spec"))
    return AskingPod(
        (*_containers(spec, "initContainers"), *_containers(spec, "containers")),
        _texts(metadata.get("annotations")),
        _texts(metadata.get("labels")),
        _texts(spec.get("nodeSelector")),
        _text(spec.get("schedulerName")),
        _text(spec.get("nodeName")),
        tuple(_text(claim.get("name")) for claim in _rows(spec.get("resourceClaims"))),
    )


def _containers(spec: Mapping[str, Any], group: str) -> Iterator[AskingContainer]:
    rows = spec.get(group)
    for index, row in enumerate(rows if isinstance(rows, list) else ()):
        container = _mapping(row)
        resources = _mapping(container.get("resources"))
        limits, requests = _mapping(resources.get("limits")), _mapping(resources.get("requests"))
        sidecar = container.get("restartPolicy") == "Always"
        kind = "container" if group == "containers" else "sidecar" if sidecar else "init"
        privileged = _mapping(container.get("securityContext")).get("privileged") is True
        yield AskingContainer(
            group,
            index,
            _text(container.get("name")) or f"{group}[{index}]",
            kind,
            {str(key): value for key, value in (requests | limits).items()},
            frozenset(map(str, limits)),
            privileged,
        )


def _mapping(value: object) -> dict[Any, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _rows(value: object) -> list[dict[Any, Any]]:
    return [dict(row) for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _texts(value: object) -> dict[str, str]:
    return {str(key): text for key, text in _mapping(value).items() if isinstance(text, str)}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _short(value: object) -> str:
    return repr(value)[:40]


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
