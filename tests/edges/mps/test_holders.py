"""Who has a daemon's logs open, in a /proc that is made for it: what a real one shows for a moment only."""

from __future__ import annotations

from pathlib import Path

from partage.edges.mps.holders import Programs, holders
from partage.edges.mps.paths import DaemonPaths
from tests.edges.mps.subjects import GPUS


def process(proc: Path, pid: int, opened: Path, program: Path | None) -> None:
    """program: None once its memory is gone, as the kernel does it: before it closes the process's files."""
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "fd/3").symlink_to(opened)
    (folder / "stat").write_text(f"{pid} (nvidia-cuda-mps) R 1 " + " ".join(["0"] * 17) + " 4711 0\n")
    if program is not None:
        (folder / "exe").symlink_to(program)


def test_a_process_that_is_ending_is_no_stranger(short_dir: Path) -> None:
    paths = DaemonPaths.of(short_dir / "mps", GPUS[0])
    paths.log.mkdir(parents=True)
    log = paths.log / "control.log"
    log.write_text("")
    program = short_dir / "sleep"
    program.write_text("")
    process(short_dir / "proc", 20, log, program)
    process(short_dir / "proc", 21, log, None)
    found = holders(short_dir / "proc", paths, Programs())
    assert [identity.pid for identity in found.strangers] == [20]
    assert found.daemons == found.servers == ()
