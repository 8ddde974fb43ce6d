"""What the API server refuses in the spec of a ResourceSlice: the rules of Kubernetes 1.36 and 1.37, written
from its validation, as far as they concern what Partage publishes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from partage.units import parse_quantity

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(r"([a-z0-9.-]{1,63}/)?[A-Za-z_][A-Za-z0-9_]{0,31}")
_SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def faults(spec: dict[str, Any]) -> list[str]:
    """What is wrong; empty: nothing."""
    return list(_faults(spec))


def _faults(spec: dict[str, Any]) -> Iterator[str]:
    devices = spec.get("devices", [])
    names = [device["name"] for device in devices]
    if len(set(names)) < len(names):
        yield f"names: {names}"
    if len(devices) > (64 if any({"taints", "consumesCounters"} & {*device} for device in devices) else 128):
        yield f"{len(devices)} devices"
    yield from _of_counters(spec.get("sharedCounters", []), devices)
    if spec["pool"]["resourceSliceCount"] < 1:
        yield "no slice"
    for device in devices:
        for fault in _of_device(device):
            yield f"{device['name']}: {fault}"


def _of_counters(sets: list[dict[str, Any]], devices: list[dict[str, Any]]) -> Iterator[str]:
    """Counter sets have slices of their own since 1.35."""
    if sets and devices:
        yield "counters beside devices"
    if len(sets) > 8:
        yield f"{len(sets)} counter sets"
    uses = [use for device in devices for use in device.get("consumesCounters", [])]
    if any(len(device.get("consumesCounters", [])) > 2 for device in devices):
        yield "more than 2 counter sets of a device"
    if sum(len(use["counters"]) for use in uses) > 2048:
        yield "more than 2048 counters in use"
    for name, one in [(one["name"], one) for one in sets] + [(one["counterSet"], one) for one in uses]:
        if not 1 <= len(one["counters"]) <= 32:
            yield f"{len(one['counters'])} counters of {name}"
        if not all(_LABEL.fullmatch(each) for each in (name, *one["counters"])):
            yield f"names of {name}"
        if any(parse_quantity(each["value"]) <= 0 for each in one["counters"].values()) and one in uses:
            yield f"counters of {name}"


def _of_device(device: dict[str, Any]) -> Iterator[str]:
    if not _LABEL.fullmatch(device["name"]):
        yield "its name"
    attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
    if len(attributes) + len(capacity) > 32:
        yield "more than 32 attributes and capacities"
    for name in (*attributes, *capacity):
        if not _NAME.fullmatch(name):
            yield f"name {name}"
    for name, value in attributes.items():
        ((kind, inner),) = value.items()
        if kind in ("string", "version") and not 0 < len(inner) <= 64:
            yield f"{name} is {inner!r}"
        if kind == "version" and not _SEMVER.fullmatch(inner):
            yield f"{name} is {inner!r}"
    for name, value in capacity.items():
        if "requestPolicy" in value:
            if not device.get("allowMultipleAllocations"):
                yield f"{name} has a policy, and the device is not shared"
            yield from (f"{name}: {fault}" for fault in _of_policy(value))
    for taint in device.get("taints", []):
        if not _LABEL_VALUE.fullmatch(taint.get("value", "none")):
            yield f"taint {taint}"


def _of_policy(capacity: dict[str, Any]) -> Iterator[str]:
    policy, value = capacity["requestPolicy"], parse_quantity(capacity["value"])
    default = parse_quantity(policy["default"])
    if ("validRange" in policy) == ("validValues" in policy):
        yield "not one of range and values"
    values = [parse_quantity(one) for one in policy.get("validValues", [policy["default"]])]
    if values != sorted(set(values)) or default not in values or len(values) > 10 or values[-1] > value:
        yield f"values {values}"
    if "validRange" in policy:
        amounts = policy["validRange"]
        low, step = parse_quantity(amounts["min"]), parse_quantity(amounts["step"])
        high = parse_quantity(amounts["max"])
        if default < low or high > value or low + step > value or high < low:
            yield f"{default} in {low} to {high}, of {value}"
        if any((one - low) % step != Decimal(0) for one in (default, high)):
            yield f"{default}, {high} off the grid"


def single_tenant(device: dict[str, Any]) -> list[str]:
    """Capacities of a shared device of which the first claim takes all without being asked: those without a
    policy.
    """
    if not device.get("allowMultipleAllocations"):
        return []
    return [name for name, value in device["capacity"].items() if "requestPolicy" not in value]
