"""The state as JSON values, and back. Whatever is not exactly what was written raises ValueError.

The caller's clock means nothing to the next process, so times are written as seconds passed or left. Time in
which no agent runs counts for nothing: nobody watched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, TypeVar

from msgspec.structs import asdict, fields

from partage.model import health as life
from partage.model.gpu import ComputeMode
from partage.model.health import Health, HealthStatus
from partage.model.ids import parse_resource_name
from partage.model.policy import Interval, Strategy
from partage.model.share import DeviceOffer, Guarantee
from partage.plan.reconcile.settings_steps import OriginalSettings
from partage.plan.reconcile.transition import GpuServing

MOST_SHARES = 1_000_000
"""More than any kubelet message holds."""

T = TypeVar("T")
Plain = dict[str, Any]
"""JSON values; Any, because that is what JSON gives back until ``_field`` has looked at it."""


def serving_to_plain(serving: GpuServing, now_s: float) -> Plain:
    """One GPU's serving. How long it has been empty is not written: the next agent waits for itself."""
    return {
        "offer": [asdict(offering) for offering in serving.offer],
        "leaving": [asdict(offering) for offering in serving.leaving],
        "draining": serving.draining,
        "drainingForS": _ago(serving.draining_since_s, now_s),
    }


def serving_from_plain(plain: object, now_s: float) -> GpuServing:
    """Inverse of ``serving_to_plain``. Raises ValueError."""
    row = _object(plain, "offer", "leaving", "draining", "drainingForS")
    return GpuServing(
        offer=tuple(_offering(one) for one in _field(row, "offer", list)),
        leaving=tuple(_offering(one) for one in _field(row, "leaving", list)),
        draining=_field(row, "draining", bool),
        draining_since_s=_since(row, "drainingForS", now_s),
    )


def health_to_plain(health: Health, now_s: float) -> Plain:
    """One GPU's health."""
    return {
        "gpu": _phase_to_plain(health.gpu, now_s),
        "instances": {str(gi): _phase_to_plain(one, now_s) for gi, one in health.instances.items()},
        "resets": health.resets,
    }


def health_from_plain(plain: object, now_s: float) -> Health:
    """Inverse of ``health_to_plain``. Raises ValueError."""
    row = _object(plain, "gpu", "instances", "resets")
    instances = _field(row, "instances", dict)
    return Health(
        gpu=_phase(row["gpu"], now_s),
        instances={int(gi): _phase(one, now_s) for gi, one in instances.items()},
        resets=_optional(row, "resets", int),
    )


def before_to_plain(before: OriginalSettings, now_s: float) -> Plain:
    """How one GPU was set before it was changed."""
    del now_s
    mode = None if before.mode is None else before.mode.name
    return {"mode": mode, "interval": before.interval}


def before_from_plain(plain: object, now_s: float) -> OriginalSettings:
    """Inverse of ``before_to_plain``. Raises ValueError."""
    del now_s
    row = _object(plain, "mode", "interval")
    mode, interval = _optional(row, "mode", str), _optional(row, "interval", str)
    if mode is not None and mode not in ComputeMode.__members__:
        raise ValueError(f"mode is {mode!r}")
    return OriginalSettings(
        None if mode is None else ComputeMode[mode], None if interval is None else Interval(interval)
    )


def mapping_from_plain(plain: object, one: Callable[[object, float], T], now_s: float) -> dict[str, T]:
    """A mapping by GPU UUID. Raises ValueError."""
    if not isinstance(plain, dict):
        raise ValueError(f"{type(plain).__name__} instead of an object")  # noqa: TRY004 - a bad file is one error
    return {gpu: one(value, now_s) for gpu, value in plain.items()}


# --- offerings and phases ------------------------------------------------------------------------


