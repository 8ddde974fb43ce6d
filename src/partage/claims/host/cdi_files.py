"""The CDI files of claims: one for each, beside the node's own, in the directory that the runtime reads."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from msgspec import json

from partage.claims.decide.cdi import KIND, ClaimCdi
from partage.claims.decide.cdi_record import record_in, with_record
from partage.claims.model.record import ClaimRecord
from partage.edges.host.read_file import read_regular
from partage.edges.host.replace_file import replace_file
from partage.errors import HardwareError

_PREFIX = KIND.replace("/", "-")
_LIMIT_BYTES = 4 * 1024 * 1024
_UID = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)


class ClaimCdiFiles:
    """directory: of CDI files, such as /var/run/cdi. All calls block, and raise HardwareError."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, record: ClaimRecord, cdi: ClaimCdi) -> None:
        """Write the file of a claim, with its record; the runtime sees all of it or none."""
        path, cdi = self._path(record.claim.uid), with_record(cdi, record)
        try:
            self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            replace_file(path, json.encode(cdi.spec), mode=0o644, hidden=True)
        except OSError as error:
            raise HardwareError(f"cannot write the CDI file {path}: {error.strerror}") from error

    def remove(self, uid: str) -> None:
        """Remove the file of a claim, if it is there."""
        path = self._path(uid)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise HardwareError(f"cannot remove the CDI file {path}: {error.strerror}") from error

    def has(self, uid: str) -> bool:
        """Whether a claim has a file."""
        return self._path(uid).exists()

    def record(self, uid: str) -> ClaimRecord | None:
        """The record in the file of a claim; None: there is none, or it cannot be read."""
        with suppress(HardwareError, OSError):
            return record_in(read_regular(self._path(uid), _LIMIT_BYTES), uid)
        return None

    def tidy(self) -> None:
        """Remove halves of files, of an agent that was killed while it wrote."""
        for path in self.directory.glob(f".{_PREFIX}_*.json.new"):
            with suppress(OSError):
                path.unlink()

    def uids(self) -> Collection[str]:
        """The claims that have a file here."""
        try:
            names = [path.name for path in self.directory.glob(f"{_PREFIX}_*.json")]
        except OSError as error:
            raise HardwareError(f"cannot read {self.directory}: {error.strerror}") from error
        return {name.removeprefix(f"{_PREFIX}_").removesuffix(".json") for name in names}

    def _path(self, uid: str) -> Path:
        """UIDs come from the API server, and are no paths."""
        if not _UID.fullmatch(uid):
            raise HardwareError(f"{uid[:64]!r} is no UID of a claim")
        return self.directory / f"{_PREFIX}_{uid}.json"
