"""One slice of a run: puts back what an earlier one has left, then step after step until the time is over.

This process never opens the driver: a call that hangs there hangs a child, which is left at its limit.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from msgspec.structs import replace

from partage import __version__
from partage.answers.documents.lab import now
from partage.codec.values import CodecError, decode, encode
from partage.edges.host import procfs
from partage.edges.mps.launch import unmount
from partage.errors import DriverUnavailable, HardwareError, InputError, Unsatisfiable
from partage.values import Frozen
from tools.on_gpu import procs, put_back, steps
from tools.on_gpu.journal import Journal, Unfinished
from tools.on_gpu.notes import StepAnswer, StepPlace
from tools.on_gpu.result import EVIDENCE, HardwareEvidence, Outcome, SeenMachine, StepRun, Verdict, save
from tools.on_gpu.steps import STEPS, IdentifyRequest, Identity, Step

_PROC = Path("/proc")
_HOME = Path(__file__).resolve().parents[2]
_PUT_BACK_S = 200.0
_TIDY_S = 60.0
_BESIDE_S = 30.0
"""Of a slice, beside its steps: the first look, and the end."""
_CODES = {error.exit_code: error for error in (InputError, Unsatisfiable, HardwareError)}


class Interrupted(Exception):
    """A signal asks the run to end."""


class RunOptions(Frozen):
    """What was asked for. minutes: of this slice; None: until all is done. only: names of steps; (): all.

    again: steps that are done here are done once more.
    """

    result: Path
    state_dir: Path
    driver_root: Path = Path("/")
    gpu: str | None = None
    python: str | None = None
    change: bool = False
    minutes: float | None = None
    only: tuple[str, ...] = ()
    again: bool = False


class SliceEnd(Frozen):
    """What a slice has done. open: names of steps that are still to be done here."""

    evidence: HardwareEvidence
    open: tuple[str, ...]


def run_slice(options: RunOptions, tell: Callable[[str], None]) -> SliceEnd:
    """Look for one slice. The result file is whole after each step; so is the machine.

    Raises DriverUnavailable, HardwareError (no GPU, or settings that could not be put back), Unsatisfiable
    (another run, no root for changes), InputError, OSError.
    """
    ends = None if options.minutes is None else time.monotonic() + 60 * options.minutes - _BESIDE_S
    _check_minutes(options)
    procs.become_reaper()
    journal = Journal(options.state_dir)
    _finish_former(journal, tell)
    evidence = EVIDENCE.read(str(options.result)) if options.result.exists() else _fresh()
    with _signals(), _working_directory() as work:
        unfinished = Unfinished(str(work), str(options.driver_root), os.getpid(), _own_start())
        journal.write(unfinished)
        try:
            identity = _identify(options, work)
            evidence, number = _with_machine(evidence, identity.machine, tell)
            save(options.result, evidence)
            if options.change:
                journal.write(replace(unfinished, original=identity.original))
            todo = [step for step in STEPS if is_open(step, options, evidence, number)]
            while fitting := [
                step for step in todo if ends is None or time.monotonic() + step.limit_s <= ends
            ]:
                evidence = _step(fitting[0], options, identity, number, work, evidence, tell)
                todo.remove(fitting[0])
                if fitting[0].changes:
                    _put_back(replace(unfinished, original=identity.original), work)
        finally:
            with _deaf():
                _end(journal, work, tell)
    return SliceEnd(evidence, tuple(step.name for step in todo))


def _check_minutes(options: RunOptions) -> None:
    """A slice in which a step has no room would never do it. Raises InputError."""
    longest_s = max(step.limit_s for step in STEPS if not options.only or step.name in options.only)
    least = (longest_s + 2 * _BESIDE_S) / 60
    if options.minutes is not None and options.minutes < least:
        raise InputError(
            f"--minutes {options.minutes:g} is too short: a step may take as long as {longest_s:g} s",
            f"give it {least:g} minutes or more",
        )


def _fresh() -> HardwareEvidence:
    return HardwareEvidence(now()[:10], __version__)


def is_open(step: Step, options: RunOptions, evidence: HardwareEvidence, number: int) -> bool:
    """Whether a step is still to be done on this machine.

    What another machine of this model and driver has seen is not looked at again, where it is so on each
    of them. A
    step that an error or the time limit ended is not tried again by itself: it would end so in every slice.
    """
    if (step.changes and not options.change) or (options.only and step.name not in options.only):
        return False
    if options.again:
        return True
    here = evidence.machines[number]
    for run in evidence.runs:
        if run.step != step.name or run.outcome is Outcome.INTERRUPTED:
            continue
        looked = any(finding.verdict is not Verdict.NOT_HERE for finding in run.findings)
        if run.machine == number or (
            step.by_kind and looked and evidence.machines[run.machine].kind == here.kind
        ):
            return False
    return True


def _with_machine(
    evidence: HardwareEvidence, machine: SeenMachine, tell: Callable[[str], None]
) -> tuple[HardwareEvidence, int]:
    """The machine in the list, and its place there."""
    for number, known in enumerate(evidence.machines):
        if known.identity == machine.identity:
            return evidence, number
    if evidence.machines:
        tell(
            f"this result came from another machine ({evidence.machines[-1]}): what is this machine's own "
            "is done anew, what is so for every machine of one model and driver is kept"
        )
    return replace(evidence, machines=(*evidence.machines, machine)), len(evidence.machines)


# --- children ----------------------------------------------------------------------------------


def _child(
    module: ModuleType,
    *arguments: str,
    limit_s: float,
    log: Path,
    mark: str = "",
    tidy: Callable[[], None] = lambda: None,
) -> procs.ChildEnd:
    """Run a module of ours to its end; nothing that it has started is left. mark: name of the run's
    directory.
    """
    # ``-P``: nothing is imported from the directory that the run was started in.
    path = os.pathsep.join(filter(None, (str(_HOME), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, **({procs.MARK: mark} if mark else {})}
    return procs.run(
        (sys.executable, "-P", "-m", module.__name__, *arguments), environment, limit_s, log, tidy
    )


def _end_daemons(directory: Path, root: Path) -> None:
    """MPS daemons leave the session of who starts them, and obey their command."""
    if (directory / "run" / "mps").is_dir():
        request = encode(Unfinished(str(directory), str(root), 0, 0)).decode()
        _child(put_back, request, limit_s=_TIDY_S, log=directory / "tidy.log")


def _identify(options: RunOptions, work: Path) -> Identity:
    """The machine, before anything else. Raises as the child's exit code says."""
    asked = IdentifyRequest(str(work), str(options.driver_root), options.gpu, options.python)
    answer = work / "identity.json"
    arguments = (steps.IDENTIFY, encode(asked).decode(), str(answer))
    ended = _child(steps, *arguments, limit_s=steps.IDENTIFY_S, log=work / "child.log", mark=work.name)
    if ended.code is None:
        raise DriverUnavailable(
            f"the driver did not answer within {steps.IDENTIFY_S:g} s",
            "dmesg may say which GPU is in trouble",
        )
    if ended.code:
        message, _, hint = ended.tail.partition("\n")
        raise _CODES.get(ended.code, HardwareError)(
            message or f"the first look ended with {ended.code}", hint.strip()
        )
    identity = decode(Identity, answer.read_bytes())
    if options.change and not identity.machine.root:
        raise Unsatisfiable(
            "--change takes root: settings of a GPU are root's", "leave it out, or run this as root"
        )
    return identity


