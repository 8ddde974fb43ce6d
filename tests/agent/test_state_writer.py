"""The state file: shares are on disk before they are offered, and a disk that fails delays nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from partage.agent.state_writer import WAIT_LIMIT_S, StateWriter
from partage.edges.files.state import SavedState, StateDir
from partage.model.ids import GpuUuid
from partage.plan.reconcile.transition import GpuServing
from tests.virtual_time import in_virtual_time


@asynccontextmanager
async def memory(path: Path) -> AsyncIterator[StateWriter]:
    """One that writes, for the length of a block."""
    one = StateWriter(StateDir(path), path / "report.json", asyncio.get_running_loop().time)
    task = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        task.cancel()
        await asyncio.wait([task])
        one.directory.close()


async def test_what_has_been_written_is_on_disk(tmp_path: Path) -> None:
    async with memory(tmp_path) as one:
        for number in range(3):
            serving = {GpuUuid(f"GPU-{n}"): GpuServing(()) for n in range(number)}
            one.update(SavedState(serving=serving))
            await one.written()
            loaded = one.load()
            assert loaded.serving == serving


@in_virtual_time
async def test_a_directory_that_cannot_be_written_keeps_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with memory(tmp_path / "file" / "state") as one:
        one.update(SavedState(serving={GpuUuid("GPU-0"): GpuServing(())}))
        async with asyncio.timeout(WAIT_LIMIT_S / 2):
            await one.written()
        assert "cannot make the state directory" in one.trouble


@in_virtual_time
async def test_nothing_new_is_nothing_to_wait_for(tmp_path: Path) -> None:
    async with memory(tmp_path) as one:
        one.update(SavedState())
        await one.written()
        one.update(SavedState())
        async with asyncio.timeout(WAIT_LIMIT_S / 2):
            await one.written()
