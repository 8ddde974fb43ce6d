"""What tests compile is kept in build/compiled: each worker of each run would do it anew."""

from __future__ import annotations

import hashlib
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

KEPT = Path(__file__).parents[1] / "build" / "compiled"


def compiled(target: Path, sources: Iterable[Path], compile_to: Callable[[Path], object]) -> Path:
    """A copy at ``target`` of what ``compile_to`` makes of these sources and of nothing else."""
    shutil.copy(kept(target.name, sources, compile_to), target)
    return target


def kept(name: str, sources: Iterable[Path], compile_to: Callable[[Path], object]) -> Path:
    """Where it is kept. A program is run from there: one that a test has just copied may still be open for
    writing in a process that another thread is starting.
    """
    content = hashlib.sha256(platform.machine().encode())
    for source in sorted(sources):
        content.update(source.name.encode() + b"\0" + source.read_bytes())
    path = KEPT / f"{name}-{content.hexdigest()[:16]}"
    if not path.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as folder:
            made = Path(folder, name)
            compile_to(made)
            made.replace(path)
    return path
