"""What no pod waits for waits until the kubelet is quiet, and not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest

from partage.claims.agent.afterwards import LONGEST_S, QUIET_S, Afterwards
from partage.errors import HardwareError
from tests.node.loops import SimulatedTimeLoop


def in_simulated_time(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
        runner.run(main)


class Disk:
    """full: then a flush fails."""

    def __init__(self) -> None:
        self.flushed, self.full = 0, False

    def flush(self) -> None:
        self.flushed += 1
        if self.full:
            raise HardwareError("the disk is full")


class Kubelet:
    """Changes something with each of its calls."""

    def __init__(self) -> None:
        self.turns_s: list[float] = []
        self.disk = Disk()
        self._loop = asyncio.get_running_loop()
        self.later = Afterwards(self._loop.time, lambda: self.turns_s.append(self._loop.time()), self.disk)
        self.task = asyncio.create_task(self.later.run())

    async def calls(self, count: int, pause_s: float) -> None:
        for _ in range(count):
            self.later.called()
            self.later.ask()
            await asyncio.sleep(pause_s)

    async def end(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


def test_many_calls_in_a_row_make_one_turn_when_they_are_over() -> None:
    async def burst() -> None:
        kubelet = Kubelet()
        await kubelet.calls(10, QUIET_S / 2)
        assert kubelet.turns_s == []
        quiet_s = asyncio.get_running_loop().time() + QUIET_S / 2
        await asyncio.sleep(1)
        assert kubelet.turns_s == [pytest.approx(quiet_s, abs=0.001)]
        assert kubelet.disk.flushed == 1
        await kubelet.end()

    in_simulated_time(burst())


def test_a_kubelet_that_is_never_quiet_waits_for_a_turn_every_second() -> None:
    async def busy() -> None:
        kubelet = Kubelet()
        began_s = asyncio.get_running_loop().time()
        await kubelet.calls(1000, QUIET_S / 10)
        took_s = asyncio.get_running_loop().time() - began_s
        assert len(kubelet.turns_s) == took_s // LONGEST_S
        assert kubelet.turns_s[0] == pytest.approx(began_s + LONGEST_S, abs=0.001)
        await kubelet.end()

    in_simulated_time(busy())


def test_without_a_change_nothing_is_done_and_a_full_disk_does_not_stop_it() -> None:
    async def quiet() -> None:
        kubelet = Kubelet()
        kubelet.later.called()
        await asyncio.sleep(10)
        assert (kubelet.turns_s, kubelet.disk.flushed) == ([], 0)
        kubelet.disk.full = True
        for turns in (1, 2):
            await kubelet.calls(1, 1)
            assert len(kubelet.turns_s) == turns
        await kubelet.end()

    in_simulated_time(quiet())
