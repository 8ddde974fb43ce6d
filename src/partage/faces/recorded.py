"""Documents that a verb wrote down and reads again: a run of ``bench``, a report of ``prove``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from partage.errors import InputError, Problem

API_VERSION = "partage/v1"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Recorded(Generic[T]):
    """One kind of document. what: ``recorded run of partage bench``. hint: what writes one.

    parse: the value of a document. For one that is wrong it raises KeyError, TypeError, ValueError,
    AttributeError or OverflowError.
    """

    kind: str
    what: str
    hint: str
    largest_bytes: int
    parse: Callable[[Mapping[str, Any]], T]

    def read(self, file: str) -> T:
        """Raises InputError for a file that is none."""
        try:
            path = Path(file)
            if path.stat().st_size > self.largest_bytes:
                raise _wrong(file, f"is larger than {self.largest_bytes >> 20} MiB")
            document = json.loads(path.read_bytes())
        except OSError as error:
            raise _wrong(file, f"cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise _wrong(file, f"is no JSON: {error}") from error
        return self.from_document(document, file)

    def from_document(self, document: object, file: str = "") -> T:
        """Raises InputError for anything else."""
        if not isinstance(document, dict) or document.get("kind") != self.kind:
            raise _wrong(file, f"is no {self.what}", self.hint)
        if document.get("apiVersion") != API_VERSION:
            raise _wrong(file, f"is of apiVersion {document.get('apiVersion')!r}, not {API_VERSION!r}")
        try:
            return self.parse(document)
        except KeyError as error:
            raise _wrong(file, f"lacks the key {error.args[0]!r}") from error
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise _wrong(file, f"is not as a {self.what} is: {error}") from error


def _wrong(file: str, message: str, hint: str = "") -> InputError:
    return InputError([Problem(file, "", "error", message, hint)])
