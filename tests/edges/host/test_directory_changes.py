"""Changes of real directories, told by the kernel."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from partage.edges.host.waiting import DirectoryChanges


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


async def test_only_who_watches_a_directory_is_told_of_it(changes: DirectoryChanges, tmp_path: Path) -> None:
    mine, other = asyncio.Event(), asyncio.Event()
    for name, event in (("mine", mine), ("other", other)):
        (tmp_path / name).mkdir()
        assert changes.watch(tmp_path / name, event)
    (tmp_path / "mine" / "a").touch()
    await told(mine)
    assert not other.is_set()


async def test_the_end_of_a_directory_is_told(changes: DirectoryChanges, tmp_path: Path) -> None:
    directory, event = tmp_path / "dp", asyncio.Event()
    for end in (Path.rmdir, lambda path: path.rename(tmp_path / "moved")):
        directory.mkdir()
        assert changes.watch(directory, event)
        end(directory)
        await told(event)


async def test_a_wait_ends_with_a_change_of_any_of_its_directories(
    changes: DirectoryChanges, tmp_path: Path
) -> None:
    event, directories = asyncio.Event(), [tmp_path / name for name in "ab"]
    for directory in directories:
        directory.mkdir()
    for directory in directories:
        waiting = asyncio.create_task(changes.wait(directories, event, told_s=1e6, untold_s=1e6))
        await asyncio.sleep(0)
        (directory / "file").write_text("in place")
        async with asyncio.timeout(5.0):
            await waiting
        assert not event.is_set()


async def test_a_wait_ends_by_itself_sooner_where_the_kernel_tells_nothing(
    changes: DirectoryChanges, tmp_path: Path
) -> None:
    nowhere = [tmp_path, tmp_path / "not there"]
    async with asyncio.timeout(5.0):
        await changes.wait(nowhere, asyncio.Event(), told_s=1e6, untold_s=0.01)


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
