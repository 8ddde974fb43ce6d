"""The JSON answers of ``plan`` and ``show``: documented, stable, camelCase. Values in, dictionaries out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from partage.model.gpu import Gpu, Inventory, Link, LostGpu, MigDevice, NoDriver
from partage.model.policy import Strategy
from partage.model.share import DeviceOffer, Guarantee, NodeOffer, Resource, resources_of, weakest
from partage.plan.reconcile.verification import said


def json_line(document: Mapping[str, Any]) -> bytes:
    """A document as one line of JSON in UTF-8. Bytes of a path that are not UTF-8 become ``?``."""
    line = json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
    return line.encode(errors="replace")


Verify = Callable[[DeviceOffer], Guarantee | None]
"""The guarantee of a share that was seen in force; None where nothing could be seen."""


def resource_rows(offer: NodeOffer, verify: Verify | None = None) -> list[dict[str, Any]]:
    """One row per resource name: how many, how, with what guarantee, and on which GPUs.

    offer: what is promised. verify: None where the node was not read back.
    """
    check = verify or (lambda _share: None)
    return [_resource_row(resource, check) for resource in resources_of(offer).values()]


def _resource_row(resource: Resource, verify: Verify) -> dict[str, Any]:
    by_gpu: dict[int, list[DeviceOffer]] = {}
    for offering in resource.offerings:
        by_gpu.setdefault(offering.gpu_index, []).append(offering)
    return {
        "name": str(resource.name),
        "count": resource.count,
        "strategy": _strategy(resource.offerings),
        **_guarantees(resource.offerings, verify),
        "gpus": [_gpu_row(offerings, verify) for offerings in by_gpu.values()],
    }


def _gpu_row(offerings: Sequence[DeviceOffer], verify: Verify) -> dict[str, Any]:
    """What one GPU adds to a resource. memoryBytes: of the smallest share, where shares differ."""
    first = offerings[0]
    return {
        "index": first.gpu_index,
        "uuid": first.gpu,
        "count": sum(offering.count for offering in offerings),
        "strategy": str(first.strategy),
        **_guarantees(offerings, verify),
        "memoryBytes": min(offering.memory_bytes for offering in offerings),
        "planned": any(offering.planned for offering in offerings),
        "devices": [_device_row(offering, verify) for offering in offerings],
    }


def _guarantees(offerings: Sequence[DeviceOffer], verify: Verify) -> dict[str, str | None]:
    """The weakest of several shares. guarantee: the weaker one of promised and verified."""
    seen = [verify(one) for one in offerings]
    known = [one for one in seen if one is not None]
    return {
        "guarantee": str(weakest(said(one, found) for one, found in zip(offerings, seen, strict=True))),
        "promised": str(weakest(one.guarantee for one in offerings)),
        "verified": str(weakest(iter(known))) if len(known) == len(seen) else None,
    }


def _device_row(offering: DeviceOffer, verify: Verify) -> dict[str, Any]:
    """One GPU or MIG device. uuid: None for a device that has still to be made."""
    row: dict[str, Any] = {
        "uuid": None if offering.planned else offering.device,
        "index": None if offering.planned else offering.index,
        "profile": offering.profile,
        "sharing": str(offering.shared),
        "replicas": offering.replicas,
        "firstShare": offering.first,
        "count": offering.count,
        "memoryBytes": offering.memory_bytes,
        **_guarantees([offering], verify),
        "threadsPercent": offering.threads_percent,
        "pipe": offering.pipe or None,
        "interval": None if offering.interval is None else str(offering.interval),
        "oneShareOnly": offering.single,
        "planned": offering.planned,
    }
    return {key: value for key, value in row.items() if value is not None or key in ("uuid", "verified")}


def _strategy(offerings: Sequence[DeviceOffer]) -> str:
    strategies: set[Strategy] = {offering.strategy for offering in offerings}
    return str(next(iter(strategies))) if len(strategies) == 1 else "mixed"


# --- the node ----------------------------------------------------------------------------------


def driver_row(inventory: Inventory) -> dict[str, Any]:
    """The driver, or why there is none."""
    driver = inventory.driver
    if isinstance(driver, NoDriver):
        return {"state": driver.kind, "reason": driver.reason, "hint": driver.hint}
    return {"state": "ok", "version": driver.version, "cuda": driver.cuda}


def node_rows(inventory: Inventory) -> dict[str, Any]:
    """The node as it is: driver, GPUs, lost GPUs, links."""
    return {
        "simulated": inventory.simulated,
        "driver": driver_row(inventory),
        "gpus": [gpu_row(gpu) for gpu in inventory.gpus],
        "lost": [lost_row(gpu) for gpu in inventory.lost],
        "links": [_link_row(link, inventory) for link in inventory.links],
        "openToEnv": inventory.open_to_env,
        "bootId": inventory.boot_id,
    }


def gpu_row(gpu: Gpu) -> dict[str, Any]:
    """One GPU that answers."""
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "minor": gpu.minor,
        "product": gpu.product,
        "architecture": gpu.architecture,
        "computeCapability": ".".join(map(str, gpu.compute_capability)),
        "memoryBytes": gpu.memory_bytes,
        "pciBusId": gpu.pci_bus_id,
        "pciDeviceId": gpu.pci_device_id,
        "numaNode": gpu.numa_node,
        "computeMode": gpu.compute_mode.word,
        "migMode": None
        if gpu.mig_mode is None
        else {"current": gpu.mig_mode.current, "pending": gpu.mig_mode.pending},
        "migDevices": [_mig_row(device) for device in gpu.mig_devices],
        "recoveryAction": None if gpu.recovery is None else gpu.recovery.word,
    }


def _mig_row(device: MigDevice) -> dict[str, Any]:
    return {
        "index": device.index,
        "uuid": device.uuid,
        "profile": device.profile,
        "gpuInstance": device.gi_id,
        "computeInstance": device.ci_id,
        "placement": {"start": device.placement.start, "size": device.placement.size},
        "memoryBytes": device.memory_bytes,
    }


def lost_row(gpu: LostGpu) -> dict[str, Any]:
    """One GPU that does not answer."""
    return {"index": gpu.index, "uuid": gpu.uuid, "pciBusId": gpu.pci_bus_id, "reason": gpu.reason}


def _link_row(link: Link, inventory: Inventory) -> dict[str, Any]:
    index = {gpu.uuid: gpu.index for gpu in inventory.gpus}
    ends = sorted((index.get(link.a, -1), index.get(link.b, -1)))
    return {"gpus": ends, "path": link.path.word, "nvlinks": link.nvlinks}
