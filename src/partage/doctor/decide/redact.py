"""Takes secrets out of texts and documents that leave the node. Pure.

Too much is removed rather than too little: what looks like a token, a password, a key, a certificate, a value
of the environment, the name of a user, or a board's serial number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

REMOVED = "[removed]"

_NAMES = (
    r"[\w.\-]*(?:token|passw(?:or)?d|passphrase|secret|api[_\-]?key|access[_\-]?key|private[_\-]?key"
    r"|jwt[_\-]?key|credential|authorization|cookie"
    r"|(?:encryption|licen[cs]e|signing|ssh|master|account|shared)[_\-]?key|session[_\-]?id)[\w.\-]*"
    r"|[\w.\-]*(?:pass|pwd|bindpw|-data)(?![\w.\-])"
)
_EXACT = r"(?:auth|user|username|user_name|account|accounts|owner|email|certificate|cert|key-data|serial)"
_KEY = rf"(?:{_NAMES}|{_EXACT})"
_IS_SECRET = re.compile(rf"-*{_KEY}", re.IGNORECASE)

_PAIR = re.compile(
    rf"""(?ix) (?<![\w.\-]) (?P<key> ["']? -{{0,2}} {_KEY} ["']? \s*[:=]\s*)
    (?: "(?:[^"\\]|\\.)*" | '[^'\n]*' | (?P<plain> [^\s"'\[{{|>][^\n]* ) )""",
)
"""``"token": "x"``, ``password: x y``, ``--api-key=x``; a plain value goes to the end of its line."""

_BLOCK = re.compile(
    rf"(?im)^(?P<head>(?P<indent>[ \t]*)(?:-[ \t]+)?[\"']?{_KEY}[\"']?[ \t]*:[ \t]*)[|>][-+0-9]*[ \t]*\n"
    r"(?:(?P=indent)[ \t]+[^\n]*(?:\n|\Z)|[ \t]*\n)+"
)
"""A block of YAML below such a key."""

_LIST = re.compile(
    rf"(?im)^(?P<head>(?P<indent>[ \t]*)(?:-[ \t]+)?[\"']?{_KEY}[\"']?[ \t]*:)[ \t]*\n"
    r"(?:(?P=indent)[ \t]*-[ \t]+[^\n]*(?:\n|\Z))+"
)
"""A list of YAML below such a key."""

_INNER_JSON = re.compile(
    rf"(?i)(?P<quote>\\+[\"'])(?P<key>{_KEY})(?P=quote)(?P<between>\s*:\s*)(?P=quote)"
    r"(?:\\\\(?P=quote)|(?!(?P=quote)).)*(?P=quote)"
)
"""``\\"token\\": \\"x\\"``: JSON in a text of JSON, as container runtimes write logs."""

_KEPT_VARIABLES = ("PARTAGE_", "NVIDIA_", "CUDA_")
_VARIABLE_NAME = rf"(?!{'|'.join(_KEPT_VARIABLES)})[A-Z][A-Z0-9_]+"
_POD_VARIABLE = re.compile(
    rf"(?P<head>name:\s*[\"']?{_VARIABLE_NAME}[\"']?(?:\s*,\s*|[ \t]*\n\s*)value:[ \t]*)"
    r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\n,}]+)"
)
"""``{name: X, value: y}``, ``- name: X`` above ``value: y``."""

_SAID = re.compile(
    r"(?i)\b(password|passphrase|passwd|bindpw)[ \t]+(?!(?:is|was|for|of|and|or|file)\b)[^\s:=]+"
)
_CURL_USER = re.compile(r"(?<!\S)(-u)[ \t]+\S+:\S+")
_QUERY = re.compile(r"(?i)\b([a-z][a-z0-9+.\-]{0,30}://[^\s\"'?]+\?)[^\s\"'<>\\]+")
"""Tokens and signatures of links are in what follows the question mark."""

_OPTION = re.compile(rf"(?i)(?<!\S)(--{_KEY})[ \t]+(?!-)\S+")
_PEM = re.compile(r"-----BEGIN [^-\n]+-----.*?(?:-----END [^-\n]+-----|\Z)", re.DOTALL)
_BEARER = re.compile(r"(?i)\b(bearer|basic|negotiate)\s+[A-Za-z0-9._~+/=\-]{6,}")
_JWT = re.compile(r"\beyJ[A-Za-z0-9_\-]{6,}\.[A-Za-z0-9_\-]{6,}(?:\.[A-Za-z0-9_\-]*)?")
_USERINFO = re.compile(r"(?i)\b([a-z][a-z0-9+.\-]{0,30}://)(?:[^/\s@\"']+|[^/\s@:\"']*:[^\s\"']*)@")
"""A password may have ``/`` and ``@`` in it."""

