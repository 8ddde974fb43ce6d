"""What is being done to the node's GPUs, written down before it is done: ``<state-dir>/journal.jsonl``.

One JSON object a line, each flushed to the disk before the next step, so that a process that is killed at
any moment leaves how far it was. A new journal replaces the last one as a whole; the last line may be
incomplete. Work does not continue from a journal: the GPUs are read and planned again. It says what was
wanted, which layouts were there before (for ``--undo``), and where the run stopped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

from msgspec import field

from partage.codec.values import decode, encode
from partage.edges.host.read_file import read_regular
from partage.model.ids import GpuUuid
from partage.model.policy import DesiredMig
from partage.model.step import Created, Step
from partage.values import Frozen, Tagged

LIMIT_BYTES = 16 * 1024 * 1024


class JournalHeader(Frozen):
    """What is about to be done.

    boot_id: of the node. policy: SHA-256 of its text, empty for none. before: what lived on the GPUs that are
    touched, by UUID. back: this run takes back what an earlier journal says.
    """

    boot_id: str
    policy: str
    before: Mapping[GpuUuid, DesiredMig] = field(default_factory=dict)
    back: bool = False
    version: Literal["partage-journal/2"] = "partage-journal/2"


class DoingStep(Tagged):
    """This step comes next. number: of the step, from 1. says: the step in words."""

    number: int
    says: str
    step: Step


class StepDone(Tagged):
    """The step is done. made: what it created."""

    number: int
    made: Created | None


class StepFailed(Tagged):
    """The step could not be done, or it is not known whether it was."""

    number: int
    reason: str


class JournalEnd(Tagged):
    """All GPUs are as they are wanted, or as they were before."""


JournalRow = DoingStep | StepDone | StepFailed | JournalEnd
"""A line of the journal after the first, which is the header."""


class Unfinished(Frozen):
    """A journal without an end. done: steps that were done. open: the one that was under way, in words."""

    header: JournalHeader
    done: int = 0
    open: str = ""

    def __str__(self) -> str:
        under_way = f", in the middle of: {self.open}" if self.open else ""
        return f"the last run stopped after {self.done} steps{under_way}"


class UnreadableJournal(Frozen):
    """A journal that says nothing; reason: one sentence."""

    reason: str


def read_journal(state_dir: Path) -> Unfinished | UnreadableJournal | None:
    """What the last one who changed GPUs has left undone; None: nothing."""
    path = state_dir / "journal.jsonl"
    try:
        content = read_regular(path, LIMIT_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        return UnreadableJournal(f"{path} cannot be read: {error.strerror}")
    try:
        return _unfinished(content)
    except ValueError as error:
        return UnreadableJournal(f"{path} cannot be used: {error}")


class Journal:
    """A journal that is being written. Calls block (fsync), and raise OSError: then nothing may be done."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "journal.jsonl"
        self._file: int | None = None
        self._number = 0

    def begin(self, header: JournalHeader) -> None:
        """Replace the last journal."""
        self.close()
        beside = self._path.with_name(f"{self._path.name}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file, self._number = os.open(beside, flags, 0o600), 0
        self._write(header)
        beside.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def doing(self, step: Step) -> None:
        """This comes next."""
        self._number += 1
        self._write(DoingStep(self._number, str(step), step))

    def done(self, made: Created | None) -> None:
        """It is done."""
        self._write(StepDone(self._number, made))

    def failed(self, reason: str) -> None:
        """It could not be done, or it is not known whether it was."""
        # The reason may quote a file name that is not Unicode text; the journal must not fail for that.
        self._write(StepFailed(self._number, reason.encode(errors="backslashreplace").decode()))

    def end(self) -> None:
        """All GPUs are as they are wanted, or as they were before."""
        self._write(JournalEnd())
        self.close()

    def conclude(self) -> None:
        """End the journal that another process left without an end: what it began is done by now."""
        self.close()
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            written = os.pread(self._file, LIMIT_BYTES, 0)
            os.ftruncate(self._file, written.rfind(b"\n") + 1)  # an unfinished line
            self._write(JournalEnd())
        finally:
            self.close()

    def close(self) -> None:
        """Give the file back; without an end, it stays unfinished. Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, row: JournalHeader | JournalRow) -> None:
        assert self._file is not None, "a journal begins before anything is written"
        content = memoryview(encode(row) + b"\n")
        while content:
            content = content[os.write(self._file, content) :]
        os.fsync(self._file)


def _unfinished(content: bytes) -> Unfinished | None:
    """Raises ValueError for what no journal of this version says."""
    lines = content.split(b"\n")[:-1]  # without an unfinished last line
    if not lines:
        raise ValueError("it has no first line")
    header = decode(JournalHeader, lines[0])
    rows = [decode(cast("type[JournalRow]", JournalRow), line) for line in lines[1:]]
    if any(isinstance(row, JournalEnd) for row in rows):
        return None
    last = rows[-1] if rows else None
    done = sum(isinstance(row, StepDone) for row in rows)
    return Unfinished(header, done, last.says if isinstance(last, DoingStep) else "")
