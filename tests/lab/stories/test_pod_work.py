"""Pods of a story use memory, and the agent says whose it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from partage.agent.status.status import UsageObservation
from partage.lab.stories.play import play
from partage.lab.stories.read import read_story
from partage.lab.stories.stage import StoryStage
from partage.units import GIB

STORY = """\
title: Pods at work
machine: 2xh100-sxm5-80gb
policy:
  version: partage/v1
  gpus:
    - {select: {index: 0}, name: nvidia.com/gpu.slice, time-slicing: {replicas: 4}}
    - {select: {index: 1}, mig: {layout: [1g.10gb, 3g.40gb]}}
steps:
  - run: train
    copies: 2
    requests: {nvidia.com/gpu.slice: 1}
    memory: 2Gi
    load: {shape: spikes, to: 9Gi, every-s: 60, for-s: 2, busy: 50%}
  - run: team/serve
    requests: {nvidia.com/mig-3g.40gb: 1}
    memory: 5Gi
  - run: idle
    requests: {nvidia.com/gpu.slice: 1}
  - later: 70s
  - end: train-1
"""


def test_what_pods_of_a_story_use_is_told_of_their_containers(tmp_path: Path) -> None:
    (tmp_path / "story.yaml").write_text(STORY)
    stages: list[StoryStage] = []
    seen: list[UsageObservation | None] = []

    def beside(stage: StoryStage) -> AbstractAsyncContextManager[None]:
        @asynccontextmanager
        async def watch() -> AsyncIterator[None]:
            stages.append(stage)
            await stage.hardware.samples()  # sampling begins
            yield
            seen.append(await asyncio.to_thread(stage.agent_status.usage))

        return watch()

    ending = asyncio.run(play(read_story(tmp_path / "story.yaml"), beside=beside))
    assert ending.good
    (found,) = seen
    assert found is not None
    used = {one.holder.pod: one.amount.used_bytes for one in found.use.containers if one.grant is not None}
    assert used == {"train-0": 2 * GIB, "serve": 5 * GIB, "idle": 0}
    peaks = {one.holder.pod: one.amount.peak_bytes for one in found.use.containers}
    assert peaks == {"train-0": 9 * GIB, "train-1": 9 * GIB, "serve": 5 * GIB, "idle": 0}
    assert sum(one.used_bytes for one in found.use.rest) == 0
