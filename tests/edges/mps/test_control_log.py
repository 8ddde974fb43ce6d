"""What a control daemon was told by others than Partage, from its log."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from partage.edges.mps.daemon_logs import Commands, LogMark, end_of_log, read_log
from partage.edges.mps.launch import mount, unmount
from partage.edges.mps.paths import DaemonPaths
from tests.edges.mps.subjects import GPUS

PREFIX = "[2026-11-24 04:11:07.925 Control 27578] "
QUIET = f"{PREFIX}NEW UI\n{PREFIX}Cmd:get_server_list\n{PREFIX}UI closed\n"


@pytest.fixture
def paths(short_dir: Path) -> DaemonPaths:
    found = DaemonPaths.of(short_dir, GPUS[0])
    found.log.mkdir(parents=True)
    log_of(found).write_text("", encoding="ascii")
    return found


def log_of(paths: DaemonPaths) -> Path:
    return paths.log / "control.log"


def write(paths: DaemonPaths, *commands: str) -> None:
    with log_of(paths).open("a", encoding="utf-8", newline="") as file:
        file.write(QUIET)
        file.writelines(f"{PREFIX}Cmd:{one}\n" for one in commands)


def mark(paths: DaemonPaths) -> LogMark:
    found = end_of_log(log_of(paths))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("command", "changes"),
    [
        ("get_default_device_pinned_mem_limit 0", False),
        ("ps", False),
        ("ps -p 12", False),
        ("terminate_client 1 2", False),
        ("start_server -uid 0", False),
        ("quit -t 1", False),
        ("set_default_device_pinned_mem_limit 0 60G", True),
        ("  set_default_active_thread_percentage 30", True),
        ("set_active_thread_percentage 5032 100", True),
        ("set_device_pinned_mem_limit 5032 0 3999M", True),
        ("set_default_client_priority 1", True),
        ("", True),
        ("get_server_list\rset_default_active_thread_percentage 100", True),
        ("a_command_of_a_later_branch", True),
    ],
)
def test_only_what_is_known_to_change_nothing_changes_nothing(
    paths: DaemonPaths, command: str, *, changes: bool
):
    settled = mark(paths)
    write(paths, command)
    unsettled, doubt = Commands().look(paths, settled)
    assert bool(unsettled) is changes
    assert repr(command)[1:20] in unsettled or not changes
    assert doubt == ""


def test_it_stays_unsettled_until_the_limits_were_set_again(paths: DaemonPaths):
    commands, settled = Commands(), mark(paths)
    write(paths, "set_default_active_thread_percentage 30")
    for _ in range(2):
        assert commands.look(paths, settled)[0]
        write(paths)
    settled = mark(paths)
    write(paths)
    assert commands.look(paths, settled) == ("", "")


def test_only_what_is_new_is_read(paths: DaemonPaths, monkeypatch: pytest.MonkeyPatch):
    commands, settled = Commands(), mark(paths)
    read: list[int] = []
    pread = os.pread

    def counted(handle: int, size: int, at: int) -> bytes:
        read.append(size)
        return pread(handle, size, at)

    monkeypatch.setattr(os, "pread", counted)  # what is read cannot be told from the answers
    for _ in range(3):
        write(paths)
        assert commands.look(paths, settled) == ("", "")
    assert read == [len(QUIET)] * 3


def test_a_line_that_is_under_way_is_read_when_it_is_there(paths: DaemonPaths):
    commands, settled = Commands(), mark(paths)
    write(paths)
    with log_of(paths).open("a", encoding="ascii") as file:
        file.write(f"{PREFIX}Cmd:set_default_active_thr")
    assert commands.look(paths, settled) == ("", "")
    with log_of(paths).open("a", encoding="ascii") as file:
        file.write("ead_percentage 100\n")
    assert "100" in commands.look(paths, settled)[0]


def test_a_log_that_was_cut_or_replaced_is_not_a_quiet_one(paths: DaemonPaths):
    write(paths, "set_default_active_thread_percentage 30")
    settled = mark(paths)
    log_of(paths).write_text(QUIET, encoding="ascii")
    assert "cut" in Commands().look(paths, settled)[0]
    log_of(paths).rename(paths.log / "old")
    write(paths, *["ps"] * 20)
    assert "replaced" in Commands().look(paths, settled)[0]


def test_what_was_let_go_unread_is_not_quiet(paths: DaemonPaths):
    settled = mark(paths)
    write(paths, *["ps"] * 500)
    with log_of(paths).open("r+b") as file:
        ctypes.CDLL(None).fallocate64(file.fileno(), 3, ctypes.c_int64(0), ctypes.c_int64(8192))
    assert "let go" in Commands().look(paths, settled)[0]


def test_a_log_that_says_nothing_now_is_a_doubt_and_afterwards_nobody_knows(paths: DaemonPaths):
    commands, settled = Commands(), mark(paths)
    unsettled, doubt = commands.look(paths, settled)
    assert (unsettled, "does not write" in doubt) == ("", True), "nothing of what it was asked is there"
    write(paths)
    assert "nobody knows" in commands.look(paths, settled)[0]
    log_of(paths).unlink()
    assert "cannot be read" in commands.look(paths, settled)[1]
    assert "cannot be read" in Commands().look(paths, None)[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_full_log_is_not_a_quiet_one(paths: DaemonPaths):
    mount("log", str(paths.log), "tmpfs", 0, "size=256k")
    try:
        log_of(paths).write_text(QUIET, encoding="ascii")
        commands, settled = Commands(), mark(paths)
        write(paths)
        assert commands.look(paths, settled) == ("", "")
        (paths.log / "filler").write_bytes(b"x" * 240 * 1024)
        unsettled, doubt = commands.look(paths, settled)
        assert (unsettled, "full" in doubt) == ("", True)
        (paths.log / "filler").unlink()
        write(paths)
        unsettled, doubt = commands.look(paths, settled)
        assert ("full" in unsettled, doubt) == (True, "")
    finally:
        unmount(str(paths.log))


def test_a_daemon_of_an_older_partage_has_its_limits_set_once(paths: DaemonPaths):
    assert Commands().look(paths, None) == ("it is not known what it was told", "")


def test_a_log_that_is_no_file_is_not_read(paths: DaemonPaths):
    settled = mark(paths)
    log_of(paths).unlink()
    os.mkfifo(log_of(paths))
    assert read_log(log_of(paths), settled).lost
