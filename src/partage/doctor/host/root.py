"""Where the doctor looks: the directories of kubelet and agent, and files of a node whose root may be mounted
elsewhere, as in a debug container (``/host``).
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from partage.edges.hardware.host import Host
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


class DoctorPlace(Frozen):
    """All paths are those of the node.

    machine: simulates the GPUs. driver_root: None: the root. node_name: of the Node, or of Slurm's node;
    empty: the host name. slurm_bin: where scontrol is; None: a fixed PATH. own_run_dir: the run directory was
    named, so its report counts also for a simulated node.
    """

    root: NodeRoot
    kubelet_dir: str
    state_dir: str
    run_dir: str
    machine: str | None = None
    driver_root: Path | None = None
    node_name: str = ""
    slurm_version: str | None = None
    slurm_bin: Path | None = None
    own_run_dir: bool = False

    @property
    def files(self) -> bool:
        """Whether there are files to look at: a simulated node without a root has none."""
        return self.machine is None or self.elsewhere

    @property
    def elsewhere(self) -> bool:
        """Whether the node's root is another directory than this process's."""
        return self.root.path != Path("/")

    @property
    def run_path(self) -> Path:
        """The run directory, here."""
        return self.root.at(self.run_dir)

    @property
    def state_path(self) -> Path:
        """The state directory, here."""
        return self.root.at(self.state_dir)


def driver_root(place: DoctorPlace) -> Path:
    """The root of the driver, here."""
    return place.driver_root or place.root.path


def host(place: DoctorPlace) -> Host:
    """The directory of the driver's files."""
    root = place.root
    return Host(driver=driver_root(place), proc=root.proc, sys=root.sys, dev=root.dev, run=place.run_path)
