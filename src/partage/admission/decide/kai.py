"""KAI and Run:ai: annotations of the pod. Source of the rules: KAI's ``gpu_request_validator.go``."""

from __future__ import annotations

import re
from decimal import Decimal

from partage.admission.decide.need import (
    AmountWord,
    BytesOfGpu,
    CannotMean,
    ContainerNeed,
    GpuMemory,
    GpuNeed,
    PartOfGpu,
    PodGpuNeed,
)
from partage.admission.decide.pod import AskingPod
from partage.admission.decide.words import checked_count, mib_bytes
from partage.claims.model.names import MEMORY
from partage.units import MIB

SYSTEM = "KAI"
SCHEDULERS = ("kai-scheduler", "runai-scheduler")
_FRACTION, _MEMORY = "gpu-fraction", "gpu-memory"
_DEVICES, _CONTAINER = "gpu-fraction-num-devices", "gpu-fraction-container-name"
_WHOLE = "nvidia.com/gpu"
MARKS = (_FRACTION, _MEMORY, _DEVICES)
"""Annotations of which one is enough."""
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,9})", re.ASCII)
_PART = re.compile(r"[0-9]{0,3}\.?[0-9]{1,9}([eE]-?[0-9])?", re.ASCII)


def asked_of_kai(pod: AskingPod) -> PodGpuNeed | None:
    """None: the pod is not written for it. Raises CannotMean."""
    marks = {key for key in MARKS if key in pod.annotations}
    if pod.translated or not marks:
        return None
    if marks == {_DEVICES}:
        raise CannotMean(f"{_DEVICES} stands without {_FRACTION} and {_MEMORY}", f"{_FRACTION}: '0.5'")
    if {_FRACTION, _MEMORY} <= marks:
        raise CannotMean(f"{_FRACTION} and {_MEMORY} stand side by side", "name one of them")
    if pod.asks_for(_WHOLE):
        raise CannotMean(
            f"the pod asks for a part of a GPU by annotation, and for {_WHOLE}", "name one of them"
        )
    count = checked_count(_number(pod, _DEVICES), "the pod", _DEVICES) if _DEVICES in marks else 1
    memory = _part(pod) if _FRACTION in marks else _amount(pod)
    if _FRACTION in marks:
        now, form = pod.annotations[_FRACTION], f"annotation {_FRACTION}: '{{}}'"
        word = AmountWord(MEMORY, form, now, Decimal(1), of_gpu=True, step=Decimal("0.01"))
    else:
        word = AmountWord(MEMORY, f"annotation {_MEMORY}: '{{}}'", pod.annotations[_MEMORY], Decimal(MIB))
    return PodGpuNeed(SYSTEM, containers=(_container(pod, GpuNeed(count, memory), word),))


def _container(pod: AskingPod, need: GpuNeed, word: AmountWord) -> ContainerNeed:
    """The one that is named, else the first ordinary one."""
    name = pod.annotations.get(_CONTAINER, "")
    ordinary = [container for container in pod.containers if container.group == "containers"]
    found = [container for container in pod.containers if container.name == name] if name else ordinary
    if not found:
        there = ", ".join(container.name for container in pod.containers[:8]) or "none"
        raise CannotMean(f"the pod has no container {name[:63]!r} ({_CONTAINER})", f"there are: {there}")
    return found[0].asking(need, word)


def _part(pod: AskingPod) -> GpuMemory:
    text = pod.annotations[_FRACTION]
    part = Decimal(text) if _PART.fullmatch(text) else Decimal(0)
    if not 0 < part < 1:
        raise CannotMean(
            f"{_FRACTION} is {text[:20]!r}, and not a number between 0 and 1", f"{_FRACTION}: '0.5'"
        )
    return PartOfGpu(part)


def _amount(pod: AskingPod) -> GpuMemory:
    mib = _number(pod, _MEMORY)
    if not mib:
        raise CannotMean(f"{_MEMORY} is 0", f"{_MEMORY}: '2000', in MiB")
    return BytesOfGpu(mib_bytes(mib, "the pod", _MEMORY))


def _number(pod: AskingPod, key: str) -> int:
    text = pod.annotations[key]
    if _NUMBER.fullmatch(text) is None:
        raise CannotMean(f"{key} is {text[:20]!r}, and no whole number", f"{key}: '2000'")
    return int(text)