def _step(  # noqa: PLR0917 - what a slice knows
    step: Step, options: RunOptions, identity: Identity, number: int, work: Path, evidence: HardwareEvidence,
    tell: Callable[[str], None],
) -> HardwareEvidence:  # fmt: skip
    """One step; its run is in the file when this returns. That it began is there before."""
    tell(f"{step.name} ...")
    begun = StepRun(step.name, number, now(), 0.0, Outcome.INTERRUPTED)
    save(options.result, replace(evidence, runs=(*evidence.runs, begun)))
    place = work / "step"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o755)
    answer = work / "answer.json"
    answer.unlink(missing_ok=True)
    asked = StepPlace(
        directory=str(place),
        root=str(options.driver_root),
        gpu=identity.original.gpu,
        memory_bytes=identity.memory_bytes,
        torch=identity.torch,
        original=identity.original if step.changes else None,
    )
    started = time.monotonic()
    ended = _child(
        steps, step.name, encode(asked).decode(), str(answer), limit_s=step.limit_s, log=work / "child.log",
        mark=work.name, tidy=lambda: _end_daemons(place, options.driver_root),
    )  # fmt: skip
    said = _answer(answer)
    outcome = Outcome.TIMED_OUT if ended.code is None else Outcome.FAILED if ended.code else Outcome.DONE
    done = replace(
        begun,
        seconds=round(time.monotonic() - started, 2),
        outcome=outcome,
        words=ended.tail if outcome is not Outcome.DONE else "",
        findings=said.findings,
        data=said.data,
        left=ended.left,
    )
    evidence = replace(evidence, runs=(*evidence.runs, done))
    save(options.result, evidence)
    for finding in done.findings:
        tell(f"  {finding.row}: {finding.verdict}: {finding.words}"[:300])
    if outcome is not Outcome.DONE:
        tell(f"  {outcome.value}: {ended.tail.splitlines()[-1] if ended.tail else 'no word'}"[:300])
    for words in ended.left:
        tell(f"  {words}")
    _clear(place)
    return evidence


