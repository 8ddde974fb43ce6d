"""The port's values and errors as JSON, and back. Total: whatever arrives is a value or a CodecError.

A dataclass becomes an object of its fields, a tuple a list, an enum its number or text. Only a union of
several dataclasses needs a tag, ``"is"``. What a value may be is read from the annotations of the model:
there is no second description that could differ from it, and nothing but these types can ever be made.
"""

from __future__ import annotations

import functools
import types
import typing
from enum import IntEnum, StrEnum
from typing import Any, TypeVar, Union, cast

from msgspec import Struct
from msgspec.structs import fields

from partage.errors import (
    DriverUnavailable,
    GpuInUse,
    GpuLost,
    HardwareError,
    HardwareTimeout,
    InputError,
    InsufficientResources,
    NotFound,
    NotPermitted,
    PartageError,
    Problem,
    StateMismatch,
    Unsatisfiable,
    Unsupported,
)

T = TypeVar("T")
Json = None | bool | int | float | str | list[Any] | dict[str, Any]

_TAG = "is"
_SCALARS = (bool, int, str)
_ERRORS: dict[str, type[PartageError]] = {
    kind.__name__: kind
    for kind in (
        HardwareError,
        DriverUnavailable,
        HardwareTimeout,
        GpuLost,
        GpuInUse,
        StateMismatch,
        InsufficientResources,
        NotFound,
        NotPermitted,
        Unsupported,
        Unsatisfiable,
        InputError,
    )
}


class CodecError(ValueError):
    """What arrived is not what the port's types allow."""


def encode(value: object) -> Json:
    """JSON for a value of the port."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, Struct):
        content = {field.name: encode(getattr(value, field.name)) for field in fields(value)}
        return {_TAG: type(value).__name__, **content}
    raise TypeError(f"{type(value).__name__} does not cross the socket")


def decode(kind: type[T], data: Json) -> T:
    """Inverse of ``encode``. kind: the type, or ``tuple[X, ...]``. Raises CodecError."""
    return cast("T", _decode(kind, data))


def encode_error(error: PartageError) -> Json:
    """JSON for an error; a class that does not cross becomes the nearest one above it that does."""
    name = next((base.__name__ for base in type(error).__mro__ if base.__name__ in _ERRORS), "HardwareError")
    uses = {"uses": encode(error.uses)} if isinstance(error, GpuInUse) else {}
    return {"type": name, "problems": encode(error.problems), **uses}


def decode_error(data: Json) -> PartageError:
    """Inverse of ``encode_error``. Raises CodecError."""
    if not isinstance(data, dict) or set(data) - {"uses"} != {"type", "problems"}:
        raise CodecError("an error has a type and problems")
    name = data["type"]
    kind = _ERRORS.get(name) if isinstance(name, str) else None
    problems = decode(tuple[Problem, ...], data["problems"])
    if kind is None or not problems:
        raise CodecError(f"there is no error {str(name)[:40]!r}, or it says nothing")
    uses = decode(tuple[str, ...], data.get("uses", []))
    return GpuInUse(problems, uses=uses) if kind is GpuInUse else kind(problems)


def _decode(kind: Any, data: Json) -> Any:  # noqa: ANN401 - any of the port's types
    if kind in _SCALARS:
        # type() and not isinstance: true is no number.
        return data if type(data) is kind else _refuse(kind, data)
    if kind is None or kind is types.NoneType:
        return None if data is None else _refuse(kind, data)
    origin = typing.get_origin(kind)
    if origin is tuple:
        return _decode_tuple(typing.get_args(kind), data)
    if origin in (types.UnionType, Union):
        return _decode_union(typing.get_args(kind), data)
    if origin is typing.Literal:
        return data if data in typing.get_args(kind) else _refuse(kind, data)
    if isinstance(kind, type) and issubclass(kind, IntEnum):
        return _make(kind, data) if type(data) is int else _refuse(kind, data)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _make(kind, data) if type(data) is str else _refuse(kind, data)
    return _decode_dataclass(kind, data)


def _decode_tuple(arguments: tuple[Any, ...], data: Json) -> tuple[Any, ...]:
    if not isinstance(data, list):
        _refuse(tuple, data)
    if arguments[-1] is Ellipsis:
        return tuple(_decode(arguments[0], item) for item in data)
    if len(data) != len(arguments):
        raise CodecError(f"{len(arguments)} values were expected, {len(data)} came")
    return tuple(_decode(kind, item) for kind, item in zip(arguments, data, strict=True))


def _decode_union(kinds: tuple[Any, ...], data: Json) -> Any:  # noqa: ANN401
    if data is None and types.NoneType in kinds:
        return None
    rest = [kind for kind in kinds if kind is not types.NoneType]
    if len(rest) == 1:
        return _decode(rest[0], data)
    tag = data.get(_TAG) if isinstance(data, dict) else None
    for kind in rest:
        if kind.__name__ == tag:
            return _decode(kind, data)
    raise CodecError(f"one of {', '.join(kind.__name__ for kind in rest)} was expected")


def _decode_dataclass(kind: Any, data: Json) -> Any:  # noqa: ANN401
    hints = _hints(kind)
    if not isinstance(data, dict) or data.keys() != hints.keys() | {_TAG} or data[_TAG] != kind.__name__:
        _refuse(kind, data)
    return _make(kind, **{name: _decode(hint, data[name]) for name, hint in hints.items()})


def _make(kind: Any, /, *arguments: object, **named: object) -> Any:  # noqa: ANN401
    """Construct. A value that refuses to be (a placement of size 0) is a CodecError."""
    try:
        return kind(*arguments, **named)
    except ValueError as error:
        raise CodecError(str(error)) from error


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _refuse(kind: Any, data: Json) -> typing.NoReturn:  # noqa: ANN401
    raise CodecError(f"{getattr(kind, '__name__', kind)} was expected, not {str(data)[:60]!r}")
