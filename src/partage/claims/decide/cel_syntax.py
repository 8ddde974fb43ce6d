"""Reads the part of CEL that expressions about devices are written in: comparisons, fields, calls, lists.

What is not read here (macros, arithmetic, maps) is said, and the expression counts as not evaluated. Source:
the grammar of the CEL specification.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from partage.values import Frozen

LONGEST_EXPRESSION = 10 * 1024
"""Characters, as the API server allows."""

_DEEPEST = 40
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?[uU]?)
      | (?P<text>[rR]?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<sign>&&|\|\||==|!=|<=|>=|[.?:,()\[\]<>!+*/%{}-])
    )""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "`": "`", "?": "?"}
_COMPARISONS = ("==", "!=", "<=", ">=", "<", ">", "in")


class NotEvaluated(ValueError):
    """The expression has something that is not evaluated here. Its text: what, a noun phrase."""


class CelLiteral(Frozen):
    """Text, a whole number, true, false or null."""

    value: str | int | bool | None


class CelName(Frozen):
    """``device``."""

    name: str


class CelField(Frozen):
    """``base.key`` or ``base[key]``. optional: ``base.?key``: nothing is no error."""

    base: CelNode
    key: CelNode
    optional: bool = False


class CelCall(Frozen):
    """``target.name(arguments)``; target: None: a function."""

    name: str
    target: CelNode | None
    arguments: tuple[CelNode, ...]


class CelList(Frozen):
    """``[a, b]``."""

    items: tuple[CelNode, ...]


class CelNot(Frozen):
    """``!a``."""

    inner: CelNode


class CelBoth(Frozen):
    """``a && b``; either: ``a || b``."""

    left: CelNode
    right: CelNode
    either: bool = False


class CelCompare(Frozen):
    """``a == b`` and the like, and ``a in b``."""

    sign: str
    left: CelNode
    right: CelNode


class CelChoice(Frozen):
    """``condition ? yes : no``."""

    condition: CelNode
    yes: CelNode
    no: CelNode


CelNode = CelLiteral | CelName | CelField | CelCall | CelList | CelNot | CelBoth | CelCompare | CelChoice


def read_expression(text: str) -> CelNode:
    """The expression. Raises NotEvaluated for what is not read here, and for what is no CEL."""
    if len(text) > LONGEST_EXPRESSION:
        raise NotEvaluated(f"more than {LONGEST_EXPRESSION} characters")
    reader = _Reader(_tokens(text))
    node = reader.choice()
    if reader.token is not None:
        raise NotEvaluated(f"{reader.token!r} where an operator is expected")
    return node


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise NotEvaluated(f"the sign {text[at:].lstrip()[:1]!r}")
        found.append(match[match.lastgroup or 0])
        at = match.end()
    return found


class _Reader:
    """Reads tokens by descent, one method for each level of the grammar."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    @property
    def token(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self) -> str:
        if (token := self.token) is None:
            raise NotEvaluated("an end in the middle")
        self._at += 1
        return token

    def _take(self, *signs: str) -> str:
        """The token if it is one of these, else nothing."""
        if self.token not in signs:
            return ""
        return self._next()

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            raise NotEvaluated(f"{self.token or 'its end'!r} where {sign!r} is expected")

    def choice(self) -> CelNode:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise NotEvaluated(f"more than {_DEEPEST} levels")
        node = self._either()
        if self._take("?"):
            yes = self._either()
            self._need(":")
            node = CelChoice(node, yes, self.choice())
        self._depth -= 1
        return node

    def _either(self) -> CelNode:
        return self._joined("||", self._both)

    def _both(self) -> CelNode:
        return self._joined("&&", self._comparison)

    def _joined(self, sign: str, inner: Callable[[], CelNode]) -> CelNode:
        node = inner()
        while self._take(sign):
            node = CelBoth(node, inner(), sign == "||")
        return node

    def _comparison(self) -> CelNode:
        node = self._sum()
        while sign := self._take(*_COMPARISONS):
            node = CelCompare(sign, node, self._sum())
        return node

    def _sum(self) -> CelNode:
        node = self._unary()
        if self.token in ("+", "-", "*", "/", "%"):
            raise NotEvaluated(f"arithmetic ({self.token})")
        return node

    def _unary(self) -> CelNode:
        signs = 0
        while self._take("!"):
            signs += 1
        if self._take("-"):
            number = self._member()
            if signs or not isinstance(number, CelLiteral) or type(number.value) is not int:
                raise NotEvaluated("a minus before what is no number")
            return CelLiteral(-number.value)
        node = self._member()
        return CelNot(node) if signs % 2 else node

    def _member(self) -> CelNode:
        node = self._primary()
        while sign := self._take(".", "["):
            optional = bool(self._take("?"))
            if sign == "[":
                node = CelField(node, self.choice(), optional)
                self._need("]")
                continue
            name = self._next()
            if not name.isidentifier():
                raise NotEvaluated(f"{name!r} after a dot")
            if self._take("("):
                node = CelCall(name, node, self._rest(")"))
            else:
                node = CelField(node, CelLiteral(name), optional)
        return node

    def _primary(self) -> CelNode:
        word = self._next()
        if word == "(":
            node = self.choice()
            self._need(")")
            return node
        if word == "[":
            return CelList(self._rest("]"))
        if word[0].isdigit():
            if not word.isdecimal():
                raise NotEvaluated(f"the number {word[:20]}")
            return CelLiteral(int(word))
        if word[-1] in "'\"":
            return CelLiteral(_text(word))
        if word in ("true", "false", "null"):
            return CelLiteral({"true": True, "false": False, "null": None}[word])
        if not word.isidentifier():
            raise NotEvaluated(f"{word!r} where a value is expected")
        if self._take("("):
            return CelCall(word, None, self._rest(")"))
        return CelName(word)

    def _rest(self, end: str) -> tuple[CelNode, ...]:
        """Values with commas between them, up to the end."""
        found: list[CelNode] = []
        while not self._take(end):
            if found:
                self._need(",")
            found.append(self.choice())
        return tuple(found)


def _text(token: str) -> str:
    raw = token[0] in "rR"
    inner = token[2:-1] if raw else token[1:-1]
    if raw or "\\" not in inner:
        return inner

    def meant(match: re.Match[str]) -> str:
        if match[1] not in _ESCAPES:
            raise NotEvaluated(f"the escape \\{match[1]}")
        return _ESCAPES[match[1]]

    return re.sub(r"\\(.)", meant, inner)
