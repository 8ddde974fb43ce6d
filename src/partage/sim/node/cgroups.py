"""A simulated node's cgroups and the driver's memory limits on them, as strict as what is documented.

Sources: NVIDIA's guide "MPS v3 Memory Partitioning" (CUDA 13.4), nvml.h of branch 615, kernel/cgroup/dmem.c.
With ``dmem`` a charge is checked on the cgroup and on all above it. With ``misc`` only the nearest cgroup
with a limit counts: limits do not nest. Lowering a limit evicts nothing. Not modelled: managed memory, which
no limit counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import field
from msgspec.structs import replace

from partage.errors import HardwareError, NotFound, NotPermitted, Unsupported
from partage.model.cgroup import owner_of
from partage.model.driver_limit import NO_LIMIT_BYTES, STEP_BYTES, LimitBackend, LimitState
from partage.model.ids import ContainerId, GpuUuid
from partage.units import MIB
from partage.values import Frozen

CONTEXT_BYTES = 512 * MIB
"""What the context of a simulated process takes: between the 250 and 820 MiB that others have measured."""


class AllocationFailed(Frozen):
    """Out of memory: nothing was charged, and nobody was ended. at: the cgroup whose limit refused."""

    at: str


class Cgroup(Frozen):
    """One directory. delegated: it has the dmem files: all above it have the controller switched on. hard,
    soft: limits by GPU. charged: bytes of its own processes, without those of the cgroups in it.
    """

    delegated: bool = True
    hard: Mapping[GpuUuid, int] = field(default_factory=dict)
    soft: Mapping[GpuUuid, int] = field(default_factory=dict)
    charged: Mapping[GpuUuid, int] = field(default_factory=dict)


class CgroupTree(Frozen):
    """All directories, by path: ``/`` is the root, ``/a/b`` is in ``/a``. reserved: soft limits that were
    added to a cgroup for one in it; they stay when that one is removed without being set to 0 first.
    """

    backend: LimitBackend = LimitBackend.OFF
    cgroups: Mapping[str, Cgroup] = field(default_factory=lambda: {"/": Cgroup()})
    reserved: Mapping[tuple[str, GpuUuid], int] = field(default_factory=dict)

    # --- directories ------------------------------------------------------------------------------

    def made(self, path: str, *, delegated: bool = True) -> CgroupTree:
        """With this directory, and those above it. delegated: the controller is on in the one above it."""
        cgroups = dict(self.cgroups)
        for above in reversed(above_of(path)):
            cgroups.setdefault(above, Cgroup(delegated=delegated))
        inside = delegated and all(cgroups[above].delegated for above in above_of(path))
        cgroups.setdefault(path, Cgroup(delegated=inside))
        return replace(self, cgroups=cgroups)

    def removed(self, path: str) -> CgroupTree:
        """Without this directory. Its own limits are gone; what a soft one has added above stays.

        Raises HardwareError while a process has memory in it, or a directory is in it.
        """
        if any(other.startswith(f"{path}/") for other in self.cgroups) or any(self.at(path).charged.values()):
            raise HardwareError(f"cgroup {path} is in use")
        return replace(self, cgroups={at: row for at, row in self.cgroups.items() if at != path})

    def at(self, path: str) -> Cgroup:
        """Raises HardwareError for a directory that is not there."""
        if path not in self.cgroups:
            raise HardwareError(f"the cgroup path {path} cannot be opened")
        return self.cgroups[path]

    def of_container(self, container: ContainerId) -> str:
        """The outermost directory of a container or a job; empty: it has none."""
        own = [path for path in self.cgroups if owner_of(path).limited == container]
        return min(own, key=len, default="")

    @property
    def limited(self) -> bool:
        """Whether any directory has a hard limit."""
        return any(row.hard for row in self.cgroups.values())

    def most_bytes(self, path: str, gpu: GpuUuid) -> int | None:
        """The least of the limits that count for a process in a directory; None: there is none."""
        if path not in self.cgroups:
            return None
        return min((self.at(at).hard[gpu] for at in self._counting(path, gpu)), default=None)

    def without_limits(self, gpu: GpuUuid) -> CgroupTree:
        """Nobody has a limit on this GPU any more."""
        return replace(
            self,
            cgroups={
                path: replace(row, hard={key: most for key, most in row.hard.items() if key != gpu})
                for path, row in self.cgroups.items()
            },
        )

    # --- the driver -------------------------------------------------------------------------------

    def with_limit(
        self,
        path: str,
        gpu: GpuUuid,
        hard_bytes: int,
        soft_bytes: int = 0,
        *,
        total_bytes: int,
        mig: bool = False,
        root: bool = True,
    ) -> CgroupTree:
        """What nvmlDeviceSetMemoryLimits_v1 does. hard_bytes: all ones: no limit. total_bytes: of the GPU.
        mig: it is in MIG mode. root: the caller is.

        Raises NotPermitted, Unsupported, NotFound (no dmem files), HardwareError.
        """
        self._check(mig=mig)
        if not root:
            raise NotPermitted("no permission: root or a capability is needed (nvmlDeviceSetMemoryLimits_v1)")
        row = self.at(path)
        unlimited = hard_bytes == NO_LIMIT_BYTES
        if soft_bytes > hard_bytes or (not unlimited and hard_bytes > total_bytes):
            raise HardwareError("NVML does not accept the arguments (nvmlDeviceSetMemoryLimits_v1)")
        self._check_files(path)
        hard = {key: value for key, value in row.hard.items() if key != gpu}
        soft = {key: value for key, value in row.soft.items() if key != gpu}
        if not unlimited:
            hard[gpu] = hard_bytes
        if soft_bytes:
            soft[gpu] = soft_bytes
        reserved = self._reserved(path, gpu, soft_bytes - row.soft.get(gpu, 0))
        cgroups = {**self.cgroups, path: replace(row, hard=hard, soft=soft)}
        return replace(self, cgroups=cgroups, reserved=reserved)

    def limit_of(self, path: str, gpu: GpuUuid, *, mig: bool = False) -> LimitState:
        """What nvmlDeviceGetMemoryLimits_v1 answers; everybody may ask. Raises Unsupported, NotFound (no dmem
        files), HardwareError.
        """
        self._check(mig=mig)
        row = self.at(path)
        self._check_files(path)
        return LimitState(row.hard.get(gpu), row.soft.get(gpu, 0), self.used_bytes(path, gpu))

    def used_bytes(self, path: str, gpu: GpuUuid) -> int:
        """Of the processes in the directory and in those in it."""
        return sum(
            row.charged.get(gpu, 0)
            for at, row in self.cgroups.items()
            if path in (at, "/") or at.startswith(f"{path}/")
        )

    def allocated(self, path: str, gpu: GpuUuid, amount_bytes: int) -> CgroupTree | AllocationFailed:
        """A process of this directory takes memory, in whole steps. Raises HardwareError."""
        row = self.at(path)
        taken = -(-amount_bytes // STEP_BYTES) * STEP_BYTES
        for at in self._counting(path, gpu):
            most = self.at(at).hard.get(gpu)
            if most is not None and self.used_bytes(at, gpu) + taken > most:
                return AllocationFailed(at)
        return self._charged(path, row, gpu, taken)

    def started(self, path: str, gpu: GpuUuid) -> CgroupTree | AllocationFailed:
        """A process makes its context there, which is no multiple of a step."""
        row = self.at(path)
        for at in self._counting(path, gpu):
            most = self.at(at).hard.get(gpu)
            if most is not None and self.used_bytes(at, gpu) + CONTEXT_BYTES > most:
                return AllocationFailed(at)
        return self._charged(path, row, gpu, CONTEXT_BYTES)

    def freed(self, path: str, gpu: GpuUuid) -> CgroupTree:
        """The processes of this directory have ended."""
        return self._charged(path, self.at(path), gpu, -self.at(path).charged.get(gpu, 0))

    def shown_total(self, path: str, gpu: GpuUuid, total_bytes: int) -> int:
        """What a process in this directory sees as the GPU's memory: a limit only if it is on its own one."""
        return min(total_bytes, self.at(path).hard.get(gpu, total_bytes))

    # --- parts ------------------------------------------------------------------------------------

    def _check(self, *, mig: bool) -> None:
        if mig:
            raise Unsupported("MIG handles are not supported (nvmlDeviceSetMemoryLimits_v1)")
        if self.backend is LimitBackend.OFF:
            raise Unsupported("this GPU or driver does not support it (nvmlDeviceSetMemoryLimits_v1)")

    def _check_files(self, path: str) -> None:
        if self.backend is LimitBackend.DMEM and (path == "/" or not self.at(path).delegated):
            raise NotFound(f"there is no such object: {path} has no dmem files")

    def _counting(self, path: str, gpu: GpuUuid) -> Iterable[str]:
        """The directories whose limits count for a process in ``path``."""
        if self.backend is LimitBackend.OFF:
            return []
        chain = [path, *above_of(path)]
        limited = [at for at in chain if gpu in self.at(at).hard]
        return limited[:1] if self.backend is LimitBackend.MISC else limited

    def _charged(self, path: str, row: Cgroup, gpu: GpuUuid, more_bytes: int) -> CgroupTree:
        charged = {**row.charged, gpu: row.charged.get(gpu, 0) + more_bytes}
        return replace(self, cgroups={**self.cgroups, path: replace(row, charged=charged)})

    def _reserved(self, path: str, gpu: GpuUuid, more_bytes: int) -> Mapping[tuple[str, GpuUuid], int]:
        """A soft limit is added to every cgroup above up to the first without the file."""
        if not more_bytes or self.backend is not LimitBackend.DMEM:
            return self.reserved
        reserved = dict(self.reserved)
        for above in above_of(path):
            if above == "/" or not self.at(above).delegated:
                break
            reserved[above, gpu] = reserved.get((above, gpu), 0) + more_bytes
        return reserved


def above_of(path: str) -> tuple[str, ...]:
    """The directories above this one, the nearest first; () for the root."""
    parts = path.strip("/").split("/")
    inner = [f"/{'/'.join(parts[:count])}" for count in range(len(parts) - 1, 0, -1)]
    return (*inner, "/") if path != "/" else ()
