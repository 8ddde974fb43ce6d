"""What is asked about: a GPU model, its tenants, and what they need."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from partage.errors import InputError
from partage.model.geometry import Geometry
from partage.model.gpu import Gpu, Inventory
from partage.model.share import Guarantee
from partage.text import count_of
from partage.values import Answer, Frozen


class Way(StrEnum):
    """The strategies that can be advised. A vGPU is made by the hypervisor, the others by Partage."""

    MIG = "mig"
    MPS = "mps"
    TIME_SLICING = "time-slicing"
    VGPU = "vgpu"
    EXCLUSIVE = "exclusive"


class Isolation(StrEnum):
    """What the tenants of one GPU must not take from each other.

    hardware: memory, compute and bandwidth; also an error stays with its tenant. memory: its memory.
    none: nothing.
    """

    HARDWARE = "hardware"
    MEMORY = "memory"
    NONE = "none"

    @property
    def least(self) -> Guarantee:
        """The weakest guarantee of a share that is enough."""
        needed = {"hardware": Guarantee.HARD, "memory": Guarantee.GUARDED, "none": Guarantee.NONE}
        return needed[self.value]


class Workload(StrEnum):
    """What the tenants run."""

    INFERENCE = "inference"
    TRAINING = "training"
    NOTEBOOKS = "notebooks"
    RENDERING = "rendering"
    MPI = "mpi"


class Scheduler(StrEnum):
    """What places the tenants."""

    KUBERNETES = "kubernetes"
    SLURM = "slurm"


class Preference(StrEnum):
    """What counts more: a short answer, or much work in all."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"


class Asked(Frozen):
    """What was said. None: it was not said.

    gpu: names of models. tenants: those that share one GPU. memory: bytes that each of them needs; several:
    one tenant for each amount. driver: its version. bursty: the tenants are idle most of the time, and not
    busy together.
    """

    gpu: tuple[str, ...] = ()
    isolation: Isolation | None = None
    tenants: int | None = None
    workload: Workload | None = None
    virtualised: bool | None = None
    licensed: bool | None = None
    scheduler: Scheduler | None = None
    memory: tuple[int, ...] = ()
    prefer: Preference | None = None
    bursty: bool | None = None
    driver: str | None = None


class GpuFacts(Frozen):
    """A model on a node with one such GPU.

    model: id in the catalogue. names: with which a policy selects it. inventory: has this one GPU, and the
    driver. mig: it has MIG. geometry: None without MIG, and where its placements are not known: no_geometry
    says which. mig_branch: first driver branch with MIG on it; 0: not known. mig_needs_reset: turning MIG on
    needs a reset.
    """

    model: str
    names: tuple[str, ...]
    inventory: Inventory
    mig: bool = False
    geometry: Geometry | None = None
    no_geometry: str = ""
    mig_branch: int = 0
    mig_needs_reset: bool = False

    @property
    def gpu(self) -> Gpu:
        """The one GPU."""
        return self.inventory.gpus[0]


class Situation(Answer):
    """What is decided on. tenants: that share one GPU. memory_bytes: that the largest of them needs; None: an
    equal part is enough. sizes: what each needs, the largest first, where they differ. prefer: None: it does
    not matter. bursty: the tenants are idle most of the time.
    """

    isolation: Isolation
    tenants: int
    workload: Workload
    virtualised: bool
    licensed: bool
    scheduler: Scheduler
    memory_bytes: int | None
    prefer: Preference | None
    bursty: bool
    sizes: tuple[int, ...]

    @property
    def largest_bytes(self) -> int:
        """What the largest tenant needs; 0: nobody said."""
        return self.memory_bytes or 0

    @property
    def cooperating(self) -> bool:
        """Whether many small processes work at the same time, which MPS is for."""
        return self.workload is Workload.MPI or (self.workload is Workload.INFERENCE and not self.bursty)


MOST_TENANTS = 10_000

USUAL_TENANTS = {
    Workload.INFERENCE: 4,
    Workload.TRAINING: 1,
    Workload.NOTEBOOKS: 8,
    Workload.RENDERING: 4,
    Workload.MPI: 4,
}
"""Assumed where nobody says how many tenants share a GPU."""


def settle(asked: Asked, facts: GpuFacts) -> tuple[Situation, tuple[str, ...]]:
    """The situation, and what was assumed, in sentences.

    Raises InputError where there are not as many tenants as amounts of memory.
    """
    tenants = tenants_of(asked)
    workload = asked.workload or Workload.INFERENCE
    isolation = asked.isolation or Isolation.NONE
    situation = Situation(
        isolation=isolation,
        tenants=tenants or usual_tenants(workload, isolation, facts.geometry),
        workload=workload,
        virtualised=bool(asked.virtualised),
        licensed=bool(asked.licensed),
        scheduler=asked.scheduler or Scheduler.KUBERNETES,
        bursty=asked.bursty if asked.bursty is not None else workload is Workload.NOTEBOOKS,
        memory_bytes=max(asked.memory, default=None),
        prefer=asked.prefer,
        sizes=tuple(sorted(asked.memory, reverse=True)) if len(set(asked.memory)) > 1 else (),
    )
    return situation, tuple(_assumed(asked, situation, facts))


def tenants_of(asked: Asked) -> int | None:
    """How many were said, also by an amount of memory for each; None: it was not said. Raises InputError
    where there are not as many as amounts of memory.
    """
    if len(asked.memory) < 2:
        return asked.tenants
    if asked.tenants not in (None, len(asked.memory)):
        raise InputError(
            f"{len(asked.memory)} amounts of memory for {count_of(asked.tenants, 'tenant')}",
            "one amount for all, or one for each tenant",
        )
    return len(asked.memory)


def usual_tenants(workload: Workload, isolation: Isolation, geometry: Geometry | None) -> int:
    """How many are assumed: no more than the GPU can keep apart in its hardware, where they need that."""
    usual = USUAL_TENANTS[workload]
    if isolation is Isolation.HARDWARE and geometry is not None:
        return min(usual, geometry.max_instances)
    return usual


def _assumed(asked: Asked, situation: Situation, facts: GpuFacts) -> Iterator[str]:
    if asked.workload is None:
        yield f"The tenants run {situation.workload}."
    if asked.isolation is None:
        yield "The tenants trust each other: no isolation is needed."
    if tenants_of(asked) is None:
        yield f"The number of tenants that share one GPU is {situation.tenants}."
    if asked.virtualised is None:
        yield "The node is not a virtual machine."
    if situation.virtualised and asked.licensed is None:
        yield "There is no licence for vGPUs."
    if asked.scheduler is None:
        yield "Kubernetes places the tenants."
    if asked.bursty is None:
        word = "idle most of the time" if situation.bursty else "busy most of the time, also together"
        yield f"The tenants are {word}."
    if not asked.memory and situation.tenants > 1:
        yield "An equal part of the GPU's memory is enough for each tenant."
    if asked.driver is None:
        version = getattr(facts.inventory.driver, "version", "")
        yield f"The driver is {version}."
    yield "Pods cannot set NVIDIA_VISIBLE_DEVICES themselves; partage plan checks it on the node."
