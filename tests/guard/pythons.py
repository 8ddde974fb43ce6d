"""Processes with the guard on their path, as a container has it: mounted, not installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from partage.guard import SITE
from partage.units import GIB

SHARE = {"PARTAGE_MEMORY_BYTES": str(20 * GIB), "PARTAGE_TOTAL_BYTES": str(80 * GIB), "PARTAGE_GPUS": "GPU-0"}
HERE = Path(__file__).parent
DOUBLES = HERE / "doubles"
"""Recording doubles of torch, jaxlib, tensorflow and cupy: they note what they are told and do nothing."""


def mounted(place: Path) -> Path:
    """The guard in a directory that cannot be written, like a read-only mount."""
    mount = place / "guard"
    shutil.copytree(SITE, mount, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (mount, *mount.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return mount


def environment(*path: Path | str, **more: str) -> dict[str, str]:
    """A bare environment, PYTHONPATH from these directories, the share, and more."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    joined = {"PYTHONPATH": os.pathsep.join(map(str, path))} if path else {}
    # No bytecode: the tests run as root too, whom no mode keeps from writing it beside the sources.
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", **SHARE, **joined, **more}


def run(
    arguments: Sequence[str | Path], env: Mapping[str, str], python: str | Path = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run a Python to its end; the caller judges how it ended."""
    return subprocess.run(
        [str(python), *map(str, arguments)],
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def said(
    arguments: Sequence[str | Path], env: Mapping[str, str], python: str | Path = sys.executable
) -> object:
    """What a program that ended well, and was silent on stderr, printed as JSON."""
    done = run(arguments, env, python)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


STATE = """
import json, os, sys
finders = [type(finder).__name__ for finder in sys.meta_path]
print(json.dumps([os.environ.get("PARTAGE_GUARD_APPLIED"), finders.count("Finder")]))
"""
"""Prints what was applied, and how many of our finders there are."""

READY = ["ready", 1]
AWAY = [None, 0]
