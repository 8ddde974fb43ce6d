"""Processes that have contexts on GPUs, and the memory that the driver says they use."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ProcessKind(StrEnum):
    """What a process is to its GPU.

    mps-client: its work passes through an MPS server, which is there as ``mps-server``, with memory of its
    own. Which of the two the driver counts a client's memory for depends on GPU and driver (before Volta
    always the server): what a server has is nobody's in particular.
    """

    COMPUTE = "compute"
    GRAPHICS = "graphics"
    MPS_CLIENT = "mps-client"
    MPS_SERVER = "mps-server"


def is_mps_program(name: str) -> bool:
    """Whether a process of this name is the MPS server (or the control program, which has no context).

    The kernel keeps 15 characters of a name: ``nvidia-cuda-mps``.
    """
    return name.startswith("nvidia-cuda-mps")


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process on one GPU or MIG device.

    gpu: UUID of the GPU. device: UUID of the MIG device, None for the whole GPU; gi_id, ci_id: its instances.
    used_bytes: context, allocations and libraries; managed memory is missing. None where the driver does not
    say (WSL, some vGPUs, MIG without permission).
    name: the kernel's 15 characters. cgroups: lines of ``/proc/<pid>/cgroup`` (``model.cgroup``).
    start: clock ticks since the boot; with the pid it names a process for ever. uid: the real one.
    Empty and None where /proc does not say: the process has ended, or is not ours to look at.
    """

    gpu: str
    pid: int
    used_bytes: int | None
    kind: ProcessKind
    device: str | None = None
    gi_id: int | None = None
    ci_id: int | None = None
    name: str = ""
    cgroups: tuple[str, ...] = ()
    start: int | None = None
    uid: int | None = None


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """used_bytes: what the driver has given out of one GPU, its reserve left out where it tells them apart.

    None where it does not say. What of it no process accounts for is the driver's, or somebody's whom we do
    not see.
    """

    gpu: str
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Processes:
    """All processes with contexts, by the GPU's index and pid; this process left out.

    blind: why some may be missing, a sentence; empty: none is. The driver names only pids that the caller's
    pid namespace has, leaves all others out and says success. Where it is not known that the namespace is the
    node's, that counts as blind.
    """

    rows: tuple[GpuProcess, ...] = ()
    memory: tuple[GpuMemory, ...] = ()
    blind: str = ""
