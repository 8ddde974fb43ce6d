"""Slurm's own programs, asked from a prolog. Only where it has to be: each call is a request to slurmctld.

Every call blocks, has a deadline, and answers None where Slurm does not: a prolog must end.
"""

from __future__ import annotations

import os
import re

from partage.codec.slurm_answers import held_in_json
from partage.codec.slurm_job_text import held_on
from partage.codec.values import CodecError
from partage.edges.slurm.commands import SlurmCommands
from partage.errors import PartageError
from partage.model.slurm_job import HeldDevices, JobId

DEADLINE_S = 5.0
_RUNNING = "RUNNING,COMPLETING,SUSPENDED,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT"
_STRANGE = re.compile(r"[^A-Za-z0-9 .,:;/()_'+-]+", re.ASCII)
_LONGEST_REASON = 200


class SlurmPrograms:
    """node: this node's name in Slurm, SLURMD_NODENAME. Programs are looked for in this process's PATH."""

    def __init__(self, node: str, deadline_s: float = DEADLINE_S) -> None:
        self._node = node
        self._deadline_s = deadline_s

    def held(self, job: JobId) -> HeldDevices | None:
        """What a job has on this node; None: Slurm does not say.

        By its text, which is quick. Where that is not clear, as JSON: 22.05 prints all jobs then.
        """
        said = self._say("scontrol", "--oneliner", "show", "job", "--details", str(job))
        if said is None or (held := held_on(said, self._node)) is not None:
            return None if said is None else held
        said = self._say("squeue", "--json", f"--job={job}")
        try:
            return None if said is None else held_in_json(said, job, self._node)
        except CodecError:
            return None

    def jobs(self) -> frozenset[JobId] | None:
        """The jobs that are on this node, also those that are about to leave it; None: Slurm does not say."""
        said = self._say("squeue", "--noheader", f"--nodelist={self._node}", f"--states={_RUNNING}", "-o%A")
        words = None if said is None else said.split()
        if words is None or not all(word.isascii() and word.isdecimal() for word in words):
            return None
        return frozenset(JobId(int(word)) for word in words)

    def drain(self, reason: str) -> bool:
        """Let this node take no more jobs, and say why; whether Slurm did it."""
        plain = " ".join(_STRANGE.sub(" ", f"partage: {reason}").split())[:_LONGEST_REASON]
        words = ("update", f"NodeName={self._node}", "State=DRAIN", f"Reason={plain}")
        return self._say("scontrol", *words) is not None

    def _say(self, program: str, *words: str) -> str | None:
        if not self._node:
            return None
        commands = SlurmCommands(os.environ.get("PATH", os.defpath), os.environ, self._deadline_s)
        try:
            return commands.run(program, *words)
        except PartageError:
            return None
