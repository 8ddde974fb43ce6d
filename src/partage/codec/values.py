"""Values to JSON and back, checked by their types: what comes back is a value, or there is a CodecError.

A Struct becomes an object with camelCase keys, a tuple a list, an enum its value. A ``Tagged`` Struct has the
key ``type``. What a value may be is read from its annotations; there is no second description. Errors of
``partage.errors`` have values that stand for them (``WrittenError``).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import Meta

from partage import errors
from partage.errors import GpuInUse, PartageError, Problem
from partage.values import Frozen

T = TypeVar("T")

_ENCODER = msgspec.json.Encoder()
_NEVER_FLOAT = frozenset({bool, int, str, type(None)})


class CodecError(ValueError):
    """The data is not of the expected type, or a value cannot be written. The message has the path."""


def encode(value: object) -> bytes:
    """The JSON of a value. Raises CodecError for NaN, infinity and text that is not Unicode."""
    try:
        content = _ENCODER.encode(value)
    except UnicodeEncodeError as error:
        raise CodecError(f"{error.object[:60]!r} is not Unicode text") from error
    if b"null" in content:  # as which msgspec writes a number that is not finite
        _refuse_not_finite(value)
    return content


def encode_replacing(value: object) -> bytes:
    """As ``encode``, with ``?`` for what is not Unicode, for documents that quote paths: a path may be any
    bytes. Raises CodecError for NaN and infinity.
    """
    try:
        return encode(value)
    except CodecError:
        _refuse_not_finite(value)
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_of_raw)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def _of_raw(value: object) -> object:
    assert isinstance(value, msgspec.Raw), f"no type of JSON: {type(value).__name__}"
    return msgspec.json.decode(value)


def to_plain(value: object) -> Any:  # noqa: ANN401 - JSON has no better type
    """A value as dicts, lists and scalars. Raises CodecError for NaN and infinity."""
    _refuse_not_finite(value)
    return msgspec.to_builtins(value, str_keys=True)


def decode(kind: type[T], data: bytes, *, strict: bool = True) -> T:
    """Inverse of ``encode``. strict: keys that ``kind`` lacks are refused. A key that is missing has its
    default: an older release did not know it. Raises CodecError.
    """
    data = bytes(data)  # a Raw is equal to no bytes
    try:
        value: T = _decoder(cast("Any", kind)).decode(data)
        if strict and (written := _ENCODER.encode(value)) != data:
            _refuse_other_keys(msgspec.json.decode(data), msgspec.json.decode(written), "$")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise CodecError(str(error)) from error
    return value


def from_plain(kind: type[T], plain: object, *, strict: bool = True) -> T:
    """Inverse of ``to_plain``. strict: as in ``decode``. Raises CodecError."""
    try:
        value = msgspec.convert(plain, kind, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise CodecError(str(error)) from error
    if strict:
        _refuse_other_keys(plain, to_plain(value), "$")
    return value


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401 - a type or a union of types
    return msgspec.json.Decoder(kind)


def _refuse_not_finite(value: object) -> None:
    place = _not_finite(value)
    if place is not None:
        raise CodecError(f"a number that is not finite cannot be written - at `${place}`")


def _not_finite(value: object) -> str | None:
    """The place in a value of NaN or infinity; None if there is none."""
    if isinstance(value, float):
        return None if isfinite(value) else ""
    for key, inner in _members(value):
        if type(inner) not in _NEVER_FLOAT and (place := _not_finite(inner)) is not None:
            return f"[{key}]{place}" if isinstance(key, int) else f".{key}{place}"
    return None


def _members(value: object) -> Iterable[tuple[object, object]]:
    if isinstance(value, msgspec.Struct):
        return ((name, getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def _refuse_other_keys(plain: object, written: object, path: str) -> None:
    """written: what the value that was read from ``plain`` is written as."""
    if isinstance(plain, dict) and isinstance(written, dict):
        for key in sorted(plain.keys() - written.keys()):
            raise CodecError(f"Object has the unknown field {key[:60]!r} - at `{path}`")
        for key, inner in plain.items():
            _refuse_other_keys(inner, written[key], f"{path}.{key}")
    elif isinstance(plain, list | tuple) and isinstance(written, list | tuple):
        for index, (inner, other) in enumerate(zip(plain, written, strict=True)):
            _refuse_other_keys(inner, other, f"{path}[{index}]")


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
