"""Which processes are left of pods that the kubelet has forgotten.

The kernel says it: a thread that lives is in the cgroup of its container, whatever the leader of its process
does. A killed process whose thread is stuck in the driver has a zombie as leader; a zombie that nobody reaps
is in no cgroup. The owner of a container can neither leave its cgroup nor make one outside of its pod's.

The pause container (sandbox) does not count. It is known by what a container cannot change: the process that
the runtime has for the pod is its parent, and carries its id.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath

from partage.edges.hardware.processes import sees_other_pods
from partage.edges.host import procfs
from partage.errors import HardwareError
from partage.model.cgroup import owner_of, parse_cgroup
from partage.model.gpu_use import Left, LeftProcess
from partage.model.ids import ContainerId, PodUid
from partage.values import Frozen

MOST_OF_POD = 4
"""Processes of a pod that are named. One is enough to wait for it."""

_UNIFIED = ""
_HIERARCHIES = frozenset({"memory", "devices", "pids", "name=systemd", _UNIFIED})
"""Those in which runtimes put their containers; of v1, which has one for each controller, the usual ones."""

_DEEPEST = 12
"""Cgroups above a pod's. In a node that is itself a container (kind) there are eight."""

_ENDED = frozenset({"", "Z", "X"})


class _ContainerCgroups(Frozen):
    """The cgroups of one container. threads: the files that list its threads."""

    pod: PodUid
    id: ContainerId
    threads: tuple[str, ...]


def left_of(proc: Path, pods: Collection[PodUid]) -> Left:
    """What still runs of these pods. Blocks for some milliseconds. Raises HardwareError where /proc or a
    cgroup cannot be read, or says what no kernel is known to say."""
    try:
        return _left_of(proc, pods)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise HardwareError(
            f"the processes of pods cannot be read: {error or type(error).__name__}"
        ) from error


def _left_of(proc: Path, pods: Collection[PodUid]) -> Left:
    roots = _roots(proc)
    if reason := _why_unseen(proc, roots):
        return Left(unseen=reason)
    processes: list[LeftProcess] = []
    missing = set(pods)
    for hierarchy, root in roots.items():
        if not missing:
            break
        containers = _containers(root, hierarchy, missing)
        here = [process for container in containers for process in _processes(proc, container)]
        processes += here
        missing -= {process.pod for process in here}
    return Left(tuple(processes))


def _why_unseen(proc: Path, roots: dict[str, Path]) -> str:
    if not procfs.sees_all_pids(proc) and not sees_other_pods(proc, {}):
        return "without the node's process ids (hostPID) nobody sees what is left of a pod"
    return "" if roots else "the node's cgroups cannot be read"


def _roots(proc: Path) -> dict[str, Path]:
    """The root of each hierarchy. As this process has it mounted, if that is the node's root; else as process
    1 has it, which is the node's where its process ids are seen.
    """
    found: dict[str, Path] = {}
    for process, above in (("self", Path()), ("1", proc / "1/root")):
        for hierarchy, mounted in procfs.cgroup_mounts(proc, process):
            root = above / mounted.lstrip("/") if above.parts else Path(mounted)
            if hierarchy not in found and _HIERARCHIES & set(hierarchy.split(",")):
                if process == "self" and not _is_root(root, hierarchy):
                    continue
                if (root / "cgroup.procs").exists():
                    found[hierarchy] = root
    return found


def _is_root(directory: Path, hierarchy: str) -> bool:
    try:
        return procfs.is_root_cgroup(directory, hierarchy)
    except OSError:
        return False


# --- cgroups ---------------------------------------------------------------------------------------


def _containers(root: Path, hierarchy: str, pods: Collection[PodUid]) -> Iterator[_ContainerCgroups]:
    """The containers of these pods that have a cgroup in this hierarchy."""
    above = [("", 0)]
    while above:
        path, depth = above.pop()
        for name in _children(root, path):
            below = f"{path}/{name}"
            pod = owner_of(below).pod if "pod" in name else PodUid("")
            if not pod:
                if depth < _DEEPEST:
                    above.append((below, depth + 1))
            elif pod in pods:  # nobody else's: its owner can make cgroups with any name there
                yield from _containers_of(root, below, pod, hierarchy)


def _containers_of(root: Path, path: str, pod: PodUid, hierarchy: str) -> Iterator[_ContainerCgroups]:
    threads: dict[ContainerId, list[str]] = {}
    for directory, _, files in os.walk(f"{root}{path}"):
        container = owner_of(directory.removeprefix(str(root))).container
        file = "tasks" if hierarchy else "cgroup.threads"
        if container and file in files:
            threads.setdefault(container, []).append(f"{directory}/{file}")
    for container, paths in threads.items():
        yield _ContainerCgroups(pod, container, tuple(paths))


def _children(root: Path, path: str) -> list[str]:
    try:
        with os.scandir(f"{root}{path}") as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # it has gone meanwhile
        return []


# --- threads ---------------------------------------------------------------------------------------


def _processes(proc: Path, container: _ContainerCgroups) -> Sequence[LeftProcess]:
    """The processes of a container that have a thread which lives; none of a sandbox."""
    found: dict[int, LeftProcess] = {}
    for tid in _threads(container):
        if len(found) >= MOST_OF_POD:
            break
        status = procfs.thread_fields(proc, tid)
        pid = status.get("Tgid", "")
        if _state(status) in _ENDED or int(pid) in found:
            continue
        if is_sandbox(proc, int(status.get("PPid", "0")), container.id):
            return ()
        # A sandbox and its runtime's process end together: one that has gone is not known by its parent.
        if (state := _state(procfs.thread_fields(proc, tid))) in _ENDED:
            continue
        found[int(pid)] = LeftProcess(container.pod, container.id, int(pid), status.get("Name", ""), state)
    return tuple(found.values())


def _state(status: Mapping[str, str]) -> str:
    """Of a thread, one letter (proc_pid_status(5)); empty if it has gone."""
    return status.get("State", "")[:1]


def _threads(container: _ContainerCgroups) -> Iterator[int]:
    for path in container.threads:
        try:
            lines = Path(path).read_text(encoding="ascii").split()
        except OSError:  # it has gone meanwhile
            continue
        yield from map(int, lines)


def is_sandbox(proc: Path, parent: int, container: ContainerId) -> bool:
    """Whether a container whose process has this parent is the sandbox of its pod.

    containerd has one shim for each pod, with the id of the sandbox; CRI-O one monitor for each container,
    with its name, and that of a sandbox is no possible name of a container. A parent in a container of a pod
    is no runtime's.
    """
    owner = parse_cgroup(procfs.cgroups_of(proc, parent))
    if parent <= 1 or (owner.pod and owner.container):
        return False
    words = procfs.command_of(proc, parent)
    program = PurePosixPath(words[0]).name
    if program.startswith("containerd-shim"):
        return _option(words, "-namespace") == "k8s.io" and _option(words, "-id") == container
    return program == "conmon" and _option(words, "-c") == container and "k8s_POD_" in _option(words, "-n")


def _option(words: Sequence[str], name: str) -> str:
    """The word after an option; empty without it."""
    return next((value for option, value in pairwise(words) if option == name), "")
