"""The file of the claims' records, ``claims.json``.

It is replaced atomically, and read again whenever it has changed: during a rolling update two agents take
turns with it, under the lock of the caller.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec import Raw, json

from partage.claims.model.record import ClaimRecord
from partage.codec.values import CodecError, decode, encode
from partage.edges.host.read_file import read_regular
from partage.edges.host.replace_file import replace_file
from partage.edges.host.set_aside import set_aside
from partage.errors import HardwareError
from partage.text import printable, shortened
from partage.values import Frozen

RECORDS_FILE = "claims.json"
LIMIT_BYTES = 64 * 1024 * 1024
"""Nothing larger is read or written; 1,000 claims with 79 units each are 5 MB."""

_VERSION = "partage-claims/1"
_LONGEST = 200


class LoadedRecords(Frozen):
    """records: those that can be used, each claim once. problems: sentences for the log and the report."""

    records: tuple[ClaimRecord, ...] = ()
    problems: tuple[str, ...] = ()


class _Document(Frozen):
    version: str
    records: tuple[Raw, ...]


class RecordsFile:
    """The records in a directory. Both calls block (the second flushes the disk): call them in a thread."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / RECORDS_FILE
        self._read: tuple[tuple[int, int, int], LoadedRecords] | None = None

    def load(self) -> LoadedRecords:
        """What is written there; nothing if there is no file. Never raises.

        A file that cannot be used is set aside, and said. One with some damaged records stays until it is
        replaced, a copy is set aside, and the others count. Fields that are not known are passed over.
        """
        try:
            stamp = self._stamp()
            if self._read is not None and self._read[0] == stamp:
                return self._read[1]
            content = read_regular(self._file, LIMIT_BYTES + 1)
        except FileNotFoundError:
            return LoadedRecords()
        except OSError as error:
            return LoadedRecords(problems=(f"cannot read {self._file}: {error.strerror}",))
        try:
            loaded = self._decoded(content)
        except ValueError as error:
            said = shortened(printable(str(error)), _LONGEST)
            return LoadedRecords(problems=(f"{self._file} cannot be used: {said}; {set_aside(self._file)}",))
        self._read = stamp, loaded
        return loaded

    def save(self, records: Iterable[ClaimRecord]) -> None:
        """Replace the file. Raises HardwareError; then the old one is still there."""
        kept = sorted({record.claim.uid: record for record in records}.values(), key=_order)
        try:
            content = json.format(encode({"version": _VERSION, "records": kept}), indent=1)
            if len(content) > LIMIT_BYTES:
                raise HardwareError(f"{len(kept)} records are {len(content)} bytes, more than {LIMIT_BYTES}")
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._file, content)
        except CodecError as error:
            raise HardwareError(f"the records of claims cannot be written: {error}") from error
        except OSError as error:
            raise HardwareError(
                f"the records of claims cannot be written to {self._file}: {error.strerror}",
                "nothing was changed; make room on the disk, or mend the directory",
            ) from error

    def _stamp(self) -> tuple[int, int, int]:
        """It differs for each file that was put in its place."""
        status = self._file.stat()
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _decoded(self, content: bytes) -> LoadedRecords:
        """Raises ValueError for what is not such a file at all."""
        if len(content) > LIMIT_BYTES:
            raise ValueError(f"it is longer than {LIMIT_BYTES} bytes")
        document = decode(_Document, content, strict=False)
        if document.version != _VERSION:
            raise ValueError(f"its version is {document.version[:40]!r}, not {_VERSION!r}")
        records: dict[str, ClaimRecord] = {}
        wrong = []
        for number, written in enumerate(document.records):
            try:
                record = decode(ClaimRecord, bytes(written), strict=False)
            except CodecError as error:
                wrong.append(f"record {number}: {shortened(printable(str(error)), _LONGEST)}")
            else:
                records[record.claim.uid] = record
        if not wrong:
            return LoadedRecords(tuple(records.values()))
        aside = set_aside(self._file, stays=True)
        return LoadedRecords(tuple(records.values()), (f"{self._file} is damaged: {wrong[0]}; {aside}",))


def _order(record: ClaimRecord) -> tuple[str, str, str]:
    return record.claim.namespace, record.claim.name, record.claim.uid
