"""HAMi. Source of the rules: its ``pkg/device/nvidia/device.go`` and webhook, version 2.10."""

from __future__ import annotations

from collections.abc import Collection, Iterator

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
from partage.admission.decide.settings import DialectSettings
from partage.admission.decide.words import (
    amount_words,
    checked_count,
    gpu_rules,
    memory_of_percent,
    mib_bytes,
    mig_of_mode,
)
from partage.units import MIB

SYSTEM = "HAMi"
SCHEDULER = "hami-scheduler"
USE_TYPE, NOT_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
_USE_UUID, _NOT_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
_NUMA, _MODE = "nvidia.com/numa-bind", "nvidia.com/vgpu-mode"
_NODE_POLICY, _GPU_POLICY = "hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy"
MARKS = (USE_TYPE, NOT_TYPE, _USE_UUID, _NOT_UUID, _NUMA, _MODE, _NODE_POLICY, _GPU_POLICY)
OPT_OUT = ("hami.io/webhook", "ignore")


def asked_of_hami(
    pod: AskingPod, settings: DialectSettings, listed: Collection[str], others: Collection[str]
) -> PodGpuNeed | None:
    """None: the pod is not written for HAMi. listed: names that a device plugin has. others: resources of
    systems that use annotations of HAMi, too. Raises CannotMean.
    """
    parts = {settings.hami_memory, settings.hami_percentage, settings.hami_cores, settings.hami_priority}
    names = parts - {*listed}
    count = settings.hami_count
    marked = not pod.translated and any(pod.annotations.get(mark, "").strip() for mark in MARKS)
    marked = marked and pod.asks_for(count) and not pod.asks_for(*others)
    if pod.labels.get(OPT_OUT[0]) == OPT_OUT[1] or not (pod.asks_for(*names) or marked):
        return None
    for container in pod.containers:
        if container.privileged:
            raise CannotMean(
                f"{container.words} is privileged: it sees every GPU, and HAMi refuses it",
                "privileged: false, or ask for a whole GPU in Partage's own way",
            )
    warnings = list(_warnings(pod))
    mig, of_mode = mig_of_mode(pod.annotations, _MODE)
    needs = []
    for container in pod.containers:
        if settings.hami_priority in container.amounts and settings.hami_priority in names:
            warnings.append(f"{settings.hami_priority} of {container.words} has no effect")
        need = _need(container, settings, names, warnings)
        if need is not None:
            needs.append(need)
    rules = gpu_rules(pod.annotations, (USE_TYPE, NOT_TYPE, _USE_UUID, _NOT_UUID), mig=mig)
    said = *warnings, *of_mode
    return PodGpuNeed(SYSTEM, rules, frozenset({count, *names}), said, containers=tuple(needs))


def _need(
    container: AskingContainer, settings: DialectSettings, names: Collection[str], warnings: list[str]
) -> ContainerNeed | None:
    """None: it asks for no GPU."""
    amounts, who = container.amounts, container.words
    counted = settings.hami_count in amounts
    parts = {settings.hami_memory, settings.hami_percentage, settings.hami_cores} & {*names}
    if not counted and not (parts & container.limited):
        return None
    count = container.whole(settings.hami_count) if counted else settings.default_gpus
    if count == 0 and counted:
        return None
    checked_count(count, who, settings.hami_count)
    had = {name: container.whole(name) for name in parts if name in amounts}
    percent = had.get(settings.hami_percentage, 0)
    if percent > 100:
        raise CannotMean(f"{who} asks for {percent} of {settings.hami_percentage}, which is 0 to 100")
    memory = _memory(had, percent, who, settings)
    exclusive = settings.hami_percentage in had and percent == 100
    exclusive = exclusive or not {settings.hami_percentage, settings.hami_memory} & {*had}
    cores = had.get(settings.hami_cores, 100 if exclusive else settings.default_cores)
    if cores >= 100:
        if not isinstance(memory, WholeGpu):
            warnings.append(
                f"{who} asks for {cores} of {settings.hami_cores}: nobody else may use the GPU, so it has "
                "all of its memory"
            )
        return container.asking(GpuNeed(count, WholeGpu()))
    if isinstance(memory, WholeGpu) and cores:
        warnings.append(f"{settings.hami_cores} {cores} of {who} has no effect: it has the GPU alone")
        cores = 0
    if not isinstance(memory, WholeGpu) and settings.scaling > 1:
        raise CannotMean(
            f"HAMi's deviceMemoryScaling of {settings.scaling:g} gives memory out more than once, and "
            "Partage never does",
            "set it to 1, and ask for what the pod really needs",
        )
    need = GpuNeed(count, memory, cores)
    three = settings.hami_memory, settings.hami_percentage, settings.hami_cores
    unit_bytes = max(settings.memory_factor, 1) * MIB
    return container.asking(need, *amount_words(need, had, three, unit_bytes))


def _memory(had: dict[str, int], percent: int, who: str, settings: DialectSettings) -> GpuMemory:
    """An amount goes before a percentage, and 0 is no amount."""
    if amount := had.get(settings.hami_memory, 0):
        mib = amount * max(settings.memory_factor, 1)
        return BytesOfGpu(mib_bytes(mib, who, settings.hami_memory))
    if percent:
        return memory_of_percent(percent)
    if settings.default_memory:
        return BytesOfGpu(mib_bytes(settings.default_memory, who, "HAMi's defaultMemory"))
    return WholeGpu()


def _warnings(pod: AskingPod) -> Iterator[str]:
    chain = [word.strip() for word in pod.annotations.get(_GPU_POLICY, "").split(",") if word.strip()]
    for word in chain:
        if word in ("topology-aware", "mutex"):
            raise CannotMean(
                f"{_GPU_POLICY}: {word} chooses between the GPUs of a node, which the scheduler does "
                "with claims",
                f"remove {word}; binpack is what the scheduler does",
            )
        if word != "binpack":
            yield f"{_GPU_POLICY}: {word[:40]} has no effect: the scheduler fills one GPU first"
    if policy := pod.annotations.get(_NODE_POLICY, "").strip():
        yield f"{_NODE_POLICY}: {policy[:40]} has no effect: the scheduler's own scores choose the node"
    if pod.annotations.get(_NUMA, "").strip().lower() in ("true", "1", "t"):
        yield f"{_NUMA} has no effect: the GPUs may be of different NUMA nodes"
