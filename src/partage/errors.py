"""All errors that Partage raises on purpose, with exit codes and whether a retry can help.

    PartageError                       base class, never raised itself
    ├─ InputError                      a file, an option or a name is wrong    exit 2, never retried
    ├─ Unsatisfiable                   valid, but impossible on this node      exit 3, never retried
    ├─ HardwareError                   the GPU, its driver or its library      exit 4
    │  ├─ DriverUnavailable            retried: the driver may come back
    │  ├─ HardwareTimeout              retried: a call took too long, or the helper process died
    │  ├─ GpuLost                      retried: after a reset or a repair the GPU may come back
    │  ├─ GpuInUse                     retried: the process that uses the GPU may end
    │  ├─ StateMismatch                retried: observe again, then plan again
    │  ├─ InsufficientResources        never retried
    │  ├─ NotFound                     never retried
    │  ├─ NotPermitted                 never retried
    │  └─ Unsupported                  never retried
    ├─ DaemonError                     an MPS control daemon                   exit 4, retried
    └─ ClusterError                    kubelet, API server, Slurm              exit 5
       ├─ Unreachable                  retried with back-off
       └─ Rejected                     never retried
          ├─ Conflict                  retried: the object has changed meanwhile; read it again
          └─ Absent                    never retried

The modules in ``edges`` translate errors of libraries into these and chain the original. Bugs have no class
here: in a verb they end the process, in the agent a task, which starts again. Whether to retry is an
attribute of the class (``retry``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from msgspec.structs import replace

from partage.values import Frozen

Severity = Literal["error", "warning"]


class Problem(Frozen):
    """One error or warning, and where it is.

    file: the file as the operator named it, ``-`` for standard input; empty if no file is involved.
    path: the place in the file, ``gpus[1].mps.replicas``; empty for the file as a whole.
    hint: one sentence of advice; may be empty.
    """

    file: str
    path: str
    severity: Severity
    message: str
    hint: str = ""

    def __str__(self) -> str:
        """In one line: ``policy.yaml: gpus[1].mps.replicas: ... (hint)``."""
        return f"{self.sentence} ({self.hint})" if self.hint else self.sentence

    @property
    def sentence(self) -> str:
        """The same without the hint."""
        blank = self.file != self.file.strip()  # a reader would not see where the name begins or ends
        file = repr(self.file) if blank else self.file
        return ": ".join(part for part in (file, self.path, self.message) if part)

    def in_file(self, file: str) -> Problem:
        """The same, of that file where it names none."""
        return self if self.file else replace(self, file=file)


class PartageError(Exception):
    """Base class. problems: what is wrong, at least one."""

    exit_code: ClassVar[int] = 4
    retry: ClassVar[bool] = False

    def __init__(self, message: str | Sequence[Problem], hint: str = "") -> None:
        if isinstance(message, str):
            message = (Problem(file="", path="", severity="error", message=message, hint=hint),)
        self.problems: tuple[Problem, ...] = tuple(message)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class InputError(PartageError):
    """A file, an option or a name that the operator gave is wrong."""

    exit_code = 2


def wrong_input(name: object, message: str, hint: str = "") -> InputError:
    """What is wrong with a file as a whole, or with an option. name: a path, ``--node``."""
    return InputError([Problem(str(name), "", "error", message, hint)])


class Unsatisfiable(PartageError):
    """The request is valid, but this node cannot do it."""

    exit_code = 3


def missing_library(purpose: str, library: str, package: str, otherwise: str = "") -> Unsatisfiable:
    """The error where an optional library is not installed. purpose: what needs it, ``a plot``.

    package: what pip calls it. otherwise: what can be done without it.
    """
    hint = f"pip install {package}, into the Python environment of Partage"
    return Unsatisfiable(
        f"{purpose} needs {library}, which is not installed", f"{hint}; {otherwise}" if otherwise else hint
    )


class HardwareError(PartageError):
    """An error of the GPU, its driver or its library."""

    exit_code = 4


class DriverUnavailable(HardwareError):
    """No usable driver or library now."""

    retry = True


class HardwareTimeout(HardwareError):
    """A call did not end within its deadline, or the helper process died during it."""

    retry = True


class GpuLost(HardwareError):
    """The GPU does not answer (it has fallen off the bus, or needs a reset)."""

    retry = True


class GpuInUse(HardwareError):
    """The step needs an idle GPU, and something uses it.

    uses: what uses it, ``process python (pid 42)``; () if not known.
    """

    retry = True

    def __init__(self, message: str | Sequence[Problem], hint: str = "", *, uses: Sequence[str] = ()) -> None:
        super().__init__(message, hint)
        self.uses: tuple[str, ...] = tuple(uses)


class StateMismatch(HardwareError):
    """The GPU, read again, is not in the state that the step expected or should have made."""

    retry = True


class InsufficientResources(HardwareError):
    """Not enough free slices or engines on the GPU, or the number of instances is at its maximum."""


class NotFound(HardwareError):
    """No such GPU, instance or process, or the id belongs to something else now."""


class NotPermitted(HardwareError):
    """The process lacks a privilege."""


class Unsupported(HardwareError):
    """This GPU, driver or node cannot do it."""


class DaemonError(PartageError):
    """An MPS control daemon failed."""

    exit_code = 4
    retry = True


class ClusterError(PartageError):
    """An error of the kubelet, the API server or Slurm."""

    exit_code = 5


class Unreachable(ClusterError):
    """No answer; a later call may succeed."""

    retry = True


class Rejected(ClusterError):
    """The peer answered with a refusal."""


class Conflict(Rejected):
    """The object has changed since it was read, or exists already."""

    retry = True


class Absent(Rejected):
    """There is no such object."""
