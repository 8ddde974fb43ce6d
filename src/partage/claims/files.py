"""What claims keep on the machine: records, places of MIG devices, CDI files.

Records are in a directory with one file for each, ``<uid>.json``. A file is replaced atomically, so that a
prepare costs the same with one claim and with a thousand. What an older version kept in one file,
``claims.json``, is taken over.

``claim-places.json`` says where MIG devices were made for claims: those and no others are destroyed again. A
place is written down before anything is made there, so that it is known after ``kill -9`` at any moment.
Instances end with a boot.

CDI files are beside the node's own, one for each claim, in the directory that the runtime reads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import json

from partage.claims.decide.cdi import KIND, ClaimCdi, record_in, with_record
from partage.claims.model.grant import ClaimRecord, ClaimState
from partage.codec.values import CodecError, decode, encode
from partage.edges.cdi.files import remove_cdi_file, write_cdi_file
from partage.edges.host.read_file import read_regular
from partage.edges.host.replace_file import replace_file, set_aside
from partage.errors import HardwareError
from partage.model.ids import GpuUuid
from partage.model.layout import LayoutItem
from partage.text import printable, shortened
from partage.values import Frozen

RECORDS_DIR = "claims"
FORMER_FILE = "claims.json"
LIMIT_BYTES = 4 * 1024 * 1024
"""Of a record, and no more is read or written; one with all 8,000 units that a node can have is 0.5 MB."""

_FORMER_LIMIT_BYTES = 64 * 1024 * 1024

_VERSION = "partage-claim/1"
_UID = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)
_LONGEST = 200
_AGAIN = "nothing was changed; make room on the disk, or mend the directory"


class LoadedRecords(Frozen):
    """records: those that can be used, each claim once. damaged: UIDs of claims whose record cannot be.
    problems: sentences for the log and the report.
    """

    records: tuple[ClaimRecord, ...] = ()
    damaged: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()


class _Document(Frozen):
    version: str
    record: ClaimRecord


class _FormerDocument(Frozen):
    """There was one version of it."""

    records: tuple[ClaimRecord, ...]


class ClaimRecordFiles:
    """The records in the directory of the agent's state. All calls block: call them in a thread."""

    def __init__(self, state_dir: Path) -> None:
        self.directory = state_dir / RECORDS_DIR
        self._former = state_dir / FORMER_FILE
        self._unflushed: set[str] = set()

    def load(self) -> LoadedRecords:
        """What is written there; nothing if there is no directory. Never raises.

        A file that cannot be used is set aside, and said; the others count. Fields that are not known are
        passed over.
        """
        problems: list[str] = []
        former = {record.claim.uid: record for record in self._former_records(problems)}
        own = self._each(problems)
        good = {uid: record for uid, record in own.items() if record is not None}
        if former:
            self._take_over([record for uid, record in former.items() if uid not in good], problems)
        records = sorted({**former, **good}.values(), key=_order)
        return LoadedRecords(
            tuple(records), frozenset(own.keys() - good.keys() - former.keys()), tuple(problems)
        )

    def save(self, record: ClaimRecord) -> None:
        """Keep this of its claim, in place of what was. Raises HardwareError; then that is still there.

        Nothing is flushed here, where a pod waits for it. ``kill -9`` loses nothing of it. A loss of power
        may: then the node has another boot, in which a record holds nothing, and the kubelet asks for the
        claim again. ``flush`` is for what a record says beyond a boot: which GPU a name meant.
        """
        path = self._path(record.claim.uid)
        try:
            content = json.format(encode(_Document(_VERSION, record)), indent=1)
            if len(content) > LIMIT_BYTES:
                raise HardwareError(f"the record of a claim is {len(content)} bytes, more than {LIMIT_BYTES}")
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, content, flush=False)
            if record.state is ClaimState.PREPARED:  # nothing is left of what was only begun
                self._unflushed.add(record.claim.uid)
        except CodecError as error:
            raise HardwareError(f"the record of a claim cannot be written: {error}") from error
        except OSError as error:
            raise HardwareError(
                f"the record of a claim cannot be written to {path}: {error.strerror}", _AGAIN
            ) from error

    def flush(self) -> None:
        """What was saved of prepared claims outlives a loss of power from now on. Raises HardwareError."""
        if not self._unflushed:
            return
        flushed = []
        try:
            while self._unflushed:
                flushed.append(uid := self._unflushed.pop())
                with suppress(FileNotFoundError):  # it was removed meanwhile
                    _flush(self._path(uid), os.O_RDONLY | os.O_NOFOLLOW)
            _flush(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            self._unflushed.update(flushed)  # the next flush tries again
            raise HardwareError(
                f"records of claims cannot be flushed to {self.directory}: {error.strerror}", _AGAIN
            ) from error

    def remove(self, uid: str) -> None:
        """Keep nothing of this claim. Raises HardwareError; then it is still there.

        The directory is not flushed: after a loss of power the node has another boot, and the record holds
        nothing.
        """
        path = self._path(uid)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise HardwareError(f"the record {path} cannot be removed: {error.strerror}", _AGAIN) from error

    def _path(self, uid: str) -> Path:
        """UIDs come from the API server, and are no paths."""
        if not _UID.fullmatch(uid):
            raise HardwareError(f"{uid[:64]!r} is no UID of a claim")
        return self.directory / f"{uid}.json"

    def _each(self, problems: list[str]) -> dict[str, ClaimRecord | None]:
        """By UID; None: it cannot be used."""
        try:
            paths = sorted(self.directory.iterdir())
        except FileNotFoundError:
            return {}
        except OSError as error:
            problems.append(f"cannot read {self.directory}: {error.strerror}")
            return {}
        for path in paths:
            if path.name.endswith(".json.new"):
                _tidy(path)
        return {path.stem: _record(path, problems) for path in paths if path.suffix == ".json"}

    def _take_over(self, records: Iterable[ClaimRecord], problems: list[str]) -> None:
        try:
            for record in records:
                self.save(record)
            self._former.unlink()
        except (HardwareError, OSError) as error:
            problems.append(f"{self._former} stays for now: {error}")

    def _former_records(self, problems: list[str]) -> Iterable[ClaimRecord]:
        content = _content(self._former, problems, _FORMER_LIMIT_BYTES)
        if content is None:
            return ()
        try:
            return decode(_FormerDocument, content, strict=False).records
        except ValueError as error:
            problems.append(_set_aside(self._former, error))
            return ()


def _content(path: Path, problems: list[str], limit_bytes: int = LIMIT_BYTES) -> bytes | None:
    """None: there is nothing, or it cannot be read, which says nothing about what is in it."""
    try:
        return read_regular(path, limit_bytes + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"cannot read {path}: {error.strerror}")
        return None


def _record(path: Path, problems: list[str]) -> ClaimRecord | None:
    content = _content(path, problems)
    if content is None:
        return None
    try:
        return _decoded(content, path.stem)
    except ValueError as error:
        problems.append(_set_aside(path, error))
        return None


def _decoded(content: bytes, uid: str) -> ClaimRecord:
    """Raises ValueError for what is no record of this claim."""
    if len(content) > LIMIT_BYTES:
        raise ValueError(f"it is longer than {LIMIT_BYTES} bytes")
    document = decode(_Document, content, strict=False)
    if document.version != _VERSION:
        raise ValueError(f"its version is {document.version[:40]!r}, not {_VERSION!r}")
    if document.record.claim.uid != uid:
        raise ValueError(f"it is of the claim {document.record.claim.uid[:40]!r}")
    return document.record


def _set_aside(path: Path, error: ValueError) -> str:
    said = shortened(printable(str(error)), _LONGEST)
    return f"{printable(str(path))} cannot be used: {said}; {set_aside(path)}"


def _flush(path: Path, flags: int) -> None:
    """Raises OSError."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tidy(path: Path) -> None:
    """Of an agent that was killed while it wrote."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # it is in nobody's way


def _order(record: ClaimRecord) -> tuple[str, str, str]:
    return record.claim.namespace, record.claim.name, record.claim.uid


PLACES_FILE = "claim-places.json"
_PLACES_VERSION = "partage-claim-places/1"
_PLACES_LIMIT_BYTES = 1024 * 1024


class MadePlace(Frozen, order=True):
    """item: the MIG device with its start, ``3g.40gb@4``. boot_id: of the node when it was made. Raises
    ValueError for an item of another form.
    """

    gpu: GpuUuid
    item: str
    boot_id: str

    def __post_init__(self) -> None:
        LayoutItem.parse(self.item)


class _PlacesDocument(Frozen):
    version: str
    places: tuple[MadePlace, ...]


class MadePlaces:
    """The places in a directory. Both calls block (the second flushes the disk)."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / PLACES_FILE

    def load(self) -> tuple[frozenset[MadePlace], str]:
        """What is written there, and why it cannot be used; empty if it can. Never raises.

        A file that is damaged is set aside: then nothing that is there counts as made for a claim.
        """
        try:
            content = read_regular(self._file, _PLACES_LIMIT_BYTES + 1)
        except FileNotFoundError:
            return frozenset(), ""
        except OSError as error:
            return frozenset(), f"cannot read {self._file}: {error.strerror}"
        try:
            return _places(content), ""
        except CodecError as error:
            said = shortened(printable(str(error)), _LONGEST)
            return frozenset(), f"{self._file} cannot be used: {said}; {set_aside(self._file)}"

    def save(self, places: Collection[MadePlace]) -> None:
        """Replace the file. Raises HardwareError; then the old one is still there."""
        try:
            content = json.format(encode(_PlacesDocument(_PLACES_VERSION, tuple(sorted(places)))), indent=1)
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._file, content)
        except OSError as error:
            raise HardwareError(
                f"where MIG devices are made cannot be written to {self._file}: {error.strerror}",
                "nothing was changed; make room on the disk, or mend the directory",
            ) from error


def _places(content: bytes) -> frozenset[MadePlace]:
    """Raises CodecError."""
    if len(content) > _PLACES_LIMIT_BYTES:
        raise CodecError(f"it is longer than {_PLACES_LIMIT_BYTES} bytes")
    document = decode(_PlacesDocument, content, strict=False)
    if document.version != _PLACES_VERSION:
        raise CodecError(f"its version is {document.version[:40]!r}, not {_PLACES_VERSION!r}")
    return frozenset(document.places)


_PREFIX = KIND.replace("/", "-")
_CDI_LIMIT_BYTES = 4 * 1024 * 1024


class ClaimCdiFiles:
    """directory: of CDI files, such as /var/run/cdi. All calls block, and raise HardwareError."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, record: ClaimRecord, cdi: ClaimCdi) -> None:
        """Write the file of a claim, with its record; the runtime sees all of it or none.

        It is not flushed: after a loss of power the kubelet asks for the claim again before a container can
        start, and the file is written anew.
        """
        write_cdi_file(self._path(record.claim.uid), json.encode(with_record(cdi, record).spec))

    def remove(self, uid: str) -> None:
        """Remove the file of a claim, if it is there."""
        remove_cdi_file(self._path(uid))

    def has(self, uid: str) -> bool:
        """Whether a claim has a file."""
        return self._path(uid).exists()

    def record(self, uid: str) -> ClaimRecord | None:
        """The record in the file of a claim; None: there is none, or it cannot be read."""
        with suppress(HardwareError, OSError):
            return record_in(read_regular(self._path(uid), _CDI_LIMIT_BYTES), uid)
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
