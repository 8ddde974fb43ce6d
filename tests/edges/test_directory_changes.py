"""Changes of real directories, told by the kernel."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from partage.edges.directory_changes import DirectoryChanges


@pytest.fixture
async def changes() -> AsyncIterator[DirectoryChanges]:
    made = DirectoryChanges()
    yield made
    made.close()


async def told(event: asyncio.Event) -> None:
    """The event is set. It is unset afterwards."""
    async with asyncio.timeout(5.0):
        await event.wait()
    event.clear()


async def test_what_is_made_moved_and_removed_is_told(changes: DirectoryChanges, tmp_path: Path) -> None:
    event = asyncio.Event()
    assert changes.watch(tmp_path, event)
    (tmp_path / "a").touch()
    await told(event)
    (tmp_path / "a").rename(tmp_path / "b")
    await told(event)
    (tmp_path / "b").unlink()
    await told(event)


async def test_all_who_watch_are_told(changes: DirectoryChanges, tmp_path: Path) -> None:
    one, other = asyncio.Event(), asyncio.Event()
    assert changes.watch(tmp_path, one)
    assert changes.watch(tmp_path, other)
    (tmp_path / "a").touch()
    await told(one)
    await told(other)


async def test_a_directory_in_place_of_another_is_watched_once_it_was_asked_for(
    changes: DirectoryChanges, tmp_path: Path
) -> None:
    directory, event = tmp_path / "dp", asyncio.Event()
    assert not changes.watch(directory, event)
    for _ in range(2):
        directory.mkdir()
        assert changes.watch(directory, event)
        event.clear()
        (directory / "a").touch()
        await told(event)
        (directory / "a").unlink()
        directory.rmdir()


async def test_nothing_is_told_after_the_end(changes: DirectoryChanges, tmp_path: Path) -> None:
    event = asyncio.Event()
    assert changes.watch(tmp_path, event)
    changes.close()
    changes.close()
    (tmp_path / "a").touch()
    await asyncio.sleep(0)
    assert not event.is_set()


async def test_without_descriptors_there_is_no_watch_and_no_error(
    changes: DirectoryChanges, tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert not changes.watch(tmp_path, asyncio.Event())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
