"""CDI specs as values: what ours holds, and how it is laid over what ``nvidia-ctk`` wrote.

Only ``nvidia-ctk`` knows which libraries and hooks a driver needs. What it writes is taken as it is; we add
the devices that it leaves out (a GPU in MIG mode that is offered whole), keep the runtime from injecting a
second time, and note what the spec was made from. Source of the shape: the CDI specification, 0.3 to 1.1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from partage.model.gpu import Gpu, Inventory
from partage.model.policy import DeviceIdStrategy, Options
from partage.plan.serve.answer import CDI_VENDOR, CONTROL_NODES

Spec = dict[str, Any]
"""One CDI spec, as JSON has it."""

GPU_KIND = f"{CDI_VENDOR}/gpu"
DIGEST_KEY = "partage/inventory"
"""Annotation of the spec: what it was made from."""

_VERSION = (0, 6, 0)
"""The lowest that knows annotations, hostPath and names that begin with a digit."""

_NO_LEGACY = "NVIDIA_VISIBLE_DEVICES=void"
"""Keeps NVIDIA's runtime from injecting devices that CDI has injected already."""

_FORMAT = "1"
"""Of the digest: a new one has every spec written anew after an upgrade."""


def digest(inventory: Inventory, options: Options, generator: str) -> str:
    """What a spec depends on, in 32 hex digits: driver, GPUs, MIG devices, options.

    generator: path of nvidia-ctk, empty where there is none.
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


def nodes_only(inventory: Inventory, options: Options) -> Spec:
    """Device files and no library, for every GPU and MIG device, called as the policy calls them."""
    control = [node for node in CONTROL_NODES if node in inventory.control_nodes]
    devices = [_device(name, nodes, options) for gpu in inventory for name, nodes in _names(gpu, options)]
    return _spec("gpu", devices, _nodes(control, options))


def imex_channels(options: Options) -> Spec:
    """The spec of the IMEX channels: device files are all that they are."""
    path = "/dev/nvidia-caps-imex-channels/channel"
    devices = [_device(str(n), [f"{path}{n}"], options) for n in options.imex_channels]
    return _spec("imex-channel", devices, {})


def with_missing_devices(theirs: Spec, ours: Spec) -> Spec:
    """What nvidia-ctk wrote, and what it left out."""
    known = {device["name"] for device in theirs["devices"]}
    missing = [device for device in ours["devices"] if device["name"] not in known]
    return {**theirs, "devices": [*theirs["devices"], *missing]}


def with_digest(spec: Spec, inventory_digest: str) -> Spec:
    """``spec`` with our own edits: no second injection, and the digest of what it was made from.

    inventory_digest: empty for a spec that is to be made again as soon as that can be done better.
    """
    edits = dict(spec.get("containerEdits") or {})
    env = [line for line in edits.get("env") or [] if not line.startswith("NVIDIA_VISIBLE_DEVICES=")]
    return {
        **spec,
        "cdiVersion": _at_least(str(spec["cdiVersion"])),
        "annotations": {**(spec.get("annotations") or {}), DIGEST_KEY: inventory_digest or "incomplete"},
        "containerEdits": {**edits, "env": [*env, _NO_LEGACY]},
    }


def spec_error(spec: object, kind: str) -> str:
    """Why this is no CDI spec of that kind; empty where it is one."""
    if not isinstance(spec, dict) or not isinstance(spec.get("cdiVersion"), str):
        return "it is no CDI spec"
    if spec.get("kind") != kind:
        return f"its kind is {spec.get('kind')!r}, not {kind!r}"
    devices = spec.get("devices")
    if not isinstance(devices, list) or not devices:
        return "it has no devices"
    if not all(_is_device(device) for device in devices):
        return "one of its devices has no name or no edits"
    edits = spec.get("containerEdits")
    return "" if edits is None or isinstance(edits, dict) else "its containerEdits are no mapping"


def _is_device(device: object) -> bool:
    return (
        isinstance(device, dict)
        and isinstance(device.get("name"), str)
        and isinstance(device.get("containerEdits"), dict)
    )


# --- our own devices ---------------------------------------------------------------------------


def _names(gpu: Gpu, options: Options) -> Iterator[tuple[str, list[str]]]:
    """Name and device files of a GPU and of its MIG devices."""
    by_index = options.device_ids is DeviceIdStrategy.INDEX
    node = f"/dev/nvidia{gpu.minor}"
    yield str(gpu.index) if by_index else gpu.uuid, [node]
    for mig in gpu.mig_devices:
        minors = (minor for minor in (mig.gi_minor, mig.ci_minor) if minor is not None)
        caps = [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors]
        yield f"{gpu.index}:{mig.index}" if by_index else mig.uuid, [node, *caps]


def _spec(cdi_class: str, devices: list[Spec], edits: Spec) -> Spec:
    return {
        "cdiVersion": ".".join(map(str, _VERSION)),
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


def _at_least(version: str) -> str:
    """The version, or ours where it is lower: a spec has to name one that knows all that it uses."""
    numbers = tuple(int(part) if part.isdigit() else 0 for part in version.split("."))
    return version if numbers >= _VERSION else ".".join(map(str, _VERSION))


def digest_of(spec: object) -> str:
    """The digest that a spec carries; empty where it carries none."""
    annotations = spec.get("annotations") if isinstance(spec, Mapping) else None
    found = annotations.get(DIGEST_KEY) if isinstance(annotations, Mapping) else None
    return found if isinstance(found, str) else ""
