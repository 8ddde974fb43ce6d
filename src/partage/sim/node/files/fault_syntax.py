"""Reads faults: ``{gpu: 2, xid: 79}``, ``{call: observe, hang: 30}``, ``{reboot: true}``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import get_args

from partage.codec.fields import Field, Table, kebab_case
from partage.codec.reader import Reader, number, word_of
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
from partage.model.gpu_use import UseKind
from partage.model.layout import LayoutItem
from partage.model.mps import DaemonPhase
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
    LastClientLeaves,
    LoseCapabilityFiles,
    LoseGpu,
    LoseLimits,
    Occupy,
    RaiseXid,
    Reboot,
    ResetGpu,
    SetCondition,
    SetDaemonPhase,
    SetMig,
    SetSensors,
    TimedFault,
    Vacate,
)
from partage.sim.node.files.value_syntax import read_bytes, read_index, read_load, read_sensors
from partage.sim.node.load import Sensors

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
    "lacks-limits": DaemonPhase.STARTING,
}
_USE_KINDS = {kind.value: kind for kind in (UseKind.PROCESS, UseKind.MONITOR)}
_CONTAINER = re.compile(r"(?:[0-9a-f]{64})?", re.ASCII)
_POD = re.compile(r"(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})?", re.ASCII)

_WHEN = ("after-s", "after-calls")


def read_timed_fault(place: Field) -> TimedFault | None:
    """A fault with ``after-s`` (seconds since the first call) or ``after-calls``; see ``read_fault``."""
    before = place.notes.errors
    words = _words(place, _WHEN)
    if words is None:
        return None
    after_s = words.value("after-s", Field.seconds, None)
    after_calls = _number(words, "after-calls")
    if ("after-s" in words) == ("after-calls" in words):
        place.error("a fault of a machine needs one of after-s and after-calls")
    fault = _fault(words)
    return TimedFault(fault, after_s, after_calls) if place.notes.errors == before else None


def read_fault(place: Field) -> Fault | None:
    """The fault that is written there; None where there is none, and the problems are noted.

    Of a GPU: ``{gpu: 2, lost: true | reason}``, ``{gpu: 2, returns: true}``, ``{gpu: 2, reset: true}``,
    ``{gpu: 2, xid: 79, gi: 1, ci: 0}``, ``{gpu: 2, recovery: gpu-reset}``; ``rows-pending``,
    ``rows-failed``, ``fabric``, each true or false; ``{gpu: 2, mig: [3g.40gb, 1g.10gb]}``, where ``off``
    turns MIG mode off; ``capability-files``, true or false; ``{gpu: 2, used-by: python, gi: 1, ci: 0,
    kind: process | monitor, pid: 4711}``, without ``gi`` the whole GPU, with a pid also ``memory: 8Gi``,
    ``container: ID``, ``pod: UID``, ``mps: true``, ``limit: 8Gi`` and ``load`` (``load_syntax``);
    ``{gpu: 2, left-by: python}``, where true means all programs; ``{gpu: 2, sensors: {...}}``; ``{gpu: 2,
    last-client-leaves: true}``; ``{gpu: 2, limits-lost: true}``. Of the node: ``{reboot: true}``, ``{driver:
    gone | loaded | version}``, ``{xid: 43}``, ``{processes-hidden: true}``.
    Of a call of the port (observe, conditions, events, perform, uses, processes, samples, time-slices):
    ``{call: observe, fail: timeout, times: 3}``, ``{call: observe, hang: true | seconds}``,
    ``{call: observe, heal: true}``; ``{call: perform, fail: timeout, done: true}``: the step is
    done, and only its answer is lost.
    """
    before = place.notes.errors
    words = _words(place, ())
    fault = _fault(words) if words else None
    return fault if place.notes.errors == before else None


def _words(place: Field, more: Sequence[str]) -> Table | None:
    """The fault as a table: its kind, the keys that go with it, and ``more``."""
    written = place.value
    if not isinstance(written, dict):
        place.error("has to be a mapping such as {gpu: 2, xid: 79}")
        return None
    spelled = {kebab_case(key) if place.notes.dialect.any_spelling else key: key for key in written}
    kind = next((key for key in _KINDS if key in spelled), None)
    if kind is None:
        place.error(f"what happens? one of {', '.join(_KINDS)}")
        return None
    known = (kind, *_KINDS[kind][1], *more)
    unknown = [key for kebab, key in spelled.items() if kebab not in known]
    if unknown:
        place.error(f"{unknown[0]!r} does not go with {kind!r}")
        return None
    return place.table(known)


def _fault(words: Table) -> Fault:
    """The fault; where a problem is noted, one that must not be used."""
    read, _ = _KINDS[words.keys[0]]
    return read(words)


# --- values ----------------------------------------------------------------------------------------


def _gpu(words: Table) -> int:
    field = words.required("gpu", "its index, as in gpu: 2")
    return (read_index(field) if field else None) or 0


def _number(words: Table, key: str) -> int | None:
    return words.value(key, number(0), None)


def _yes(words: Table) -> None:
    kind = words.here(words.keys[0])
    if kind.value is not True:
        kind.unfit("true")


def _truth(words: Table) -> bool:
    return words.needed(words.keys[0], Field.boolean) is True


def _call(words: Table) -> Call:
    return words.needed("call", word_of(_CALLS)) or "observe"


# --- kinds -----------------------------------------------------------------------------------------


def _lost(words: Table) -> Fault:
    reason = words.here("lost")
    if reason.value is True:
        return LoseGpu(_gpu(words))
    if not isinstance(reason.value, str):
        reason.unfit("true or a reason")
    return LoseGpu(_gpu(words), reason.some_text() or "")


def _happens(kind: Callable[[int], Fault]) -> Callable[[Table], Fault]:
    """A fault of a GPU of which nothing else is said."""

    def read(words: Table) -> Fault:
        _yes(words)
        return kind(_gpu(words))

    return read


def _xid(words: Table) -> Fault:
    gpu = _gpu(words) if "gpu" in words else None
    return RaiseXid(gpu, _number(words, "xid") or 0, _number(words, "gi"), _number(words, "ci"))


def _recovery(words: Table) -> Fault:
    names = {action.word: action for action in RecoveryAction}
    return SetCondition(_gpu(words), recovery=words.needed("recovery", word_of(names)))


def _reboot(words: Table) -> Fault:
    _yes(words)
    return Reboot()


def _driver(words: Table) -> Fault:
    word = words.needed("driver", Field.some_text) or ""
    if word == "gone":
        return DriverGone()
    return DriverLoaded("" if word == "loaded" else word)


def _mig(words: Table) -> Fault:
    layout = words.here("mig")
    if layout.value == "off" or layout.value is False:
        return SetMig(_gpu(words), None)
    if not isinstance(layout.value, list):
        layout.unfit("a list of profiles, or off")
    items = [item.parsed(LayoutItem.parse, "3g.40gb") for item in layout.one_or_many() or ()]
    return SetMig(_gpu(words), tuple(item for item in items if item))


def _used_by(words: Table) -> Fault:
    gi, ci, pid = (_number(words, key) for key in ("gi", "ci", "pid"))
    if ci is not None and gi is None:
        words.here("ci").error("in which GPU instance? its id, as in gi: 1")
    fault = _OCCUPY.fill(words, gi=gi, ci=ci, pid=pid, gpu=_gpu(words))
    if fault.job and ("container" in words or "pod" in words):
        words.here("job").error("a process of a Slurm job is in no container: leave container and pod out")
    return fault


def _job(field: Field) -> str | None:
    """The number of a Slurm job."""
    job = field.integer(0)
    return None if job is None else str(job)


_OCCUPY = Reader(
    Occupy,
    named={"name": "used-by", "memory_bytes": "memory", "limit_bytes": "limit"},
    reads={
        "name": Field.some_text,
        "kind": word_of(_USE_KINDS),
        "memory_bytes": read_bytes,
        "limit_bytes": read_bytes,
        "container": lambda field: field.matching(_CONTAINER, "a container's id, 64 digits a-f"),
        "pod": lambda field: field.matching(_POD, "a pod's UID"),
        "load": read_load,
        "job": _job,
    },
)


def _sensors(words: Table) -> Fault:
    return SetSensors(_gpu(words), words.needed("sensors", read_sensors) or Sensors())


def _left_by(words: Table) -> Fault:
    who = words.here("left-by")
    return Vacate(_gpu(words), None if who.value is True else who.some_text())


def _times(words: Table) -> int | None:
    return words.nullable("times", number(1), 1)


def _fail(words: Table) -> Fault:
    error = words.needed("fail", word_of(_ERRORS)) or HardwareTimeout
    call, done = _call(words), words.boolean("done", default=False)
    return FailCall(call, error(f"simulated: {call} failed"), _times(words), done)


def _hang(words: Table) -> Fault:
    duration = words.here("hang")
    return HangCall(_call(words), None if duration.value is True else duration.seconds(), _times(words))


def _heal(words: Table) -> Fault:
    _yes(words)
    return HealCall(_call(words))


def _mps_daemon(words: Table) -> Fault:
    phase = words.needed("mps-daemon", word_of(_PHASES))
    return SetDaemonPhase(_gpu(words), phase or DaemonPhase.DEAD)


_KINDS: dict[str, tuple[Callable[[Table], Fault], tuple[str, ...]]] = {
    "lost": (_lost, ("gpu",)),
    "returns": (_happens(GpuReturns), ("gpu",)),
    "xid": (_xid, ("gpu", "gi", "ci")),
    "reset": (_happens(ResetGpu), ("gpu",)),
    "recovery": (_recovery, ("gpu",)),
    "rows-pending": (
        lambda words: SetCondition(_gpu(words), rows_pending=_truth(words)),
        ("gpu",),
    ),
    "rows-failed": (
        lambda words: SetCondition(_gpu(words), rows_failed=_truth(words)),
        ("gpu",),
    ),
    "fabric": (lambda words: SetCondition(_gpu(words), fabric_ok=_truth(words)), ("gpu",)),
    "mig": (_mig, ("gpu",)),
    "capability-files": (
        lambda words: LoseCapabilityFiles(_gpu(words), not _truth(words)),
        ("gpu",),
    ),
    "last-client-leaves": (_happens(LastClientLeaves), ("gpu",)),
    "limits-lost": (_happens(LoseLimits), ("gpu",)),
    "used-by": (_used_by, _OCCUPY.keys),
    "sensors": (_sensors, ("gpu",)),
    "left-by": (_left_by, ("gpu",)),
    "reboot": (_reboot, ()),
    "driver": (_driver, ()),
    "mps-daemon": (_mps_daemon, ("gpu",)),
    "processes-hidden": (lambda words: HideProcesses(_truth(words)), ()),
    "fail": (_fail, ("call", "times", "done")),
    "hang": (_hang, ("call", "times")),
    "heal": (_heal, ("call",)),
}
