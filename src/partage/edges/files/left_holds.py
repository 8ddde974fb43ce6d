"""What the run directory says of shares that processes of forgotten pods keep. Like these processes, it does
not survive a reboot.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from partage.codec.values import CodecError, decode, encode
from partage.edges.files.cordon_file import read_names, write_names
from partage.edges.host.read_file import read_regular
from partage.edges.host.replace_file import replace_file
from partage.errors import InputError
from partage.model.ids import PodUid
from partage.plan.serve.ledger_entry import EndingHold

FREED = "freed-pods"
"""Pods that are not waited for, a UID a line: ``partage free`` has written it."""

ENDING = "ending-holds.json"
"""For the next agent: the kubelet names these pods no more, so nothing else says which share they had."""

_LIMIT_BYTES = 1 << 24


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
            return decode(tuple[EndingHold, ...], read_regular(self._ending, _LIMIT_BYTES))
        except (OSError, CodecError):
            return ()

    def write(self, holds: tuple[EndingHold, ...]) -> None:
        """Raises OSError."""
        if holds:
            replace_file(self._ending, encode(holds))
        else:
            self._ending.unlink(missing_ok=True)
