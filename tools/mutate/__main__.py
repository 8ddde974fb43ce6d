"""``python -m tools.mutate [--seed N] [--count 40] [--at plan/offer] [TEST...]``.

A fault that no test finds is shown: a test is missing, or the fault changes no answer. Exit code 1: more than
one in twenty was not found; 2: a test fails without a fault, too.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.mutate.faults import DECISIONS, put_into
from tools.mutate.runner import Runner

_FOUND = 0.95
_READ_THE_CODE = ("tests/test_text.py",)
"""Tests of how the code is written, not of what it does."""


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutate", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument(
        "--count", type=int, default=40, help="how many are drawn; all, if there are not so many"
    )
    parser.add_argument(
        "--at", default="", help="only where file and line have this text: offer/caveats.py:153"
    )
    parser.add_argument("--quick", action="store_true", help="without tests that find it in another process")
    parser.add_argument("tests", nargs="*", default=["tests"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="partage-mutate-") as folder:
        root = Path(folder)
        copied = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout
        for name in map(Path, copied.splitlines()):
            if name.is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(name, root / name)
        faults = [fault for fault in put_into(root) if given.at in fault.place]
        count = min(given.count, len(faults))
        print(f"mutate: seed {given.seed}, {count} of {len(faults)} faults in {DECISIONS}", flush=True)
        os.chdir(root)
        runner = Runner(random.Random(given.seed).sample(faults, count), _say(), quick=given.quick)  # noqa: S311 - a sample of code
        _run_tests(root, runner, given.tests)
    if runner.failing:
        print("mutate: without a fault, too, these fail:", *runner.failing, sep="\n  ", file=sys.stderr)
        return 2
    print(f"mutate: {len(runner.found)} of {count} are found (seed {given.seed})")
    return 0 if len(runner.found) >= _FOUND * count else 1


def _say() -> Callable[[str], None]:
    """To what is standard output now: pytest takes it for the tests."""
    output = os.fdopen(os.dup(1), "w", buffering=1)
    return lambda line: print(line, file=output)


def _run_tests(root: Path, runner: Runner, tests: list[str]) -> None:
    """As make test does, in one process, with the code and the tests below root."""
    sys.path[:0] = [str(root / "src"), str(root)]
    os.environ.update(PYTHONPATH=str(root / "src"), PARTAGE_QUICK="1")
    ignored = [f"--ignore={name}" for name in _READ_THE_CODE]
    pytest.main(["-n", "0", "-m", "not real", "-p", "no:cacheprovider", *ignored, *tests], plugins=[runner])


if __name__ == "__main__":
    sys.exit(main())
