"""Requests to the API server: credentials that rotate, deadlines, retries, and errors as those of Partage."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from partage import __version__
from partage.codec.values import CodecError, decode, encode
from partage.edges.kube.backoff import Backoff
from partage.edges.kube.config import ClusterConfig
from partage.edges.kube.lean_httpx import httpx
from partage.edges.kube.objects import Details, Json, Status
from partage.errors import Absent, ClusterError, Conflict, Rejected, Unreachable
from partage.values import Frozen

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")
Parameters = Mapping[str, str]

CALL_S, CONNECT_S = 15.0, 5.0
"""Deadlines of a request and of a connection, in seconds."""

TRIES = 3
"""How often a request is sent that was answered with 429, with a fault of the server, or not at all."""

LONGEST_RETRY_AFTER_S = 30.0

_KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
"""A peer that has vanished without a word is noticed within a minute, also by a watch that says nothing."""

_BUSY, _GONE = 429, 410


class Refused(ClusterError):
    """An answer that is not 2xx. Never leaves this package."""

    def __init__(self, code: int, said: Status, retry_after_s: float) -> None:
        super().__init__(said.message or f"HTTP {code}")
        self.code, self.said, self.retry_after_s = code, said, retry_after_s


class _Call(Frozen):
    """What is asked. content: JSON."""

    method: str
    path: str
    parameters: Parameters | None = None
    content: bytes | None = None
    media_type: str = ""


class Connection:
    """An HTTP connection pool to one API server, made anew when certificates are replaced."""

    def __init__(self, config: ClusterConfig, backoff: Callable[[], Backoff] = Backoff) -> None:
        self.config = config
        self.backoff = backoff
        self._client: httpx.AsyncClient | None = None
        self._made_of: object = None

    async def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def call(
        self,
        kind: type[T],
        method: str,
        path: str,
        *,
        parameters: Parameters | None = None,
        body: Json | None = None,
        media_type: str = "application/json",
    ) -> T:
        """Send a request, again where that can help, and decode its answer.

        Raises Unreachable, Conflict, Absent or Rejected; Refused for a 429 that is the answer to this very
        request (a PodDisruptionBudget). InputError if the credentials cannot be read.
        """
        asked = _Call(method, path, parameters, None if body is None else encode(body), media_type)
        backoff = self.backoff()
        for left in reversed(range(TRIES)):
            try:
                return _decoded(kind, await self._once(asked), self.config)
            except Refused as error:
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

    async def _once(self, asked: _Call) -> bytes:
        try:
            async with asyncio.timeout(CALL_S):
                answer = await (await self._ready()).send(self._request(asked, CALL_S))
        except TimeoutError as error:
            why = f"no answer within {CALL_S:.0f} s"
            raise Unreachable(f"the API server {self.config.url} cannot be reached: {why}") from error
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
            raise self._unreachable(error) from error
        if not answer.is_success:
            raise refusal(answer.status_code, answer.content, answer.headers.get("retry-after", ""))
        return answer.content

    @asynccontextmanager
    async def lines(
        self, path: str, parameters: Parameters, idle_s: float
    ) -> AsyncIterator[AsyncIterator[str]]:
        """The lines of an answer that goes on. idle_s: how long nothing may come.

        Raises Unreachable (also in the block, when the connection ends), Refused, InputError.
        """
        try:
            client = await self._ready()
            request = self._request(_Call("GET", path, parameters), idle_s)
            answer = await client.send(request, stream=True)
            try:
                if not answer.is_success:
                    content = await answer.aread()
                    raise refusal(answer.status_code, content, answer.headers.get("retry-after", ""))
                yield answer.aiter_lines()
            finally:
                with suppress(httpx.HTTPError, OSError):
                    await answer.aclose()
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
            raise self._unreachable(error) from error

    async def _ready(self) -> httpx.AsyncClient:
        """The client, with the certificates of now. Raises InputError."""
        version = self.config.version()
        if self._client is None or version != self._made_of:
            await self.close()
            self._client, self._made_of = self._new(self.config.tls()), version
        return self._client

    def _new(self, context: ssl.SSLContext) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=4, max_keepalive_connections=2, keepalive_expiry=60)
        transport = httpx.AsyncHTTPTransport(
            verify=context,
            trust_env=False,
            limits=limits,
            proxy=self.config.proxy or None,
            socket_options=_KEEP_ALIVE,
        )
        return httpx.AsyncClient(
            transport=transport,
            base_url=self.config.url,
            trust_env=False,
            headers={"User-Agent": f"partage/{__version__}", "Accept": "application/json"},
        )

    def _request(self, asked: _Call, idle_s: float) -> httpx.Request:
        """A request with the token of now: the kubelet replaces the file before the token expires."""
        assert self._client is not None
        headers = {} if asked.content is None else {"Content-Type": asked.media_type}
        if self.config.token is not None:
            token = self.config.token.read().decode("ascii", "replace").strip()
            headers["Authorization"] = f"Bearer {token}"
        extensions: dict[str, object] = {
            "timeout": {"connect": CONNECT_S, "read": idle_s, "write": CALL_S, "pool": CALL_S}
        }
        if self.config.server_name:
            extensions["sni_hostname"] = self.config.server_name
        return self._client.build_request(
            asked.method,
            asked.path,
            params=asked.parameters,
            content=asked.content,
            headers=headers,
            extensions=extensions,
        )

    def _unreachable(self, error: Exception) -> Unreachable:
        why = str(error) or type(error).__name__
        return Unreachable(f"the API server {self.config.url} cannot be reached: {why}")


def refusal(code: int, content: bytes, retry_after: str = "") -> Refused:
    """The error of an answer that is not 2xx."""
    try:
        said = decode(Status, content, strict=False)
    except CodecError:
        said = Status(content[:200].decode("utf-8", "replace").strip())
    seconds = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
    return Refused(code, said, seconds or float((said.details or Details()).retry_after_seconds))


def is_protected(error: Refused) -> bool:
    """Whether a PodDisruptionBudget is the reason."""
    causes = (error.said.details or Details()).causes or ()
    return error.code == _BUSY and any(one.reason == "DisruptionBudget" for one in causes)


def is_expired(error: Refused) -> bool:
    """Whether the version of a watch is too old."""
    return error.code == _GONE or error.said.reason in ("Expired", "Gone")


def _may_help(error: Refused) -> bool:
    """Whether the same request may succeed a moment later."""
    return error.code == _BUSY or error.code >= 500


def as_ours(error: Refused, config: ClusterConfig, asked: str) -> ClusterError:
    """The error for others than this package. asked: method and path."""
    said = error.said.message or f"HTTP {error.code}"
    match error.code:
        case 404:
            return Absent(said)
        case 409:
            return Conflict(said)
        case 401:
            return Rejected(
                f"the API server {config.url} does not accept the credentials: {said}",
                "the token or certificate has expired, or is of another cluster",
            )
        case 403:
            return Rejected(f"{asked} is not permitted: {said}", "give the account this permission (RBAC)")
        case _ if _may_help(error):
            return Unreachable(f"the API server {config.url} answered {error.code}: {said}")
    return Rejected(f"{asked} was refused: {said}")


def _decoded(kind: type[T], content: bytes, config: ClusterConfig) -> T:
    if kind is type(None):
        return None
    try:
        return decode(kind, content, strict=False)
    except CodecError as error:
        raise Rejected(f"{config.url} answered something that no API server says: {error}") from error
