"""Which containers and jobs have the pipe directory of an MPS daemon, and what their processes may become.

A tenant chooses names and paths, but not these: which file system a mount is of (its device number and the
directory in it, as the kernel has them in ``mountinfo``), the cgroup and the pid namespace of a process, and
the ids, capabilities and NoNewPrivs of each of its threads. Each mount namespace is read once.

Every process of the node is looked at, which takes some milliseconds: this is for when a container starts,
not for every tick.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath

from msgspec import Struct, field
from msgspec.structs import replace

from partage.edges.hardware.left_processes import is_sandbox
from partage.edges.hardware.processes import sees_other_pods
from partage.edges.host import procfs
from partage.model.cgroup import Owner, parse_cgroup
from partage.model.ids import ContainerId, DeviceUuid
from partage.model.mps import (
    MOST_RIGHTS,
    NO_HOST_PIDS,
    SERVER,
    PipeTenant,
    PipeTenants,
    ProcessRights,
    is_mps_name,
)
from partage.values import Frozen

_ROUNDS = 3
"""Lists of processes: one that starts another and ends can be missed by a single one."""

_MOST_THREADS = 4096
"""Of one process. More cannot be judged."""

_ENDED = frozenset({"", "Z", "X"})
_ESCAPED = re.compile(r"\\([0-7]{3})", re.ASCII)
_DELETED = "//deleted"
"""What the kernel adds to the directory of a mount that has been removed (proc_pid_mountinfo(5))."""


class KernelDirectory(Frozen):
    """A directory as the kernel knows it. device: number of its file system; directory: from its root."""

    device: str
    directory: PurePosixPath


class _Mount(Frozen):
    """What is mounted where, a line of ``mountinfo`` (proc_pid_mountinfo(5))."""

    place: KernelDirectory
    at: PurePosixPath


class _Process(Frozen):
    """What a process belongs to. pids: its pid namespace, where no cgroup names an owner; else empty."""

    pid: int
    owner: Owner
    pids: str = ""


class _Found(Struct):
    """A tenant while it is looked at. unread: one of its processes could not be read in this round."""

    tenant: PipeTenant
    rights: dict[ProcessRights, ProcessRights] = field(default_factory=dict)
    more: bool = False
    unread: bool = False


def pipe_tenants(proc: Path, pipes: Mapping[DeviceUuid, Path]) -> PipeTenants:
    """All tenants of these pipe directories, by the device of their daemon. Blocks for some milliseconds."""
    if not procfs.sees_all_pids(proc) and not sees_other_pods(proc, {}):
        return PipeTenants(unseen=NO_HOST_PIDS)
    own = _mounts(proc, "self")
    places = {device: _place_of(pipe, own) for device, pipe in pipes.items()}
    known = {device: place for device, place in places.items() if place is not None}
    if missing := sorted(places.keys() - known.keys()):
        return PipeTenants(unseen=f"the mount of the pipe directory of {missing[0]} cannot be found")
    return PipeTenants(_Look(proc, known).tenants())


class _Look:
    """One look at all processes."""

    def __init__(self, proc: Path, places: Mapping[DeviceUuid, KernelDirectory]) -> None:
        self._proc = proc
        self._places = places
        self._own = parse_cgroup(procfs.self_cgroups(proc))
        self._node = procfs.pid_namespace(proc)
        self._pipes_of: dict[str, Mapping[DeviceUuid, bool]] = {}
        self._rights_of: dict[int, Sequence[ProcessRights]] = {}
        self._sandboxes: dict[ContainerId, bool] = {}
        self._found: dict[tuple[str, ...], _Found] = {}

    def tenants(self) -> tuple[PipeTenant, ...]:
        """Who was found in up to ``_ROUNDS`` looks at all processes."""
        for _ in range(_ROUNDS):
            if self._is_complete():
                break
        return tuple(
            replace(
                tenant.tenant,
                rights=tuple(tenant.rights.values())[:MOST_RIGHTS],
                more=tenant.more or tenant.unread or len(tenant.rights) > MOST_RIGHTS,
            )
            for tenant in self._found.values()
            if tenant.rights or tenant.unread or tenant.more  # else it has ended
        )

    def _is_complete(self) -> bool:
        """Look once. False if a process ended before it was read: its child is in no list yet."""
        all_there = True
        processes = []
        for found in self._found.values():
            found.unread = False
        for pid in reversed(procfs.pids(self._proc)):  # the newest is the first to end
            process = self._process(pid)
            all_there &= process is not None
            if process is not None and self._is_tenants(process):
                processes.append(process)
        for process in processes:
            for device, whole in self._pipes(process).items():
                self._note(device, process, whole=whole)
        for process in processes:
            for found in self._found.values():
                if _belongs(process, found.tenant):
                    all_there &= self._judge(process, found)
        return all_there

    def _process(self, pid: int) -> _Process | None:
        """None: it has ended."""
        cgroups = procfs.cgroups_of(self._proc, pid)
        if not cgroups:
            return None
        owner = parse_cgroup(cgroups)
        return _Process(pid, owner, "" if owner else procfs.namespace_of(self._proc, str(pid), "pid"))

    def _is_tenants(self, process: _Process) -> bool:
        """Whether it is neither the node's own nor of Partage's own pod or container."""
        if not process.owner:
            return process.pids not in ("", self._node)
        return process.owner != self._own and not (process.owner.pod and process.owner.pod == self._own.pod)

    def _pipes(self, process: _Process) -> Mapping[DeviceUuid, bool]:
        """The daemons whose pipe its mount namespace has; True: whole."""
        namespace = procfs.namespace_of(self._proc, str(process.pid), "mnt")
        if namespace not in self._pipes_of:
            mounts = _mounts(self._proc, str(process.pid))
            if not mounts:  # it has ended: another process of the namespace is asked
                return {}
            self._pipes_of[namespace] = _pipes_among(mounts, self._places)
        return self._pipes_of[namespace]

    def _note(self, device: DeviceUuid, process: _Process, *, whole: bool) -> None:
        owner = process.owner
        job = owner.job.job if owner.job else ""
        tenant = PipeTenant(device, owner.pod, ContainerId("") if job else owner.container, job, whole)
        key = (device, tenant.pod, tenant.container, job, process.pids)
        found = self._found.setdefault(key, _Found(replace(tenant, pids=process.pids)))
        if whole and not found.tenant.whole:
            found.tenant = replace(found.tenant, whole=True)

    def _judge(self, process: _Process, found: _Found) -> bool:
        """Add what a process may become to its tenant. False: it has ended meanwhile."""
        container = process.owner.container
        if container != found.tenant.container:
            if self._is_sandbox(process.pid, container):
                return True
            if container and container not in found.tenant.beside:
                found.tenant = replace(found.tenant, beside=(*found.tenant.beside, container))
        if process.pid not in self._rights_of:
            threads = list(islice(_rights(self._proc, process.pid), _MOST_THREADS + 1))
            if not threads:
                found.unread = procfs.start_of(self._proc, process.pid, running=True) is not None
                return False
            self._rights_of[process.pid] = threads
        found.more |= len(self._rights_of[process.pid]) > _MOST_THREADS
        for rights in self._rights_of[process.pid]:
            found.rights.setdefault(replace(rights, pid=0), rights)
        return True

    def _is_sandbox(self, pid: int, container: ContainerId) -> bool:
        """Whether a container is the sandbox of its pod, whose only process is the runtime's."""
        if container not in self._sandboxes:
            parent = procfs.parent_of(self._proc, pid)
            self._sandboxes[container] = parent is not None and is_sandbox(self._proc, parent, container)
        return self._sandboxes[container]


