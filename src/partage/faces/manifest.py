"""Checks the GPU side of Kubernetes manifests: requests, environment and volumes of containers.

Pure: parsed documents in, findings out. What the API server checks is not checked here, unless a GPU
request depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from partage.errors import Problem, Severity
from partage.model.ids import VENDOR, ResourceName
from partage.model.policy import Strategy
from partage.model.share import Resource
from partage.values import Frozen

Resources = Mapping[ResourceName, Resource]
"""What the policy offers on the machine, by name."""

_POD_SPEC_AT = {
    "Pod": ("spec",),
    "PodTemplate": ("template", "spec"),
    "Deployment": ("spec", "template", "spec"),
    "StatefulSet": ("spec", "template", "spec"),
    "DaemonSet": ("spec", "template", "spec"),
    "ReplicaSet": ("spec", "template", "spec"),
    "ReplicationController": ("spec", "template", "spec"),
    "Job": ("spec", "template", "spec"),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
}
_HARMLESS_DEVICES = ("", "void", "none")


class CheckedProblem(Frozen):
    """A problem of a file. here: only this machine, or what it offers, makes it one."""

    problem: Problem
    here: bool = False


class _ManifestNode(Frozen):
    """A node of a document, with its path."""

    file: str
    path: str
    value: Any

    def at(self, *keys: str | int) -> _ManifestNode:
        """The node below; None as value where there is nothing."""
        place = self
        for key in keys:
            value: Any = None
            if isinstance(key, str) and isinstance(place.value, Mapping):
                value = place.value.get(key)
            if isinstance(key, int) and isinstance(place.value, list) and key < len(place.value):
                value = place.value[key]
            step = f"[{key}]" if isinstance(key, int) else f".{key}"
            place = _ManifestNode(place.file, (place.path + step).lstrip("."), value)
        return place

    @property
    def items(self) -> list[_ManifestNode]:
        """The nodes of a list; nothing for anything else."""
        return [self.at(n) for n in range(len(self.value))] if isinstance(self.value, list) else []

    @property
    def keys(self) -> list[str]:
        """The keys of a mapping; nothing for anything else."""
        return [str(key) for key in self.value] if isinstance(self.value, Mapping) else []

    def error(self, message: str, hint: str = "", *, here: bool = False) -> CheckedProblem:
        """What does not work."""
        return self._finding("error", message, hint, here)

    def warning(self, message: str, hint: str = "", *, here: bool = False) -> CheckedProblem:
        """What is doubtful."""
        return self._finding("warning", message, hint, here)

    def _finding(self, severity: Severity, message: str, hint: str, here: bool) -> CheckedProblem:
        return CheckedProblem(Problem(self.file, self.path, severity, message, hint), here)


def is_manifest(document: object) -> bool:
    """Whether this looks like a Kubernetes object (ours carry ``apiVersion: partage/v1``)."""
    return (
        isinstance(document, Mapping)
        and isinstance(document.get("kind"), str)
        and isinstance(document.get("apiVersion"), str)
        and not str(document["apiVersion"]).startswith("partage/")
    )


def config_texts(document: Mapping[str, Any]) -> dict[str, str]:
    """The entries of a ConfigMap: path in the document to text."""
    data = document.get("data") if document.get("kind") == "ConfigMap" else None
    if not isinstance(data, Mapping):
        return {}
    return {f"data.{key}": text for key, text in data.items() if isinstance(text, str)}


def objects_of(document: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of a document with their paths: itself, or the items of a List."""
    if str(document.get("kind")).endswith("List") and isinstance(document.get("items"), list):
        for number, item in enumerate(document["items"]):
            if is_manifest(item):
                yield f"{path}.items[{number}]".lstrip("."), item
    else:
        yield path, document


def findings(
    document: Mapping[str, Any], file: str, path: str = "", offered: Resources | None = None
) -> list[CheckedProblem]:
    """Everything that is wrong with the GPU requests of one object. offered: None if not known."""
    keys = _POD_SPEC_AT.get(str(document.get("kind")))
    if keys is None:
        return []
    spec = _ManifestNode(file, path, document).at(*keys)
    containers = spec.at("initContainers").items + spec.at("containers").items
    return [found for container in containers for found in _container(container, offered)]


