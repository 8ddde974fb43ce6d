"""Files of Partage have the modes that they are to have, whatever umask it was started with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from partage.answers.process_start import umask_of_a_service
from tests.agent.harness import place, running, spawn
from tests.kubelet_script import wait_for

MPS = "version: partage/v1\ngpus: [{select: {index: 0}, mps: {replicas: 2}, guard: true}]\n"
LIMIT_S = 60.0


@contextmanager
def started_with(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("mask", [0, 0o077])
def test_others_read_the_agents_report_and_write_nothing(mask: int) -> None:
    with place() as node:
        with started_with(mask):
            agent = spawn(node, machine="2xh100-sxm5-80gb", policy=MPS)
        with running(agent):
            node.in_report_file('"strategy":"mps"')
            assert mode(node.run_dir) == 0o755
            assert mode(node.run_dir / "report.json") == 0o644
            assert mode(node.state_dir) == 0o700
            wait_for((node.state_dir / "state.json").exists, what="the state")
            assert mode(node.state_dir / "state.json") == 0o600
            ours = [path for root in (node.run_dir, node.state_dir) for path in root.rglob("*")]
            open_ones = [path for path in ours if not path.is_symlink() and mode(path) & 0o022]
            assert open_ones == []


@pytest.mark.parametrize(("mask", "written"), [(0, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_what_a_person_writes_is_as_closed_as_they_are(tmp_path: Path, mask: int, written: int) -> None:
    file = tmp_path / "node.yaml"
    with started_with(mask):
        subprocess.run(
            [sys.executable, "-m", "partage", "record", "--machine", "l4", "--to", file],
            check=True,
            capture_output=True,
            timeout=LIMIT_S,
        )
    assert mode(file) == written


def test_a_service_has_the_same_files_whoever_starts_it() -> None:
    for mask in (0, 0o077):
        with started_with(mask):
            umask_of_a_service()
            assert os.umask(0o022) == 0o022
