"""Who may read: tokens, certificates and names, decided and over real connections."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from partage.errors import InputError
from partage.serve_http.http import MOST_CLIENTS, HttpServer, json_answer
from partage.serve_http.http_access import AskedBy, HttpAccess, HttpOptions, listen, token_of

TOKEN = "0123456789abcdef0123"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return path


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1:9400", True),
        ("[::1]:9400", True),
        ("10.1.2.3", True),
        ("localhost:9400", True),
        ("LOCALHOST.", True),
        ("node-7:9400", True),
        ("gpus.example.org", True),
        ("evil.example.org:9400", False),
        ("127.0.0.1.evil.org", False),
        ("node-7.evil.org", False),
        ("", True),
    ],
)
def test_a_name_of_somebody_else_is_not_ours(host: str, own: bool) -> None:
    access = HttpAccess(HttpOptions(names=frozenset({"gpus.example.org"})), frozenset({"node-7"}))
    assert access.is_own(host) is own
    assert (access.refusal(AskedBy("/metrics", host)) is None) is own
    assert access.refusal(AskedBy("/healthz", host)) is None


def test_a_token_comes_as_bearer_or_as_password(token_file: Path) -> None:
    access = HttpAccess(HttpOptions(token_file=token_file))
    basic = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
    for given, allowed in (
        (f"Bearer {TOKEN}", True),
        (f"bearer  {TOKEN} ", True),
        (f"Basic {basic}", True),
        ("Bearer wrong", False),
        ("Basic !!!", False),
        ("Bearer ", False),
        ("", False),
        (f"Bearer {TOKEN}é", False),
    ):
        refused = access.refusal(AskedBy("/report.json", "127.0.0.1", given))
        assert (refused is None) is allowed, given
    assert access.refusal(AskedBy("/livez")) is None
    assert token_of("Digest x") == ""


def test_a_new_token_holds_at_once_and_a_broken_file_keeps_the_last(token_file: Path) -> None:
    access = HttpAccess(HttpOptions(token_file=token_file))

    def allowed(token: str) -> bool:
        return access.refusal(AskedBy("/", authorization=f"Bearer {token}")) is None

    token_file.write_text("another-token-of-20x")
    assert allowed("another-token-of-20x")
    assert not allowed(TOKEN)
    token_file.write_text("")
    assert allowed("another-token-of-20x")
    assert not allowed("")
    token_file.unlink()
    assert allowed("another-token-of-20x")


def test_files_that_cannot_be_used_are_said_at_once(tmp_path: Path, token_file: Path) -> None:
    short = tmp_path / "short"
    short.write_text("abc\n")
    for options, message in (
        (HttpOptions(token_file=tmp_path / "absent"), "the token cannot be read"),
        (HttpOptions(token_file=short), "the token has 3 characters, 16 are needed"),
        (HttpOptions(cert=token_file), "go together"),
        (HttpOptions(client_ca=token_file), "needs TLS"),
        (HttpOptions(cert=token_file, key=token_file), "cannot be used for TLS"),
    ):
        with pytest.raises(InputError, match=message):
            HttpAccess(options)


# --- over real connections -----------------------------------------------------------------------


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, signed by itself, and its key, by openssl."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command = ["openssl", "req", "-x509", *kind, *subject, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@contextmanager
def served(options: HttpOptions) -> Iterator[int]:
    listening = listen("127.0.0.1:0")
    pages = {path: lambda _: json_answer({"ok": True}) for path in ("/report.json", "/healthz")}
    server = HttpServer(listening, dict(pages), HttpAccess(options))
    try:
        yield listening.getsockname()[1]
    finally:
        server.close()


def status(port: int, path: str, tls: ssl.SSLContext | None = None, **headers: str) -> int:
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        if tls is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=tls)
    )
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_over_http_a_token_is_asked_for_and_probes_are_free(token_file: Path) -> None:
    with served(HttpOptions(token_file=token_file)) as port:
        assert status(port, "/report.json") == 401
        assert status(port, "/report.json", Authorization=f"Bearer {TOKEN}") == 200
        assert status(port, "/report.json", Authorization=f"Bearer {TOKEN}", Host="evil.org") == 421
        assert status(port, "/healthz", Host="evil.org") == 200


def test_over_tls_a_certificate_is_asked_for_and_probes_are_free(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    ours, _ = certificate(tmp_path, "ours")
    with served(HttpOptions(cert=cert, key=key, client_ca=ours)) as port:
        stranger = ssl.create_default_context(cafile=str(cert))
        assert status(port, "/healthz", stranger) == 200
        assert status(port, "/report.json", stranger) == 403
        known = ssl.create_default_context(cafile=str(cert))
        known.load_cert_chain(ours, tmp_path / "ours.key")
        assert status(port, "/report.json", known) == 200
        other = ssl.create_default_context(cafile=str(cert))
        other.load_cert_chain(*certificate(tmp_path, "other"))
        with pytest.raises((ssl.SSLError, OSError)):
            status(port, "/report.json", other)
        with pytest.raises((http.client.HTTPException, OSError)):
            status(port, "/healthz")
        assert status(port, "/healthz", stranger) == 200, "clients that fail do not end the server"


def said(port: int, *lines: str) -> int:
    """The status of the answer to a request that is written line by line."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall("".join(f"{line}\r\n" for line in (*lines, "Connection: close", "")).encode())
        answer = b""
        while part := client.recv(4096):
            answer += part
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize("spell", [str.lower, str.upper, str.title])
def test_names_of_headers_have_no_case(spell: Callable[[str], str], token_file: Path) -> None:
    host, authorization = spell("host"), spell("authorization")
    get = "GET /report.json HTTP/1.1"
    with served(HttpOptions(token_file=token_file)) as port:
        assert said(port, get, f"{host}: 127.0.0.1", f"{authorization}: Bearer {TOKEN}") == 200
        for wrong in ("Bearer wrong", "Basic \xe9", "Basic =", "Basic 4pi6", "Bearer"):
            assert said(port, get, f"{host}: 127.0.0.1", f"{authorization}: {wrong}") == 401
        assert said(port, get, f"{host}: evil.org", f"{authorization}: Bearer {TOKEN}") == 421


