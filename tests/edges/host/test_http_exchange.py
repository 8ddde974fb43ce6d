"""Answers of servers that misbehave: an error, in time, and never more than the limit."""

import asyncio
import resource
import time

import pytest

from partage.edges.host.http_exchange import HttpRequest, ProtocolError, answer_of, is_http_url
from partage.errors import Rejected, Unreachable
from partage.rightsize.sources import Prometheus
from tests.examples import variants
from tests.misbehaving import HEAD, SERVERS, and_end, misbehaving

WITHIN_S = 0.5
LIMIT = 1 << 20
GET = HttpRequest("GET", "/report.json")


@pytest.mark.parametrize("speak", SERVERS.values(), ids=SERVERS)
def test_whatever_a_server_does_the_answer_is_an_error_in_time(speak):
    with misbehaving(speak) as url:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.monotonic()
        with pytest.raises((OSError, ProtocolError)):
            asyncio.run(answer_of(url, GET, within_s=WITHIN_S, limit_bytes=LIMIT))
        assert time.monotonic() - began < 10 * WITHIN_S, "within_s, and what a busy machine adds"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10, "KiB"


@pytest.mark.parametrize("speak", variants(SERVERS.values(), 4), ids=SERVERS)
def test_so_it_is_with_prometheus(speak):
    with misbehaving(speak) as url, pytest.raises(Unreachable, match=r"does not answer: ."):
        Prometheus(url, within_s=WITHIN_S).query_range("up", 0, 1, 1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b'{"status": "success"}',
        b'{"status": "success", "data": {"result": [1]}}',
        b'{"status": "success", "data": {"result": [{"metric": [], "values": []}]}}',
        b'{"status": "success", "data": {"result": [{"metric": {}, "values": [[1]]}]}}',
        b'{"status": "success", "data": {"result": [{"metric": {}, "values": [[1'
        + b"0" * 400
        + b', "1"]]}]}}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_what_is_no_answer_of_a_prometheus_is_said(content):
    speak = and_end(HEAD + f"Content-Length: {len(content)}\r\n\r\n".encode() + content)
    with misbehaving(speak) as url, pytest.raises(Rejected, match="does not answer like a Prometheus"):
        Prometheus(url).query_range("up", 0, 1, 1)


def test_an_answer_is_whole():
    with misbehaving(and_end(HEAD + b"Content-Length: 2\r\n\r\n{}")) as url:
        assert asyncio.run(answer_of(url, GET, within_s=5, limit_bytes=2)) == (200, b"{}")


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("http://a", True),
        ("https://a:1/b", True),
        ("ftp://a", False),
        ("http://", False),
        ("http://a:99999", False),
        ("http://a:x", False),
        ("http://[::1", False),
    ],
)
def test_what_is_a_url(text, is_one):
    assert is_http_url(text) is is_one
