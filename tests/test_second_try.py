"""A test that passes only at the second try is named, and one that fails twice fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import variants

ROOT = Path(__file__).parents[1]
TESTS = """
from pathlib import Path

import pytest

def test_good():
    pass

def test_lucky():
    seen = Path("seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError

@pytest.mark.xdist_group("few")
def test_bad():
    assert {good}
"""


def _python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "CI": "true"}
        | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"},
        check=False,
    )


@pytest.mark.parametrize("good", variants([False, True], 2))
def test_what_passed_only_at_the_second_try_is_named_last(tmp_path: Path, good: bool) -> None:
    (tmp_path / "test_it.py").write_text(TESTS.format(good=good))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    assert _python(tmp_path, "pytest", "-q", "-n", "1", "--dist", "loadgroup").returncode == 1
    again = _python(tmp_path, "tests.second_try", "-q")
    assert again.returncode == (0 if good else 1), again.stdout
    end = again.stdout.rpartition("passed only at the second try: 1\n")[2]
    assert end.splitlines()[0] == "  test_it.py::test_lucky"
    assert "test_bad" not in end
    assert "test_good" not in again.stdout
