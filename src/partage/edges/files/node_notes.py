"""Short notes in files: GPUs that are cordoned, in the state directory, where they are still there after a
reboot; and shares that processes of forgotten pods keep, in the run directory. Like these processes, the
latter do not survive a reboot.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from partage.codec.values import CodecError, decode, encode
from partage.edges.host.read_file import read_regular
from partage.edges.host.replace_file import replace_file
from partage.errors import InputError
from partage.model.ids import PodUid
from partage.plan.serve.ledger_entry import EndingHold

BY_HAND = "cordoned"
"""What ``partage cordon`` has written on this node."""

BY_NODE = "cordoned-by-node"
"""What the annotation of the Node has said last: an agent that starts may not reach the API server."""

_LIMIT_BYTES = 1 << 16


def read_names(path: Path) -> str:
    """The text of such a file; empty where there is none. Raises InputError."""
    try:
        return read_regular(path, _LIMIT_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def write_names(path: Path, names: Iterable[str]) -> None:
    """Replace the file in one step; remove it where there is no name. Raises InputError."""
    lines = "".join(f"{name}\n" for name in sorted(names))
    try:
        if not lines:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.new")
        beside.write_text(lines, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


FREED = "freed-pods"
"""Pods that are not waited for, a UID a line: ``partage free`` has written it."""

ENDING = "ending-holds.json"
"""For the next agent: the kubelet names these pods no more, so nothing else says which share they had."""

_ENDING_BYTES = 1 << 24


class LeftHolds:
    """Both files."""

    def __init__(self, run_dir: Path) -> None:
        self._freed, self._ending = run_dir / FREED, run_dir / ENDING

    def freed(self) -> frozenset[PodUid]:
        """The pods that are not waited for; none where that cannot be read."""
        try:
            return frozenset(map(PodUid, read_names(self._freed).split()))
        except InputError:
            return frozenset()

    def free(self, pods: Iterable[PodUid]) -> None:
        """Wait for these pods no more. Raises InputError."""
        write_names(self._freed, self.freed() | frozenset(pods))

    def read(self) -> tuple[EndingHold, ...]:
        """What the agent before has written; nothing if that cannot be used."""
        try:
            return decode(tuple[EndingHold, ...], read_regular(self._ending, _ENDING_BYTES))
        except (OSError, CodecError):
            return ()

    def write(self, holds: tuple[EndingHold, ...]) -> None:
        """Raises OSError."""
        if holds:
            replace_file(self._ending, encode(holds))
        else:
            self._ending.unlink(missing_ok=True)
