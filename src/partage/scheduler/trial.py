"""Which way to score is best is tried by a process of its own, at low priority.

It takes many seconds of Python: in a thread, answers would wait for it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import BinaryIO, Protocol, cast

from partage.plan.placement.mix import Mix
from partage.plan.placement.replay import tuned_scores
from partage.plan.placement.room import Room
from partage.plan.placement.ssp import Ssp
from partage.values import Frozen

_NICE = 5


class Tried(Frozen):
    """Arguments of ``tuned_scores``."""

    mix: Mix
    rooms: Sequence[Room]
    supply: Mapping[str, int]
    priced: Mix

    def scores(self) -> Ssp:
        """Of the best way."""
        return tuned_scores(self.mix, self.rooms, supply=self.supply, priced=self.priced)


class Trial(Protocol):
    """One that was begun."""

    def scores(self) -> Ssp | None:
        """None: not yet. Raises ChildProcessError if there will be none."""

    def stop(self) -> None:
        """Nobody waits for it any more."""


class TrialProcess:
    """A trial in a process of its own."""

    def __init__(self, tried: Tried) -> None:
        self._answer = _file()
        with _file() as task:
            pickle.dump(tried, task)
            task.seek(0)
            command = [sys.executable, "-P", "-m", __name__]
            self._process = subprocess.Popen(command, stdin=task, stdout=self._answer)  # noqa: S603 - this file

    def scores(self) -> Ssp | None:
        """As ``Trial``."""
        status = self._process.poll()
        if status is None:
            return None
        with self._answer:
            if status:
                raise ChildProcessError(f"the process that tries ways to score ended with {status}")
            self._answer.seek(0)
            return cast("Ssp", pickle.load(self._answer))  # noqa: S301 - written by our own process

    def stop(self) -> None:
        """As ``Trial``."""
        self._process.kill()
        self._process.wait()
        self._answer.close()


def _file() -> BinaryIO:
    """In memory: there may be no folder to write to."""
    return os.fdopen(os.memfd_create("partage-trial"), "w+b")


def main() -> None:
    """Read what is to be tried from stdin, and write its scores to stdout."""
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    os.nice(_NICE)
    scores = pickle.load(sys.stdin.buffer).scores()  # noqa: S301 - written by our own process
    pickle.dump(scores, sys.stdout.buffer)


if __name__ == "__main__":
    main()
