"""What ``partage apply`` has beside its node: the journal and the state that it shares with the agent, and
with ``--drain`` a command that makes holders leave.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from partage.answers import common_output
from partage.codec.values import encode
from partage.errors import DaemonError, InputError, Problem
from partage.model.ids import GpuUuid
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.edges.files.journal import Journal, Unfinished
    from partage.edges.files.state import SavedState, StateDir
    from partage.model.gpu import Inventory
    from partage.plan.reconcile.node_plan import NodePlan
    from partage.plan.reconcile.settings_steps import OriginalSettings


AGAIN_S = 2.0
"""Seconds between two requests for the holders: the kubelet limits the rate."""


class DrainCommand(Frozen):
    """``--drain``: runs a command with the holders as input, then waits until the next check."""

    line: str

    async def __call__(self, plan: NodePlan, inventory: Inventory, left_s: float) -> None:
        """Raises InputError if there is no such command. If it fails, a warning is printed, and it is
        retried."""
        from partage.answers.documents.plan import HoldersDocument, blocked_of, holder_rows

        document = encode(HoldersDocument(holders=holder_rows(blocked_of(plan), inventory)))
        began = asyncio.get_running_loop().time()
        trouble = await self._run(document, left_s)
        if trouble:
            common_output.print_problems([Problem("", "", "warning", f"--drain: {trouble}")])
        spent = asyncio.get_running_loop().time() - began
        await asyncio.sleep(max(0.0, min(AGAIN_S, left_s - spent)))

    async def _run(self, document: bytes, left_s: float) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(self.line), stdin=asyncio.subprocess.PIPE, stdout=2
            )
        except OSError as error:
            raise InputError(f"--drain: {self.line!r} cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(left_s):
                await process.communicate(document)
        except TimeoutError:
            process.kill()
            await process.wait()
            return f"the command did not end within {left_s:.0f} s"
        return f"the command ended with exit code {process.returncode}" if process.returncode else ""


def drain_command(line: str | None) -> DrainCommand | None:
    """The command that ``--drain`` names. Raises InputError where it is none."""
    try:
        if line is not None and not shlex.split(line):
            raise InputError("--drain names no command")
    except ValueError as error:
        raise InputError(f"--drain is not a command: {error}") from error
    return None if line is None else DrainCommand(line)


class ApplyState(Frozen):
    """What is kept on disk; nothing for a simulated node.

    journal: None if nothing is written. unfinished: an interrupted run. directory, saved: the state that is
    shared with the agent.
    """

    journal: Journal | None = None
    unfinished: Unfinished | None = None
    directory: StateDir | None = None
    saved: SavedState | None = None


@contextmanager
def open_state(state_dir: Path | None, *, dry_run: bool, undo: bool) -> Iterator[ApplyState]:
    """The state on disk. The state directory is locked during the block."""
    from partage.edges.files.journal import Journal, UnreadableJournal, read_journal
    from partage.edges.files.state import StateDir, read_state

    if state_dir is None:
        yield ApplyState()
        return
    if dry_run:
        last = read_journal(state_dir)
        unfinished = None if isinstance(last, UnreadableJournal) else last
        yield ApplyState(unfinished=unfinished, saved=read_state(state_dir))
        return
    try:
        state = StateDir(state_dir)
    except InputError as error:
        hint = "the agent owns the node: give it the policy, or stop it; partage plan shows what it would do"
        raise InputError(error.problems[0].message, hint) from error
    try:
        if state.problem is not None:
            raise DaemonError(state.problem, "name another directory with --state-dir")
        last = read_journal(state_dir)
        if isinstance(last, UnreadableJournal):
            if undo:
                raise InputError(last.reason, "name the policy to apply with --policy")
            common_output.print_problems([Problem("", "", "warning", f"{last.reason}; planned again")])
            last = None
        if last is not None:
            common_output.print_problems(
                [Problem("", "", "warning", f"{last}; continuing from the present state")]
            )
        loaded = state.load(0.0)
        common_output.print_problems(Problem("", "", "warning", problem) for problem in loaded.problems)
        yield ApplyState(Journal(state_dir), last, state, loaded.state)
    finally:
        state.close()


class SavedOriginals:
    """Settings of GPUs before Partage changed them, in the state that is shared with the agent."""

    def __init__(self, state: ApplyState) -> None:
        self._directory = state.directory
        self._saved = state.saved
        self._boot_id = ""

    def of(self, boot_id: str) -> Mapping[GpuUuid, OriginalSettings]:
        """What was saved during this boot."""
        self._boot_id = boot_id
        return {} if self._saved is None else self._saved.original_in(boot_id)

    async def save(self, original: Mapping[GpuUuid, OriginalSettings]) -> None:
        """Write them. Raises DaemonError if that fails: then nothing may be changed."""
        from partage.edges.files.state import SavedState

        if self._directory is None:
            return
        saved = replace(self._saved or SavedState(), boot_id=self._boot_id, original=original)
        failure = await asyncio.to_thread(self._directory.save, saved, 0.0)
        if failure is not None:
            raise DaemonError(failure.reason, "nothing is changed that could not be restored")
