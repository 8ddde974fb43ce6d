"""The pod, container or Slurm job of a process, from the text of ``/proc/<pid>/cgroup``. Pure.

A path lists its owners from the outside in: ``/kubepods.slice/.../cri-containerd-<id>.scope``. The owner of
a cgroup can create cgroups below it with any name, for example the id of another container. So only the
*outermost* owner counts; the rest of the path is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from partage.model.ids import ContainerId, JobCgroup, PodUid
from partage.values import Frozen

_POD = re.compile(
    r"(?:^|[/-])pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=[./:]|$)", re.ASCII
)
_CONTAINER = re.compile(
    r"(?:^|/|:)(?:(cri-containerd|crio|docker|libpod)[-:])?([0-9a-f]{64})(?=\.scope|/|$)", re.ASCII
)
_SLURM = re.compile(
    r"/(?:(?:[^/]+_)?slurmstepd\.scope|slurm[^/]*(?:/uid_(\d+))?)"
    r"/(?:job_(\d+)|(s[0-9A-HJKMNP-TV-Z]{13}))(?=/|$)(?:/step_([^/]+))?(?:/user)?(?:/task_(\w+))?",
    re.ASCII,
)
_RUNTIMES = {"cri-containerd": "containerd", "crio": "cri-o", "docker": "docker", "libpod": "podman"}
_NODE_RUNTIMES = ("docker", "podman")
"""Containers of these runtimes may be whole nodes (kind), with pods inside. Only root can create such
cgroups.
"""

_PREFERRED = ("memory", "devices", "name=systemd", "pids", "")
"""Controllers of cgroup v1 in the order in which their lines are used, then the line of v2 (no controller
name). A hybrid node has both.
"""

_LAST = len(_PREFERRED)


class SlurmStep(Frozen):
    """A step of a Slurm job. job: its number, or on Slurm 26.05 its SLUID (``s5K1KKYAYG5D00``).

    step: ``0``, ``batch``, ``extern``, ``interactive``; task: ``0``, ``special``; empty if the path does
    not say.
    uid: user of the job, known under cgroup v1 only.
    """

    job: str
    step: str = ""
    task: str = ""
    uid: int | None = None


class Owner(Frozen):
    """What a process belongs to, according to its cgroup. All fields empty: a process of the host.

    runtime: containerd, cri-o, docker, podman, or empty if not known.
    job: the Slurm job, also if it runs inside the pod.
    """

    pod: PodUid = PodUid("")
    container: ContainerId = ContainerId("")
    runtime: str = ""
    job: SlurmStep | None = None

    def __bool__(self) -> bool:
        return bool(self.pod or self.container or self.job)

    @property
    def limited(self) -> ContainerId:
        """Whose memory its cgroup limits and counts: the container's, or that of a Slurm job that is in no
        pod and no container. Empty: nobody's.
        """
        if self.container or self.pod or self.job is None:
            return self.container
        return JobCgroup(ContainerId(self.job.job))


def parse_cgroup(lines: Iterable[str]) -> Owner:
    """The owner, from the lines of ``/proc/<pid>/cgroup``: ``4:memory:/...`` (v1), ``0::/...`` (v2).

    The first line that names an owner counts, in the order of ``_PREFERRED``. Lines in another form are
    ignored. A reader in its own cgroup namespace sees paths that begin with ``/../..``; for other
    containers of its own pod it sees the container only.
    """
    return _parse(tuple(lines))


@lru_cache(maxsize=1024)
def _parse(lines: tuple[str, ...]) -> Owner:
    """Remembered: the processes of a container have the same lines, and are looked at again and again."""
    ranked = sorted((_controllers(line) for line in lines), key=lambda row: row[0])
    return next((owner for _, path in ranked if (owner := owner_of(path))), Owner())


def owner_of(path: str) -> Owner:
    """The owner of a process in the cgroup ``path``. See ``parse_cgroup``."""
    slurm, pod, container = _SLURM.search(path), _POD.search(path), _CONTAINER.search(path)
    step = _step(slurm) if slurm else None
    if pod and container and container.start() < pod.start():
        if _runtime(path, container) in _NODE_RUNTIMES:
            container = _CONTAINER.search(path, pod.end())
        else:
            pod = None
    first = pod or container
    if first is None or (slurm is not None and slurm.start() < first.start()):
        return Owner(job=step)
    uid = PodUid(pod[1].replace("_", "-") if pod else "")
    if container is None or (pod and path[pod.end() : container.start()] not in ("", ".slice")):
        return Owner(pod=uid, job=step)  # only the part directly below the pod is one of its containers
    return Owner(uid, ContainerId(container[2]), _runtime(path, container), step)


def cgroup_of_job(job: JobCgroup) -> str:
    """The name of its directory."""
    return f"job_{job}" if job.isdigit() else job


def _step(match: re.Match[str]) -> SlurmStep:
    # A uid has at most ten digits; longer numbers are no uids, and slow to parse.
    uid = int(match[1]) if match[1] and len(match[1]) <= 10 else None
    return SlurmStep(match[2] or match[3], match[4] or "", match[5] or "", uid)


def _runtime(path: str, container: re.Match[str]) -> str:
    prefix = container[1] or ("docker" if path[: container.start(2)].endswith("/docker/") else "")
    return _RUNTIMES.get(prefix, "")


def _controllers(line: str) -> tuple[int, str]:
    """Rank of a line (lower is read first), and its path; an empty path for malformed lines."""
    _, colon, rest = line.rstrip("\n").partition(":")
    names, another, path = rest.partition(":")
    if not (colon and another):
        return _LAST, ""
    ranks = [_PREFERRED.index(name) for name in names.split(",") if name in _PREFERRED]
    return min(ranks, default=_LAST), path
