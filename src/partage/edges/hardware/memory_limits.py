"""The driver's memory limits of cgroups, through NVML: whether there are any, reading, and setting one again.

Layouts and return codes: nvml.h of branch 615 (``nvmlSetMemoryLimits_v1_t``, ``nvmlGetMemoryLimits_v1_t``),
as nvidia-ml-py has them. None of it was seen with a driver of that branch. The kernel's dmem files are read
and never written: the driver adds soft limits to the cgroups above, and a value written by hand does not.

The cgroup of a container is found by its id, that of a Slurm job by its name, in the tree of cgroup v2.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from partage.edges.hardware.binding import ABSENT, NOT_FOUND
from partage.edges.hardware.gpu_queries import Handle
from partage.edges.hardware.host import Host, sysfs_address
from partage.edges.hardware.nvml_queries import Nvml
from partage.edges.host import procfs
from partage.errors import DriverUnavailable, GpuLost, HardwareError, HardwareTimeout, NotFound, Unsupported
from partage.model.cgroup import cgroup_of_job, owner_of
from partage.model.driver_limit import (
    NO_CGROUP,
    NO_LIMIT_BYTES,
    LimitAt,
    LimitBackend,
    LimitObstacle,
    LimitState,
    LimitSupport,
    SeenLimit,
)
from partage.model.gpu import MigMode
from partage.model.ids import ContainerId, GpuUuid, JobCgroup, PciBusId, cgroup_owner, is_job
from partage.model.step import SetMemoryLimit

_DEEPEST = 16
"""Levels below the root. The kubelet makes four; a container may make some more, and is not followed."""


class ContainerCgroups:
    """Finds the cgroup of a container by its id, and of a job by what it is called by (``JobCgroup``). A
    directory is looked for once, and used while it is there. Jobs of a node lie side by side: once one was
    found, the tree is not walked for others, of which each has a name that is never there.

    Only the outermost cgroup with an id counts: a container can make cgroups in its own with any name. So can
    a user whom systemd has given a part of the tree: a job's has to be root's.
    """

    def __init__(self, root: Path) -> None:
        """root: where cgroup v2 is mounted."""
        self._root = root
        self._found: dict[ContainerId, Path] = {}
        self._jobs: Path | None = None

    def why_blind(self) -> str:
        """Why the node's tree cannot be seen here, a clause; empty if it can."""
        if not (self._root / "cgroup.controllers").exists():
            return f"{self._root} is no cgroup v2"
        if not procfs.is_root_cgroup(self._root, ""):
            return f"{self._root} is not the node's root cgroup: the helper needs the node's cgroup namespace"
        return ""

    def find(self, containers: Collection[ContainerId]) -> dict[ContainerId, Path]:
        """The directories of those containers that have one."""
        self._found = {container: path for container, path in self._found.items() if path.is_dir()}
        missing = {container for container in containers if container and container not in self._found}
        if self._jobs is not None and self._jobs.is_dir():
            jobs = {name for name in missing if is_job(name)}
            missing -= jobs
            named = ((name, self._jobs / cgroup_of_job(JobCgroup(name))) for name in jobs)
            self._found |= {name: path for name, path in named if path.is_dir() and _is_ours(path)}
        if missing:
            self._found |= {container: path for container, path in self._walked() if container in missing}
            self._jobs = next((path.parent for name, path in self._found.items() if is_job(name)), self._jobs)
        return {container: self._found[container] for container in containers if container in self._found}

    def _walked(self) -> Iterator[tuple[ContainerId, Path]]:
        """Every container and job of the node, and its outermost directory."""
        open_ = [(self._root, "", ContainerId(""))]
        while open_:
            directory, path, inside = open_.pop()
            owner = owner_of(path)
            of_job = bool(owner.limited) and not owner.container
            ours = _is_ours(directory)
            if owner.limited != inside and (ours or not of_job):
                yield owner.limited, directory
                if owner.pod or of_job:
                    continue  # what is below is the container's own, or the job's
            # A user whom systemd has given a part of the tree may make any number of cgroups there.
            if ours and path.count("/") < _DEEPEST:
                open_ += [
                    (directory / name, f"{path}/{name}", owner.limited) for name in _subdirectories(directory)
                ]


def _is_ours(directory: Path) -> bool:
    """Whether root has made it, or the user of this process."""
    try:
        return directory.stat().st_uid in (0, os.geteuid())
    except OSError:  # it was removed meanwhile
        return False


