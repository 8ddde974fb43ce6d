"""The guard's files on the host, which containers mount.

``<run-dir>/guard/<hash of the content>``: a container that restarts gets the mounts of its first Allocate
again, from the kubelet's checkpoint. So a directory never changes and is never removed; another version of
the guard gets another name beside it, and the same version finds its own again.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from partage.agent.log import warn_anew
from partage.model.share import DeviceOffer

log = logging.getLogger(__name__)


class GuardFiles:
    """Writes the guard's files once. directory: host path; empty if not written. trouble: why it failed."""

    def __init__(self, run_dir: Path) -> None:
        self._parent = run_dir / "guard"
        self.directory = ""
        self.trouble = ""

    def request(self, offerings: Iterable[DeviceOffer]) -> None:
        """Write the files if one of these offers has the guard. A failed write is retried at the next
        call."""
        if self.directory or not any(offering.guard for offering in offerings):
            return
        try:
            self.directory, trouble = str(write_guard(self._parent)), ""
        except OSError as error:
            trouble = f"the guard's files cannot be written below {self._parent}: {error.strerror}"
        self.trouble = warn_anew(log, "guard is not offered", trouble, self.trouble)


def write_guard(parent: Path) -> Path:
    """Write the guard below this directory, whole or not at all; returns where. Raises OSError."""
    import shutil  # with tempfile 0.5 MiB, only for nodes with a guard
    import tempfile

    files = guard_files()
    directory = parent / _digest(files)
    if not _holds(directory, files):
        parent.mkdir(parents=True, exist_ok=True)
        parent.chmod(0o755)
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=parent))
        try:
            _fill(unfinished, files)
            _set_aside(directory)
            unfinished.rename(directory)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return directory


def guard_files() -> dict[str, bytes]:
    """The guard as it is installed with us: path in the mount, content."""
    from partage.guard import SITE

    site = Path(SITE)
    return {str(path.relative_to(site)): path.read_bytes() for path in sorted(site.rglob("*.py"))}


def _digest(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def _holds(directory: Path, files: Mapping[str, bytes]) -> bool:
    try:
        return all((directory / name).read_bytes() == content for name, content in files.items())
    except OSError:
        return False


def _fill(directory: Path, files: Mapping[str, bytes]) -> None:
    """Readable for every user of every container, whatever the umask."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o644)
    for found in (directory, *(path for path in directory.rglob("*") if path.is_dir())):
        found.chmod(0o755)


def _set_aside(directory: Path) -> None:
    """Move a changed directory away: containers that mount it keep it."""
    if os.path.lexists(directory):
        import tempfile

        aside = Path(tempfile.mkdtemp(prefix="changed-", dir=directory.parent))
        directory.rename(aside / directory.name)
