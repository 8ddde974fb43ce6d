"""Says whether a device is what an expression of a claim or class wants, as the scheduler does.

No library: each of the three on PyPI brings compiled code for one verb and has none of the functions that
Kubernetes adds, and the classes of our own chart have to be evaluated wherever the verb is. Source of names
and functions: the documentation of CEL in Kubernetes, and k8s.io/dynamic-resource-allocation/cel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from partage.claims.decide.cel_syntax import (
    CelBoth,
    CelCall,
    CelChoice,
    CelCompare,
    CelField,
    CelList,
    CelLiteral,
    CelName,
    CelNode,
    CelNot,
    NotEvaluated,
    read_expression,
)
from partage.claims.model.slices import SliceDevice
from partage.text import count_of
from partage.units import parse_quantity
from partage.values import Frozen

_MOST_REPEATS = 4
"""Of a pattern: more could take minutes, and a tenant may have written it."""
_VERSION = re.compile(r"(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})", re.ASCII)


class SelectorError(Exception):
    """The expression has failed on a device: the scheduler then gives the whole pod up. Its text: why."""


class _QuantityValue(Frozen):
    number: Decimal


class _Semver(Frozen):
    numbers: tuple[int, ...]


class _Optional(Frozen):
    there: bool
    value: Any = None


class _Domains(dict[str, Mapping[str, Any]]):
    """By domain. One that a device does not have is empty, and no error."""

    def __missing__(self, key: str) -> Mapping[str, Any]:
        return {}


def selects(expression: str, device: SliceDevice, driver: str) -> bool:
    """Whether the device is wanted. Raises SelectorError, NotEvaluated."""
    found = _value(read_selector(expression), {"device": _device(device, driver)})
    if not isinstance(found, bool):
        raise SelectorError("its value is not true or false")
    return found


@lru_cache(maxsize=256)
def read_selector(expression: str) -> CelNode:
    """The expression, read once. Raises NotEvaluated for what is not evaluated here, for any device."""
    node = read_expression(expression)
    _check(node)
    return node


def _device(device: SliceDevice, driver: str) -> Mapping[str, Any]:
    attributes: dict[str, dict[str, Any]] = {}
    for name, attribute in device.attributes.items():
        domain, _, key = name.rpartition("/")
        value: Any = next(
            (value for value in (attribute.string, attribute.number, attribute.flag) if value is not None),
            None,
        )
        if attribute.version is not None:
            value = _or_text(_version, attribute.version)
        attributes.setdefault(domain or driver, {})[key] = value
    capacity: dict[str, dict[str, Any]] = {}
    for name, row in device.capacity.items():
        domain, _, key = name.rpartition("/")
        capacity.setdefault(domain or driver, {})[key] = _or_text(_amount, row.value)
    return {
        "driver": driver,
        "attributes": _Domains(attributes),
        "capacity": _Domains(capacity),
        "allowMultipleAllocations": device.allow_multiple_allocations is True,
    }


def _or_text(read: Callable[[str], Any], text: str) -> Any:  # noqa: ANN401 - values of CEL have any type
    """Another driver's value that is not understood is an error only where it is used."""
    try:
        return read(text)
    except SelectorError:
        return text


def _check(node: CelNode) -> None:
    """Raises NotEvaluated."""
    if isinstance(node, CelName) and node.name != "device":
        raise NotEvaluated(f"the name {node.name}")
    if isinstance(node, CelCall):
        known = _FUNCTIONS if node.target is None else _METHODS
        if node.name not in known or len(node.arguments) != known[node.name][0]:
            raise NotEvaluated(f"the function {node.name} of {count_of(len(node.arguments), 'value')}")
        if node.name == "matches" and isinstance(pattern := node.arguments[0], CelLiteral):
            _pattern(str(pattern.value))
    for inner in _inner(node):
        _check(inner)


def _inner(node: CelNode) -> tuple[CelNode, ...]:
    match node:
        case CelLiteral() | CelName():
            return ()
        case CelField(base=base, key=key):
            return base, key
        case CelCall(target=target, arguments=arguments):
            return arguments if target is None else (target, *arguments)
        case CelList(items=items):
            return items
        case CelNot(inner=inner):
            return (inner,)
        case CelBoth(left=left, right=right) | CelCompare(left=left, right=right):
            return left, right
        case CelChoice(condition=condition, yes=yes, no=no):
            return condition, yes, no


# --- values -----------------------------------------------------------------------------------------


def _value(node: CelNode, names: Mapping[str, Any]) -> Any:  # noqa: ANN401 - values of CEL have any type
    """Raises SelectorError."""
    match node:
        case CelLiteral(value=value):
            return value
        case CelName(name=name):
            return names[name]
        case CelField():
            return _field(node, names)
        case CelCall(name="has", arguments=(CelField() as inner,)):
            base = _value(inner.base, names)
            return isinstance(base, Mapping) and _value(inner.key, names) in base
        case CelCall(name=name, target=target, arguments=arguments):
            given = [] if target is None else [_value(target, names)]
            function = (_FUNCTIONS if target is None else _METHODS)[name][1]
            return function(*given, *(_value(argument, names) for argument in arguments))
        case CelList(items=items):
            return [_value(item, names) for item in items]
        case CelNot(inner=inner):
            return not _truth(_value(inner, names))
        case CelBoth():
            return _both(node, names)
        case CelCompare(sign=sign, left=left, right=right):
            return _compared(sign, _value(left, names), _value(right, names))
        case CelChoice(condition=condition, yes=yes, no=no):
            return _value(yes if _truth(_value(condition, names)) else no, names)


