"""Whose process it is, from the text of ``/proc/<pid>/cgroup``. Pure.

A path names its owners from the outside in: ``/kubepods.slice/.../cri-containerd-<id>.scope``. Whoever owns a
cgroup may make more below it, and call them what he likes: a tenant that is allowed to could name one after
somebody else's container. So the *outermost* owner counts, and what stands behind it changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

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
"""Theirs may be whole nodes (kind): pods inside are pods. Who may write cgroups there is root anyway."""

_PREFERRED = ("memory", "devices", "name=systemd", "pids", "")
"""Controllers of v1 in whose line to look first, then the line of v2 (no name): a hybrid node has both."""

_LAST = len(_PREFERRED)


@dataclass(frozen=True, slots=True)
class SlurmStep:
    """A step of a Slurm job. job: its number, or since Slurm 26.05 its SLUID (``s5K1KKYAYG5D00``).

    step: ``0``, ``batch``, ``extern``, ``interactive``; task: ``0``, ``special``; each empty where the path
    does not say. uid: of the job's user, under cgroup v1 only.
    """

    job: str
    step: str = ""
    task: str = ""
    uid: int | None = None


@dataclass(frozen=True, slots=True)
class Owner:
    """To what a process belongs, as far as its cgroup says; nothing at all: a process of the host.

    pod: UID, with dashes; of a static pod 32 digits, the hash of its manifest. container: 64 hexadecimal
    digits. runtime: containerd, cri-o, docker, podman, or empty where the path does not tell.
    job: of the job, or of a job inside of the pod.
    """

    pod: str = ""
    container: str = ""
    runtime: str = ""
    job: SlurmStep | None = None

    def __bool__(self) -> bool:
        return bool(self.pod or self.container or self.job)


def parse_cgroup(lines: Iterable[str]) -> Owner:
    """The owner, from the lines of ``/proc/<pid>/cgroup``: ``4:memory:/...`` (v1), ``0::/...`` (v2).

    The first line that names anybody counts, in the order of ``_PREFERRED``. Total: a line that is none says
    nothing. A reader in a cgroup namespace of its own sees ``/../..`` first, and of another container of its
    own pod the container alone.
    """
    ranked = sorted((_controllers(line) for line in lines), key=lambda row: row[0])
    return next((owner for _, path in ranked if (owner := owner_of(path))), Owner())


def owner_of(path: str) -> Owner:
    """The owner of a process in that cgroup. See ``parse_cgroup``."""
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
    uid = pod[1].replace("_", "-") if pod else ""
    if container is None or (pod and path[pod.end() : container.start()] not in ("", ".slice")):
        return Owner(pod=uid, job=step)  # only what comes right behind the pod is one of its containers
    return Owner(uid, container[2], _runtime(path, container), step)


def _step(match: re.Match[str]) -> SlurmStep:
    # A uid has ten digits at most; longer ones are none, and slow to read.
    uid = int(match[1]) if match[1] and len(match[1]) <= 10 else None
    return SlurmStep(match[2] or match[3], match[4] or "", match[5] or "", uid)


def _runtime(path: str, container: re.Match[str]) -> str:
    prefix = container[1] or ("docker" if path[: container.start(2)].endswith("/docker/") else "")
    return _RUNTIMES.get(prefix, "")


def _controllers(line: str) -> tuple[int, str]:
    """How early a line is looked at, and its path; an empty one for what is no line."""
    _, colon, rest = line.rstrip("\n").partition(":")
    names, another, path = rest.partition(":")
    if not (colon and another):
        return _LAST, ""
    ranks = [_PREFERRED.index(name) for name in names.split(",") if name in _PREFERRED]
    return min(ranks, default=_LAST), path
