"""Memory limits in containers: CDI files of sets of limits, and the hook that carries them out.

The files are in the directory that runtimes read, and copies of them outlive a boot: after a reboot the
kubelet starts its pods with the CDI names that it was once given, and asks nobody again.

The hook is on the node's disk: runtimes find it there also while no agent runs. Its source is part of
Partage; the image has it compiled, beside its source. A container that starts again needs it for as long as
its pod lives, so it stays after an uninstall.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import json

from partage.edges.cdi.files import remove_cdi_file, write_cdi_file
from partage.edges.host.read_file import read_regular
from partage.edges.host.replace_file import replace_file
from partage.plan.serve.limit_edits import HOOK_NAME, LIMITS_KIND, LimitSet, LimitTerms, limits_spec, set_in

PREFIX = LIMITS_KIND.replace("/", "-")
"""What the names of all these files begin with."""

_LARGEST_BYTES = 64 * 1024


class LimitFiles:
    """directory: of CDI files, such as /var/run/cdi. kept: on a disk. All calls block for a moment."""

    def __init__(self, directory: Path, kept: Path) -> None:
        self.directory, self._kept = directory, kept

    def write(self, given: LimitSet, terms: LimitTerms) -> None:
        """Write the file of this set, and its copy first. Raises HardwareError.

        Nothing is flushed: the directory of CDI files is empty after a loss of power, and so may be the copy
        of a pod that had just been admitted.
        """
        content = json.encode(limits_spec(given, terms))
        for folder in (self._kept, self.directory):
            path = folder / _file_of(given)
            write_cdi_file(path, content)

    def remove(self, given: LimitSet) -> None:
        """Remove the file of this set, and its copy last. Raises HardwareError."""
        for folder in (self.directory, self._kept):
            path = folder / _file_of(given)
            remove_cdi_file(path)

    def load(self) -> Mapping[str, LimitSet]:
        """The sets that have a file or a copy, by name. Halves of files are removed, and no others."""
        found: dict[str, LimitSet] = {}
        for folder in (self._kept, self.directory):
            for half in folder.glob(f".{PREFIX}_set-*.json.new"):
                with suppress(OSError):
                    half.unlink()
            for path in sorted(folder.glob(f"{PREFIX}_set-*.json")):
                with suppress(OSError):
                    if given := set_in(read_regular(path, _LARGEST_BYTES)):
                        found[given.name] = given
        return found

    def has(self, given: LimitSet) -> bool:
        """Whether the runtime finds the file of this set."""
        return (self.directory / _file_of(given)).exists()


def _file_of(given: LimitSet) -> str:
    return f"{PREFIX}_{given.name}.json"


SOURCE = Path(__file__).with_name("limit_hook")
"""The source, the script that compiles it, and the compiled program, if somebody has run that."""

_LARGEST_SOURCE_BYTES = 4 * 2**20
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

    def why_not(self) -> str:
        """What is known of it without writing anything: as ``install``."""
        if not self._compiled.exists():
            return self._not_compiled()
        directory = self.path.parent
        try:
            return self._unsafe(directory) if directory.exists() else _noexec(directory)
        except OSError as error:
            return f"{directory} cannot be looked at: {error.strerror}"

    def _not_compiled(self) -> str:
        return f"the hook is not compiled: run {SOURCE / 'build'} {self._compiled} (needs a C compiler)"

    def _put(self) -> str:
        """Raises OSError."""
        try:
            program = read_regular(self._compiled, _LARGEST_SOURCE_BYTES)
        except FileNotFoundError:
            return self._not_compiled()
        directory = self.path.parent
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        if unsafe := self._unsafe(directory):
            return unsafe
        if not self._is_there(program):
            replace_file(self.path, program, mode=0o755, hidden=True)
        return ""

    @staticmethod
    def _unsafe(directory: Path) -> str:
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return f"{directory} is not a directory that only its owner, this user, can write to"
        return _noexec(directory)

    def _is_there(self, program: bytes) -> bool:
        try:
            found = self.path.lstat()
            return (
                stat.S_IMODE(found.st_mode) == 0o755
                and found.st_uid == os.geteuid()
                and read_regular(self.path, _LARGEST_SOURCE_BYTES) == program
            )
        except OSError:
            return False

    def _identity(self) -> tuple[int, ...]:
        try:
            found = self.path.lstat()
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_mode


def _noexec(directory: Path) -> str:
    """Whether programs can run there, or where it would be made."""
    there = next(place for place in (directory, *directory.parents) if place.exists())
    if os.statvfs(there).f_flag & _NO_EXEC:
        return f"{directory} is mounted noexec: no program can run there. Choose another state directory"
    return ""
