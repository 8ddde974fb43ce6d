"""Asks and tells slurmctld by scontrol and squeue, for the agent and for verbs.

With a fixed PATH. It never decides.
(``programs`` is for prologs, which must end whatever happens.)
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from partage.codec.values import CodecError
from partage.errors import Absent, ClusterError, PartageError, Rejected
from partage.slurm.host.programs import SlurmCommands
from partage.slurm.model import LiveJob, LiveNode, LiveSettings, QueuedJob, SlurmVersion
from partage.slurm.text.answers import (
    JOB_FORMAT,
    parse_job_lines,
    parse_jobs,
    parse_node,
    parse_nodes,
    parse_queue,
    parse_settings,
)

PATH = (
    "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin:/opt/slurm/sbin:/opt/slurm/bin"
    ":/cm/shared/apps/slurm/current/bin"
)
"""The directories of Slurm's programs, if none is named."""

DEADLINE_S = 15.0


class SlurmControl:
    """Slurm's programs on this host. directory: where they are; None: in PATH.

    Calls block. They raise Unreachable (no answer), Absent (no such node), Rejected (a refusal) and
    Unsatisfiable (the program is not there).
    """

    def __init__(
        self,
        directory: Path | None = None,
        environ: Mapping[str, str] | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        environ = os.environ if environ is None else environ
        path = PATH if directory is None else f"{directory}:{PATH}"
        self._commands = SlurmCommands(path, environ, deadline_s)
        self._no_json = False

    @property
    def installed(self) -> bool:
        """Whether scontrol is there."""
        return self._commands.found("scontrol") is not None

    def version(self) -> SlurmVersion:
        """The version of scontrol; of slurmd, where scontrol says nothing: it does not without a slurm.conf,
        which a configless node has once slurmd runs.
        """
        try:
            text = self._commands.run("scontrol", "--version")
        except ClusterError:
            text = ""
            with contextlib.suppress(PartageError):
                text = self._commands.run("slurmd", "-V")
            if not text:
                raise
        try:
            return SlurmVersion.parse(text)
        except ValueError as error:
            raise Rejected(f"scontrol --version: {error}") from error

    def settings(self) -> LiveSettings:
        """What slurmctld has read."""
        return _parsed(
            "scontrol show config", lambda: parse_settings(self._commands.run("scontrol", "show", "config"))
        )

    def node(self, name: str) -> LiveNode:
        """A node, as slurmctld knows it."""
        return _parsed(
            "scontrol show node", lambda: parse_node(self._commands.run("scontrol", "show", "node", name))
        )

    def nodes(self) -> dict[str, LiveNode]:
        """All nodes, by name."""
        return _parsed(
            "scontrol show node", lambda: parse_nodes(self._commands.run("scontrol", "show", "node"))
        )

    def jobs(self, node: str) -> tuple[LiveJob, ...]:
        """The jobs on a node. A squeue without JSON does not say what they hold."""
        if not self._no_json:
            try:
                return _parsed(
                    "squeue", lambda: parse_jobs(self._commands.run("squeue", "--json", "-w", node), node)
                )
            except Rejected as error:
                if isinstance(error, Absent):
                    raise
                self._no_json = True
        return parse_job_lines(
            self._commands.run("squeue", "--noheader", "-w", node, f"--format={JOB_FORMAT}")
        )

    def queue(self) -> tuple[QueuedJob, ...]:
        """All jobs that wait or run. Raises Rejected where squeue has no JSON."""
        return _parsed("squeue --json", lambda: parse_queue(self._commands.run("squeue", "--json")))

    def drain(self, node: str, reason: str) -> None:
        """Have it get no new jobs. The reason is one line."""
        self._update(node, "state=drain", f"reason={' '.join(reason.split())}")

    def resume(self, node: str) -> None:
        """Have it get jobs again. 22.05 forgets the reason then, 24.11 keeps it until the next job ends."""
        self._update(node, "state=resume")

    def reconfigure(self) -> None:
        """Have slurmctld and every slurmd read their files."""
        self._commands.run("scontrol", "reconfigure")

    def restart_slurmd(self, command: Sequence[str]) -> None:
        """Restart the slurmd of this host."""
        self._commands.run(*command)

    def _update(self, node: str, *changes: str) -> None:
        self._commands.run("scontrol", "update", f"nodename={node}", *changes)


Answer = TypeVar("Answer")


def _parsed(what: str, answer: Callable[[], Answer]) -> Answer:
    try:
        return answer()
    except CodecError as error:
        raise Rejected(f"{what}: {error}") from error
