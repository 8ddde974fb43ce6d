"""How a container's memory limits reach the driver before its first instruction: what its runtime is told.

A CDI file for each set of limits of a resource names our hook with them, so a tenant cannot change them. Its
name follows from both: whoever needs the same set, also after a restart of the agent or the node, finds the
same file. A container with two resources of one GPU has two files, whose hooks add. Where our hook cannot be,
NVIDIA's reads one value for all GPUs from variables (ADR 0151).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from partage.codec.values import CodecError, decode
from partage.model.driver_limit import DriverLimit, LimitSetter, LimitWay
from partage.model.ids import GpuUuid, ResourceName
from partage.model.share import AllocationRefused
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

GRANT = "PARTAGE_GRANT"
"""A variable of the hook, not of the container."""

_SET = re.compile(r"set-[0-9a-f]{32}([0-9a-f]{16})?", re.ASCII)

REQUEST, LIMIT = "NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"


class LimitTerms(Frozen):
    """What this node has. way: None: nothing, and ``trouble`` says why, a clause.

    program: host path of our hook. driver_root: host path of the driver.
    """

    way: LimitWay | None = None
    program: str = ""
    driver_root: str = "/"
    trouble: str = "no hook is there for it"

    @property
    def setter(self) -> LimitSetter:
        """What is known of the node by that."""
        return LimitSetter(self.way, self.trouble)


NO_LIMIT_TERMS = LimitTerms()


def limit_terms(program: str, driver_root: str, trouble: str, *, nvidia: bool) -> LimitTerms:
    """Ours where it can be: of NVIDIA's variables a tenant's own value can be the one that counts.

    trouble: why our hook cannot be used; empty: it can. nvidia: the CDI spec of the GPUs has NVIDIA's hook,
    and containers get their GPUs by it.
    """
    if not trouble:
        return LimitTerms(LimitWay.HOOK, program, driver_root, "")
    return LimitTerms(LimitWay.NVIDIA if nvidia else None, driver_root=driver_root, trouble=trouble)


class LimitSet(Frozen):
    """The limits of a container by its shares of one resource. name: of their CDI device, and in that of the
    file.
    """

    name: str
    limits: tuple[DriverLimit, ...]

    @property
    def device(self) -> str:
        """The full CDI name."""
        return f"{LIMITS_KIND}={self.name}"


def limit_set(limits: Iterable[DriverLimit], resource: ResourceName) -> LimitSet:
    """The set of these limits, in whatever order. Another resource has another name: a runtime that is told a
    name twice applies it once.
    """
    limits = tuple(sorted(limits))
    return LimitSet(f"{_name_of(limits)}{_digest(resource)[:16]}", limits)


def _name_of(limits: Iterable[DriverLimit]) -> str:
    """What the name of the set begins with; of an older version: all of it."""
    return f"set-{_digest(' '.join(map(str, limits)))[:32]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def hook_edits(limits: Iterable[DriverLimit], terms: LimitTerms, grant: str) -> dict[str, Any]:
    """The edits of a CDI device that make the runtime run our hook with these limits.

    grant: letters, digits and ``-``; another one for each request that can come into the same container. The
    hook adds them up. It is a variable, because a hook of an older version does not read it.
    """
    root = () if terms.driver_root == "/" else (f"--driver-root={terms.driver_root}",)
    hook = {
        "hookName": "createRuntime",
        "path": terms.program,
        "args": [HOOK_NAME, "set", *root, *map(str, sorted(limits))],
        "env": [*_ENVIRONMENT, f"{GRANT}={grant}"],
        "timeout": _TIMEOUT_S,
    }
    return {"hooks": [hook]}


def limits_spec(given: LimitSet, terms: LimitTerms) -> dict[str, Any]:
    """The CDI spec of this set of limits."""
    device = {"name": given.name, "containerEdits": hook_edits(given.limits, terms, given.name)}
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


def set_in(spec: bytes) -> LimitSet | None:
    """The set of a file that this or another version of Partage wrote. None if it is none of these."""
    try:
        (device,) = decode(_LimitSpec, spec, strict=False).devices
        (hook,) = device.containerEdits.hooks
        words = [word.partition("=") for word in hook.args if not word.startswith("-") and "=" in word]
        limits = tuple(DriverLimit(GpuUuid(gpu), int(amount)) for gpu, _, amount in words)
    except (CodecError, ValueError):
        return None
    whole = limits and _SET.fullmatch(device.name) and device.name.startswith(_name_of(sorted(limits)))
    return LimitSet(device.name, limits) if whole else None


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