def _container(container: _ManifestNode, offered: Resources | None) -> Iterator[CheckedProblem]:
    limits = container.at("resources", "limits")
    ours = [key for key in limits.keys if _is_ours(key, offered)]
    yield from _requests_without_limits(container, offered)
    yield from _environment(container)
    if len(ours) > 1:
        yield limits.warning(
            f"asks for {' and '.join(ours)}: both set NVIDIA_VISIBLE_DEVICES, and only one wins",
            "ask for one of them, or use two containers",
        )
    for key in ours:
        yield from _amount(limits.at(key), key, offered)
    if offered is not None and any(_uses_mps(offered, key) for key in ours):
        yield from _shared_memory(container)


def _is_ours(key: str, offered: Resources | None) -> bool:
    return key.startswith(f"{VENDOR}/") or (offered is not None and key in offered)


def _requests_without_limits(container: _ManifestNode, offered: Resources | None) -> Iterator[CheckedProblem]:
    requests, limits = container.at("resources", "requests"), container.at("resources", "limits")
    for key in requests.keys:
        if not _is_ours(key, offered):
            continue
        asked, limit = requests.at(key), limits.at(key)
        if limit.value is None:
            yield asked.error("an extended resource needs a limit, not only a request", "move it to limits")
        elif str(asked.value) != str(limit.value):
            yield asked.error(
                f"request {asked.value} and limit {limit.value} differ", "they have to be equal"
            )


def _amount(asked: _ManifestNode, key: str, offered: Resources | None) -> Iterator[CheckedProblem]:
    amount = _whole(asked.value)
    if amount is None:
        yield asked.error(f"{asked.value!r} is not a number of GPUs or shares", "a whole number, 1 or more")
    elif offered is not None:
        yield from _against_offer(asked, amount, ResourceName(key), offered)


def _whole(value: object) -> int | None:
    """The count that a quantity stands for; None for anything but a whole number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _against_offer(
    asked: _ManifestNode, amount: int, name: ResourceName, offered: Resources
) -> Iterator[CheckedProblem]:
    resource = offered.get(name)
    if resource is None:
        names = ", ".join(offered) or "nothing"
        yield asked.error(f"nothing offers {name} here", f"offered: {names}", here=True)
        return
    if amount > 1 and all(offering.single for offering in resource.offerings):
        yield asked.error(
            f"asks for {amount} of {name}, of which a container may hold one: the pod would fail",
            "ask for 1; more shares give no more of the GPU",
            here=True,
        )
    elif amount > resource.count:
        yield asked.error(
            f"asks for {amount} of {name}, the node offers {resource.count}: the pod would stay pending",
            here=True,
        )


def _environment(container: _ManifestNode) -> Iterator[CheckedProblem]:
    for variable in container.at("env").items:
        if variable.at("name").value != "NVIDIA_VISIBLE_DEVICES":
            continue
        value = variable.at("value").value
        if value is None or str(value) not in _HARMLESS_DEVICES:
            yield variable.warning(
                "sets NVIDIA_VISIBLE_DEVICES itself: the container sees GPUs that it was not given",
                "remove it; a request for a resource sets it",
            )


def _uses_mps(offered: Resources, key: str) -> bool:
    resource = offered.get(ResourceName(key))
    return resource is not None and any(offering.shared is Strategy.MPS for offering in resource.offerings)


def _shared_memory(container: _ManifestNode) -> Iterator[CheckedProblem]:
    for mount in container.at("volumeMounts").items:
        if str(mount.at("mountPath").value).rstrip("/") == "/dev/shm":  # noqa: S108 - a path in the container
            yield mount.warning(
                "mounts a volume at /dev/shm, where an MPS share brings its server's: one hides the other",
                "drop the volume; the MPS share's /dev/shm can be used",
                here=True,
            )
