"""Slurm's own programs: run with a deadline, a PATH, and of the caller's environment SLURM_CONF alone.

A prolog or a task prolog asks them only where it has to: each call is a request to slurmctld. It blocks. A
silent slurmctld is asked again: no job gets past its prolog without it, since slurmd reports the prolog's end
to it, so waiting costs nobody anything.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping

from partage.codec.values import CodecError
from partage.errors import Absent, PartageError, Rejected, Unreachable, Unsatisfiable
from partage.slurm.model import HeldDevices, JobId
from partage.slurm.text.answers import NAMES_FORMAT, has_gpus_on, held_in_json, held_on, parse_job_names

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


DEADLINE_S = 5.0
ASK_S = 60.0
"""How long a silent slurmctld is asked again what a job has. A restart, or a change to its backup, takes
less."""
REQUEUE_S = 1800.0
"""How long it is asked again to put a job back: else the job would be lost, or the node drained."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_RUNNING = "RUNNING,COMPLETING,SUSPENDED,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT"
_STRANGE = re.compile(r"[^A-Za-z0-9 .,:;/()_'+-]+", re.ASCII)
_LONGEST_REASON = 200
_EXPIRY = re.compile(r"^AuthInfo\s*=.*\bcred_expire=(\d{1,6})\b", re.ASCII | re.MULTILINE)
_EXPIRY_S, _MARGIN_S = 120, 10
"""Of a credential, if slurm.conf does not say it (the default of all releases)."""


class SlurmPrograms:
    """node: this node's name in Slurm, SLURMD_NODENAME. Programs are looked for in this process's PATH.

    Calls raise Unreachable where slurmctld stays silent, and Unsatisfiable where the program is not there,
    except those that say otherwise.
    """

    def __init__(
        self,
        node: str,
        deadline_s: float = DEADLINE_S,
        ask_s: float = ASK_S,
        requeue_s: float = REQUEUE_S,
    ) -> None:
        self._node = node
        self._deadline_s = deadline_s
        self._ask_s, self._requeue_s = ask_s, requeue_s

    def held(self, job: JobId) -> HeldDevices | None:
        """What a job has on this node; None: Slurm does not say, or not clearly.

        By its text, which is quick. Where that is not clear, as JSON: 22.05 prints all jobs then.
        """
        text = self._show(job)
        held = None if text is None else held_on(text, self._node)
        if text is not None and held is None:
            text = self._answer(self._ask_s, "squeue", "--json", f"--job={job}")
            try:
                held = None if text is None else held_in_json(text, job, self._node)
            except CodecError:
                held = None
        return held if held is not None and held.indexes else None

    def has_gpus(self, job: JobId) -> bool | None:
        """Whether a job, with all its components, has GPUs of this node; None: Slurm does not know the job.

        job: as its tasks know it.
        """
        text = self._show(job)
        return None if text is None else has_gpus_on(text, self._node)

    def jobs(self) -> frozenset[JobId] | None:
        """The jobs that are on this node, also those that are about to leave it; None: Slurm does not say.
        It is asked once. Never raises.
        """
        text = self._say(*self._names())
        found = None if text is None else parse_job_names(text)
        return None if found is None else frozenset(found)

    def requeue(self, job: JobId, why: str) -> bool:
        """Put a job back into the queue; whether Slurm did it. It does it for batch jobs, unless they or the
        cluster forbid it (``--no-requeue``, ``JobRequeue=0``).

        It begins again once slurmd has forgotten its credential, 130 s later where the cluster has no
        ``cred_expire``. Slurm itself takes 121 s, and 22.05 has slurmd look for old credentials every 2 s at
        most: of a job that comes back before that, it runs no prolog (seen on 22.05.8;
        ``_clear_expired_job_states`` in src/common/slurm_cred.c). why: for the job's AdminComment, which
        ``scontrol show job`` prints.
        """
        text = self._answer(self._requeue_s, *self._names())
        name = ((text and parse_job_names(text)) or {}).get(job)
        if name is None:
            return False
        settings = self._answer(self._requeue_s, "scontrol", "show", "config") or ""
        expiry = _EXPIRY.search(settings)
        later_s = (int(expiry[1]) if expiry else _EXPIRY_S) + _MARGIN_S
        try:
            self._asked(self._requeue_s, "scontrol", "requeue", name)
        except Rejected as error:  # of a job on several nodes, another one was first
            return "is pending" in str(error)
        later = (f"JobId={name}", f"StartTime=now+{later_s}", f"AdminComment={_plain(why)}")
        with contextlib.suppress(PartageError):  # it is in the queue all the same, and not lost
            self._answer(self._requeue_s, "scontrol", "update", *later)
        return True

    def drain(self, reason: str) -> bool:
        """Let this node take no more jobs, and say why; whether Slurm did it. Asked once. Never raises."""
        words = ("update", f"NodeName={self._node}", "State=DRAIN", f"Reason={_plain(reason)}")
        return self._say("scontrol", *words) is not None

    def _show(self, job: JobId) -> str | None:
        return self._answer(self._ask_s, "scontrol", "--oneliner", "show", "job", "--details", str(job))

    def _names(self) -> tuple[str, ...]:
        where = (f"--nodelist={self._node}", f"--states={_RUNNING}")
        return ("squeue", "--noheader", *where, f"--format={NAMES_FORMAT}")

    def _say(self, program: str, *words: str) -> str | None:
        """Once; None: no answer, or a refusal."""
        try:
            return self._answer(0.0, program, *words)
        except PartageError:
            return None

    def _answer(self, limit_s: float, program: str, *words: str) -> str | None:
        """None: a refusal."""
        try:
            return self._asked(limit_s, program, *words) if self._node else None
        except Rejected:
            return None

    def _asked(self, limit_s: float, program: str, *words: str) -> str:
        """Asked again until there is an answer, for about ``limit_s``."""
        commands = SlurmCommands(os.environ.get("PATH", os.defpath), os.environ, self._deadline_s)
        end, pause_s = time.monotonic() + limit_s, _PAUSE_S
        while True:
            try:
                return commands.run(program, *words)
            except Unreachable:
                if time.monotonic() + pause_s > end:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _plain(sentence: str) -> str:
    return " ".join(_STRANGE.sub(" ", f"partage: {sentence}").split())[:_LONGEST_REASON]