@pytest.mark.parametrize(
    "lines",
    [
        ("Host: 127.0.0.1", "Host: evil.org"),
        ("host: evil.org", "Host: 127.0.0.1"),
        ("Host: 127.0.0.1", "Host: 127.0.0.1"),
        ("Host : evil.org",),
        ("X-Other: 1", "Host", " : evil.org"),
        ("Host: 127.0.0.1", "Authorization: Bearer a", "authorization: Bearer b"),
        ("Host: 127.0.0.1", "content-length: 0", "Content-Length: 44"),
        ("Host: 127.0.0.1", "Content-Length: 5"),
        ("Host: 127.0.0.1", "Transfer-Encoding: chunked"),
    ],
)
@pytest.mark.parametrize("path", ["/report.json", "/healthz"])
def test_a_request_that_others_may_read_in_another_way_is_refused(lines: tuple[str, ...], path: str) -> None:
    with served(HttpOptions()) as port:
        assert said(port, f"GET {path} HTTP/1.1", *lines) == 400
        assert said(port, f"GET {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Length: 0") == 200


def test_the_body_of_a_request_is_not_the_next_request() -> None:
    inside = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    head = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(inside)}\r\n\r\n"
    with (
        served(HttpOptions()) as port,
        socket.create_connection(("127.0.0.1", port), timeout=5) as client,
    ):
        client.sendall(head.encode() + inside)
        answer = b""
        with suppress(ConnectionError):
            while part := client.recv(4096):
                answer += part
    assert answer.count(b"HTTP/1.1 ") == 1


def test_clients_that_fail_at_tls_are_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = certificate(tmp_path, "server")
    tls = ssl.create_default_context(cafile=str(cert))
    with served(HttpOptions(cert=cert, key=key)) as port, ExitStack() as clients:
        for _ in range(2 * MOST_CLIENTS):  # the first ones make room for the others
            plain = socket.create_connection(("127.0.0.1", port), timeout=5)
            clients.enter_context(plain)
            silent = tls.wrap_socket(plain, server_hostname="127.0.0.1")
            clients.enter_context(silent)
            silent.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127")
        for content in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b""):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as client, suppress(OSError):
                client.sendall(content)
                client.shutdown(socket.SHUT_WR)
                while client.recv(4096):
                    pass
        assert status(port, "/healthz", tls) == 200
    assert {record.getMessage() for record in caplog.records} <= {"tls with a client failed"}
    assert len(caplog.records) <= 1
    assert not any(record.exc_info for record in caplog.records)


def test_the_command_serves_a_folder_in_a_process_of_its_own(tmp_path: Path) -> None:
    """In this process everything has been imported, also what the command has to import by itself."""
    command = [sys.executable, "-m", "partage", "web", str(tmp_path), "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as web:
        try:
            assert web.stdout is not None
            port = int(web.stdout.readline().rpartition(":")[2])
            assert status(port, "/") == 200
            assert status(port, "/node?name=absent") == 404
        finally:
            web.terminate()
    assert web.returncode == 0, "SIGTERM ends it well"
