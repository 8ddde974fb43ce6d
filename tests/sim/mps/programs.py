"""The simulated MPS programs for tests, in which a command takes a tenth of its time: see ``control.c``."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

from partage.sim.mps import node
from tests.compiled import kept

_SOURCE = Path(__file__).with_name("control.c")
_LONGEST = 255
"""Bytes that Linux reads of a script's first line (binfmt_script.c)."""


def install_programs(directory: Path, of: node.MpsNode) -> Path:
    """As partage.sim.mps.node does, and the same programs where there is no C compiler.

    directory: ``usr/bin`` of a driver's root. A daemon is a Python: so Partage finds one in the root, too.
    """
    path = node.install_programs(directory, of)
    text, interpreter = path.read_text(encoding="utf-8"), _interpreter()
    first = f"#!{interpreter} {sys.executable}"
    if interpreter is None or len(first) >= _LONGEST:
        return path
    daemon = directory / "daemon" / path.name
    daemon.parent.mkdir(exist_ok=True)
    daemon.write_text(text, encoding="utf-8")
    daemon.chmod(0o755)
    beside = directory.parent / "local/bin" / path.name
    beside.parent.mkdir(parents=True, exist_ok=True)
    if not beside.is_symlink():
        beside.symlink_to(daemon)  # it goes with the directory
    path.write_text(first + "\n" + text.partition("\n")[2], encoding="utf-8")
    return path


@functools.cache
def _interpreter() -> Path | None:
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    flags = ["-O1", "-Wall", "-Wextra", "-Werror"]
    return kept(
        "mps-control",
        [_SOURCE, Path(__file__)],  # the flags stand here
        lambda program: subprocess.run([compiler, *flags, _SOURCE, "-o", program], check=True),
    )