def _field(node: CelField, names: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as above
    base, key = _value(node.base, names), _value(node.key, names)
    optional = node.optional or isinstance(base, _Optional)
    if isinstance(base, _Optional):
        if not base.there:
            return base
        base = base.value
    if not isinstance(base, Mapping):
        raise SelectorError(f"{str(key)[:60]} is asked of what has no fields")
    if optional:
        return _Optional(key in base, base.get(key))
    try:
        return base[key]
    except KeyError:
        raise SelectorError(f"the device has no {str(key)[:60]}") from None


def _both(node: CelBoth, names: Mapping[str, Any]) -> bool:
    """An error counts only where the other side does not decide alone."""
    decides = node.either
    try:
        left = _truth(_value(node.left, names))
    except SelectorError:
        if _truth(_value(node.right, names)) is decides:
            return decides
        raise
    return decides if left is decides else _truth(_value(node.right, names))


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise SelectorError("a condition is not true or false")
    return value


def _compared(sign: str, left: Any, right: Any) -> bool:  # noqa: ANN401 - as above
    if sign == "in":
        if not isinstance(right, list | Mapping):
            raise SelectorError("in is asked of what is no list")
        return any(_same(left, item) for item in right)
    if sign in ("==", "!="):
        return _same(left, right) is (sign == "==")
    if type(left) is not type(right) or not isinstance(left, str | int):
        raise SelectorError(f"{sign} between values that cannot be compared")
    return bool({"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[sign])


def _same(left: object, right: object) -> bool:
    return type(left) is type(right) and left == right


# --- functions ----------------------------------------------------------------------------------------


def _amount(text: object) -> _QuantityValue:
    try:
        return _QuantityValue(parse_quantity(str(text)))
    except ValueError as error:
        raise SelectorError(str(error)) from None


def _version(text: object) -> _Semver:
    match = _VERSION.fullmatch(str(text))
    if match is None:
        raise SelectorError(f"{str(text)[:40]!r} is no version of three numbers")
    return _Semver(tuple(int(part) for part in match.groups()))


def _sign(left: object, right: object) -> int:
    if isinstance(left, _QuantityValue) and isinstance(right, _QuantityValue):
        return (left.number > right.number) - (left.number < right.number)
    if isinstance(left, _Semver) and isinstance(right, _Semver):
        return (left.numbers > right.numbers) - (left.numbers < right.numbers)
    raise SelectorError("two amounts or two versions can be compared")


def _pattern(text: str) -> re.Pattern[str]:
    """Raises NotEvaluated for patterns of another dialect, and for those that may take very long."""
    bare = re.sub(r"\\.|\[[^\]]*\]", "x", text)
    repeats = sum(bare.count(sign) for sign in "*+?{")
    if repeats > _MOST_REPEATS + bare.count("(?i)") or re.search(r"\)[*+{]|\\[0-9pPQCz]|\(\?(?!i\))", text):
        raise NotEvaluated(f"the pattern {text[:40]!r}")
    try:
        return re.compile(text, re.ASCII)
    except re.error:
        raise NotEvaluated(f"the pattern {text[:40]!r}") from None


def _matches(text: object, pattern: object) -> bool:
    try:
        return _pattern(_text(pattern)).search(_text(text)) is not None
    except NotEvaluated as error:
        raise SelectorError(str(error)) from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise SelectorError("a function of texts is asked of another value")
    return value


def _or_value(value: object, default: object) -> object:
    if not isinstance(value, _Optional):
        raise SelectorError("orValue goes with .?field")
    return value.value if value.there else default


def _size(value: object) -> int:
    if not isinstance(value, str | list | Mapping):
        raise SelectorError("size is asked of what has none")
    return len(value)


_FUNCTIONS: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "has": (1, lambda _: _truth(None)),
    "quantity": (1, _amount),
    "semver": (1, _version),
    "size": (1, _size),
}
_METHODS: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "compareTo": (1, _sign),
    "isGreaterThan": (1, lambda left, right: _sign(left, right) > 0),
    "isLessThan": (1, lambda left, right: _sign(left, right) < 0),
    "matches": (1, _matches),
    "startsWith": (1, lambda text, part: _text(text).startswith(_text(part))),
    "endsWith": (1, lambda text, part: _text(text).endswith(_text(part))),
    "contains": (1, lambda text, part: _text(part) in _text(text)),
    "lowerAscii": (0, lambda text: _text(text).lower()),
    "upperAscii": (0, lambda text: _text(text).upper()),
    "orValue": (1, _or_value),
    "hasValue": (0, lambda value: isinstance(value, _Optional) and value.there),
    "size": (0, _size),
}
"""How many values each has, beside that of which it is a method."""
