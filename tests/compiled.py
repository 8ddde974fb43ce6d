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
    content = hashlib.sha256(platform.machine().encode())
    for source in sorted(sources):
        content.update(source.name.encode() + b"\0" + source.read_bytes())
    kept = KEPT / f"{target.name}-{content.hexdigest()[:16]}"
    if not kept.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as folder:
            made = Path(folder, target.name)
            compile_to(made)
            made.replace(kept)
    shutil.copy(kept, target)
    return target
