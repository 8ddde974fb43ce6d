"""Checks the GPU side of Kubernetes manifests: requests, environment and volumes of containers.

Pure: parsed documents in, findings out. What the API server checks is not checked here, unless a GPU
request depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from partage.errors import Problem, Severity
from partage.faces.wording import sharing_text
from partage.model.ids import VENDOR, ResourceName
from partage.model.policy import Strategy
from partage.model.share import DeviceOffer, Resource
from partage.values import Frozen

Resources = Mapping[ResourceName, Resource]
"""What the policy offers on the machine, by name."""

LineOf = Callable[[Any, str | int], int | None]
"""The line of a key of a mapping, or of an item of a list; None where that is not known."""

POD_SPEC_AT = {
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
_SHARED_SUFFIX = ".shared"
_FEWER_REPLICAS = "ask for 1; for more of a GPU, give it fewer replicas or make it exclusive in the policy"


class CheckedProblem(Frozen):
    """A problem of a file. here: only this machine, or what it offers, makes it one."""

    problem: Problem
    here: bool = False


class ManifestNode(Frozen):
    """A node of a document, with its path.

    line_of: the line of a key or item; None where that is not known. line: of this node, or of the nearest
    one above it; None: not known. owner: what it belongs to, ``Deployment/train, container main``.
    """

    file: str
    path: str
    value: Any
    line_of: LineOf | None
    line: int | None = None
    owner: str = ""

    def at(self, *keys: str | int) -> ManifestNode:
        """The node below; None as value where there is nothing."""
        place = self
        for key in keys:
            value: Any = None
            if isinstance(key, str) and isinstance(place.value, Mapping):
                value = place.value.get(key)
            if isinstance(key, int) and isinstance(place.value, list) and key < len(place.value):
                value = place.value[key]
            step = f"[{key}]" if isinstance(key, int) else f".{key}"
            line = place.line_of(place.value, key) if place.line_of else None
            path = (place.path + step).lstrip(".")
            place = replace(place, path=path, value=value, line=line or place.line)
        return place

    @property
    def items(self) -> list[ManifestNode]:
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
        line = f"line {self.line}" if self.line else ""
        text = ": ".join(part for part in (line, self.owner, message) if part)
        return CheckedProblem(Problem(self.file, self.path, severity, text, hint), here)


def is_manifest(document: object) -> bool:
    """Whether this looks like a Kubernetes object (ours carry ``apiVersion: partage/v1``)."""
    return (
        isinstance(document, Mapping)
        and isinstance(document.get("kind"), str)
        and isinstance(document.get("apiVersion"), str)
        and not str(document["apiVersion"]).startswith("partage/")
    )


def objects_of(document: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of a document with their paths: itself, or the items of a List."""
    if str(document.get("kind")).endswith("List") and isinstance(document.get("items"), list):
        for number, item in enumerate(document["items"]):
            if is_manifest(item):
                yield f"{path}.items[{number}]".lstrip("."), item
    else:
        yield path, document


def findings(
    document: Mapping[str, Any],
    file: str,
    path: str = "",
    offered: Resources | None = None,
    line_of: LineOf | None = None,
) -> list[CheckedProblem]:
    """Everything that is wrong with the GPU requests of one object. offered: None if not known."""
    keys = POD_SPEC_AT.get(str(document.get("kind")))
    if keys is None:
        return []
    top = ManifestNode(file, path, document, line_of, owner=_object_name(document))
    spec = top.at(*keys)
    containers = [
        replace(container, owner=f"{container.owner}, {_container_name(container, word)}")
        for key, word in (("initContainers", "init container"), ("containers", "container"))
        for container in spec.at(key).items
    ]
    return [found for container in containers for found in _container(container, offered)]


def _object_name(document: Mapping[str, Any]) -> str:
    """``Deployment/train``, ``Deployment/train (namespace team-a)``."""
    metadata = document.get("metadata")
    about = metadata if isinstance(metadata, Mapping) else {}
    name = next((text for key in ("name", "generateName") if isinstance(text := about.get(key), str)), "")
    namespace = f" (namespace {about['namespace']})" if isinstance(about.get("namespace"), str) else ""
    return "/".join(part for part in (str(document["kind"]), name) if part) + namespace


def _container_name(container: ManifestNode, word: str) -> str:
    name = container.at("name").value
    return f"{word} {name}" if isinstance(name, str) and name else f"a {word} without a name"


def _container(container: ManifestNode, offered: Resources | None) -> Iterator[CheckedProblem]:
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


def _requests_without_limits(container: ManifestNode, offered: Resources | None) -> Iterator[CheckedProblem]:
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


def _amount(asked: ManifestNode, key: str, offered: Resources | None) -> Iterator[CheckedProblem]:
    amount = _whole(asked.value)
    if amount is None:
        yield asked.error(f"{asked.value!r} is not a number of GPUs or shares", "a whole number, 1 or more")
    elif offered is not None:
        yield from _against_offer(asked, amount, ResourceName(key), offered)
    elif amount > 1 and key.endswith(_SHARED_SUFFIX):
        yield asked.warning(
            f"asks for {amount} of {key}, the usual name of shares of a GPU: most policies refuse more than "
            "one, and where they do not, more shares give no more of the GPU",
            "ask for 1; --policy and --machine check it against a policy",
        )


def _whole(value: object) -> int | None:
    """The count that a quantity stands for; None for anything but a whole number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _against_offer(
    asked: ManifestNode, amount: int, name: ResourceName, offered: Resources
) -> Iterator[CheckedProblem]:
    resource = offered.get(name)
    if resource is None:
        names = ", ".join(offered) or "nothing"
        yield asked.error(f"nothing offers {name} here", f"offered: {names}", here=True)
        return
    if amount > 1 and all(offering.single for offering in resource.offerings):
        yield asked.error(
            f"asks for {amount} of {name}, of which a container may hold one: the pod would fail",
            _FEWER_REPLICAS,
            here=True,
        )
    elif amount > resource.count:
        yield asked.error(
            f"asks for {amount} of {name}, the node offers {resource.count}: the pod would stay pending",
            here=True,
        )
    elif amount > 1 and (shared := [one for one in resource.offerings if _adds_nothing(one)]):
        yield asked.warning(_no_more(name, amount, shared), _FEWER_REPLICAS, here=True)


def _adds_nothing(offering: DeviceOffer) -> bool:
    """Whether a second share of the device gives a container no more of it.

    Only MPS shares whose limits are in the container's variables add up.
    """
    return offering.shared is not Strategy.EXCLUSIVE and not offering.limits_in_env


def _no_more(name: ResourceName, amount: int, shared: Sequence[DeviceOffer]) -> str:
    ways = dict.fromkeys(sharing_text(one.strategy, one.shared, one.replicas) for one in shared)
    asked = f"asks for {amount} of {name}, which are shares ({', '.join(ways)})"
    if len({one.device for one in shared}) == 1:
        return f"{asked}: {amount} shares of a GPU give no more of it than one"
    return f"{asked}: shares of one GPU give no more of it than one share, and these may be of one GPU"


def _environment(container: ManifestNode) -> Iterator[CheckedProblem]:
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


def _shared_memory(container: ManifestNode) -> Iterator[CheckedProblem]:
    for mount in container.at("volumeMounts").items:
        if str(mount.at("mountPath").value).rstrip("/") == "/dev/shm":  # noqa: S108 - a path in the container
            yield mount.warning(
                "mounts a volume at /dev/shm, where an MPS share brings its server's: one hides the other",
                "drop the volume; the MPS share's /dev/shm can be used",
                here=True,
            )
