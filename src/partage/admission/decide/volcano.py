"""Volcano's vGPUs. Source of the rules: its ``pkg/scheduler/api/devices/nvidia/vgpu``."""

from __future__ import annotations

from collections.abc import Collection

from partage.admission.decide.hami import NOT_TYPE, USE_TYPE
from partage.admission.decide.need import (
    BytesOfGpu,
    CannotMean,
    ContainerNeed,
    GpuMemory,
    GpuNeed,
    PodGpuNeed,
    WholeGpu,
)
from partage.admission.decide.pod import AskingContainer, AskingPod
from partage.admission.decide.words import (
    amount_words,
    checked_count,
    gpu_rules,
    memory_of_percent,
    mib_bytes,
    mig_of_mode,
)
from partage.units import MIB

SYSTEM = "Volcano"
SCHEDULER = "volcano"
_NUMBER, _MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
_PERCENTAGE, _CORES = "volcano.sh/vgpu-memory-percentage", "volcano.sh/vgpu-cores"
_OLD_MEMORY, _OLD_NUMBER = "volcano.sh/gpu-memory", "volcano.sh/gpu-number"
RESOURCES = frozenset({_NUMBER, _MEMORY, _PERCENTAGE, _CORES, _OLD_MEMORY, _OLD_NUMBER})
_USE_UUID, _NOT_UUID = "volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid"
_PODGROUP_POLICY = "volcano.sh/vgpu-podgroup-policy"


def asked_of_volcano(pod: AskingPod, listed: Collection[str]) -> PodGpuNeed | None:
    """None: the pod is not written for it. listed: names that a device plugin has. Raises CannotMean."""
    names = RESOURCES - {*listed}
    if not pod.asks_for(*names):
        return None
    mig, warnings = mig_of_mode(pod.annotations, "volcano.sh/vgpu-mode")
    if policy := pod.annotations.get(_PODGROUP_POLICY):
        warnings = (*warnings, f"{_PODGROUP_POLICY}: {policy[:40]} has no effect")
    needs = []
    for container in pod.containers:
        if not names & {*container.amounts}:
            continue
        if container.group == "initContainers":
            raise CannotMean(
                f"{container.words} asks for GPUs, which Volcano gives to ordinary containers only"
            )
        needs.append(_need(container, names))
    rules = gpu_rules(pod.annotations, (USE_TYPE, NOT_TYPE, _USE_UUID, _NOT_UUID), mig=mig)
    return PodGpuNeed(SYSTEM, rules, names, warnings, containers=tuple(needs))


def _need(container: AskingContainer, names: Collection[str]) -> ContainerNeed:
    had = {name: container.whole(name) for name in names if name in container.amounts}
    who = container.words
    if {_OLD_MEMORY, _OLD_NUMBER} & {*had}:
        need = _old(had, who)
    elif _NUMBER in had or _MEMORY in had:
        percent, cores = had.get(_PERCENTAGE, 100), had.get(_CORES, 0)
        for name, number in ((_PERCENTAGE, percent), (_CORES, cores)):
            if not (0 if name == _CORES else 1) <= number <= 100:
                raise CannotMean(f"{who} asks for {number} of {name}, which is 1 to 100")
        count = checked_count(had.get(_NUMBER, 1), who, _NUMBER)
        memory: GpuMemory = memory_of_percent(percent)
        if amount := had.get(_MEMORY, 0):
            memory = BytesOfGpu(mib_bytes(amount, who, _MEMORY))
        alone = cores == 100 or isinstance(memory, WholeGpu)
        need = GpuNeed(count, WholeGpu()) if alone else GpuNeed(count, memory, cores)
    else:
        raise CannotMean(
            f"{who} asks for a part of a GPU without {_NUMBER}: Volcano gives it none", f"{_NUMBER}: 1"
        )
    three = (_OLD_MEMORY if _OLD_MEMORY in had else _MEMORY), _PERCENTAGE, _CORES
    return container.asking(need, *amount_words(need, had, three, MIB))


def _old(had: dict[str, int], who: str) -> GpuNeed:
    """The names of Volcano before its vGPUs: MB of one GPU, or whole GPUs."""
    if len(had) > 1:
        raise CannotMean(f"{who} asks for {' and '.join(sorted(had))} at once", "name one of them")
    if _OLD_NUMBER in had:
        return GpuNeed(checked_count(had[_OLD_NUMBER], who, _OLD_NUMBER), WholeGpu())
    if not had[_OLD_MEMORY]:
        raise CannotMean(f"{who} asks for 0 of {_OLD_MEMORY}")
    return GpuNeed(1, BytesOfGpu(mib_bytes(had[_OLD_MEMORY], who, _OLD_MEMORY)))
