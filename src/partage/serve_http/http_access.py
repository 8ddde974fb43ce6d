"""Where HTTP is served, and who may read it: a token, client certificates, the names under which it is asked.

``/metrics``, ``/report.json`` and the page carry names of pods. On a node whose network others use too
(Slurm, host network), an address of the node keeps nobody out. One answer for all of them
(docs/how-to/protect-http.md). Health probes are free of it: they have neither token nor certificate.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import logging
import socket
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import click

from partage.edges.host.read_file import check_regular, read_token
from partage.errors import InputError, Problem
from partage.values import Frozen

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

log = logging.getLogger(__name__)

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
"""The browser runs and loads nothing but what this server sends, and sends nothing elsewhere."""

STATIC = ("/static/page.css", "/static/page.js")
"""Paths of the files that a page needs."""

FREE = frozenset({"/healthz", "/livez", "/readyz"})
"""Paths that everyone may ask for."""
_SHORTEST_TOKEN = 16


class HttpOptions(Frozen):
    """What protects the address. All files are read again when they change.

    token_file: its first line is the token. cert, key: of this server; both or none. client_ca: whose
    certificates a client must have. names: host names under which it may be asked, beside localhost,
    addresses and the node's own name.
    """

    token_file: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    names: frozenset[str] = frozenset()

    @property
    def open(self) -> bool:
        """Whether everyone who reaches the address may read everything."""
        return self.token_file is None and self.client_ca is None


class AskedBy(Frozen):
    """What a request says that decides whether it is answered. host, authorization: values of its headers.

    malformed: why it may be read in another way elsewhere, by a proxy or a browser; empty: it may not.
    certified: the client has shown a certificate.
    """

    path: str
    host: str = ""
    authorization: str = ""
    malformed: str = ""
    certified: bool = False


class AccessRefusal(Frozen):
    """Why a request is not answered. challenge: asks a browser for the token."""

    status: HTTPStatus
    reason: str
    challenge: bool = False


class HttpAccess:
    """Decides about each request. Raises InputError at once for files that cannot be used. tls: what the next
    connection is made with, in place of files.
    """

    def __init__(
        self,
        options: HttpOptions,
        own_names: frozenset[str] = frozenset(),
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        if (options.cert is None) != (options.key is None):
            raise InputError("--http-cert and --http-key go together", "give both, or none")
        self._own_tls = tls
        if options.client_ca is not None and options.cert is None:
            raise InputError("--http-client-ca needs TLS", "give --http-cert and --http-key too")
        self._options = options
        self._names = {name.lower() for name in options.names | own_names | {"localhost"}}
        self._token = _Reread(_token) if options.token_file is not None else None
        self._tls = _Reread(lambda _: self._context()) if options.cert is not None else None
        if self._token is not None and options.token_file is not None:
            self._token.value((options.token_file,))
        if self._tls is not None:
            self.tls()

    @property
    def scheme(self) -> str:
        """``https`` where there is a certificate."""
        return "http" if self._tls is None and self._own_tls is None else "https"

    def tls(self) -> ssl.SSLContext | None:
        """For the next connection; None: no TLS. Keeps the last good one while new files are wrong."""
        if self._own_tls is not None:
            return self._own_tls()
        if self._tls is None:
            return None
        files = (self._options.cert, self._options.key, self._options.client_ca)
        return self._tls.value(tuple(file for file in files if file is not None))

    def refusal(self, asked: AskedBy) -> AccessRefusal | None:
        """Why this request is refused; None: it is answered."""
        if asked.malformed:
            return AccessRefusal(HTTPStatus.BAD_REQUEST, asked.malformed)
        if asked.path in FREE:
            return None
        host = asked.host
        if not self.is_own(host):
            reason = f"this server is not asked as {host[:100]!r}; --http-name allows a name"
            return AccessRefusal(HTTPStatus.MISDIRECTED_REQUEST, reason)
        if self._options.client_ca is not None and asked.certified:
            return None
        if self._token is not None and self._options.token_file is not None:
            expected = self._token.value((self._options.token_file,))
            given = token_of(asked.authorization)
            if given and hmac.compare_digest(given.encode(), expected.encode()):
                return None
            return AccessRefusal(HTTPStatus.UNAUTHORIZED, "a token is needed", challenge=True)
        if self._options.client_ca is not None:
            return AccessRefusal(HTTPStatus.FORBIDDEN, "a client certificate is needed")
        return None

    def is_own(self, host: str) -> bool:
        """Whether a Host header names this server. A web page elsewhere can make a browser ask here under its
        own name (DNS rebinding), never under an address."""
        name = host.strip().lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") == 1:
            name = name.partition(":")[0]
        if not name or name.rstrip(".") in self._names:
            return True  # without the header it is no browser
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _context(self) -> ssl.SSLContext:
        import ssl  # 5 MiB, only where it is asked for

        options = self._options
        assert options.cert is not None, "asked only where there is one"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            for file in filter(None, (options.cert, options.key, options.client_ca)):
                check_regular(file)
            context.load_cert_chain(options.cert, options.key)
            if options.client_ca is not None:
                context.verify_mode = ssl.CERT_OPTIONAL  # probes have none
                context.load_verify_locations(options.client_ca)
        except (OSError, ssl.SSLError) as error:
            named = f"{options.cert}, {options.key}" + (f", {options.client_ca}" if options.client_ca else "")
            raise InputError(f"{named}: cannot be used for TLS: {error}", "PEM files are needed") from error
        return context


def token_of(authorization: str) -> str:
    """The token of an Authorization header: ``Bearer TOKEN``, or the password of ``Basic``, which a browser
    asks for. Empty if there is none.
    """
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).decode().partition(":")[2]
        except ValueError:  # not base64, or what it stands for is no text
            return ""
    return ""


def _token(files: tuple[Path, ...]) -> str:
    (path,) = files
    token = read_token(path)
    if len(token) < _SHORTEST_TOKEN:
        problem = Problem(
            str(path), "", "error", f"the token has {len(token)} characters, {_SHORTEST_TOKEN} are needed",
            "openssl rand -hex 32",
        )  # fmt: skip
        raise InputError([problem])
    return token


class _Reread(Generic[T]):
    """What is made of files, made again when one of them has changed."""

    def __init__(self, make: Callable[[tuple[Path, ...]], T]) -> None:
        self._make = make
        self._made: tuple[object, T] | None = None

    def value(self, files: tuple[Path, ...]) -> T:
        """What the files say now, or said last, if they are wrong now. Raises InputError the first time."""
        try:
            stamp: object = [(file.stat().st_mtime_ns, file.stat().st_size) for file in files]
        except OSError:
            stamp = None
        if self._made is not None and self._made[0] == stamp:
            return self._made[1]
        try:
            made = self._make(files)
        except InputError as error:
            if self._made is None:
                raise
            log.warning("http files are wrong, the last ones hold", extra={"reason": str(error)})
            made = self._made[1]
        self._made = (stamp, made)
        return made


def listen(address: str) -> socket.socket:
    """A listening socket. Raises InputError for an address that is wrong or in use."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InputError(
            f"--http {address!r} is not HOST:PORT", "for example 127.0.0.1:9400, or :0 for any port"
        )
    host = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family)
    except OSError as error:
        raise InputError(f"cannot listen on {address}: {error.strerror or error}") from error


def say_url(host: str, port: int, scheme: str = "http") -> None:
    """Print where HTTP is served, one line on stdout."""
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        click.echo(url)
    except OSError as error:  # stdout is closed; the agent runs all the same
        log.warning("url cannot be printed", extra={"url": url, "reason": error.strerror})
