"""Requests to the API server: credentials that rotate, deadlines, retries, errors as those of Partage, and
long lists page by page.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from partage.codec.values import CodecError, decode, encode
from partage.edges.host.http_exchange import HttpExchange, HttpRequest, ProtocolError, connect
from partage.edges.kube.config import ClusterConfig
from partage.edges.kube.objects import Details, Json, Page, Status
from partage.errors import Absent, ClusterError, Conflict, Rejected, Unreachable

if TYPE_CHECKING:
    import ssl


FIRST_S, LONGEST_S = 0.5, 30.0
"""Between two attempts while the API server is away, in seconds: twice as long each time, with jitter, so
that the nodes of a fleet do not come back at one moment. client-go waits as long."""


class Backoff:
    """Pauses that grow from FIRST_S to LONGEST_S. jitter: a number from 0 to 1, random by default."""

    def __init__(
        self,
        first_s: float = FIRST_S,
        longest_s: float = LONGEST_S,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._first_s, self._longest_s, self._jitter = first_s, longest_s, jitter
        self._next_s = first_s

    def pause_s(self, at_least_s: float = 0.0) -> float:
        """The next pause: a half to the whole of what it has grown to. at_least_s: of Retry-After."""
        pause_s = self._next_s * (1 + self._jitter()) / 2
        self._next_s = min(self._next_s * 2, self._longest_s)
        return max(pause_s, at_least_s)

    def reset(self) -> None:
        """After a success."""
        self._next_s = self._first_s


T = TypeVar("T")
Parameters = Mapping[str, str]

CALL_S, CONNECT_S = 15.0, 5.0
"""Deadlines of a request and of a connection, in seconds."""

TRIES = 3
"""How often a request is sent that was answered with 429, with a fault of the server, or not at all."""

LONGEST_RETRY_AFTER_S = 30.0

KEPT_S = 20.0
"""How long a connection is kept that nobody uses, in seconds: it is younger than what ends idle connections
in between, and it is not kept for a node at rest."""

_BUSY, _GONE = 429, 410


class ErrorResponse(ClusterError):
    """An answer that is not 2xx. Never leaves this package."""

    def __init__(self, code: int, status: Status, retry_after_s: float) -> None:
        super().__init__(status.message or f"HTTP {code}")
        self.code, self.said, self.retry_after_s = code, status, retry_after_s


class Forbidden(Rejected):
    """The account has not the right to ask this."""


class Expired(Rejected):
    """The API server has forgotten the version that was asked for."""


class Connection:
    """The way to one API server. Each request has a connection of its own, for they are minutes apart; keep:
    ``call`` takes the last one again if it can, for requests that come in bursts. Then close it in the end.
    """

    def __init__(
        self, config: ClusterConfig, backoff: Callable[[], Backoff] = Backoff, *, keep: bool = False
    ) -> None:
        self.config = config
        self.backoff = backoff
        self._keep = keep
        self._kept: tuple[HttpExchange, object, asyncio.TimerHandle] | None = None
        self._tls: ssl.SSLContext | None = None
        self._tls_of: object = None

    async def call(
        self,
        kind: type[T],
        method: str,
        path: str,
        *,
        parameters: Parameters | None = None,
        body: Json | None = None,
        media_type: str = "application/json",
        tries: int = TRIES,
    ) -> T:
        """Send a request, again where that can help, and decode its answer. tries: how often at most.

        Raises Unreachable, Conflict, Absent or Rejected; ErrorResponse for a 429 that answers this very
        request (a PodDisruptionBudget). InputError if the credentials cannot be read.
        """
        content = None if body is None else encode(body)
        asked = HttpRequest(method, path, parameters or {}, content, media_type)
        backoff = self.backoff()
        for left in reversed(range(tries)):
            try:
                return _decoded(kind, await self._once(asked), self.config)
            except ErrorResponse as error:
                if is_protected(error):
                    raise
                if not left or not _may_help(error):
                    raise as_ours(error, self.config, f"{method} {path}") from error
                await asyncio.sleep(backoff.pause_s(min(error.retry_after_s, LONGEST_RETRY_AFTER_S)))
            except Unreachable:
                if not left or method == "POST":  # it may have arrived
                    raise
                await asyncio.sleep(backoff.pause_s())
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """End the connection that is kept, if there is one."""
        if (exchange := self._take()) is not None:
            exchange.close()

    async def _once(self, asked: HttpRequest) -> bytes:
        tls = self._context()
        if asked.method != "POST" and (kept := self._take(tls)) is not None:
            try:
                return await self._asked(kept, asked)
            except Unreachable as error:
                if isinstance(error.__cause__, TimeoutError):
                    raise
                # else the server had given it up
        return await self._asked(None, asked)

    async def _asked(self, kept: HttpExchange | None, asked: HttpRequest) -> bytes:
        async with self._sent(asked, CALL_S, kept, keep=self._keep) as exchange:
            async with asyncio.timeout(CALL_S):
                return await exchange.content()

    def _take(self, tls: ssl.SSLContext | None = None) -> HttpExchange | None:
        """The connection that is kept, which is kept no longer. tls: that it has to be made with; one that
        was made with another one is ended."""
        if self._kept is None:
            return None
        (exchange, made_with, timer), self._kept = self._kept, None
        timer.cancel()
        if tls is not made_with and tls is not None:
            exchange.close()
            return None
        return exchange

    def _put_back(self, exchange: HttpExchange, tls: ssl.SSLContext | None) -> None:
        """Keep the connection if another request can be sent on it; else end it."""
        if not self._keep or self._kept is not None or not exchange.again():
            exchange.close()
            return
        timer = asyncio.get_running_loop().call_later(KEPT_S, self.close)
        self._kept = exchange, tls, timer

    @asynccontextmanager
    async def lines(
        self, path: str, parameters: Parameters, idle_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an answer that goes on. idle_s: how long nothing may come.

        Raises Unreachable (also in the block, when the connection ends), ErrorResponse, InputError.
        """
        async with self._sent(HttpRequest("GET", path, parameters), idle_s) as exchange:
            yield exchange.lines()

    @asynccontextmanager
    async def _sent(
        self, asked: HttpRequest, idle_s: float, kept: HttpExchange | None = None, *, keep: bool = False
    ) -> AsyncIterator[HttpExchange]:
        """A request, and the beginning of its answer. kept: the connection, in place of a new one. keep: it
        for the next request. Raises ErrorResponse for an answer that is not 2xx.
        """
        config, token, tls = self.config, self._token(), self._context()
        try:
            exchange = kept or await self._connected(tls)
            exchange.keep = keep
            try:
                async with asyncio.timeout(CALL_S):
                    await exchange.send(asked, token)
                    if not exchange.code // 100 == 2:
                        raise refusal(exchange.code, await exchange.content(), exchange.retry_after)
                exchange.idle_s = idle_s
                yield exchange
            finally:
                self._put_back(exchange, tls)
        except (OSError, ProtocolError) as error:  # TimeoutError is an OSError
            why = (
                "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            )
            raise Unreachable(f"the API server {config.url} cannot be reached: {why}") from error

    async def _connected(self, tls: ssl.SSLContext | None) -> HttpExchange:
        async with asyncio.timeout(CONNECT_S):
            return await connect(self.config.url, tls, self.config.server_name)

    def _token(self) -> str:
        """The token of now: the kubelet replaces the file before the token expires."""
        if self.config.token is None:
            return ""
        return self.config.token.read().decode("ascii", "replace").strip()

    def _context(self) -> ssl.SSLContext | None:
        """With the certificates of now. Raises InputError."""
        if self.config.url.startswith("http://"):
            return None
        version = self.config.version()
        if self._tls is None or version != self._tls_of:
            self._tls, self._tls_of = self.config.tls(), version
        return self._tls


def refusal(code: int, content: bytes, retry_after: str = "") -> ErrorResponse:
    """The error of an answer that is not 2xx."""
    try:
        status = decode(Status, content, strict=False)
    except CodecError:
        status = Status(content[:200].decode("utf-8", "replace").strip())
    seconds = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
    return ErrorResponse(code, status, seconds or float((status.details or Details()).retry_after_seconds))


def is_protected(error: ErrorResponse) -> bool:
    """Whether a PodDisruptionBudget is the reason."""
    causes = (error.said.details or Details()).causes or ()
    return error.code == _BUSY and any(cause.reason == "DisruptionBudget" for cause in causes)


def is_expired(error: ErrorResponse) -> bool:
    """Whether the version of a watch is too old."""
    return error.code == _GONE or error.said.reason in ("Expired", "Gone")


def _may_help(error: ErrorResponse) -> bool:
    """Whether the same request may succeed a moment later."""
    return error.code == _BUSY or error.code >= 500


def as_ours(error: ErrorResponse, config: ClusterConfig, asked: str) -> ClusterError:
    """The error for others than this package. asked: method and path."""
    text = error.said.message or f"HTTP {error.code}"
    if is_expired(error):
        return Expired(f"{asked} was refused: {text}")
    match error.code:
        case 404:
            return Absent(text)
        case 409:
            return Conflict(text)
        case 401:
            return Rejected(
                f"the API server {config.url} does not accept the credentials: {text}",
                "the token or certificate has expired, or is of another cluster",
            )
        case 403:
            return Forbidden(f"{asked} is not permitted: {text}", "give the account this permission (RBAC)")
        case _ if _may_help(error):
            return Unreachable(f"the API server {config.url} answered {error.code}: {text}")
    return Rejected(f"{asked} was refused: {text}")


def _decoded(kind: type[T], content: bytes, config: ClusterConfig) -> T:
    if kind is type(None):
        return None
    try:
        return decode(kind, content, strict=False)
    except CodecError as error:
        raise Rejected(f"{config.url} answered something that no API server says: {error}") from error


PAGE = 500
"""Objects in one answer: all pods of a large cluster in one would be too long."""

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


class Listing(Protocol[R_co]):
    """A list as the API server sends it, or a page of one."""

    @property
    def metadata(self) -> Page: ...
    @property
    def items(self) -> tuple[R_co, ...] | None: ...


async def read_list(
    connection: Connection,
    kind: type[Listing[R]],
    path: str,
    parameters: Mapping[str, str],
    begin: Callable[[], Callable[[Iterable[R]], None]],
    *,
    page: int = PAGE,
) -> str:
    """Read a list, and tell its version, where a watch can begin.

    begin: called before the first page; what it returns takes the rows of each page. page: rows of one answer
    at most; 0: all of them. Where the API server has forgotten the state of the first page before the last
    one was asked for, the whole list is read anew in one answer. Raises what ``Connection.call`` raises.
    """
    while True:
        take = begin()
        asked = {**parameters, **({"limit": str(page)} if page else {})}
        try:
            while True:
                found = await connection.call(kind, "GET", path, parameters=asked)
                take(found.items or ())
                if not found.metadata.continue_:
                    return found.metadata.resource_version
                asked["continue"] = found.metadata.continue_
        except Expired:
            if "continue" not in asked:
                raise
            page = 0


async def all_rows(
    connection: Connection, kind: type[Listing[R]], path: str, parameters: Mapping[str, str]
) -> tuple[R, ...]:
    """The rows of a list. Raises as ``read_list``."""
    rows: list[R] = []

    def begin() -> Callable[[Iterable[R]], None]:
        rows.clear()
        return rows.extend

    await read_list(connection, kind, path, parameters, begin)
    return tuple(rows)
