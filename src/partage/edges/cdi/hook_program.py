"""The hook of memory limits on the node's disk: where runtimes find it, also while no agent runs.

Its source is part of Partage; the image has it compiled, beside its source. A container that starts again
needs it for as long as its pod lives, so it stays after an uninstall.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from partage.edges.host.read_file import read_regular
from partage.edges.host.replace_file import replace_file
from partage.plan.serve.limit_edits import HOOK_NAME

SOURCE = Path(__file__).with_name("limit_hook")
"""The source, the script that compiles it, and the compiled program, if somebody has run that."""

_LARGEST_BYTES = 4 * 2**20
_NO_EXEC = getattr(os, "ST_NOEXEC", 8)


class HookProgram:
    """directory: on the node, of root alone; made if it is not there. compiled: the program to copy, if it is
    not beside its source.
    """

    def __init__(self, directory: Path, compiled: Path | None = None) -> None:
        self.path = directory / HOOK_NAME
        self._compiled = compiled or SOURCE / HOOK_NAME
        self._seen: tuple[int, ...] = ()

    def install(self) -> str:
        """Have this version there, replaced in one step. Why it cannot be used, a clause; empty: it can.

        Cheap where nothing has changed since the last call: one look at the file.
        """
        if self._seen and self._seen == self._identity():
            return ""
        self._seen = ()
        try:
            if trouble := self._put():
                return trouble
        except OSError as error:
            return f"the hook cannot be written to {self.path}: {error.strerror}"
        self._seen = self._identity()
        return ""

    def _put(self) -> str:
        """Raises OSError."""
        try:
            program = read_regular(self._compiled, _LARGEST_BYTES)
        except FileNotFoundError:
            return f"the hook is not compiled: run {SOURCE / 'build'} {self._compiled} (needs a C compiler)"
        directory = self.path.parent
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return f"{directory} is not a directory that only its owner, this user, can write to"
        if os.statvfs(directory).f_flag & _NO_EXEC:
            return f"{directory} is mounted noexec: no program can run there. Choose another state directory"
        if not self._is_there(program):
            replace_file(self.path, program, mode=0o755, hidden=True)
        return ""

    def _is_there(self, program: bytes) -> bool:
        try:
            found = self.path.lstat()
            return (
                stat.S_IMODE(found.st_mode) == 0o755
                and found.st_uid == os.geteuid()
                and read_regular(self.path, _LARGEST_BYTES) == program
            )
        except OSError:
            return False

    def _identity(self) -> tuple[int, ...]:
        try:
            found = self.path.lstat()
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_mode
