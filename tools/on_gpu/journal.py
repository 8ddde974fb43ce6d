"""What has to be put back on this machine, on its disk before anything is changed, removed when it is done.

The result file may travel; this file does not. A run that is killed leaves it, and the next one begins
with it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from partage.codec.values import CodecError, decode, encode
from partage.edges.host.replace_file import replace_file
from partage.errors import InputError, Problem
from partage.model.gpu import ComputeMode
from partage.model.ids import GpuUuid
from partage.model.strategy import Interval
from partage.values import Frozen

FILE = "on-gpu.json"


class OriginalGpu(Frozen):
    """One GPU before the first change. interval: None where it cannot be read; mig: None without MIG.

    MIG instances are not noted: none is made or destroyed on a GPU that was in MIG mode before.
    """

    gpu: GpuUuid
    mode: ComputeMode
    interval: Interval | None
    mig: bool | None


class Unfinished(Frozen):
    """A run. work: its working directory, whose name marks its processes. original: None: nothing was
    changed.

    driver_root: where the driver is. pid, start: of the run itself, to know whether it still runs.
    """

    work: str
    driver_root: str
    pid: int
    start: int
    original: OriginalGpu | None = None


class Journal:
    """The file in a directory of its own. Every method may raise OSError."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE

    def read(self) -> Unfinished | None:
        """What a run has left; None: nothing. Raises InputError for a file that cannot be understood."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return decode(Unfinished, content)
        except CodecError as error:
            hint = "look whether the GPU's settings are as you want them, then remove this file"
            raise InputError(
                [Problem(str(self.path), "", "error", f"is no journal: {error}", hint)]
            ) from error

    def write(self, unfinished: Unfinished) -> None:
        """On disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(self.path, encode(unfinished))

    def clear(self) -> None:
        """Everything is put back."""
        self.path.unlink(missing_ok=True)
        with suppress(OSError):  # others may have files there
            self.path.parent.rmdir()


def default_directory() -> Path:
    """A directory of this machine that outlives a reboot: a MIG mode does, too."""
    if os.geteuid() == 0:
        return Path("/var/lib/partage-on-gpu")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "partage-on-gpu"
