"""CDI files of sets of memory limits: in the directory that runtimes read, and copies that outlive a boot.

After a reboot the kubelet starts its pods with the CDI names that it was once given, and asks nobody again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import json

from partage.edges.host.read_file import read_regular
from partage.edges.host.replace_file import replace_file
from partage.errors import HardwareError
from partage.plan.serve.limit_edits import LIMITS_KIND, LimitSet, LimitTerms, limits_spec, set_in

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
            try:
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
                replace_file(path, content, mode=0o644, hidden=True, flush=False)
            except OSError as error:
                raise HardwareError(f"cannot write the CDI file {path}: {error.strerror}") from error

    def remove(self, given: LimitSet) -> None:
        """Remove the file of this set, and its copy last. Raises HardwareError."""
        for folder in (self.directory, self._kept):
            path = folder / _file_of(given)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise HardwareError(f"cannot remove the CDI file {path}: {error.strerror}") from error

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
