"""The support bundle: what somebody else needs to understand a node, without its secrets, in one file."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

from partage.doctor.bundle_entries import BundleInput, Entry, entries_of
from partage.doctor.place import DoctorPlace
from partage.errors import InputError, Problem

ROOT = "partage-doctor"
"""The folder in the archive."""


def write_bundle(path: str, place: DoctorPlace, given: BundleInput) -> tuple[Entry, ...]:
    """Write the archive, for its owner only, whole or not at all. Returns its files. Raises InputError."""
    target = Path(path)
    found = tuple(entries_of(place, given))
    contents = "".join(f"{one.name}\t{len(one.content)} bytes\t{one.what}\n" for one in found)
    listing = Entry("CONTENTS.txt", "this list", contents.encode())
    try:
        _write(target, _archive((listing, *found)))
    except OSError as error:
        raise InputError(
            [Problem(path, "", "error", f"cannot be written: {error.strerror}", "name another file")]
        ) from error
    return (listing, *found)


def _archive(entries: Sequence[Entry]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for entry in entries:
            about = tarfile.TarInfo(f"{ROOT}/{entry.name}")
            about.size, about.mode, about.mtime = len(entry.content), 0o600, int(time.time())
            archive.addfile(about, io.BytesIO(entry.content))
    return packed.getvalue()


def _write(target: Path, content: bytes) -> None:
    """Beside it first, then in its place: another file of that name is replaced by a whole one."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(beside, flags, 0o600)
    try:
        with open(descriptor, "wb") as stream:  # noqa: PTH123 - Path cannot open with these flags
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
