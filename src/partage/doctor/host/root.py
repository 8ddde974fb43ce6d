"""Files of a node whose root may be mounted elsewhere, as in a debug container (``/host``)."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from partage.edges.host.read_file import read_regular
from partage.values import Frozen

_MOST_LINKS = 40
MOST_FILES = 2_000
_LARGEST_BYTES = 4 * 2**20


class NodeRoot(Frozen):
    """The root of the node: ``/``, or where it is mounted here."""

    path: Path = Path("/")

    @property
    def proc(self) -> Path:
        return self.path / "proc"

    @property
    def sys(self) -> Path:
        return self.path / "sys"

    @property
    def dev(self) -> Path:
        return self.path / "dev"

    def at(self, place: str | Path) -> Path:
        """A path of the node, here. Links lead to where they lead on the node, not here."""
        if self.path == Path("/"):
            return Path(place)
        left, done = list(reversed(PurePosixPath(place).parts)), list[str]()
        for _ in range(len(left) + _MOST_LINKS * 8):
            if not left:
                break
            part = left.pop()
            if part in ("/", ".", ".."):
                done = [] if part == "/" else done[:-1] if part == ".." else done
                continue
            target = _link(self.path.joinpath(*done, part))
            if target is None:
                done.append(part)
            else:
                left.extend(reversed(PurePosixPath(target).parts))
        return self.path.joinpath(*done)

    def files(self, directory: str, name: re.Pattern[str]) -> list[str]:
        """Places of the files of a directory with such names, in order; the first ``MOST_FILES``."""
        try:
            names = sorted(path.name for path in self.at(directory).iterdir() if name.fullmatch(path.name))
        except OSError:
            return []
        return [f"{directory}/{found}" for found in names[:MOST_FILES]]

    def exists(self, place: str | Path) -> bool:
        """Whether there is such a file on the node. One that may not be looked at counts as there."""
        try:
            self.at(place).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True

    def text(self, place: str | Path, limit_bytes: int = _LARGEST_BYTES) -> str:
        """The text of a regular file. Raises OSError."""
        return read_regular(self.at(place), limit_bytes).decode("utf-8", "replace")


def _link(path: Path) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115 - a text, and Path would lose a trailing slash
    except OSError:
        return None
