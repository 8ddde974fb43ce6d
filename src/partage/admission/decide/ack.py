"""Alibaba's gpushare, open source and in ACK. Source of the rules: ACK's documents."""

from __future__ import annotations

from collections.abc import Collection
from decimal import Decimal

from partage.admission.decide.need import (
    AmountWord,
    BytesOfGpu,
    CannotMean,
    ContainerNeed,
    GpuNeed,
    PodGpuNeed,
)
from partage.admission.decide.pod import AskingContainer, AskingPod
from partage.admission.decide.settings import DialectSettings
from partage.admission.decide.words import checked_count
from partage.claims.model.names import CORES, MEMORY
from partage.model.ids import MEMORY_RESOURCE
from partage.units import whole_quantity

SYSTEM = "ACK"
_CORES, _TFLOPS = "aliyun.com/gpu-core.percentage", "aliyun.com/gpu-core.tflops"
_COUNT = "aliyun.com/gpu-count"
RESOURCES = frozenset({MEMORY_RESOURCE, _CORES, _TFLOPS, _COUNT})
_STEP = 5


def asked_of_ack(pod: AskingPod, settings: DialectSettings, listed: Collection[str]) -> PodGpuNeed | None:
    """None: the pod is not written for it, or its device plugin is there. listed: names that a device plugin
    has. Raises CannotMean.
    """
    several = _COUNT in pod.labels and pod.asks_for(MEMORY_RESOURCE)
    parts = RESOURCES - {*listed}
    if not several and not pod.asks_for(*parts):
        return None
    count = _count(pod) if several else 1
    needs = tuple(
        _need(container, count, settings) for container in pod.containers if RESOURCES & {*container.amounts}
    )
    return PodGpuNeed(SYSTEM, names=RESOURCES, containers=needs)


def _count(pod: AskingPod) -> int:
    text = pod.labels[_COUNT]
    count = whole_quantity(text)
    if count is None:
        raise CannotMean(f"the label {_COUNT} is {text[:20]!r}, and no number of GPUs")
    return checked_count(count, "the pod", f"label {_COUNT}")


def _need(container: AskingContainer, count: int, settings: DialectSettings) -> ContainerNeed:
    who = container.words
    if _COUNT in container.amounts:
        raise CannotMean(
            f"{who} asks for {_COUNT}, which counts the GPUs of a node and is no request",
            "ask for nvidia.com/gpu",
        )
    if _TFLOPS in container.amounts:
        raise CannotMean(
            f"{who} asks for {_TFLOPS}, which no driver can hold a container to",
            f"ask for {_CORES} in its place",
        )
    memory = container.whole(MEMORY_RESOURCE) if MEMORY_RESOURCE in container.amounts else 0
    if not memory:
        raise CannotMean(f"{who} asks for no {MEMORY_RESOURCE}", f"{MEMORY_RESOURCE} beside {_CORES}")
    if memory % count:
        raise CannotMean(
            f"{memory} of {MEMORY_RESOURCE} cannot be divided evenly between {count} GPUs (label {_COUNT})",
            f"ask for {memory - memory % count or count} or {memory + count - memory % count}",
        )
    cores = 0
    if _CORES in container.amounts:
        cores = container.whole(_CORES)
        if not _STEP <= cores <= 100 or cores % _STEP:
            raise CannotMean(f"{who} asks for {cores} of {_CORES}, which is 5 to 100 in steps of 5")
    need = GpuNeed(count, BytesOfGpu(memory // count * settings.gpu_mem_bytes), cores)
    unit = Decimal(settings.gpu_mem_bytes) / count
    words = [AmountWord(MEMORY, f"{MEMORY_RESOURCE}: {{}}", str(memory), unit, step=Decimal(count))]
    if cores:
        words.append(AmountWord(CORES, f"{_CORES}: {{}}", str(cores), Decimal(1), step=Decimal(_STEP)))
    return container.asking(need, *words)
