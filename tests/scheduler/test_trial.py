"""Trials of ways to score, beside answers."""

from __future__ import annotations

import signal

import pytest

from partage.plan.placement.mix import WHOLE_MILLI, PodType, mix_of
from partage.plan.placement.room import Room
from partage.scheduler.trial import TrialProcess, Tried
from tests.e2e.control_plane import until
from tests.scheduler.feeding import Fed
from tests.scheduler.objects import MEMORY, claim, device, node, pod, slices

MIX = mix_of([PodType(4000, 0, 1, 300)] * 3 + [PodType(8000, 0, 1, 700), PodType(64_000, 0, 8, WHOLE_MILLI)])
TRIED = Tried(
    MIX, [Room("a", 128_000, 10**6, [WHOLE_MILLI] * 8, 128_000, 10**6)] * 12, {"a": 96 * WHOLE_MILLI}, MIX
)


def test_a_process_of_its_own_gives_the_same_scores() -> None:
    trial = TrialProcess(TRIED)
    until("the trial has ended", lambda: trial._process.poll() is not None)
    there, here = trial.scores(), TRIED.scores()
    assert there is not None
    for left in ([WHOLE_MILLI] * 8, [300, 700, 0, 0, 1000, 1000, 400, 800]):
        room = Room("a", 90_000, 10**6, left, 128_000, 10**6)
        for kind in MIX.parts:
            assert not room.fits(kind) or there.best(kind, room) == here.best(kind, room)


def test_a_process_that_was_killed_or_stopped() -> None:
    killed, stopped = TrialProcess(TRIED), TrialProcess(TRIED)
    assert stopped.scores() is None
    stopped.stop()
    assert stopped._process.returncode == -signal.SIGKILL
    killed._process.kill()
    killed._process.wait()
    with pytest.raises(ChildProcessError, match="-9"):
        killed.scores()


def _pods(first: int, count: int, cpu_milli: int) -> list[dict[str, object]]:
    return [pod(f"p{number}", cpu_milli, claims=["mine"]) for number in range(first, first + count)]


def test_ways_are_tried_from_a_hundred_pods_on_while_answers_go_on() -> None:
    fed = Fed()
    fed.start(
        nodes=[node("n")],
        slices=[slices("n", [device(0), device(1)])],
        claims=[claim("mine", 1, MEMORY // 2)],
        pods=_pods(0, 60, 1000),
    )
    assert (fed.extender.mix.version, fed.trials) == (1, [])
    fed.put("pods", *_pods(60, 60, 1000))
    fed.extender.turn()
    # Tables of now are used at once, and a trial has begun.
    (first,) = fed.trials
    first.ended = False
    assert first.tried.supply == {f"A/memory-{MEMORY}": 2 * WHOLE_MILLI}
    assert fed.extender.mix.version == 2
    fed.extender.turn()
    assert fed.extender.mix.version == 2
    first.ended = True
    fed.extender.turn()
    assert fed.extender.mix.version == 3
    # The next trial fails: the scores before stay, and a minute later it is tried again.
    fed.put("pods", *_pods(120, 30, 2000))
    fed.now_s += 61
    fed.extender.turn()
    fed.trials[1].trouble = "killed"
    fed.extender.turn()
    assert (fed.extender.mix.version, len(fed.trials)) == (3, 2)
    fed.extender.turn()
    assert len(fed.trials) == 2
    fed.now_s += 61
    fed.extender.turn()
    fed.trials[2].ended = False
    # A model that is new does not wait for a trial of the others.
    fed.put("nodes", node("m"))
    fed.put("slices", slices("m", [device(0, "new")]))
    fed.extender.turn()
    assert fed.trials[2].stopped
    assert (fed.extender.mix.version, len(fed.trials)) == (4, 4)
    fed.extender.close()
    assert fed.trials[3].stopped
