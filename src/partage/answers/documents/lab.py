"""Reports of experiments as JSON documents, and back: a run of ``bench``, a report of ``prove``.

A report is a msgspec Struct; its keys are its fields in camelCase, with ``Seconds`` for ``_s``. Keys are
added, never renamed. A reader passes over keys of newer versions.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from partage.answers.documents.document import API_VERSION
from partage.codec.values import decode, from_plain, to_plain
from partage.edges.host.read_file import read_named
from partage.errors import wrong_input
from partage.values import Frozen

T = TypeVar("T")


class LabReport(Frozen, kw_only=True):
    """What every report begins with. at: RFC 3339, UTC. remarks: what to know before relying on it."""

    at: str
    command: tuple[str, ...]
    versions: dict[str, str]
    remarks: tuple[str, ...]


def now() -> str:
    """The time for ``at``."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def command_line() -> tuple[str, ...]:
    """This command, for ``command``."""
    return ("partage", *sys.argv[1:])


class DocumentKind(Frozen, Generic[T]):
    """One kind of document.

    what: ``recorded run of partage bench``. hint: what writes one. derived: keys that repeat what a value
    says, for readers that do not compute. check: raises ValueError for a value that makes no sense.
    """

    kind: str
    what: str
    hint: str
    largest_bytes: int
    type: type[T]
    derived: Callable[[T, dict[str, Any]], Mapping[str, Any]]
    check: Callable[[T], None] = lambda _: None

    def to_document(self, value: T) -> dict[str, Any]:
        """The document of a value."""
        found = to_plain(value)
        return {"apiVersion": API_VERSION, "kind": self.kind, **found, **self.derived(value, found)}

    def read(self, file: str) -> T:
        """The value in a file. Raises InputError for anything else."""
        try:
            content = read_named(Path(file), self.largest_bytes + 1)
            if len(content) > self.largest_bytes:
                raise wrong_input(file, f"is larger than {self.largest_bytes >> 20} MiB")
            document = decode(cast("type[object]", Any), content, strict=False)
        except OSError as error:
            raise wrong_input(file, f"cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise wrong_input(file, f"is no JSON: {error}") from error
        return self.from_document(document, file)

    def from_document(self, document: object, file: str = "") -> T:
        """The value of a document. Raises InputError for anything else."""
        if not isinstance(document, dict) or document.get("kind") != self.kind:
            raise wrong_input(file, f"is no {self.what}", self.hint)
        if document.get("apiVersion") != API_VERSION:
            raise wrong_input(file, f"is of apiVersion {document.get('apiVersion')!r}, not {API_VERSION!r}")
        try:
            value = from_plain(self.type, document, strict=False)
            self.check(value)
        except ValueError as error:
            raise wrong_input(file, f"is not as a {self.what} is: {error}") from error
        return value
