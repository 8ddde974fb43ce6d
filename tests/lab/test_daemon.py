"""Which MPS daemon an experiment asks."""

from pathlib import Path

import pytest

from partage.lab.daemon import find_pipe
from tests.answers.nodes import gpu


@pytest.fixture(autouse=True)
def _outside_of_any_share(monkeypatch):
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)


def test_the_daemon_of_the_agent_is_found_by_itself(tmp_path):
    assert find_pipe(gpu(0).uuid, tmp_path, None) is None
    pipe = tmp_path / "mps" / gpu(0).uuid / "pipe"
    pipe.mkdir(parents=True)
    assert find_pipe(gpu(0).uuid, tmp_path, None) is None, "a directory is no daemon"
    (pipe / "control").touch()
    assert find_pipe(gpu(0).uuid, tmp_path, None) == pipe
    assert find_pipe(gpu(1).uuid, tmp_path, None) is None


def test_in_a_share_the_containers_own_daemon_is_taken(tmp_path, monkeypatch):
    (tmp_path / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert find_pipe(gpu(0).uuid, Path("/nonexistent"), None) == tmp_path


def test_a_named_pipe_directory_is_taken_as_it_is(tmp_path):
    assert find_pipe(gpu(0).uuid, Path("/nonexistent"), tmp_path) == tmp_path
