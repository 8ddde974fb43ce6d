"""Settings of frameworks in a container that do not fit the share that it asks for.

Pure. Fractions are parts of the whole device, also in a container that has a share of it. Names and defaults:
the public documents of vLLM, SGLang, TGI, JAX, PyTorch and MPS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from partage.faces.manifest_node import CheckedProblem, ManifestNode
from partage.model.ids import ResourceName
from partage.model.policy import Strategy
from partage.model.share import DeviceOffer, Guarantee, Resource
from partage.units import GIB, format_bytes

_OPTION = re.compile(
    r"--(gpu[-_]memory[-_]utilization|mem[-_]fraction[-_]static|cuda[-_]memory[-_]fraction)"
    r"[=\s]\s*(\d*\.?\d+)"
)
_FRACTIONS = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION", "CUDA_MEMORY_FRACTION")
_TORCH = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_TORCH_FRACTION = re.compile(r"per_process_memory_fraction:\s*(\d*\.?\d+)")
_ALLOCATORS = ("XLA_PYTHON_CLIENT_ALLOCATOR", "XLA_CLIENT_ALLOCATOR")
_PINNED = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_PINNED_LIMIT = re.compile(r"(?:\S+?=)?(\d+)([MGmg])")
_VLLM = re.compile(r"(^|[/\s])vllm")
_VLLM_DEFAULT = 0.9
_MOST_UNKNOWN = 0.5
"""The largest part that one of several shares of unknown number can be."""


def settings_findings(
    container: ManifestNode, ours: Sequence[str], offered: Mapping[ResourceName, Resource] | None
) -> Iterator[CheckedProblem]:
    """Settings that do not fit. ours: resources that the container asks for. offered: None if not known."""
    shares = [one for key in ours if offered for one in _offerings(offered, key) if one.replicas > 1]
    if not shares and not (offered is None and any(key.endswith(".shared") for key in ours)):
        return
    part = max((1 / one.replicas for one in shares), default=_MOST_UNKNOWN)
    share = f"the share is {_text(part)} of it" if shares else "a share is half of it at most"
    here = offered is not None
    found = [*_fractions(container)]
    for place, name, fraction in found:
        if fraction > part + 0.005:
            yield place.warning(
                f"{name} {_text(fraction)} is a part of the whole GPU, and {share}",
                f"{_text(part)} or less, so that all shares fit",
                here=here,
            )
    for place in _variables(container, _ALLOCATORS):
        if place.at("value").value == "platform":
            yield place.warning(
                f"{place.at('name').value}=platform ignores every limit of memory", "remove it", here=here
            )
    yield from _mps(container, shares)
    bare = any(one.shared is Strategy.TIME_SLICING and one.guarantee is Guarantee.NONE for one in shares)
    if bare and not found:
        yield container.at("resources", "limits").warning(
            "nothing limits the GPU memory of this container: under time-slicing it can take all of it",
            "guard: true in the policy, mps, or a limit of the framework",
            here=here,
        )


def _offerings(offered: Mapping[ResourceName, Resource], key: str) -> tuple[DeviceOffer, ...]:
    resource = offered.get(ResourceName(key))
    return resource.offerings if resource else ()


def _fractions(container: ManifestNode) -> Iterator[tuple[ManifestNode, str, float]]:
    """Where a fraction of the GPU's memory is set, its name, and how large it is."""
    words = {key: container.at(key) for key in ("command", "args")}
    said = False
    for place in words.values():
        texts = [str(item.value) for item in place.items]
        for option in _OPTION.finditer(" ".join(texts)):
            said = True
            index = next((n for n, text in enumerate(texts) if f"--{option[1]}" in text), 0)
            yield place.at(index), f"--{option[1]}", float(option[2])
    for place in _variables(container, _FRACTIONS):
        value = str(place.at("value").value)
        if re.fullmatch(r"\d*\.?\d+", value, re.ASCII):
            yield place.at("value"), str(place.at("name").value), float(value)
    for place in _variables(container, _TORCH):
        if (limit := _TORCH_FRACTION.search(str(place.at("value").value))) is not None:
            yield place.at("value"), "per_process_memory_fraction", float(limit[1])
    started = " ".join(str(item.value) for place in words.values() for item in place.items)
    image = container.at("image")
    if not said and (_VLLM.search(started) or _VLLM.search(str(image.value))):
        yield image, "vLLM without --gpu-memory-utilization takes", _VLLM_DEFAULT


def _mps(container: ManifestNode, shares: Sequence[DeviceOffer]) -> Iterator[CheckedProblem]:
    mps = [one for one in shares if one.shared is Strategy.MPS]
    if not mps:
        return
    for place in _variables(container, ("CUDA_MPS_PIPE_DIRECTORY",)):
        yield place.warning(
            "sets CUDA_MPS_PIPE_DIRECTORY itself: programs would not find the daemon of the share",
            "remove it; the share sets it",
            here=True,
        )
    most = max(one.memory_bytes for one in mps)
    for place in _variables(container, (_PINNED,)):
        limit = _PINNED_LIMIT.fullmatch(str(place.at("value").value))
        asked = int(limit[1]) * (GIB if limit[2] in "Gg" else GIB // 1024) if limit else 0
        if asked > most:
            yield place.at("value").warning(
                f"{_PINNED} is larger than any share ({format_bytes(most)}): the share's limit holds",
                "give the GPU fewer replicas, or ask for less",
                here=True,
            )


def _variables(container: ManifestNode, names: Sequence[str]) -> Iterator[ManifestNode]:
    for variable in container.at("env").items:
        if variable.at("name").value in names:
            yield variable


def _text(part: float) -> str:
    return f"{part:.3f}".rstrip("0").rstrip(".")