_KNOWN = re.compile(
    r"\b(?:AKIA[0-9A-Z]{12,}|ASIA[0-9A-Z]{12,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|glpat-[\w\-]{16,}|hf_[A-Za-z0-9]{20,}|nvapi-[\w\-]{20,}|sk-[\w\-]{20,}|xox[abprs]-[\w\-]{10,})"
)
_ENVIRONMENT = re.compile(
    r"(?<![\w.\-/])(?!(?:PARTAGE|NVIDIA|CUDA)_)([A-Z][A-Z0-9]*_[A-Z0-9_]*|[A-Z]{4,})=\S+"
)
"""``HTTP_PROXY=...``, in logs and command lines."""

_HOME = re.compile(r"(/home/|/Users/)[^/\s\"':]+")
_BASE64 = re.compile(
    r"(?<![\w+/=\-])(?=[A-Za-z0-9+/]{64})(?=[^\s]*[A-Z])(?=[^\s]*[a-z])(?=[^\s]*[0-9])"
    r"[A-Za-z0-9+/]{64,}={0,2}(?![\w])"
)
"""Long and not hexadecimal: a key, or a certificate without its lines of text."""

_ENVIRONMENTS = frozenset({"env", "environ", "environment"})


def redact_text(text: str) -> str:
    """The text without what looks like a secret."""
    text = _PEM.sub(REMOVED, text)
    text = _BLOCK.sub(lambda match: f"{match['head']}{REMOVED}\n", text)
    text = _LIST.sub(lambda match: f"{match['head']} {REMOVED}\n", text)
    text = _INNER_JSON.sub(rf"\g<quote>\g<key>\g<quote>\g<between>\g<quote>{REMOVED}\g<quote>", text)
    text = _POD_VARIABLE.sub(rf"\g<head>{REMOVED}", text)
    text = _PAIR.sub(lambda match: f"{match['key']}{_in_place_of(match)}", text)
    text = _OPTION.sub(rf"\1 {REMOVED}", text)
    text = _SAID.sub(rf"\1 {REMOVED}", text)
    text = _BEARER.sub(rf"\1 {REMOVED}", text)
    text = _CURL_USER.sub(rf"\1 {REMOVED}", text)
    text = _USERINFO.sub(rf"\1{REMOVED}@", text)
    text = _QUERY.sub(rf"\1{REMOVED}", text)
    text = _ENVIRONMENT.sub(rf"\1={REMOVED}", text)
    text = _HOME.sub(rf"\1{REMOVED}", text)
    for pattern in (_JWT, _KNOWN, _BASE64):
        text = pattern.sub(REMOVED, text)
    return text


def _in_place_of(match: re.Match[str]) -> str:
    """Quoted where the value was, so that JSON stays JSON."""
    return REMOVED if match["plain"] is not None else f'"{REMOVED}"'


def redact_value(value: Any) -> Any:  # noqa: ANN401 - values of JSON
    """A document of JSON values without secrets: by their keys, as variables, as options, as texts."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        if _is_variable(value):
            return {**value, "value": REMOVED}
        return {redact_text(str(key)): _inner(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [
            REMOVED if _follows_secret_option(value, place) else redact_value(inner)
            for place, inner in enumerate(value)
        ]
    return value


def _inner(key: str, value: Any) -> Any:  # noqa: ANN401 - values of JSON
    if _hides(key, value):
        return REMOVED
    if key.lower() in _ENVIRONMENTS and isinstance(value, Mapping):
        return {name: one if name.startswith(_KEPT_VARIABLES) else REMOVED for name, one in value.items()}
    if key.lower() in _ENVIRONMENTS and isinstance(value, list | tuple):
        return [_assignment(item) if isinstance(item, str) else redact_value(item) for item in value]
    return redact_value(value)


def _assignment(text: str) -> str:
    """``NAME=value`` without the value."""
    name, equals, _ = text.partition("=")
    return text if name.startswith(_KEPT_VARIABLES) or not equals else f"{name}={REMOVED}"


def _hides(key: str, value: object) -> bool:
    """Whether nothing of the value may stay. Numbers and truths are no secrets."""
    return bool(_IS_SECRET.fullmatch(key)) and isinstance(value, str | list | tuple | Mapping)


def _is_variable(value: Mapping[str, Any]) -> bool:
    """``{"name": "X", "value": "y"}``, as in a pod."""
    name = value.get("name")
    return set(value) == {"name", "value"} and isinstance(name, str) and not name.startswith(_KEPT_VARIABLES)


def _follows_secret_option(items: list[Any] | tuple[Any, ...], place: int) -> bool:
    before = items[place - 1] if place else None
    return (
        isinstance(before, str)
        and before.startswith("-")
        and "=" not in before
        and bool(_IS_SECRET.fullmatch(before))
    )