def _belongs(process: _Process, tenant: PipeTenant) -> bool:
    """Whether a process is of this tenant, or of its pod: an open directory can be handed over there."""
    owner = process.owner
    if tenant.job:
        return owner.job is not None and owner.job.job == tenant.job
    if tenant.pod:
        return owner.pod == tenant.pod
    if tenant.container:
        return owner.container == tenant.container
    return not owner and process.pids == tenant.pids


# --- mounts ----------------------------------------------------------------------------------------


def _mounts(proc: Path, process: str) -> list[_Mount]:
    """Everything that a process has mounted; later ones lie over earlier ones."""
    mounts = []
    for line in procfs.mount_lines(proc, process):
        words = line.split(" ")
        place = KernelDirectory(words[2], _path(words[3]))
        if not words[3].endswith(_DELETED):
            mounts.append(_Mount(place, _path(words[4])))
    return mounts


def _path(word: str) -> PurePosixPath:
    return PurePosixPath(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), word))


def _place_of(directory: Path, mounts: Sequence[_Mount]) -> KernelDirectory | None:
    """A directory of this process as the kernel knows it; None if that cannot be said."""
    try:
        path = PurePosixPath(directory.resolve(strict=True))
    except OSError:
        return None
    above = [mount for mount in mounts if path.is_relative_to(mount.at)]
    if not above:
        return None
    # The deepest mount point; of several at one, the last is on top.
    on_top = max(enumerate(above), key=lambda pair: (len(pair[1].at.parts), pair[0]))[1]
    return KernelDirectory(on_top.place.device, on_top.place.directory / path.relative_to(on_top.at))