def _offering(plain: object) -> DeviceOffer:
    row = _object(plain, *(field.name for field in fields(DeviceOffer)))
    interval = _optional(row, "interval", str)
    return DeviceOffer(
        device=_field(row, "device", str),
        gpu=_field(row, "gpu", str),
        index=_field(row, "index", str),
        gpu_index=_field(row, "gpu_index", int),
        resource=parse_resource_name(_field(row, "resource", str)),
        strategy=Strategy(_field(row, "strategy", str)),
        shared=Strategy(_field(row, "shared", str)),
        replicas=_number(row, "replicas"),
        memory_bytes=_field(row, "memory_bytes", int),
        guarantee=Guarantee(_field(row, "guarantee", str)),
        first=_number(row, "first"),
        count=_number(row, "count"),
        threads_percent=_optional(row, "threads_percent", int),
        interval=None if interval is None else Interval(interval),
        numa_node=_optional(row, "numa_node", int),
        nodes=_texts(row, "nodes"),
        single=_field(row, "single", bool),
        planned=_field(row, "planned", bool),
        profile=_optional(row, "profile", str),
        guard=_field(row, "guard", bool),
        limits_in_env=_field(row, "limits_in_env", bool),
        pipe=_field(row, "pipe", str),
    )


def _phase_to_plain(phase: HealthStatus, now_s: float) -> Plain:
    left_s = None if phase.quiet_until_s is None else max(0.0, phase.quiet_until_s - now_s)
    return {
        "state": phase.state.value,
        "reason": phase.reason,
        "forS": _ago(phase.since_s, now_s),
        "leftS": left_s,
        "probationS": phase.probation_s,
        "needsProof": phase.needs_proof,
        "actionSeen": phase.action_seen,
        "faultForS": _ago(phase.fault_s, now_s),
        "passedForS": _ago(phase.passed_s, now_s),
    }


def _phase(plain: object, now_s: float) -> HealthStatus:
    row = _object(
        plain,
        *("state", "reason", "forS", "leftS", "probationS"),
        *("needsProof", "actionSeen", "faultForS", "passedForS"),
    )
    left_s = _seconds(row, "leftS")
    since_s = _since(row, "forS", now_s)
    probation_s = _seconds(row, "probationS")
    if probation_s is None or not life.PROBATION_S <= probation_s <= life.PROBATION_CAP_S:
        raise ValueError(f"probationS is {probation_s}")
    return HealthStatus(
        state=life.HealthState(_field(row, "state", str)),
        reason=_field(row, "reason", str),
        since_s=now_s if since_s is None else since_s,
        quiet_until_s=None if left_s is None else now_s + left_s,
        probation_s=probation_s,
        needs_proof=_field(row, "needsProof", bool),
        action_seen=_field(row, "actionSeen", bool),
        fault_s=_since(row, "faultForS", now_s),
        passed_s=_since(row, "passedForS", now_s),
    )


# --- JSON values -----------------------------------------------------------------------------------


def _object(plain: object, *keys: str) -> Mapping[str, Any]:
    """An object with exactly these keys."""
    if not isinstance(plain, dict) or plain.keys() != set(keys):
        raise ValueError(f"not an object with {', '.join(keys)}")
    return plain


def _field(row: Mapping[str, Any], key: str, kind: type[T]) -> T:
    value = row[key]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{key} is {type(value).__name__} instead of {kind.__name__}")
    return value


def _number(row: Mapping[str, Any], key: str) -> int:
    """A number of shares: one that is written out id by id later, and so had better be sane."""
    value = _field(row, key, int)
    if not 0 <= value <= MOST_SHARES:
        raise ValueError(f"{key} is {value}")
    return value


def _texts(row: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = _field(row, key, list)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{key} is not a list of texts")
    return tuple(values)


def _optional(row: Mapping[str, Any], key: str, kind: type[T]) -> T | None:
    return None if row[key] is None else _field(row, key, kind)


def _seconds(row: Mapping[str, Any], key: str) -> float | None:
    value = row[key]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise ValueError(f"{key} is {value!r} instead of seconds")
    return float(value)


def _ago(since_s: float | None, now_s: float) -> float | None:
    return None if since_s is None else max(0.0, now_s - since_s)


def _since(row: Mapping[str, Any], key: str, now_s: float) -> float | None:
    passed_s = _seconds(row, key)
    return None if passed_s is None else now_s - passed_s
