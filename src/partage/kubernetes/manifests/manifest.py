"""Checks the GPU side of Kubernetes manifests: requests, environment and volumes of containers.

Pure: parsed documents in, findings out. What the API server checks is not checked here, unless a GPU request
depends on it.

A container asks for nothing by a name that is misspelt, unusual, or refused by Kubernetes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from partage.answers.wording import sharing_text
from partage.codec.fields import nearest_word
from partage.kubernetes.manifests.node import CheckedProblem, LineOf, ManifestNode
from partage.kubernetes.manifests.pods import object_place, pod_claim_findings, pod_specs_at
from partage.kubernetes.manifests.settings import settings_findings
from partage.model.driver_limit import SMALLEST_USABLE_BYTES
from partage.model.ids import MEMORY_RESOURCE, VENDOR, ResourceName
from partage.model.share import DeviceOffer, Resource
from partage.units import format_bytes, whole_quantity
from partage.values import Frozen

_OWN = ("cpu", "memory", "ephemeral-storage")
_OWN_PREFIX = "hugepages-"
_QUALIFIED = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
"""What may follow the domain: 63 signs at most."""

_USUAL = {"gpu": "gpu", "gpus": "gpu", "gpushared": "gpu.shared", "gpusshared": "gpu.shared"}
"""By its letters alone, the usual name that was meant. Others are left alone: ``GA102GL_A10`` is a name of
KubeVirt's, and a policy may give any.
"""
_MIG = re.compile(r"mig[._-]?(\d+g)[._-]?(\d+gb)(.*)")
"""What follows stays: ``-me`` (no media engines) is another profile than ``+me``, which is ``.me``."""
_SEPARATORS = re.compile(r"[._-]")

_ALIKE = 0.75
"""So near to ``nvidia.com`` are ``nvdia.com`` and ``nvidia.con``; ``amd.com`` and ``intel.com`` are not."""


def name_findings(amounts: ManifestNode, offered: Collection[str] | None) -> Iterator[CheckedProblem]:
    """``gpu: 1`` and ``nvidia/gpu.shared: 1``. amounts: limits or requests. offered: None if not known."""
    for key in amounts.keys:
        if offered is not None and key in offered:
            continue
        hint = f"did you mean {_meant(key, offered)}?"
        if "/" not in key:
            if key not in _OWN and not key.startswith(_OWN_PREFIX):
                said = f"{key} is not a resource: Kubernetes refuses a name without a domain"
                yield amounts.at(key).error(said, hint)
        elif _misspelt(key.partition("/")[0]):
            yield amounts.at(key).error(f"nothing offers {key}: the domain is {VENDOR}", hint)
        elif not _QUALIFIED.fullmatch(key.partition("/")[2]):
            said = f"{key!r} is not the name of a resource: Kubernetes refuses it"
            yield amounts.at(key).error(said, "after the domain come letters, digits, '-', '_' and '.'")
        elif offered is None and (usual := _usual(key)) not in (None, key):
            said = f"{key} is not a usual name: only a policy that gives GPUs this name offers it"
            yield amounts.at(key).warning(said, f"did you mean {usual}?")


def meant_name(key: str, names: Collection[str]) -> str | None:
    """The one of these names of resources that was most likely meant, by what stands after the domain."""
    by_word = {name.rpartition("/")[2]: name for name in names}
    near = nearest_word(key.rpartition("/")[2], list(by_word))
    return None if near is None else by_word[near]


def _usual(key: str) -> str | None:
    """``nvidia.com/gpu`` for ``nvidia.com/GPU`` and ``nvidia.com/gpus``. None: like no usual name."""
    domain, _, name = key.partition("/")
    if domain != VENDOR:
        return None
    mig = _MIG.fullmatch(name.lower())
    if mig is not None:
        return f"{VENDOR}/mig-{mig[1]}.{mig[2]}{mig[3]}"
    letters = _SEPARATORS.sub("", name.lower())
    return f"{VENDOR}/{_USUAL[letters]}" if letters in _USUAL else None


def _misspelt(domain: str) -> bool:
    if domain == VENDOR:
        return False
    lower = domain.lower()
    name = VENDOR.partition(".")[0]
    return (
        name in (lower, lower.partition(".")[0])
        or difflib.SequenceMatcher(None, lower, VENDOR).ratio() >= _ALIKE
    )


def _meant(key: str, offered: Collection[str] | None) -> str:
    name = key.rpartition("/")[2].lower()
    meant = f"{VENDOR}/{name}"
    return meant_name(key, offered or ()) or meant


Resources = Mapping[ResourceName, Resource]
"""What the policy offers on the machine, by name."""

_HARMLESS_DEVICES = ("", "void", "none")
_SHARED_SUFFIX = ".shared"
_MIG_NAME = re.compile(r"nvidia\.com/mig-(\d+g\.\d+gb)(?:\.(me(?:\.all)?))?(?:\.shared)?", re.ASCII)
_FEWER_REPLICAS = "ask for 1; for more of a GPU, give it fewer replicas or make it exclusive in the policy"


ModelsOf = Callable[[str], tuple[str, ...]]
"""The ids of the models that have a MIG profile, ``3g.40gb``."""


class _Asked(Frozen):
    """What requests are judged by; as in ``findings``."""

    offered: Resources | None
    only_cdi: bool
    models_of: ModelsOf | None
    models_here: frozenset[str]


def findings(
    document: Mapping[str, Any],
    file: str,
    path: str = "",
    offered: Resources | None = None,
    line_of: LineOf | None = None,
    *,
    only_cdi: bool = False,
    models_of: ModelsOf | None = None,
    models_here: Collection[str] = (),
) -> list[CheckedProblem]:
    """Everything that is wrong with the GPU requests of one object. offered: None if not known. only_cdi: no
    container learns its devices from NVIDIA_VISIBLE_DEVICES. models_of: None: profiles are not looked at.
    models_here: those of the machine.
    """
    top = object_place(document, file, path, line_of)
    asked = _Asked(offered, only_cdi, models_of, frozenset(models_here))
    found = [*_header(top)]
    for keys in pod_specs_at(document):
        found += _pod(top.at(*keys), asked)
    return found


def _header(top: ManifestNode) -> Iterator[CheckedProblem]:
    if not isinstance(top.at("apiVersion").value, str):
        yield top.error("the object has no apiVersion: Kubernetes refuses it", "apiVersion: v1 for a Pod")


_CONTAINERS = (
    ("initContainers", "init container"),
    ("containers", "container"),
    ("ephemeralContainers", "ephemeral container"),
)


def _pod(spec: ManifestNode, asked: _Asked) -> Iterator[CheckedProblem]:
    yield from gpus_of_whole_pod(spec, asked.offered)
    yield from pod_claim_findings(spec)
    for where, word in _CONTAINERS:
        for container in spec.at(where).items:
            yield from _container(
                replace(container, owner=f"{container.owner}, {_container_name(container, word)}"), asked
            )


def gpus_of_whole_pod(spec: ManifestNode, offered: Resources | None) -> Iterator[CheckedProblem]:
    """GPUs that are asked for in the place where a pod as a whole asks for CPUs and memory."""
    for part in ("limits", "requests"):
        amounts = spec.at("resources", part)
        for key in amounts.keys:
            if _is_ours(key, offered):
                yield amounts.at(key).error(
                    f"asks for {key} for the pod as a whole: Kubernetes gives GPUs to containers only",
                    "move it to resources.limits of a container",
                )


def _container_name(container: ManifestNode, word: str) -> str:
    name = container.at("name").value
    return f"{word} {name}" if isinstance(name, str) and name else f"a {word} without a name"


def _container(container: ManifestNode, asked: _Asked) -> Iterator[CheckedProblem]:
    offered = asked.offered
    limits = container.at("resources", "limits")
    ours = [key for key in limits.keys if _is_ours(key, offered)]
    for part in ("limits", "requests"):
        yield from name_findings(container.at("resources", part), offered)
    yield from requests_without_limits(container, offered)
    yield from _environment(container)
    if len(ours) > 1 and not asked.only_cdi:
        yield limits.warning(
            f"asks for {' and '.join(ours)}: each sets NVIDIA_VISIBLE_DEVICES, and only one wins",
            "ask for one of them, or use two containers",
        )
    for key in ours:
        yield from _amount(limits.at(key), key, offered)
        yield from _profile(limits.at(key), key, asked)
    yield from settings_findings(container, ours, offered)
    if offered is not None and any(_uses_mps(offered, key) for key in ours):
        yield from _shared_memory(container)


def _profile(limit: ManifestNode, key: str, asked: _Asked) -> Iterator[CheckedProblem]:
    """A MIG profile that no model has, or none of this machine's."""
    match = _MIG_NAME.fullmatch(key)
    if match is None or asked.models_of is None:
        return
    profile = match[1] + (f"+{match[2]}" if match[2] else "")
    models = asked.models_of(profile)
    if not models:
        yield limit.warning(f"no known GPU model has a MIG profile {profile}", "look for a misprint")
    elif (
        asked.offered is not None
        and ResourceName(key) not in asked.offered
        and asked.models_here.isdisjoint(models)
    ):
        yield limit.warning(
            f"{profile} is a MIG profile of {', '.join(models)}", "is this pod for other nodes?", here=True
        )


