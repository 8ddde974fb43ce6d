"""Processes of the node that the doctor knows by their command lines: agents, the kubelet, MPS."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from partage.doctor.decide.observation import AgentProcess, MpsProcess, Unseen
from partage.doctor.decide.redact import redact_text
from partage.doctor.host.root import NodeRoot
from partage.edges.host import procfs
from partage.values import Frozen

HIDDEN = Unseen("the node's processes cannot be seen from this pid namespace: in a pod, set hostPID: true")

_MPS = "nvidia-cuda-mps"
"""The kernel keeps 15 characters of a command's name: control daemon and server have the same ones."""

_PIPE, _USUAL_PIPE = "CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"  # noqa: S108 - the driver's default
_MOST_WORDS = 24
_RUNS_US = ("partage", "python", "pypy")
_KUBELETS = ("kubelet", "kubelite")


class KubeletProcess(Frozen):
    """A kubelet's options, as its command line says; empty: it does not."""

    root_dir: str = ""
    config: str = ""
    cgroup_driver: str = ""


def agent_processes(root: NodeRoot) -> tuple[AgentProcess, ...]:
    """Agents on real hardware; one that simulates a node (``--machine``) disturbs nobody."""
    processes = []
    for pid, words in _commands(root):
        if not _name(words[0]).startswith(_RUNS_US):  # not sudo, tini or a shell, which wait for it
            continue
        at = next((place for place, word in enumerate(words[:4]) if _name(word) == "partage"), None)
        if at is not None and words[at + 1 : at + 2] == ["agent"] and "--machine" not in words:
            command = " ".join(["partage", *words[at + 1 :]][:_MOST_WORDS])
            processes.append(AgentProcess(pid, redact_text(command)))
    return tuple(processes)


def kubelet_process(root: NodeRoot) -> KubeletProcess | Unseen | None:
    """The kubelet of the node; None: none runs."""
    if not procfs.sees_all_pids(root.proc):
        return HIDDEN
    for pid, words in _commands(root):
        if procfs.name_of(root.proc, pid) in _KUBELETS:
            return KubeletProcess(
                _option(words, "--root-dir"), _option(words, "--config"), _option(words, "--cgroup-driver")
            )
    return None


def mps_processes(root: NodeRoot) -> tuple[MpsProcess, ...] | Unseen:
    """Control daemons and servers of MPS, with their pipe directories."""
    if not procfs.sees_all_pids(root.proc):
        return HIDDEN
    processes = []
    for pid in procfs.pids(root.proc):
        if not procfs.name_of(root.proc, pid).startswith(_MPS):
            continue
        pipe = _pipe(root.proc, pid)
        if pipe is None:
            return Unseen(f"only root may see which pipe directory MPS process {pid} has")
        words = _words(root.proc, pid)
        processes.append(MpsProcess(pid, _name(words[0]) if words else _MPS, pipe))
    return tuple(processes)


def _pipe(proc: Path, pid: int) -> str | None:
    """None if it may not be read. A process that has ended has the usual one: it is gone the next time."""
    try:
        content = (proc / str(pid) / "environ").read_bytes()
    except PermissionError:
        return None
    except OSError:
        return _USUAL_PIPE
    named = (os.fsdecode(line).partition("=") for line in content.split(b"\0"))
    return next((value for key, _, value in named if key == _PIPE), _USUAL_PIPE)


def _commands(root: NodeRoot) -> Iterator[tuple[int, list[str]]]:
    for pid in procfs.pids(root.proc):
        if words := _words(root.proc, pid):
            yield pid, words


def _words(proc: Path, pid: int) -> list[str]:
    try:
        content = (proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in content.rstrip(b"\0").split(b"\0")] if content else []


def _name(word: str) -> str:
    return PurePosixPath(word).name


def _option(words: Sequence[str], name: str) -> str:
    for place, word in enumerate(words):
        if word.startswith(f"{name}="):
            return word.removeprefix(f"{name}=")
        if word == name:
            return next(iter(words[place + 1 : place + 2]), "")
    return ""
