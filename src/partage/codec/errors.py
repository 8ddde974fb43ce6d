"""Errors of ``partage.errors`` as values that can be written, and back."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from partage import errors
from partage.codec.values import CodecError
from partage.errors import GpuInUse, PartageError, Problem
from partage.values import Frozen


class WrittenError(Frozen):
    """A PartageError as a value. type: name of its class. uses: of a GpuInUse."""

    type: str
    problems: Annotated[tuple[Problem, ...], Meta(min_length=1)]
    uses: tuple[str, ...] = ()


def from_error(error: PartageError) -> WrittenError:
    """The value of an error. One of a class of another module is written as the nearest base class."""
    kind = next(base for base in type(error).__mro__ if base.__module__ == errors.__name__)
    return WrittenError(kind.__name__, error.problems, error.uses if isinstance(error, GpuInUse) else ())


def to_error(written: WrittenError) -> PartageError:
    """Inverse of ``from_error``. Raises CodecError for a class that does not exist or is never raised."""
    kind = _classes().get(written.type)
    if kind is None:
        raise CodecError(f"there is no error {written.type[:40]!r}")
    return GpuInUse(written.problems, uses=written.uses) if kind is GpuInUse else kind(written.problems)


@functools.cache
def _classes() -> dict[str, type[PartageError]]:
    """The classes of ``partage.errors`` by name, without PartageError itself."""
    return {kind.__name__: kind for kind in _below(PartageError) if kind.__module__ == errors.__name__}


def _below(kind: type[PartageError]) -> Iterator[type[PartageError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)