def _is_ours(key: str, offered: Resources | None) -> bool:
    return (
        key.startswith(f"{VENDOR}/")
        or key == MEMORY_RESOURCE
        or (offered is not None and ResourceName(key) in offered)
    )


def requests_without_limits(container: ManifestNode, offered: Resources | None) -> Iterator[CheckedProblem]:
    """Requests for GPUs that the API server refuses, because the limit is missing or another one."""
    requests, limits = container.at("resources", "requests"), container.at("resources", "limits")
    for key in requests.keys:
        if not _is_ours(key, offered):
            continue
        asked, limit = requests.at(key), limits.at(key)
        if limit.value is None:
            yield asked.error("an extended resource needs a limit, not only a request", "move it to limits")
        elif not _equal(asked.value, limit.value):
            yield asked.error(
                f"request {asked.value} and limit {limit.value} differ", "they have to be equal"
            )


def _equal(one: object, other: object) -> bool:
    return str(one) == str(other) or (
        whole_quantity(one) is not None and whole_quantity(one) == whole_quantity(other)
    )


def _amount(asked: ManifestNode, key: str, offered: Resources | None) -> Iterator[CheckedProblem]:
    amount = whole_quantity(asked.value)
    if amount is None:
        what = "units of memory" if is_by_memory(key, offered) else "GPUs or shares"
        yield asked.error(f"{asked.value!r} is not a number of {what}", "a whole number, 1 or more")
    elif offered is not None:
        yield from _against_offer(asked, amount, ResourceName(key), offered)
    elif amount > 1 and key.endswith(_SHARED_SUFFIX):
        yield asked.warning(
            f"asks for {amount} of {key}, the usual name of shares of a GPU: most policies refuse more than "
            "one, and where they do not, more shares give no more of the GPU",
            "ask for 1; --policy and --machine check it against a policy",
        )