def _pipes_among(
    mounts: Sequence[_Mount], places: Mapping[DeviceUuid, KernelDirectory]
) -> dict[DeviceUuid, bool]:
    """The daemons whose pipe directory, one above it or one in it is mounted; True: more than namespaces."""
    found: dict[DeviceUuid, bool] = {}
    for mount in mounts:
        for device, place in places.items():
            if mount.place.device == place.device:
                inside = _inside(mount.place.directory, place.directory)
                if inside is not None:
                    found[device] = found.get(device, False) or not _is_of_namespace(inside)
    return found


def _inside(mounted: PurePosixPath, pipe: PurePosixPath) -> PurePosixPath | None:
    """What of the pipe directory a mount shows: ``.`` for all of it; None: nothing."""
    if pipe.is_relative_to(mounted):
        return PurePosixPath()
    return mounted.relative_to(pipe) if mounted.is_relative_to(pipe) else None


def _is_of_namespace(inside: PurePosixPath) -> bool:
    """``gpu/<namespace>``: nothing in it belongs to the daemon."""
    return len(inside.parts) == 2 and inside.parts[0] == SERVER and is_mps_name(inside.parts[1])


# --- threads ---------------------------------------------------------------------------------------


def _rights(proc: Path, pid: int) -> Iterator[ProcessRights]:
    """What each thread of a process is: ids and NoNewPrivs are a thread's own."""
    users = procfs.uid_map_of(proc, pid)
    try:
        tids = sorted(int(entry.name) for entry in (proc / str(pid) / "task").iterdir())
    except OSError:
        return
    for tid in tids:
        status = procfs.thread_fields(proc, tid)
        if status.get("State", "")[:1] in _ENDED:
            continue
        try:
            real, effective, saved = map(int, status["Uid"].split()[:3])
            yield ProcessRights(
                pid,
                real,
                effective,
                saved,
                no_new_privs=status.get("NoNewPrivs") == "1",
                permitted=int(status["CapPrm"], 16),
                maps_root=_maps_root(users),
            )
        except (KeyError, ValueError):
            continue


def _maps_root(users: str) -> bool:
    """Whether a ``uid_map`` has the node's user 0 (user_namespaces(7)); an empty one may get it."""
    lines = [line.split() for line in users.splitlines()]
    return not lines or any(int(outside) == 0 for _, outside, _count in lines)
