"""A process under a memory limit of the driver's, in place of a program with CUDA.

``limited_client.py FILE [UID]``: one request a line (``allocate BYTES``, ``managed BYTES``, ``launch``), one
answer a line, ``ok`` or ``error`` with the name of CUDA's error; the first is about its context. FILE has a
``LimitedGpu``. Cgroups are directories with a file ``cgroup.procs``, into which a process writes itself, as
into the kernel's; what they hold is decided by ``CgroupTree``.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from partage.codec.values import decode, encode
from partage.edges.host import procfs
from partage.model.driver_limit import LimitBackend
from partage.model.ids import GpuUuid
from partage.sim.mps.server import become_user
from partage.sim.node.cgroups import AllocationFailed, CgroupTree
from partage.values import Frozen

_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
_PROCS = "cgroup.procs"


class TakenMemory(Frozen):
    """What a process has taken. taken_bytes: 0: its context."""

    pid: int
    path: str
    taken_bytes: int = 0


class LimitedGpu(Frozen):
    """A GPU, the limits of cgroups on it by path, and who has what. directory: what stands for the root."""

    directory: str
    backend: LimitBackend
    gpu: GpuUuid
    total_bytes: int
    limits: Mapping[str, int]
    charges: tuple[TakenMemory, ...] = ()

    def tree(self) -> CgroupTree:
        """As the driver has it now: of processes that have ended nothing is left."""
        root = Path(self.directory)
        tree = CgroupTree(self.backend)
        for found in sorted(path for path in root.rglob("*") if path.is_dir()):
            tree = tree.made(f"/{found.relative_to(root)}")
        for path, limit_bytes in self.limits.items():
            tree = tree.with_limit(path, self.gpu, limit_bytes, total_bytes=self.total_bytes)
        for charge in self.charges:
            if _works(charge.pid):
                after = self._taken(tree, charge)
                tree = tree if isinstance(after, AllocationFailed) else after
        return tree

    def with_charge(self, charge: TakenMemory) -> LimitedGpu | None:
        """After it; None: out of memory."""
        alive = tuple(found for found in self.charges if _works(found.pid))
        after = self._taken(self.tree(), charge)
        if isinstance(after, AllocationFailed) or after.used_bytes("/", self.gpu) > self.total_bytes:
            return None
        return replace(self, charges=(*alive, charge))

    def of_processes(self, path: str) -> Mapping[int, int]:
        """Bytes of each process in this cgroup or below it, by pid."""
        found: dict[int, int] = {}
        for charge in self.charges:
            if _works(charge.pid) and f"{charge.path}/".startswith(f"{path}/"):
                alone = self._taken(CgroupTree(self.backend).made(charge.path), charge)
                assert isinstance(alone, CgroupTree)
                found[charge.pid] = found.get(charge.pid, 0) + alone.used_bytes(charge.path, self.gpu)
        return found

    def _taken(self, tree: CgroupTree, charge: TakenMemory) -> CgroupTree | AllocationFailed:
        if not charge.taken_bytes:
            return tree.started(charge.path, self.gpu)
        return tree.allocated(charge.path, self.gpu, charge.taken_bytes)


def read_gpu(file: Path) -> LimitedGpu:
    """As it is now."""
    return decode(LimitedGpu, file.read_bytes())


def main(argv: Sequence[str]) -> int:
    """Run the program."""
    file = Path(argv[1])
    for uid in argv[2:]:
        become_user(int(uid))
    own = _cgroup_of(os.getpid(), Path(read_gpu(file).directory))
    if not _take(file, TakenMemory(os.getpid(), own)):
        _print(f"error {_OUT_OF_MEMORY}")
        return 1
    _print("ok")
    for line in sys.stdin:
        done = True
        match line.split():
            case ["allocate", amount]:
                done = _take(file, TakenMemory(os.getpid(), own, int(amount)))
            case ["managed", _] | ["launch"]:
                pass  # neither is limited
        _print("ok" if done else f"error {_OUT_OF_MEMORY}")
    return 0


def _take(file: Path, charge: TakenMemory) -> bool:
    with _locked(file) as gpu:
        after = gpu.with_charge(charge)
        if after is not None:
            file.write_bytes(encode(after))
    return after is not None


@contextmanager
def _locked(file: Path) -> Iterator[LimitedGpu]:
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield read_gpu(file)


def _cgroup_of(pid: int, root: Path) -> str:
    """Where a process, or the nearest of those that have started it, has written itself last."""
    written: dict[int, tuple[int, Path]] = {}
    for procs in root.rglob(_PROCS):
        for line in procs.read_text(encoding="ascii").split():
            found = procs.stat().st_mtime_ns, procs.parent
            written[int(line)] = max(written.get(int(line), found), found)
    while pid > 1 and pid not in written:
        pid = procfs.parent_of(Path("/proc"), pid) or 1
    return "/" if pid not in written else f"/{written[pid][1].relative_to(root)}"


def _works(pid: int) -> bool:
    """Whether it is there; one that nobody has waited for has nothing any more."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return text.rpartition(") ")[2][0] != "Z"


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
