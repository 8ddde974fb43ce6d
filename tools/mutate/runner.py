"""Inside pytest: the tests are played in forks of this process, once without a fault and then with each."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import importlib
import itertools
import os
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tools.mutate.faults import AWAKE, DECISIONS, Fault
from tools.mutate.forks import in_forks

_ENDLESS_S = 180
"""A test that takes so long ends its fork. That is longer than the timeout of one test."""
_STARTS_PROCESS = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec")


class _Reached(set[int]):
    """In place of the faults that are awake: which ones the code came to."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: set[int] = set()

    def __contains__(self, number: object) -> bool:
        assert isinstance(number, int)
        self.numbers.add(number)
        return False


class _Run(NamedTuple):
    """What a test did without a fault."""

    test: int
    """Its index."""
    seconds: float
    reached: list[int]
    """Numbers of faults."""
    starts_process: bool
    """That process may come to any fault."""
    failed: bool


class _Try(NamedTuple):
    """Tests that are played with a fault, by their indexes, until one fails."""

    fault: Fault
    tests: list[int]
    failed: int | None = None
    """This one did, and is now played alone; then come the tests, if it was only that the machine is busy."""


class Runner:
    """A plugin of pytest in place of its loop over the tests.

    ``quick``: without the tests that only come to a fault in a process that they start.

    ``found`` has the test that finds a fault by the fault's number, ``failing`` the tests that fail without a
    fault, too: nothing was tried then.
    """

    def __init__(self, faults: list[Fault], say: Callable[[str], None], *, quick: bool) -> None:
        self.found: dict[int, str] = {}
        self.failing: list[str] = []
        self._faults = faults
        self._say = say
        self._quick = quick
        self._folder = Path.cwd()
        self._nowhere = os.open(os.devnull, os.O_WRONLY)
        self._items: list[pytest.Item] = []
        self._failed = False
        self._group: tuple[str, int] | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            self.failing = [f"{session.testsfailed} files of tests, which cannot be collected"]
            return True
        self._items = session.items
        session.config.pluginmanager.unregister(name="terminalreporter")  # forks would all write at once
        package = DECISIONS.removeprefix("src/").replace("/", ".")
        for path in Path(DECISIONS).rglob("*.py"):  # one that a test imports later would not be woken
            importlib.import_module(".".join((package, *path.relative_to(DECISIONS).with_suffix("").parts)))
        self._say(f"mutate: {len(self._items)} tests without a fault")
        runs = self._without_fault()
        self._say(
            f"mutate: {sum(run.seconds for run in runs):.0f} s of tests, now with {len(self._faults)} faults"
        )
        if not self.failing:
            self._with_faults(runs)
        return True

    def _without_fault(self) -> list[_Run]:
        """Of all tests, file by file."""
        files = [
            list(tests)
            for _, tests in itertools.groupby(range(len(self._items)), lambda index: self._items[index].path)
        ]
        reader, writer = os.pipe()  # who reads a number plays that file
        os.write(writer, b"".join(number.to_bytes(4, "big") for number in range(len(files))))
        os.close(writer)

        def record() -> Iterator[_Run]:
            started = [False]

            def audit(event: str, _: object) -> None:
                started[0] |= event in _STARTS_PROCESS

            sys.addaudithook(audit)
            reached = _Reached()
            _wake(reached)
            while number := os.read(reader, 4):
                tests = files[int.from_bytes(number, "big")]
                for index, following in itertools.zip_longest(tests, tests[1:]):
                    reached.numbers.clear()
                    started[0] = False
                    begin_s = time.monotonic()
                    failed = self._fails(index, following)
                    yield _Run(index, time.monotonic() - begin_s, [*reached.numbers], started[0], failed)

        at_once = 2 * (os.cpu_count() or 1)  # half of the time a test waits
        workers = in_forks(deque(range(at_once)), lambda _: record(), at_once)
        runs = [_Run(*line) for _, lines, _ in workers for line in lines]
        os.close(reader)
        passed = {run.test for run in runs if not run.failed}
        failed = [index for index in range(len(self._items)) if index not in passed]  # or ended its fork
        alone = in_forks(deque(failed), lambda index: [self._fails(index, None)], 1)
        self.failing = [self._items[index].nodeid for index, lines, _ in alone if lines != [False]]
        return runs

    def _with_faults(self, runs: list[_Run]) -> None:
        tries = deque(_Try(fault, self._in_order(fault, runs)) for fault in self._faults)

        def play(attempt: _Try) -> Iterator[bool]:
            os.environ[AWAKE] = str(attempt.fault.number)
            _wake({attempt.fault.number})
            tests = attempt.tests if attempt.failed is None else [attempt.failed]
            for index, following in itertools.zip_longest(tests, tests[1:]):
                failed = self._fails(index, following)
                yield failed
                if failed:
                    with contextlib.suppress(Exception):
                        self._items[index].session._setupstate.teardown_exact(None)  # noqa: SLF001
                    return

        for attempt, lines, ended in in_forks(tries, play, os.cpu_count() or 1):
            fault, tests, failed = attempt
            fails = not ended or (bool(lines) and lines[-1])
            if failed is None and fails:
                at = min(len(lines) - ended, len(tests) - 1)  # a test that ended its process said nothing
                tries.appendleft(_Try(fault, tests[at + 1 :], tests[at]))
            elif failed is not None and not fails:
                tries.appendleft(_Try(fault, tests))
            elif failed is not None:
                self.found[fault.number] = self._items[failed].nodeid
                self._say(f"found  {fault.place}  {fault.change}\n       by {self.found[fault.number]}")
            else:
                self._say(f"NOT    {fault.place}  {fault.change}")

    def _in_order(self, fault: Fault, runs: list[_Run]) -> list[int]:
        """The tests that may find it, file by file; quick files, in which no process starts, are first."""
        seconds: defaultdict[tuple[bool, Path], float] = defaultdict(float)
        may_find = [
            run for run in runs if fault.number in run.reached or (run.starts_process and not self._quick)
        ]
        files = {run.test: (run.starts_process, self._items[run.test].path) for run in may_find}
        for run in may_find:
            seconds[files[run.test]] += run.seconds
        return sorted(files, key=lambda index: (files[index][0], seconds[files[index]], index))

    def _fails(self, index: int, following: int | None) -> bool:
        item = self._items[index]
        group = item.get_closest_marker("xdist_group")
        self._hold("" if group is None else str(group.kwargs.get("name") or group.args[0]))
        self._failed = False
        # A timeout that a law fails with lets hypothesis play the endless loop again, without one.
        faulthandler.dump_traceback_later(_ENDLESS_S, exit=True, file=self._nowhere)
        item.config.hook.pytest_runtest_protocol(
            item=item, nextitem=None if following is None else self._items[following]
        )
        faulthandler.cancel_dump_traceback_later()
        return self._failed

    def _hold(self, group: str) -> None:
        """Tests of one group must not meet: this fork has it until it comes to another."""
        if self._group is not None and self._group[0] != group:
            os.close(self._group[1])
            self._group = None
        if group and self._group is None:
            lock = os.open(self._folder / f"{group}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._group = group, lock


def _wake(numbers: set[int]) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("partage.") and hasattr(module, AWAKE):
            setattr(module, AWAKE, numbers)
