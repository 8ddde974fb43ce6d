"""Reading stops at its limit, and waits for nobody."""

import os
import socket
import threading
from pathlib import Path

import pytest

from partage.answers.documents.report import Unreadable, read_report
from partage.edges.files.journal import UnreadableJournal, read_journal
from partage.edges.files.state import read_state
from partage.edges.host.read_file import read_regular, read_tail
from tests.kubelet_script import wait_for


def test_no_more_than_the_limit_is_read(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"123456")
    assert read_regular(file, 4) == b"1234"
    assert read_regular(file, 9) == b"123456"
    (tmp_path / "link").symlink_to(file)
    assert read_regular(tmp_path / "link", 9) == b"123456"


def test_the_end_of_a_log_is_read_however_large_it_is(tmp_path):
    log = tmp_path / "control.log"
    with log.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"the last line\n")
    assert read_tail(log, 14) == b"the last line\n"
    log.write_bytes(b"all")
    assert read_tail(log, 14) == b"all"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        read_tail(tmp_path / "pipe", 9)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    before = set(Path("/proc/self/fd").iterdir())
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "/dev/zero", "/dev/null"):
        with pytest.raises(OSError, match="not a regular file"):
            read_regular(tmp_path / name, 9)
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path, 9)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        with pytest.raises(OSError, match="not a regular file, but a socket"):
            read_regular(tmp_path / "s", 9)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "nothing", 9)
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_pipes_in_place_of_our_own_files_hold_nobody_up(tmp_path):
    for name in ("state.json", "journal.jsonl", "report.json"):
        os.mkfifo(tmp_path / name)
    assert read_state(tmp_path) is None
    journal = read_journal(tmp_path)
    assert isinstance(journal, UnreadableJournal)
    assert "not a regular file" in journal.reason
    report = read_report(tmp_path / "report.json")
    assert isinstance(report, Unreadable)
    assert "not a regular file" in report.reason


def test_what_is_no_regular_file_is_not_even_opened(tmp_path):
    """To open a device may do something. A pipe shows it: whoever opens it to write waits for a reader."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writes = threading.Thread(target=lambda: os.close(os.open(pipe, os.O_WRONLY)))
    writes.start()
    try:
        wait_for(lambda: is_opening(writes), what="the writer")
        for read in (read_regular, read_tail):
            with pytest.raises(OSError, match="not a regular file, but a pipe"):
                read(pipe, 9)
        writes.join(0.2)
        assert writes.is_alive()
    finally:
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
        writes.join()


def is_opening(thread: threading.Thread) -> bool:
    """Whether it waits in the system call (``wait_for_partner`` of the kernel), in state S."""
    stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "S"
