"""State that ``partage apply`` keeps on disk: the journal, and what it shares with the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from partage.answers import common_output
from partage.errors import DaemonError, InputError, Problem
from partage.model.ids import GpuUuid
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.edges.files.journal import Journal, Unfinished
    from partage.edges.files.state import SavedState, StateDir
    from partage.plan.reconcile.settings_steps import OriginalSettings


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
