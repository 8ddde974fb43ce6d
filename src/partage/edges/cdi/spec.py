"""CDI specs as values: what Partage adds to the specs that ``nvidia-ctk`` writes.

Only ``nvidia-ctk`` knows which libraries and hooks a driver needs. Its spec is kept. Partage adds devices
that it leaves out (a GPU in MIG mode that is offered as a whole) and an environment variable against a second
injection. Source of the format, and of which version has what: the CDI specification, 0.3 to 1.1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from partage.model.gpu import Gpu, Inventory
from partage.model.paths import CONTROL_NODES
from partage.model.policy import DeviceIdStrategy, Options
from partage.plan.serve.allocate_response import CDI_VENDOR

Spec = dict[str, Any]
"""One CDI spec, as JSON values."""

_VERSION = "0.3.0"
"""The lowest CDI version that runtimes still read."""

_VERSION_WITH_HOST_PATHS = "0.5.0"
"""The lowest CDI version with hostPath and with names that begin with a digit."""

_NO_LEGACY = "NVIDIA_VISIBLE_DEVICES=void"
"""Keeps NVIDIA's runtime from injecting devices that CDI injects already."""

_LIMIT_HOOK = "apply-cuda-memory-limits"

_FORMAT = "3"
"""Version of the digest: a new one makes an upgrade write every spec again."""


def inventory_digest(inventory: Inventory, options: Options, generator: str) -> str:
    """Digest of everything that a spec depends on, 32 hex digits: driver, GPUs, MIG devices, options.

    generator: path of nvidia-ctk, or the files of others that are read in its place.
    """
    parts: tuple[object, ...] = (
        _FORMAT,
        generator,
        inventory.driver,
        [(gpu.index, gpu.uuid, gpu.minor, gpu.mig_enabled, gpu.mig_devices) for gpu in inventory],
        inventory.control_nodes,
        (options.device_ids, options.driver_root, options.dev_root, options.nvidia_ctk),
        (options.gds, options.mofed, options.gdrcopy, options.imex_channels),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def device_files_spec(inventory: Inventory, options: Options) -> Spec:
    """A spec with device files and no libraries, for every GPU and MIG device, with the names that the policy
    asks for.
    """
    control = [node for node in CONTROL_NODES if node in inventory.control_nodes]
    devices = [_device(name, nodes, options) for gpu in inventory for name, nodes in _names(gpu, options)]
    return _spec("gpu", devices, _nodes(control, options))


def imex_spec(options: Options) -> Spec:
    """The spec of the IMEX channels, which are device files only."""
    path = "/dev/nvidia-caps-imex-channels/channel"
    devices = [_device(str(n), [f"{path}{n}"], options) for n in options.imex_channels]
    return _spec("imex-channel", devices, {})


def with_missing_devices(theirs: Spec, ours: Spec) -> Spec:
    """The spec of nvidia-ctk and the devices that it left out. The version is the lower one that has both."""
    known = {device["name"] for device in theirs["devices"]}
    missing = [device for device in ours["devices"] if device["name"] not in known]
    version = max(str(theirs["cdiVersion"]), _version(missing, {}), key=version_numbers)
    return {**theirs, "cdiVersion": version, "devices": [*theirs["devices"], *missing]}


def without_second_injection(spec: Spec) -> Spec:
    """``spec`` with the variable that keeps NVIDIA's runtime from injecting the devices once more."""
    edits = dict(spec.get("containerEdits") or {})
    env = [line for line in edits.get("env") or [] if not line.startswith("NVIDIA_VISIBLE_DEVICES=")]
    return {**spec, "containerEdits": {**edits, "env": [*env, _NO_LEGACY]}}


def applies_limits(spec: Spec) -> bool:
    """Whether NVIDIA's hook of memory limits runs with GPUs of this spec: from toolkit 1.20.1 on, with every
    whole one.
    """
    return any(_has_limit_hook(device["containerEdits"].get("hooks")) for device in spec["devices"])


def _has_limit_hook(hooks: object) -> bool:
    return isinstance(hooks, list) and any(
        isinstance(hook, dict) and _LIMIT_HOOK in (hook.get("args") or ()) for hook in hooks
    )


def spec_error(spec: object, kind: str) -> str:
    """Why this is no valid CDI spec of that kind; empty if it is valid."""
    if not isinstance(spec, dict) or not isinstance(spec.get("cdiVersion"), str):
        return "it is not a CDI spec"
    if spec.get("kind") != kind:
        return f"its kind is {spec.get('kind')!r}, not {kind!r}"
    devices = spec.get("devices")
    if not isinstance(devices, list) or not devices:
        return "it has no devices"
    if not all(_is_device(device) for device in devices):
        return "one of its devices has no name or no edits"
    edits = spec.get("containerEdits")
    return "" if edits is None or isinstance(edits, dict) else "its containerEdits are not a mapping"


def _is_device(device: object) -> bool:
    return (
        isinstance(device, dict)
        and isinstance(device.get("name"), str)
        and isinstance(device.get("containerEdits"), dict)
    )


# --- our own devices ---------------------------------------------------------------------------


def _names(gpu: Gpu, options: Options) -> Iterator[tuple[str, list[str]]]:
    """Name and device files of a GPU and of its MIG devices. All have their UUID as a name, by which claims
    ask for them, also where the policy asks for indexes.
    """
    by_index = options.device_ids is DeviceIdStrategy.INDEX
    node = f"/dev/nvidia{gpu.minor}"
    if by_index:
        yield str(gpu.index), [node]
    yield gpu.uuid, [node]
    for mig in gpu.mig_devices:
        files = [node, *mig.capability_files]
        if by_index:
            yield f"{gpu.index}:{mig.index}", files
        yield mig.uuid, files


def _spec(cdi_class: str, devices: list[Spec], edits: Spec) -> Spec:
    return {
        "cdiVersion": _version(devices, edits),
        "kind": f"{CDI_VENDOR}/{cdi_class}",
        "devices": devices,
        "containerEdits": edits,
    }


def _device(name: str, nodes: Iterable[str], options: Options) -> Spec:
    return {"name": name, "containerEdits": _nodes(nodes, options)}


def _nodes(paths: Iterable[str], options: Options) -> Spec:
    root = options.dev_root.rstrip("/")
    nodes = [{"path": path} | ({"hostPath": root + path} if root else {}) for path in paths]
    return {"deviceNodes": nodes} if nodes else {}


def _version(devices: Sequence[Spec], edits: Spec) -> str:
    """The lowest version that has what this uses: an older runtime refuses a spec of a newer version."""
    digit_first = any(device["name"][0].isdecimal() for device in devices)
    parts = [edits, *(device["containerEdits"] for device in devices)]
    host_paths = any("hostPath" in file for part in parts for file in part.get("deviceNodes", ()))
    return _VERSION_WITH_HOST_PATHS if digit_first or host_paths else _VERSION


def version_numbers(version: str) -> tuple[int, ...]:
    """To compare versions of specs."""
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split("."))