def _against_offer(
    asked: ManifestNode, amount: int, name: ResourceName, offered: Resources
) -> Iterator[CheckedProblem]:
    resource = offered.get(name)
    if resource is None:
        near = meant_name(name, offered)
        advice = "" if near is None else f"did you mean {near}? "
        names = ", ".join(offered) or "nothing"
        yield asked.error(f"nothing offers {name} here", f"{advice}offered: {names}", here=True)
        return
    if is_by_memory(name, offered):
        yield from _units_against_offer(asked, amount, resource)
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
            f"ask for {resource.count} or less, or give the policy more of them",
            here=True,
        )
    elif amount > 1 and (shared := [offering for offering in resource.offerings if _adds_nothing(offering)]):
        yield asked.warning(_no_more(name, amount, shared), _FEWER_REPLICAS, here=True)


def is_by_memory(key: str, offered: Resources | None) -> bool:
    """Whether the resource counts units of memory. offered: None if not known."""
    resource = (offered or {}).get(ResourceName(key))
    if resource is None:
        return key == MEMORY_RESOURCE
    return any(offering.by_memory for offering in resource.offerings)


def _units_against_offer(asked: ManifestNode, amount: int, resource: Resource) -> Iterator[CheckedProblem]:
    """A container's memory is on one GPU."""
    largest = max(resource.offerings, key=lambda offering: offering.count)
    unit = format_bytes(largest.memory_bytes)
    if amount > largest.count:
        would = "fail" if amount <= resource.count else "stay pending"
        yield asked.error(
            f"asks for {amount} x {unit} of GPU memory, which have to be on one GPU, and the largest one "
            f"here offers {largest.count} x {unit}: the pod would {would}",
            f"ask for {largest.count} or less; a GPU without shares is nvidia.com/gpu",
            here=True,
        )
    elif 0 < amount * largest.memory_bytes < SMALLEST_USABLE_BYTES:
        yield asked.warning(
            f"asks for {format_bytes(amount * largest.memory_bytes)} of GPU memory: the context of a process "
            "takes 250 to 820 MiB of it",
            f"ask for {-(-SMALLEST_USABLE_BYTES // largest.memory_bytes)} or more",
            here=True,
        )


def _adds_nothing(offering: DeviceOffer) -> bool:
    """Whether a second share of the device gives a container no more of it.

    Only MPS shares whose limits are in the container's variables add up.
    """
    return offering.traits.in_shares and not offering.limits_in_env


def _no_more(name: ResourceName, amount: int, shared: Sequence[DeviceOffer]) -> str:
    ways = dict.fromkeys(sharing_text(offering) for offering in shared)
    asked = f"asks for {amount} of {name}, which are shares ({', '.join(ways)})"
    if len({offering.device for offering in shared}) == 1:
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
    return resource is not None and any(offering.traits.through_daemon for offering in resource.offerings)


def _shared_memory(container: ManifestNode) -> Iterator[CheckedProblem]:
    for mount in container.at("volumeMounts").items:
        if str(mount.at("mountPath").value).rstrip("/") == "/dev/shm":  # noqa: S108 - a path in the container
            yield mount.warning(
                "mounts a volume at /dev/shm, where an MPS share brings its server's: one hides the other",
                "drop the volume; the MPS share's /dev/shm can be used",
                here=True,
            )
