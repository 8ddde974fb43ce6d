"""One checkout, and the folder in which its commands run: the same path for every checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

INPUTS = Path(__file__).parents[2]
"""This checkout: policies, stories and pages are taken from it, whatever is asked."""

PLACE = Path("/tmp/partage-freeze")  # noqa: S108 - one at a time: it may not exist yet
"""Paths stand in answers, so it is no random name."""


class Checkout(NamedTuple):
    """A checkout of Partage, of any layout."""

    root: Path

    @property
    def entry_point(self) -> str:
        """``module:function`` of the command."""
        project = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))
        return str(project["project"]["scripts"]["partage"])

    @property
    def environment(self) -> dict[str, str]:
        """For its programs: nothing of the caller's but PATH."""
        return {
            "PYTHONPATH": str(self.root / "src"),
            "PATH": os.environ["PATH"],
            "HOME": str(PLACE),
            "PYTHONHASHSEED": "0",
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "TZ": "UTC",
        }

    def program(self, *words: str) -> list[str]:
        """The command as a process."""
        return [sys.executable, "-m", "partage", *words]

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the command to its end, in the place."""
        return subprocess.run(
            self.program(*words), env=self.environment, cwd=PLACE, capture_output=True, text=True, check=check
        )

    def python(self, program: str, *words: str) -> str:
        """What a program prints that imports this checkout."""
        given = [sys.executable, "-c", program, *words]
        return subprocess.run(
            given, env=self.environment, cwd=PLACE, check=True, stdout=subprocess.PIPE, text=True
        ).stdout


@contextmanager
def place() -> Iterator[Path]:
    """The folder, with the inputs; removed afterwards."""
    PLACE.mkdir()
    try:
        for name in ("examples", "docs"):
            shutil.copytree(INPUTS / name, PLACE / name)
        yield PLACE
    finally:
        shutil.rmtree(PLACE)


def keep(folder: Path, name: str, lines: Sequence[str]) -> None:
    """Write lines as one file of the answers."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
