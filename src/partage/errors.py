"""Every error that Partage raises on purpose, and who has to do something about it.

    PartageError                  never raised itself
    ├─ InputError                 the operator's text is wrong              exit 2, never retried
    ├─ Unsatisfiable              understood, but impossible on this node   exit 3, never retried
    ├─ HardwareError              the GPU, its driver or its library        exit 4
    │  ├─ DriverUnavailable       retried: the driver may come back
    │  ├─ HardwareTimeout         retried: a call did not end in time, or the helper died
    │  ├─ GpuLost                 retried: a person or a reset has to act first
    │  ├─ GpuInUse                retried: who uses it may go
    │  ├─ StateMismatch               retried: look again, and decide anew
    │  ├─ InsufficientResources                  never retried
    │  ├─ NotFound                never retried
    │  ├─ NotPermitted            never retried
    │  └─ Unsupported             never retried
    ├─ DaemonError                an MPS control daemon                     exit 4
    └─ ClusterError               kubelet, API server, Slurm                exit 5
       ├─ Unreachable             retried with back-off
       └─ Rejected                never retried

Edges translate foreign errors into these and chain the original. A bug is not in the tree: it is
allowed to crash. Whether to retry is a property of the class (``retry``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong (or doubtful) in one place of one file.

    file: as the operator named it, or ``-`` for standard input; empty when no file is involved.
    path: where in the file, ``gpus[1].mps.replicas``; empty for the file as a whole.
    hint: one sentence of advice; may be empty.
    """

    file: str
    path: str
    severity: Severity
    message: str
    hint: str = ""

    def __str__(self) -> str:
        """Say it in one line: ``policy.yaml: gpus[1].mps.replicas: ... (hint)``."""
        where = ": ".join(part for part in (self.file, self.path) if part)
        text = f"{where}: {self.message}" if where else self.message
        return f"{text} ({self.hint})" if self.hint else text


class PartageError(Exception):
    """Base of the tree. ``problems`` says what is wrong, at least once."""

    exit_code: ClassVar[int] = 4
    retry: ClassVar[bool] = False

    def __init__(self, message: str | Sequence[Problem], hint: str = "") -> None:
        if isinstance(message, str):
            message = (Problem(file="", path="", severity="error", message=message, hint=hint),)
        self.problems: tuple[Problem, ...] = tuple(message)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class InputError(PartageError):
    """The operator's text is wrong: a file, an option, a name."""

    exit_code = 2


class Unsatisfiable(PartageError):
    """Understood, but this node cannot do it."""

    exit_code = 3


class HardwareError(PartageError):
    """The GPU, its driver or its library."""

    exit_code = 4


class DriverUnavailable(HardwareError):
    """There is no usable driver or library now."""

    retry = True


class HardwareTimeout(HardwareError):
    """A call did not end within its deadline, or the helper process died during it."""

    retry = True


class GpuLost(HardwareError):
    """The GPU does not answer any more (it fell off the bus, or needs a reset)."""

    retry = True


class GpuInUse(HardwareError):
    """Somebody uses what would have to be idle. uses: who, ``process python (pid 42)``; () if not known."""

    retry = True

    def __init__(self, message: str | Sequence[Problem], hint: str = "", *, uses: Sequence[str] = ()) -> None:
        super().__init__(message, hint)
        self.uses: tuple[str, ...] = tuple(uses)


class StateMismatch(HardwareError):
    """The GPU, read again, is not as somebody said that it is."""

    retry = True


class InsufficientResources(HardwareError):
    """No room on the GPU: no free slices there, no engines left, or as many instances as it can have."""


class NotFound(HardwareError):
    """There is no such GPU or instance, or something else lives under its id by now."""


class NotPermitted(HardwareError):
    """The caller lacks a privilege."""


class Unsupported(HardwareError):
    """This GPU or driver cannot do it."""


class DaemonError(PartageError):
    """An MPS control daemon failed."""

    exit_code = 4
    retry = True


class ClusterError(PartageError):
    """The kubelet, the API server or Slurm."""

    exit_code = 5


class Unreachable(ClusterError):
    """No answer; it may come back."""

    retry = True


class Rejected(ClusterError):
    """It answered, and said no."""