def _subdirectories(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # it was removed meanwhile
        return []


SET, GET = "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"
_NONE_HERE = ABSENT | {NOT_FOUND, 17}
"""17: the directory cannot be opened. Not found: no limit was set, or the kernel has no file there."""

_MODE = re.compile(r"RmMemacctMode\s*[:=]\s*(\d+)", re.ASCII)
_MODE_OFF, _MODE_DMEM = 0, 2


def cgroup_root(host: Host) -> Path:
    """Where cgroup v2 has to be mounted: the driver looks nowhere else."""
    return host.sys / "fs/cgroup"


# --- whether there are any ------------------------------------------------------------------------


def limit_support(
    nvml: Nvml, host: Host, handle: Handle, address: PciBusId, mig: MigMode | None
) -> LimitSupport:
    """Whether cgroups can have limits on a GPU, from what driver and kernel say; nothing is inferred from a
    version. The first obstacle counts.
    """
    if {SET, GET} & set(nvml.lacks):
        return LimitSupport(obstacle=LimitObstacle.DRIVER)
    root = cgroup_root(host)
    if not (root / "cgroup.controllers").exists():
        return LimitSupport(obstacle=LimitObstacle.CGROUP_V1)
    if mig is not None and mig.current:
        return LimitSupport(obstacle=LimitObstacle.MIG)
    capacity = _text(root / "dmem.capacity")
    if _is_region(capacity, address):
        return LimitSupport(LimitBackend.DMEM)
    if _answers(nvml, handle, _own_cgroup(host)):
        return LimitSupport(LimitBackend.MISC)
    return LimitSupport(obstacle=_why_silent(host, root))


def _answers(nvml: Nvml, handle: Handle, directory: Path) -> bool:
    """Whether a get does. A GPU whose driver refuses it in some other way is no worse."""
    try:
        return _get(nvml, handle, directory) is not None
    except (DriverUnavailable, GpuLost, HardwareTimeout):
        raise
    except HardwareError:
        return False


def _why_silent(host: Host, root: Path) -> LimitObstacle:
    found = _MODE.search(_text(host.proc / "driver/nvidia/params"))
    mode = None if found is None else int(found[1])
    if mode == _MODE_OFF:
        return LimitObstacle.MODE
    if mode == _MODE_DMEM and "dmem" not in _text(root / "cgroup.controllers").split():
        return LimitObstacle.KERNEL
    return LimitObstacle.SILENT


def _is_region(capacity: str, address: PciBusId) -> bool:
    """Whether the kernel counts the memory of this GPU: ``nvidia/<pci address>/vidmem``. In which form the
    driver writes the address is not documented, so both are known.
    """
    names = {f"nvidia/{form}/vidmem" for form in (address.lower(), sysfs_address(address))}
    return any(line.split()[:1] and line.split()[0].lower() in names for line in capacity.splitlines())


def _own_cgroup(host: Host) -> Path:
    """The directory of this process's cgroup; the root where it cannot be told."""
    root = cgroup_root(host)
    lines = (line.partition("::") for line in procfs.self_cgroups(host.proc))
    path = next((path for hierarchy, _, path in lines if hierarchy == "0"), "/")
    own = root / path.lstrip("/")
    return own if ".." not in own.parts and own.is_dir() else root


# --- reading and setting --------------------------------------------------------------------------


def read_limits(nvml: Nvml, cgroups: ContainerCgroups, asked: Collection[LimitAt]) -> tuple[SeenLimit, ...]:
    """What is in force there now, in the order of the question."""
    if blind := cgroups.why_blind():
        return tuple(SeenLimit(at, why=blind) for at in asked)
    found = cgroups.find({at.container for at in asked})
    handles = nvml.handles()
    return tuple(_read(nvml, handles, found, at) for at in asked)


def _read(
    nvml: Nvml, handles: Mapping[GpuUuid, Handle], found: Mapping[ContainerId, Path], at: LimitAt
) -> SeenLimit:
    directory = found.get(at.container)
    if directory is None:
        return SeenLimit(at, why=NO_CGROUP)
    if at.gpu not in handles:
        return SeenLimit(at, cgroup=str(directory), why="the GPU does not answer")
    try:
        state = _get(nvml, handles[at.gpu], directory)
    except DriverUnavailable:
        raise
    except HardwareError as error:
        return SeenLimit(at, cgroup=str(directory), why=str(error))
    return SeenLimit(at, state, str(directory), "" if state else "the driver knows no limit of its cgroup")


def set_limit(nvml: Nvml, cgroups: ContainerCgroups, step: SetMemoryLimit) -> None:
    """Set it and read it back. Raises NotFound, Unsupported, NotPermitted, HardwareError."""
    if blind := cgroups.why_blind():
        raise Unsupported(f"cannot {step}: {blind}")
    directory = cgroups.find([step.container]).get(step.container)
    if directory is None:
        raise NotFound(f"{cgroup_owner(step.container)} has no cgroup")
    handle = nvml.gpu_handle(step.gpu)
    limits = nvml.structure("c_nvmlSetMemoryLimits_v1_t")
    limits.nameSpace = os.fsencode(directory)
    limits.softLimit, limits.hardLimit = 0, step.limit_bytes
    nvml.call(SET, handle, limits)
    state = _get(nvml, handle, directory)
    if state is None or state.hard_bytes != step.limit_bytes:
        raise HardwareError(f"the driver took the limit of {directory} and does not show it: {state}")


def _get(nvml: Nvml, handle: Handle, directory: Path) -> LimitState | None:
    """What the driver says of a cgroup; None if it knows nothing of it."""
    limits = nvml.structure("c_nvmlGetMemoryLimits_v1_t")
    limits.nameSpace = os.fsencode(directory)
    if not nvml.fills(GET, handle, limits, absent=_NONE_HERE):
        return None
    hard_bytes = int(limits.hardLimit)
    return LimitState(
        None if hard_bytes == NO_LIMIT_BYTES else hard_bytes, int(limits.softLimit), int(limits.currentUsed)
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
