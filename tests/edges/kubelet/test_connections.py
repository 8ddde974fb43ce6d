"""The plugin's side of a connection writes seldom."""

from __future__ import annotations

import asyncio

from partage.edges.kubelet.connections import BatchedTransport


class Wire(asyncio.Transport):
    """Remembers every write that reached it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def close(self) -> None:
        pass


async def test_what_is_written_within_one_round_is_sent_together() -> None:
    wire = Wire()
    writer = BatchedTransport(wire)
    writer.write(b"headers ")
    writer.write(b"message")
    assert wire.sent == []
    await asyncio.sleep(0)
    assert wire.sent == [b"headers message"]
    writer.write(b"later")
    await asyncio.sleep(0)
    assert wire.sent == [b"headers message", b"later"]


async def test_an_acknowledgement_leaves_together_with_the_answer_to_what_was_read() -> None:
    """As a connection reads: it acknowledges, then a task is begun, which answers in its first step."""
    wire = Wire()
    writer = BatchedTransport(wire)

    async def answer() -> None:
        writer.write(b"answer")

    writer.hold()
    writer.write(b"acknowledged ")
    answering = asyncio.create_task(answer())
    writer.release()
    await answering
    await asyncio.sleep(0)
    assert wire.sent == [b"acknowledged answer"]


async def test_an_acknowledgement_without_an_answer_leaves_as_well() -> None:
    wire = Wire()
    writer = BatchedTransport(wire)
    writer.hold()
    writer.write(b"acknowledged")
    writer.release()
    await asyncio.sleep(0)
    assert wire.sent == [b"acknowledged"]


async def test_what_waits_is_sent_before_the_connection_closes() -> None:
    wire = Wire()
    writer = BatchedTransport(wire)
    writer.write(b"last words")
    writer.close()
    assert wire.sent == [b"last words"]
