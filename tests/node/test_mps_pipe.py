"""The pipe of an MPS daemon, mounted read-only: what is said where no client ever connects."""

from __future__ import annotations

import asyncio

from partage.agent.options import Intervals
from partage.agent.status.readiness import PIPE_READ_ONLY, ReadinessReason, readiness_of
from partage.agent.status.status import WITHIN_S
from partage.answers.report import report_document
from partage.explain.document import ExplainedShareRow
from partage.explain.shares import share_rows
from partage.sim.node.faults import Vacate
from tests.node.test_watchdog import SLICED, WARNED, admitted, one_gpu, status_of, until, works_on
from tests.node.world import World

WITH_SWITCH = {"mps_pipe_read_only": True}


def told(world: World) -> list[ReadinessReason]:
    return [one for one in readiness_of(status_of(world), Intervals()).degraded if one.code == PIPE_READ_ONLY]


def explained(world: World, pod: str) -> ExplainedShareRow:
    """As ``partage explain share`` says it."""
    status = status_of(world)
    assert status.report is not None
    document = report_document(status.report, status, readiness_of(status, Intervals()))
    (row,) = share_rows("node", document, pod)
    return row


def test_shares_that_are_held_without_a_client_name_the_switch_until_one_was_seen() -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(2 * WITHIN_S)
        assert not told(world), "nobody holds a share"
        await admitted(world, "train")
        await asyncio.sleep(WITHIN_S / 2)
        assert not told(world), "a program takes a while to begin"
        await until(lambda: told(world))
        (reason,) = told(world)
        assert "--mps-pipe-read-only (chart: agent.mpsPipeReadOnly)" in reason.message
        assert reason.message.startswith("GPU 0, GPU-")
        assert "no process has connected" in explained(world, "default/train").standing
        await works_on(world, 11)
        await until(lambda: not told(world))
        assert "no process has connected" not in explained(world, "default/train").standing
        await world.fault(Vacate(0))
        await asyncio.sleep(2 * WITHIN_S)
        assert not told(world), "clients can connect, so the mount is not what keeps them away"

    with one_gpu(WARNED, options=WITH_SWITCH) as play:
        play(story)


def test_without_the_switch_nothing_is_said_of_it() -> None:
    async def story(world: World) -> None:
        await admitted(world, "train")
        await asyncio.sleep(2 * WITHIN_S)
        assert not told(world)

    with one_gpu(WARNED) as play:
        play(story)


def test_where_nothing_is_shared_by_mps_nothing_is_said_of_it() -> None:
    async def story(world: World) -> None:
        await admitted(world, "train")
        await asyncio.sleep(2 * WITHIN_S)
        assert not told(world)

    with one_gpu(SLICED, options=WITH_SWITCH) as play:
        play(story)
