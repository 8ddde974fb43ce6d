"""Reads faults: ``{gpu: 2, xid: 79}``, ``{call: observe, hang: 30}``, ``{reboot: true}``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import get_args

from partage.edges.files.safeyaml import Value
from partage.errors import (
    DriverUnavailable,
    GpuInUse,
    GpuLost,
    HardwareError,
    HardwareTimeout,
    InsufficientResources,
    NotFound,
    NotPermitted,
    Unsupported,
)
from partage.model.gpu import RecoveryAction
from partage.model.layout import LayoutItem
from partage.model.mps import DaemonPhase
from partage.model.step import UseKind
from partage.sim.node.faults import (
    Call,
    DriverGone,
    DriverLoaded,
    FailCall,
    Fault,
    GpuReturns,
    HangCall,
    HealCall,
    HideProcesses,
    LoseGpu,
    Occupy,
    RaiseXid,
    Reboot,
    ResetGpu,
    SetCondition,
    SetDaemonPhase,
    SetMig,
    TimedFault,
    Vacate,
)
from partage.sim.node.files.reading import (
    choice,
    index_number,
    matching,
    seconds,
    some_text,
    truth,
    unlike,
    whole_number,
)
from partage.units import parse_bytes

_CALLS: dict[str, Call] = {verb: verb for verb in get_args(Call)}
_ERRORS: dict[str, type[HardwareError]] = {
    "driver-unavailable": DriverUnavailable,
    "timeout": HardwareTimeout,
    "gpu-lost": GpuLost,
    "in-use": GpuInUse,
    "no-room": InsufficientResources,
    "not-there": NotFound,
    "not-permitted": NotPermitted,
    "unsupported": Unsupported,
}
_PHASES = {
    "dies": DaemonPhase.DEAD,
    "faults": DaemonPhase.FAULT,
    "hangs": DaemonPhase.SILENT,
    "serves": DaemonPhase.SERVING,
}
_CONTAINER = re.compile(r"(?:[0-9a-f]{64})?", re.ASCII)
_POD = re.compile(r"(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})?", re.ASCII)

Syntax = Mapping[str, Value]
"""A fault as YAML or JSON has it."""


def parse_timed_fault(words: Syntax) -> TimedFault:
    """A fault with ``after-s`` (seconds since the first call) or ``after-calls``. Raises ValueError."""
    when = {key: words[key] for key in ("after-s", "after-calls") if key in words}
    if len(when) != 1:
        raise ValueError("a fault of a machine needs one of after-s and after-calls")
    fault = parse_fault({key: value for key, value in words.items() if key not in when})
    if "after-s" in when:
        return TimedFault(fault, after_s=seconds(when["after-s"]))
    return TimedFault(fault, after_calls=whole_number(when["after-calls"]))


def parse_fault(words: Syntax) -> Fault:
    """The fault that ``words`` describe. Raises ValueError with a sentence.

    Of a GPU: ``{gpu: 2, lost: true | reason}``, ``{gpu: 2, returns: true}``, ``{gpu: 2, reset: true}``,
    ``{gpu: 2, xid: 79, gi: 1, ci: 0}``, ``{gpu: 2, recovery: gpu-reset}``; ``rows-pending``,
    ``rows-failed``, ``fabric``, each true or false; ``{gpu: 2, mig: [3g.40gb, 1g.10gb]}``, where ``off``
    turns MIG mode off; ``{gpu: 2, used-by: python, gi: 1, ci: 0, kind: process | monitor, pid: 4711}``,
    without ``gi`` the whole GPU, with a pid also ``memory: 8Gi``, ``container: ID``, ``pod: UID`` and
    ``mps: true``; ``{gpu: 2, left-by: python}``, where true means all programs.
    Of the node: ``{reboot: true}``, ``{driver: gone | loaded | version}``, ``{xid: 43}``, ``{blind: true}``.
    Of a call of the port (observe, conditions, events, perform, uses, processes, time-slices):
    ``{call: observe, fail: timeout, times: 3}``, ``{call: observe, hang: true | seconds}``,
    ``{call: observe, heal: true}``; ``{call: perform, fail: timeout, done: true}``: the step is
    done, and only its answer is lost.
    """
    kind = next((key for key in _KINDS if key in words), None)
    if kind is None:
        raise ValueError(f"what happens? one of {', '.join(_KINDS)}")
    parse, companions = _KINDS[kind]
    strangers = [key for key in words if key != kind and key not in companions]
    if strangers:
        raise ValueError(f"{strangers[0]!r} does not go with {kind!r}")
    return parse(words)


def _gpu(words: Syntax) -> int:
    if "gpu" not in words:
        raise ValueError("which GPU? its index, as in gpu: 2")
    return index_number(words["gpu"])


def _yes(words: Syntax, key: str) -> None:
    if words[key] is not True:
        raise unlike(f"{key}: true", words[key])


def _call(words: Syntax) -> Call:
    return _CALLS[choice(words.get("call"), _CALLS)]


def _lost(words: Syntax) -> Fault:
    reason = words["lost"]
    if isinstance(reason, str) and reason:
        return LoseGpu(_gpu(words), reason)
    _yes(words, "lost")
    return LoseGpu(_gpu(words))


def _returns(words: Syntax) -> Fault:
    _yes(words, "returns")
    return GpuReturns(_gpu(words))


def _xid(words: Syntax) -> Fault:
    gi, ci = (whole_number(words[key]) if key in words else None for key in ("gi", "ci"))
    return RaiseXid(_gpu(words) if "gpu" in words else None, whole_number(words["xid"]), gi, ci)


def _reset(words: Syntax) -> Fault:
    _yes(words, "reset")
    return ResetGpu(_gpu(words))


def _recovery(words: Syntax) -> Fault:
    names = {action.word: action for action in RecoveryAction}
    return SetCondition(_gpu(words), recovery=names[choice(words["recovery"], names)])


def _reboot(words: Syntax) -> Fault:
    _yes(words, "reboot")
    return Reboot()


def _driver(words: Syntax) -> Fault:
    word = some_text(words["driver"])
    if word == "gone":
        return DriverGone()
    return DriverLoaded("" if word == "loaded" else word)


def _mig(words: Syntax) -> Fault:
    layout = words["mig"]
    if layout == "off" or layout is False:
        return SetMig(_gpu(words), None)
    if not isinstance(layout, list):
        raise unlike("mig: a list of profiles, or off,", layout)
    return SetMig(_gpu(words), tuple(LayoutItem.parse(str(item)) for item in layout))


def _used_by(words: Syntax) -> Fault:
    gi, ci, pid = (whole_number(words[key]) if key in words else None for key in ("gi", "ci", "pid"))
    if ci is not None and gi is None:
        raise ValueError("in which GPU instance? its id, as in gi: 1")
    kinds = {kind.value: kind for kind in (UseKind.PROCESS, UseKind.MONITOR)}
    kind = kinds[choice(words.get("kind", "process"), kinds)]
    return Occupy(
        _gpu(words),
        some_text(words["used-by"]),
        kind,
        gi,
        ci,
        pid,
        memory_bytes=parse_bytes(str(words["memory"])) if "memory" in words else None,
        container=matching(words.get("container", ""), _CONTAINER, "a container's id, 64 digits a-f,"),
        pod=matching(words.get("pod", ""), _POD, "a pod's UID"),
        mps=truth(words.get("mps", False)),
    )


def _left_by(words: Syntax) -> Fault:
    who = words["left-by"]
    return Vacate(_gpu(words), None if who is True else some_text(who))


def _times(words: Syntax) -> int | None:
    return whole_number(words["times"], 1) if "times" in words else 1


def _fail(words: Syntax) -> Fault:
    error, call = _ERRORS[choice(words["fail"], _ERRORS)], _call(words)
    done = truth(words["done"]) if "done" in words else False
    return FailCall(call, error(f"simulated: {call} failed"), _times(words), done)


def _hang(words: Syntax) -> Fault:
    duration = None if words["hang"] is True else seconds(words["hang"])
    return HangCall(_call(words), duration, _times(words))


def _heal(words: Syntax) -> Fault:
    _yes(words, "heal")
    return HealCall(_call(words))


def _mps_daemon(words: Syntax) -> Fault:
    return SetDaemonPhase(_gpu(words), _PHASES[choice(words["mps-daemon"], _PHASES)])


_KINDS: dict[str, tuple[Callable[[Syntax], Fault], tuple[str, ...]]] = {
    "lost": (_lost, ("gpu",)),
    "returns": (_returns, ("gpu",)),
    "xid": (_xid, ("gpu", "gi", "ci")),
    "reset": (_reset, ("gpu",)),
    "recovery": (_recovery, ("gpu",)),
    "rows-pending": (
        lambda words: SetCondition(_gpu(words), rows_pending=truth(words["rows-pending"])),
        ("gpu",),
    ),
    "rows-failed": (
        lambda words: SetCondition(_gpu(words), rows_failed=truth(words["rows-failed"])),
        ("gpu",),
    ),
    "fabric": (lambda words: SetCondition(_gpu(words), fabric_ok=truth(words["fabric"])), ("gpu",)),
    "mig": (_mig, ("gpu",)),
    "used-by": (_used_by, ("gpu", "gi", "ci", "kind", "pid", "memory", "container", "pod", "mps")),
    "left-by": (_left_by, ("gpu",)),
    "reboot": (_reboot, ()),
    "driver": (_driver, ()),
    "mps-daemon": (_mps_daemon, ("gpu",)),
    "blind": (lambda words: HideProcesses(truth(words["blind"])), ()),
    "fail": (_fail, ("call", "times", "done")),
    "hang": (_hang, ("call", "times")),
    "heal": (_heal, ("call",)),
}
