"""The names and numbers that clusters can set for these systems, with their defaults.

Source: HAMi's ``device-config.yaml`` (``nvidia:``), gpushare's ``--memory-unit``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partage.units import GIB
from partage.values import Frozen


class DialectSettings(Frozen):
    """hami_*: HAMi's. memory_factor: MiB of one unit of its memory. default_memory: MiB where none is named;
    0: all. default_gpus: where only memory or cores are named. scaling: how often its nodes give memory out.
    gpu_mem_bytes: one unit of ``aliyun.com/gpu-mem``.
    """

    hami_count: str = "nvidia.com/gpu"
    hami_memory: str = "nvidia.com/gpumem"
    hami_percentage: str = "nvidia.com/gpumem-percentage"
    hami_cores: str = "nvidia.com/gpucores"
    hami_priority: str = "nvidia.com/priority"
    memory_factor: int = 1
    default_memory: int = 0
    default_cores: int = 0
    default_gpus: int = 1
    scaling: float = 1.0
    gpu_mem_bytes: int = GIB


_NAMES = {
    "resourceCountName": "hami_count",
    "resourceMemoryName": "hami_memory",
    "resourceMemoryPercentageName": "hami_percentage",
    "resourceCoreName": "hami_cores",
    "resourcePriorityName": "hami_priority",
}
_NUMBERS = {
    "memoryFactor": "memory_factor",
    "defaultMemory": "default_memory",
    "defaultCores": "default_cores",
    "defaultGPUNum": "default_gpus",
}


def with_hami_config(settings: DialectSettings, config: object) -> DialectSettings:
    """With what HAMi's ``device-config.yaml`` says. What is no name or number there stays as it was."""
    section = config.get("nvidia") if isinstance(config, Mapping) else None
    if not isinstance(section, Mapping):
        return settings
    changes: dict[str, Any] = {}
    for key, own in _NAMES.items():
        if isinstance(name := section.get(key), str) and "/" in name:
            changes[own] = name
    for key, own in _NUMBERS.items():
        number = section.get(key)
        if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
            changes[own] = number
    scaling = section.get("deviceMemoryScaling")
    if isinstance(scaling, int | float) and not isinstance(scaling, bool):
        changes["scaling"] = float(scaling)
    return DialectSettings(
        **{name: changes.get(name, getattr(settings, name)) for name in settings.__struct_fields__}
    )
