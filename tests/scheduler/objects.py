"""Objects of a cluster as the API server has them: nodes with slices, pods with claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partage.units import GIB

Json = dict[str, Any]
DRIVER = "gpu.partage.dev"
MEMORY = 80 * GIB // 1000 * 1000
"""Of a GPU: a multiple of 1000, so that thousandths are exact."""


def node(name: str, cpu_milli: int = 64_000, memory_mib: int = 10**6, **devices: str) -> Json:
    amounts = {"cpu": f"{cpu_milli}m", "memory": f"{memory_mib}Mi", "pods": "110"}
    amounts |= {name.replace("__", "/").replace("_", "."): amount for name, amount in devices.items()}
    return {"metadata": {"name": name, "labels": {}}, "spec": {}, "status": {"allocatable": amounts}}


def device(number: int, product: str = "A", mode: str = "amounts", memory: int = MEMORY, **more: Any) -> Json:
    """A GPU of a node."""
    text = {"mode": mode, "productName": product, "uuid": f"GPU-{number}", "type": "gpu"}
    attributes: Json = {name: {"string": value} for name, value in text.items()} | {"index": {"int": number}}
    capacity: Json = {"memory": {"value": str(memory)}}
    shared: Json = {}
    if mode == "amounts":
        policy = {"default": str(memory), "validRange": {"min": "1", "max": str(memory), "step": "1"}}
        capacity["memory"]["requestPolicy"] = policy
        shared = {"allowMultipleAllocations": True}
    elif mode == "replicas":
        policy = {"default": "1", "validRange": {"min": "1", "max": "4", "step": "1"}}
        capacity["shares"] = {"value": "4", "requestPolicy": policy}
        capacity["memory"]["requestPolicy"] = {"default": "0", "validValues": ["0"]}
        shared = {"allowMultipleAllocations": True}
    name = f"gpu-{number}"
    return {"name": name, "attributes": attributes, "capacity": capacity, **shared, **more}


def slices(name: str, devices: Sequence[Json], generation: int = 1) -> Json:
    """The slice of a node."""
    pool = {"name": f"{name}-partage", "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": list(devices)}
    return {"metadata": {"name": f"{name}-slice"}, "spec": spec}


def claim(
    name: str,
    count: int = 1,
    memory: int | None = None,
    device_class: str = DRIVER,
    products: Sequence[str] = (),
    given: Mapping[str, Sequence[str]] | None = None,
    consumed: Mapping[str, int] | None = None,
) -> Json:
    """A claim of the namespace ``team``. given: devices by node."""
    exactly: Json = {"deviceClassName": device_class, "count": count}
    if memory is not None:
        exactly["capacity"] = {"requests": {"memory": str(memory)}}
    if products:
        listed = ",".join(f'"{product}"' for product in products)
        expression = f'device.attributes["{DRIVER}"].productName in [{listed}]'
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    found: Json = {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {},
    }
    if given:
        results = [
            {
                "request": "gpu",
                "driver": DRIVER,
                "pool": f"{on}-partage",
                "device": one,
                **(
                    {"consumedCapacity": {key: str(value) for key, value in consumed.items()}}
                    if consumed
                    else {}
                ),
            }
            for on, devices in given.items()
            for one in devices
        ]
        found["status"] = {"allocation": {"devices": {"results": results}}}
    return found


def pod(
    name: str,
    cpu_milli: int = 0,
    memory_mib: int = 0,
    claims: Sequence[str] = (),
    on: str = "",
    owner: str = "",
    **devices: str,
) -> Json:
    amounts = {"cpu": f"{cpu_milli}m", "memory": f"{memory_mib}Mi"}
    amounts |= {name.replace("__", "/").replace("_", "."): amount for name, amount in devices.items()}
    spec: Json = {
        "containers": [{"name": "main", "resources": {"requests": amounts}}],
        "resourceClaims": [{"name": one, "resourceClaimName": one} for one in claims],
    }
    if on:
        spec["nodeName"] = on
    meta: Json = {"name": name, "namespace": "team", "uid": f"uid-{name}"}
    if owner:
        meta["ownerReferences"] = [{"kind": owner, "uid": "u", "controller": True}]
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running" if on else "Pending"}}


def classes() -> list[Json]:
    """As the chart makes them."""
    modes = {DRIVER: ["whole", "amounts"], "share.partage.dev": ["replicas"], "mig.partage.dev": ["mig"]}
    found = []
    for name, of in modes.items():
        listed = ",".join(f'"{mode}"' for mode in of)
        expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].mode in [{listed}]'
        found.append(
            {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
        )
    return found
