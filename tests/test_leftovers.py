"""The check at the end of all tests finds what is left."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests import leftovers


def test_a_process_that_a_test_started_is_found_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(leftovers.MARK, "of this test")
    before = leftovers.leftovers()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = leftovers.new_leftovers(before, within_s=0.0)
        assert any(line.startswith(f"process {process.pid}: ") for line in found)
        assert process.stdin is not None
        process.stdin.close()
    assert not [line for line in leftovers.leftovers() - before if f"process {process.pid}:" in line]


def test_a_mount_and_a_cgroup_are_found(tmp_path: Path) -> None:
    proc, unified, run = tmp_path / "proc", tmp_path / "unified", f"{tempfile.gettempdir()}/ptg1/run"
    (proc / "self").mkdir(parents=True)
    (unified / "partage-mps/GPU-1@0").mkdir(parents=True)
    (proc / "self/mountinfo").write_text(
        f"1 0 0:1 / {unified} rw - cgroup2 cgroup2 rw\n2 0 0:2 / {run} rw - tmpfs tmpfs rw\n"
        "3 0 0:3 / /home rw - ext4 /dev/vda rw\n",
        encoding="utf-8",
    )
    found = leftovers.leftovers(proc)
    assert {f"cgroup {unified}/partage-mps/GPU-1@0", f"mount {run}"} <= found
    assert "mount /home" not in found


def test_beside_another_run_only_what_has_this_runs_mark_counts() -> None:
    left = ["cgroup /a", "mount /b", "process 7: x"]
    assert leftovers.of_this_run(left, alone=True) == left
    assert leftovers.of_this_run(left, alone=False) == ["process 7: x"]


def test_two_runs_at_one_time_are_not_alone_even_when_one_has_ended(tmp_path: Path) -> None:
    first = leftovers.Turn(tmp_path / "lock")
    assert first.alone()
    second = leftovers.Turn(tmp_path / "lock")
    assert not second.alone()
    second.end()
    assert not first.alone()
    first.end()
    third = leftovers.Turn(tmp_path / "lock")
    assert third.alone()
    third.end()
