"""The places of policies: one file, or a directory of named ones.

Named policies are regular files, symlinks followed. In a ConfigMap that the kubelet has mounted each key is
one, as for NVIDIA's config-manager; names that begin with ``..`` are the kubelet's own. In other directories
other files may lie beside them: only names that end in ``.yaml``, ``.yml`` or ``.json`` count, and none that
begins with a dot, as editors and tools name files of their own.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct, field

from partage.edges.files.input_file import read_input, read_regular_input
from partage.errors import InputError, Problem, wrong_input
from partage.plan.offer.policy_choice import POLICY_SUFFIXES
from partage.values import Frozen

UNSETTLED_S = 2.0
"""A file that changed less than this many seconds ago is read again: two writes within one tick of the file
system's clock have the same times."""
MOST_POLICIES = 500
"""So many files of a directory are read."""

_MOUNTED = "..data"
"""What the kubelet exchanges in a mounted ConfigMap, and nobody else makes."""

_Signature = tuple[object, ...]


class PolicyTexts(Frozen):
    """The policies as they were read, by name. unreadable: why a file cannot be read.

    directory: they are files of ``path``, and one of them is chosen; else ``path`` is the one file.
    """

    path: str
    texts: Mapping[str, bytes] = field(default_factory=dict)
    unreadable: Mapping[str, tuple[Problem, ...]] = field(default_factory=dict)
    directory: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """What can be chosen."""
        return (*self.texts, *self.unreadable)

    def file(self, name: str) -> str:
        """The file of a policy, for messages."""
        return str(Path(self.path) / name) if self.directory else self.path

    def text(self, name: str) -> bytes:
        """Raises InputError with all problems if it cannot be read."""
        if name in self.unreadable:
            raise InputError(self.unreadable[name])
        return self.texts[name]


def read_policies(path: str, read: Callable[[str], bytes] = read_input) -> PolicyTexts:
    """The file, or the files of the directory; ``-`` is standard input. Raises InputError where nothing can
    be read at all.
    """
    try:
        names = policy_names(Path(path))
    except OSError:  # a file, or ``read`` says why it cannot be read
        return PolicyTexts(path, {path: read(path)})
    texts: dict[str, bytes] = {}
    unreadable: dict[str, tuple[Problem, ...]] = {}
    for name in names:
        try:
            texts[name] = read_regular_input(str(Path(path) / name))
        except InputError as error:
            unreadable[name] = error.problems
    return PolicyTexts(path, texts, unreadable, directory=True)


def files_of(path: str) -> tuple[str, ...]:
    """The files that a name on the command line stands for: those of a directory that can be policies, or the
    file itself. Raises InputError for a directory without any.
    """
    if not Path(path).is_dir():
        return (path,)
    try:
        names = policy_names(Path(path))
    except OSError as error:
        raise wrong_input(path, f"cannot be read: {error.strerror}") from error
    if not names:
        what = f"has no file that ends in {', '.join(POLICY_SUFFIXES)}"
        raise wrong_input(path, what, "directories in it are not looked at")
    return tuple(str(Path(path) / name) for name in names)


class PolicyFiles(Struct):
    """Detects changes: files edited in place, replaced, or behind a symlink that was swapped (a ConfigMap).
    They are read only if their status has changed.
    """

    path: Path
    _seen: _Signature | None = None
    _settled: bool = False

    def changed(self) -> bool:
        """Whether they have to be read: their status differs from the last call."""
        signature, newest = self._status()
        settled = newest is None or abs(time.time() - newest) >= UNSETTLED_S
        if signature == self._seen and self._settled:
            return False
        self._seen, self._settled = signature, settled
        return True

    def directories(self) -> tuple[Path, ...]:
        """What the kernel watches for changes: of a link, also where it leads."""
        if self.path.is_dir():
            return (self.path,)
        return tuple({self.path.parent, self.path.resolve().parent})

    def read(self) -> PolicyTexts:
        """Read them. Raises InputError where nothing can be read at all."""
        return read_policies(str(self.path), read_regular_input)

    def _status(self) -> tuple[_Signature, float | None]:
        """What changes with the content, and when that was last."""
        try:
            names = policy_names(self.path)
        except NotADirectoryError:
            files = {"": self.path}
        except OSError as error:
            return (error.errno,), None
        else:
            files = {name: self.path / name for name in names}
        rows: list[object] = []
        times: list[float] = []
        for name, file in files.items():
            try:
                status = file.stat()
            except OSError as error:
                rows.append((name, error.errno))
                continue
            rows.append(
                (name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            )
            times.append(status.st_mtime)
        return tuple(rows), max(times, default=None)


def policy_names(directory: Path) -> list[str]:
    """The names of its policies, sorted. Raises OSError; NotADirectoryError for a file."""
    with os.scandir(directory) as entries:
        found = sorted(entry.name for entry in entries)
    hidden, endings = ("..", "") if _MOUNTED in found else (".", POLICY_SUFFIXES)
    named = [name for name in found if not name.startswith(hidden) and name.lower().endswith(endings)]
    return [name for name in named if _is_file(directory / name)][:MOST_POLICIES]


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
