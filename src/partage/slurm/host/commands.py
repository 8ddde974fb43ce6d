"""Runs a program of Slurm: with a deadline, a PATH, and of the caller's environment SLURM_CONF alone."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

from partage.errors import Absent, Rejected, Unreachable, Unsatisfiable

_KEPT = ("SLURM_CONF",)
_ABSENT = ("not found", "Invalid node name")
_AWAY = ("Unable to contact", "Connection refused", "timed out", "Zero Bytes", "Socket", "connect failure")


class SlurmCommands:
    """path: where the programs are, as in PATH. environ: of the caller."""

    def __init__(self, path: str, environ: Mapping[str, str], deadline_s: float) -> None:
        self._path = path
        kept = {name: environ[name] for name in _KEPT if environ.get(name)}
        self._environ = {"PATH": path, "LC_ALL": "C", "TZ": "UTC", **kept}
        self._deadline_s = deadline_s

    def found(self, program: str) -> str | None:
        """The path of a program; None: it is not there."""
        return shutil.which(program, path=self._path)

    def run(self, program: str, *arguments: str) -> str:
        """What it prints. Blocks.

        Raises Unsatisfiable (the program is not there), Unreachable (no answer), Absent (no such node) and
        Rejected (a refusal).
        """
        path = self.found(program)
        if path is None:
            raise Unsatisfiable(f"{program} is not installed here", f"it is looked for in {self._path}")
        what = " ".join((program, *arguments[:2]))
        try:
            done = subprocess.run(  # noqa: S603 - a program of a fixed PATH, and no shell
                [path, *arguments],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._deadline_s,
                check=False,
                cwd="/",
            )
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{what}: no answer within {self._deadline_s:g} s") from None
        except OSError as error:
            raise Unreachable(f"{what}: {error.strerror or error}") from error
        output = done.stdout.decode("utf-8", "replace")
        if done.returncode == 0:
            return output
        text = " ".join((done.stderr.decode("utf-8", "replace") or output).split())[-300:]
        message = f"{what}: {text or f'exit code {done.returncode}'}"
        if any(word in message for word in _AWAY):
            raise Unreachable(message)
        raise (Absent if any(word in message for word in _ABSENT) else Rejected)(message)