def _answer(path: Path) -> StepAnswer:
    """What a step has said until it ended."""
    with suppress(OSError, CodecError):
        return decode(StepAnswer, path.read_bytes())
    return StepAnswer()


# --- what is left ------------------------------------------------------------------------------


def _finish_former(journal: Journal, tell: Callable[[str], None]) -> None:
    """End and put back what a killed run has left. Raises Unsatisfiable where it still runs,
    HardwareError.
    """
    former = journal.read()
    if former is None:
        return
    if former.pid != os.getpid() and procfs.start_of(_PROC, former.pid, running=True) == former.start:
        raise Unsatisfiable(f"another run is at work (pid {former.pid})", f"{journal.path} is its journal")
    tell("an earlier run was killed: what it has left is ended, and what it changed is put back")
    work = Path(former.work)
    procs.end_all(work.name)
    with _working_directory() as own:
        _put_back(former, own)
    _clear(work)
    journal.clear()


def _put_back(unfinished: Unfinished, log_in: Path) -> None:
    """In a child, as everything that opens the driver. Raises HardwareError."""
    ended = _child(put_back, encode(unfinished).decode(), limit_s=_PUT_BACK_S, log=log_in / "put-back.log")
    if ended.code != 0:
        last = ended.tail.splitlines()[-1] if ended.tail else "it did not answer in time"
        raise HardwareError(
            f"the GPU's settings were not put back: {last}",
            "make on-gpu tries it again when it is started; nvidia-smi -q shows how they are",
        )


def _end(journal: Journal, work: Path, tell: Callable[[str], None]) -> None:
    """Nothing is left of this run; the journal goes last. Raises HardwareError where a setting stays
    changed.
    """
    unfinished = journal.read()
    procs.end_all(work.name)
    for step in (work / "step", work):
        if unfinished is not None and (step / "run" / "mps").is_dir():
            _end_daemons(step, Path(unfinished.driver_root))
    if unfinished is not None and unfinished.original is not None:
        _put_back(unfinished, work)
        tell("all settings are as they were")
    _clear(work / "step")
    journal.clear()


def _clear(directory: Path) -> None:
    """Remove a directory with all that is mounted in it."""
    mounts = [line.split()[4] for line in procfs.mount_lines(_PROC, "self")]
    for mount in sorted((one for one in mounts if one.startswith(f"{directory}/")), reverse=True):
        with suppress(OSError):
            unmount(mount)
    shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _working_directory() -> Iterator[Path]:
    """With a short path, because sockets are in it; passable, because MPS has clients of other users."""
    work = Path(tempfile.mkdtemp(prefix="pog-", dir="/tmp"))
    work.chmod(0o755)
    try:
        yield work
    finally:
        _clear(work)


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM, SIGHUP and Ctrl-C end the run in order: what was changed is put back."""

    def interrupt(number: int, _: object) -> None:
        raise Interrupted(signal.Signals(number).name)

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _deaf() -> Iterator[None]:
    """Another Ctrl-C does not stop what puts things back; it has time limits of its own."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def _own_start() -> int:
    return procfs.start_of(_PROC, os.getpid()) or 0
