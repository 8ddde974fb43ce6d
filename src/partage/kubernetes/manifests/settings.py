"""Settings of frameworks in a container that do not fit the share that it asks for.

Pure. Fractions are parts of the whole device, also in a container that has a share of it. Names and defaults:
the public documents of vLLM, SGLang, TGI, JAX, PyTorch and MPS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from partage.kubernetes.manifests.node import CheckedProblem, ManifestNode
from partage.model.ids import ResourceName
from partage.model.share import DeviceOffer, Guarantee, Resource
from partage.units import GIB, format_bytes

_NUMBER = r"(\d*\.?\d+)"
_OPTION = re.compile(r"--(gpu[-_]memory[-_]utilization|mem[-_]fraction[-_]static|cuda[-_]memory[-_]fraction)")
_OF_OPTION = re.compile(rf"[\s=\\\"']+{_NUMBER}")
"""What follows an option: also in quotes, or after a line that is continued."""
_ASSIGNED = re.compile(
    r"(?<![-\w])(gpu_memory_utilization|mem_fraction_static"
    rf"|XLA_(?:PYTHON_)?CLIENT_MEM_FRACTION|CUDA_MEMORY_FRACTION)\s*=\s*[\"']?{_NUMBER}"
)
"""In Python code, or in a line of a shell."""
_TORCH_CALL = re.compile(rf"(set_per_process_memory_fraction)\(\s*(?:fraction\s*=\s*)?{_NUMBER}")
_VARIABLE = re.compile(r"\$(?:\((\w+)\)|\{(\w+)\}|(\w+))", re.ASCII)
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
    shares = [
        offering for key in ours if offered for offering in _offerings(offered, key) if offering.replicas > 1
    ]
    if not shares and not (offered is None and any(key.endswith(".shared") for key in ours)):
        return
    part = max((1 / offering.replicas for offering in shares), default=_MOST_UNKNOWN)
    share = f"the share is {_text(part)} of it" if shares else "a share is half of it at most"
    here = offered is not None
    found = [*_fractions(container)]
    for place, name, fraction in found:
        if fraction > part + 0.005:
            yield place.warning(
                f"{name} is a part of the whole GPU, and {share}",
                f"{_text(part)} or less, so that all shares fit",
                here=here,
            )
    for place in _variables(container, _ALLOCATORS):
        if place.at("value").value == "platform":
            yield place.warning(
                f"{place.at('name').value}=platform ignores every limit of memory", "remove it", here=here
            )
    yield from _mps(container, shares)
    bare = [row for row in shares if not row.traits.limits_memory and row.guarantee is Guarantee.NONE]
    if bare and not found:
        yield container.at("resources", "limits").warning(
            "nothing limits the GPU memory of this container: "
            f"under {bare[0].traits.word} it can take all of it",
            "guard: true in the policy, mps, or a limit of the framework",
            here=here,
        )


def _offerings(offered: Mapping[ResourceName, Resource], key: str) -> tuple[DeviceOffer, ...]:
    resource = offered.get(ResourceName(key))
    return resource.offerings if resource else ()


def _fractions(container: ManifestNode) -> Iterator[tuple[ManifestNode, str, float]]:
    """The place that sets a fraction of the GPU's memory, its name with the number, and how large it is."""
    said = False
    for place, name, number in _in_words(container):
        said = True
        if number:
            yield place, f"{name} {_text(float(number))}", float(number)
    for place in _variables(container, _FRACTIONS):
        value = str(place.at("value").value)
        if re.fullmatch(r"\d*\.?\d+", value, re.ASCII):
            yield place.at("value"), f"{place.at('name').value} {_text(float(value))}", float(value)
    for place in _variables(container, _TORCH):
        if (limit := _TORCH_FRACTION.search(str(place.at("value").value))) is not None:
            fraction = float(limit[1])
            yield place.at("value"), f"per_process_memory_fraction {_text(fraction)}", fraction
    started = " ".join(text for key in ("command", "args") for _, text in _words(container.at(key)))
    image = container.at("image")
    if not said and (_VLLM.search(started) or _VLLM.search(str(image.value))):
        yield image, f"what vLLM without --gpu-memory-utilization takes, {_VLLM_DEFAULT},", _VLLM_DEFAULT


def _in_words(container: ManifestNode) -> Iterator[tuple[ManifestNode, str, str]]:
    """Fractions in the container's command and arguments; an empty text where only a running shell knows."""
    values = {
        str(variable.at("name").value): str(variable.at("value").value)
        for variable in container.at("env").items
        if variable.at("value").value is not None
    }
    for key in ("command", "args"):
        words = _words(container.at(key))
        text = " ".join(word for _, word in words)
        known = _VARIABLE.sub(lambda one: values.get(one[1] or one[2] or one[3], one[0]), text)
        found = [*_OPTION.finditer(known), *_ASSIGNED.finditer(known), *_TORCH_CALL.finditer(known)]
        for match in found:
            place = next((node for node, word in words if match[1] in word), container.at(key))
            if match.re is _OPTION:
                follows = _OF_OPTION.match(known, match.end())
                yield place, match[0], follows[1] if follows else ""
            else:
                yield place, match[1], match[2]


def _words(place: ManifestNode) -> list[tuple[ManifestNode, str]]:
    """The items of a command. A text in place of the list is one word."""
    if isinstance(place.value, str):
        return [(place, place.value)]
    return [(item, str(item.value)) for item in place.items]


def _mps(container: ManifestNode, shares: Sequence[DeviceOffer]) -> Iterator[CheckedProblem]:
    mps = [row for row in shares if row.traits.through_daemon]
    if not mps:
        return
    for place in _variables(container, ("CUDA_MPS_PIPE_DIRECTORY",)):
        yield place.warning(
            "sets CUDA_MPS_PIPE_DIRECTORY itself: programs would not find the daemon of the share",
            "remove it; the share sets it",
            here=True,
        )
    most = max(share.memory_bytes for share in mps)
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
