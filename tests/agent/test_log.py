"""What others can cause as often as they like does not fill the log."""

import asyncio
import contextlib
import io
import json
import logging
import os
import tempfile
from pathlib import Path

import pytest
from hpack import Encoder

from partage.agent import log
from partage.edges.kubelet.server import PluginServer
from partage.model.ids import ResourceName


@pytest.fixture
def lines():
    """What the agent's log says from now on: its lines."""
    names = ("partage", "asyncio", "grpclib", "grpclib.server")
    loggers = [logging.getLogger(name) for name in names]
    before = [(one.handlers, one.filters, one.level, one.propagate) for one in loggers]
    stream = io.StringIO()
    with contextlib.redirect_stderr(stream):
        log.configure()
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    for one, (handlers, filters, level, propagate) in zip(loggers, before, strict=True):
        one.handlers, one.filters, one.propagate = handlers, filters, propagate
        one.setLevel(level)


def test_who_asks_for_text_gets_it_where_no_terminal_is(lines):
    stream = io.StringIO()
    with contextlib.redirect_stderr(stream):
        log.configure(log.LogOptions("debug", log.LogFormat.TEXT))
    logging.getLogger("partage.agent").debug("looked", extra={"gpu": 3})
    assert stream.getvalue().split(maxsplit=1)[1] == "debug   looked  gpu=3\n"


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_an_event_that_others_cause_is_logged_once_in_a_while_and_counted():
    clock = Clock()
    seldom = log.Seldom(60.0, clock)
    assert [seldom.left_out() for _ in range(4)] == [0, None, None, None]
    clock.now_s += 59.9
    assert seldom.left_out() is None
    clock.now_s += 0.1
    assert [seldom.left_out(), seldom.left_out()] == [4, None]


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CALL = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/v1beta1.DevicePlugin/GetDevicePluginOptions"),
    (":authority", "x"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


START = PREFACE + _frame(4, 0, 0, b"")
HEADERS = _frame(1, 4, 1, Encoder().encode(CALL))
GARBAGE = {
    "no HTTP/2": os.urandom(300),
    "a header that is no text": START + _frame(1, 5, 1, Encoder().encode([*CALL, ("x", b"\xff\xfe")])),
    "no gRPC message": START + HEADERS + _frame(0, 1, 1, b"\x07\xff\xff\xff\xffabc"),
    "no protobuf": START + HEADERS + _frame(0, 1, 1, b"\0\0\0\0\x03\xff\xff\xff"),
    "compressed": START + HEADERS + _frame(0, 1, 1, b"\1\0\0\0\1a"),
    "no time at all": START + _frame(1, 5, 1, Encoder().encode([*CALL, ("grpc-timeout", "1n")])),
}


class Plugin:
    """What the server asks of its resource, before any call."""

    resource = ResourceName("nvidia.com/gpu")
    pre_start_required = False


async def _send(*contents: bytes) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # sockets have short paths
        path = Path(folder) / "gpu.sock"
        server = PluginServer(Plugin(), path)  # type: ignore[arg-type]
        await server.start()
        try:
            for content in contents:
                reader, writer = await asyncio.open_unix_connection(str(path))
                writer.write(content)
                writer.write_eof()
                while await reader.read(1 << 16):
                    pass
                writer.close()
        finally:
            await server.stop()


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_garbage_on_a_grpc_socket_is_one_line_at_most(content, lines):
    asyncio.run(_send(*[content] * 5))
    assert len(lines()) <= 1
    for line in lines():
        assert (line["level"], line["event"]) == ("warning", "what came over a gRPC socket was refused")
        assert line["reason"]
        assert "exception" not in line


def test_much_garbage_is_one_line(lines):
    asyncio.run(_send(*GARBAGE.values(), *GARBAGE.values()))
    assert len(lines()) == 1


def test_a_bug_of_our_own_keeps_its_traceback(lines):
    async def broken() -> None:
        raise RuntimeError("a bug")

    async def never_awaited() -> None:
        task = asyncio.create_task(broken())
        await asyncio.sleep(0)
        del task

    asyncio.run(never_awaited())
    (line,) = lines()
    assert "RuntimeError: a bug" in line["exception"]
