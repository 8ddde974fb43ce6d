"""A directory is emptied while somebody else writes in it, and nothing outside of it is touched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path, PurePath

import pytest

from partage.edges.mps.directories import empty_directories, empty_directory, remove_directories
from partage.edges.mps.paths import DaemonPaths
from partage.errors import DaemonError


@pytest.fixture
def written(tmp_path: Path) -> Path:
    directory = tmp_path / "written"
    directory.mkdir()
    return directory


def test_a_folder_that_becomes_a_link_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """When the first file has gone, a tenant puts a link to a folder of the node in the folder's place."""
    paths = DaemonPaths(tmp_path / "GPU-1")
    node, folder = tmp_path / "node", paths.pipe / "a"
    for place in (node, folder):
        place.mkdir(parents=True)
        for name in ("x", "y", "z"):
            (place / name).touch()
    unlink = os.unlink
    swapped: list[Path] = []

    def watched(path: str | Path, *, dir_fd: int | None = None) -> None:
        unlink(path, dir_fd=dir_fd)
        if not swapped:
            swapped.append(folder.rename(tmp_path / "away"))
            folder.symlink_to(node)

    monkeypatch.setattr(os, "unlink", watched)  # a tenant is seldom as fast as this
    empty_directories(paths)
    assert swapped
    assert sorted(path.name for path in node.iterdir()) == ["x", "y", "z"]
    assert list(paths.pipe.iterdir()) == []


def test_what_a_tenant_makes_at_the_last_moment_is_not_descended_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Deeper than the stack and than descriptors reach. The next attempt finds it."""
    paths = DaemonPaths(tmp_path / "GPU-1")
    for place in (paths.pipe, paths.log, paths.shm):
        place.mkdir(parents=True)

    def first(act: Callable[..., None]) -> Callable[..., None]:
        def act_later(path: str | Path, *args: object, **more: object) -> None:
            if Path(path) in (paths.pipe, paths.home):
                _make_deep(paths.pipe)
            act(path, *args, **more)

        return act_later

    try:
        with monkeypatch.context() as faster:
            faster.setattr(os, "rmdir", first(os.rmdir))
            faster.setattr(shutil, "rmtree", first(shutil.rmtree))
            with pytest.raises(DaemonError, match="not empty"):
                remove_directories(paths)
        remove_directories(paths)
        assert not paths.home.exists()
    finally:  # else nobody could remove what is left of a test that fails
        empty_directory(paths.pipe)


def _make_deep(directory: Path, depth: int = 3000) -> None:
    handle = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)


def test_links_are_removed_and_what_they_name_stays(written: Path, tmp_path: Path):
    (tmp_path / "node").mkdir()
    (tmp_path / "node/file").touch()
    (written / "to-folder").symlink_to(tmp_path / "node")
    (written / "to-file").symlink_to(tmp_path / "node/file")
    empty_directory(written)
    assert list(written.iterdir()) == []
    assert (tmp_path / "node/file").exists()


def test_a_directory_that_is_a_link_itself_is_refused(written: Path, tmp_path: Path):
    (written / "file").touch()
    (tmp_path / "link").symlink_to(written)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        empty_directory(tmp_path / "link")
    assert (written / "file").exists()


def test_what_is_not_there_is_empty(tmp_path: Path):
    empty_directory(tmp_path / "absent")


def test_folders_that_are_kept_are_emptied_and_stay_the_same(written: Path):
    paths = DaemonPaths(written)
    of_namespace = paths.pipe / "gpu/share0"
    (of_namespace / "deeper").mkdir(parents=True)
    (paths.pipe / "gpu/Not A Namespace").mkdir()
    (paths.pipe / "other").mkdir()
    for folder in (paths.pipe, paths.pipe / "gpu", of_namespace, of_namespace / "deeper"):
        (folder / "control").touch()
    before = of_namespace.stat().st_ino
    empty_directories(paths)
    assert sorted(paths.pipe.rglob("*")) == [paths.pipe / "gpu", of_namespace]
    assert of_namespace.stat().st_ino == before


def deep(folder: Path, levels: int) -> None:
    """A folder in a folder and so on; no path reaches the last one."""
    handle = os.open(folder, os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_DIRECTORY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(os.open("last", os.O_CREAT | os.O_WRONLY, dir_fd=handle))
    os.close(handle)


# A path of 4,096 bytes has 2,047 such folders.
DEPTH = 2100


def test_no_depth_is_too_deep(tmp_path: Path):
    paths = DaemonPaths(tmp_path / "GPU-1")
    for written in (paths.pipe, paths.shm):
        written.mkdir(parents=True)
        deep(written, DEPTH)
    empty_directories(paths)
    assert [*paths.pipe.iterdir(), *paths.shm.iterdir()] == []
    deep(paths.pipe, DEPTH)
    remove_directories(paths)
    assert not paths.home.exists()


def test_more_files_than_are_removed_at_once_are_an_error_that_names_the_directory(
    written: Path,
):
    for number in range(11):
        (written / str(number)).touch()
    with pytest.raises(OSError, match=f"more than 10 files are in it: '{written}'"):
        empty_directory(written, most=10)


def test_many_files_in_many_folders_go(written: Path):
    for folder in ("a", "b/c"):
        (written / folder).mkdir(parents=True)
        for number in range(1500):
            (written / folder / str(number)).touch()
    empty_directory(written, keep=lambda path: path == PurePath("a"))
    assert list(written.rglob("*")) == [written / "a"]
