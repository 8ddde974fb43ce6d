"""How a container's memory limits reach the driver before its first instruction: what its runtime is told.

A CDI file for each set of limits names our hook with them, so a tenant cannot change them. Its name follows
from the limits: whoever needs the same set, also after a restart of the agent or the node, finds the same
file. Where our hook cannot be, NVIDIA's reads one value for all GPUs from variables (ADR 0151).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from partage.codec.values import CodecError, decode
from partage.model.allocation import AllocationRefused
from partage.model.driver_limit import DriverLimit
from partage.model.ids import GpuUuid
from partage.units import MIB
from partage.values import Frozen

LIMITS_KIND = "gpu.partage.dev/limits"
HOOK_NAME = "partage-limit-hook"

_VERSION = "0.3.0"
"""The lowest CDI version, which has hooks."""

_TIMEOUT_S = 60
"""When the runtime ends the hook: without persistence mode it initialises the GPU, which takes seconds."""

_ENVIRONMENT = ("LC_ALL=C",)
"""Not the runtime's own."""

REQUEST, LIMIT = "NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"


class LimitWay(StrEnum):
    """Who sets the limits. hook: ours, with a value for each GPU. nvidia: NVIDIA's, by environment."""

    HOOK = "hook"
    NVIDIA = "nvidia"


class LimitTerms(Frozen):
    """What this node has. way: None: nothing, and ``trouble`` says why, a clause.

    program: host path of our hook. driver_root: host path of the driver.
    """

    way: LimitWay | None = None
    program: str = ""
    driver_root: str = "/"
    trouble: str = "no hook is there for it"


NO_LIMIT_TERMS = LimitTerms()


def limit_terms(program: str, driver_root: str, trouble: str, *, nvidia: bool) -> LimitTerms:
    """Ours where it can be: of NVIDIA's variables a tenant's own value can be the one that counts.

    trouble: why our hook cannot be used; empty: it can. nvidia: the CDI spec of the GPUs has NVIDIA's hook,
    and containers get their GPUs by it.
    """
    if not trouble:
        return LimitTerms(LimitWay.HOOK, program, driver_root, "")
    return LimitTerms(LimitWay.NVIDIA if nvidia else None, driver_root=driver_root, trouble=trouble)


def limits_device(limits: Sequence[DriverLimit]) -> str:
    """The full CDI name for this set of limits, in whatever order."""
    return f"{LIMITS_KIND}={limits_name(limits)}"


def limits_name(limits: Sequence[DriverLimit]) -> str:
    """The name for this set of limits, also in that of the file."""
    digest = hashlib.sha256(" ".join(map(str, sorted(limits))).encode())
    return f"set-{digest.hexdigest()[:32]}"


def hook_edits(limits: Sequence[DriverLimit], terms: LimitTerms) -> dict[str, Any]:
    """The edits of a CDI device that make the runtime run our hook with these limits."""
    root = () if terms.driver_root == "/" else (f"--driver-root={terms.driver_root}",)
    hook = {
        "hookName": "createRuntime",
        "path": terms.program,
        "args": [HOOK_NAME, "set", *root, *map(str, sorted(limits))],
        "env": list(_ENVIRONMENT),
        "timeout": _TIMEOUT_S,
    }
    return {"hooks": [hook]}


def limits_spec(limits: Sequence[DriverLimit], terms: LimitTerms) -> dict[str, Any]:
    """The CDI spec for this set of limits."""
    device = {"name": limits_name(limits), "containerEdits": hook_edits(limits, terms)}
    return {"cdiVersion": _VERSION, "kind": LIMITS_KIND, "devices": [device]}


class _Hook(Frozen):
    args: tuple[str, ...]


class _Edits(Frozen):
    hooks: tuple[_Hook, ...]


class _LimitDevice(Frozen):
    name: str
    containerEdits: _Edits  # noqa: N815 - CDI's name


class _LimitSpec(Frozen):
    devices: tuple[_LimitDevice, ...]


def limits_in(spec: bytes) -> tuple[DriverLimit, ...]:
    """The limits of a file that this or another version of Partage wrote. () if it is none of these."""
    try:
        (device,) = decode(_LimitSpec, spec, strict=False).devices
        (hook,) = device.containerEdits.hooks
        words = [word.partition("=") for word in hook.args if not word.startswith("-") and "=" in word]
        limits = tuple(DriverLimit(GpuUuid(gpu), int(amount)) for gpu, _, amount in words)
    except (CodecError, ValueError):
        return ()
    return limits if limits and device.name == limits_name(limits) else ()


def limit_variables(limits: Sequence[DriverLimit], terms: LimitTerms) -> dict[str, str]:
    """The variables of a container with these limits: for our hook none, for NVIDIA's its two.

    The request is always given: without it a soft limit as large as the hard one would be set. Source:
    nvidia-container-toolkit 1.20.1, apply-cuda-memory-limits. Raises AllocationRefused where nothing can set
    the limits before the container starts.
    """
    amounts = {limit.limit_bytes // MIB for limit in limits}
    if not amounts or terms.way is LimitWay.HOOK:
        return {}
    if terms.way is None:
        raise AllocationRefused(f"its memory limit cannot be set before it starts: {terms.trouble}")
    if len(amounts) > 1:
        raise AllocationRefused(
            "its GPUs have different memory limits, and NVIDIA's hook knows one for all; "
            f"Partage's own cannot be used: {terms.trouble}"
        )
    return {REQUEST: "0", LIMIT: str(amounts.pop())}
