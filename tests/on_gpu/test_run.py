"""Whole runs on the stand-ins, as a person starts them."""

from __future__ import annotations

from tests.on_gpu.conftest import Machine


def test_a_whole_run_looks_at_everything_and_leaves_nothing(programs: Machine):
    said = programs.run("--change")
    print(said)
    print(programs.findings())
    assert 0
