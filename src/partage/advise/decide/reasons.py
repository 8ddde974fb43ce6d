"""What speaks for and against a strategy in a situation, in sentences.

What a share guarantees is not said here: ``TenantShare.guarantee`` says it, as ``plan/offer`` resolved it.
"""

from __future__ import annotations

from collections.abc import Iterator

from partage.advise.decide.candidate import Candidate
from partage.advise.decide.situation import (
    GpuFacts,
    Isolation,
    Preference,
    Scheduler,
    Situation,
    Way,
    Workload,
)
from partage.model.share import Guarantee
from partage.plan.offer.mps_shares import limits_clients
from partage.text import count_of
from partage.units import format_bytes


def reasons_for(candidate: Candidate, situation: Situation, facts: GpuFacts) -> tuple[str, ...]:
    """What speaks for it, the most important first."""
    return tuple(_for(candidate, situation, facts))


def reasons_against(candidate: Candidate, situation: Situation, facts: GpuFacts) -> tuple[str, ...]:
    """What speaks against it, the most important first."""
    return tuple(_against(candidate, situation, facts))


def _for(candidate: Candidate, situation: Situation, facts: GpuFacts) -> Iterator[str]:
    each = format_bytes(candidate.share.memory_bytes)
    match candidate.way:
        case Way.MIG:
            own = (
                f"{candidate.share.profile}: {each}"
                if candidate.share.profile
                else "a MIG device that holds its memory"
            )
            yield f"Each tenant has {own}, with compute, memory and bandwidth of its own."
            yield "An error of one tenant does not reach the others."
            if situation.prefer is Preference.LATENCY:
                yield "Answers take the same time whatever the neighbours do."
        case Way.MPS:
            part = (
                "the memory that it asks for"
                if candidate.share.asks
                else f"{each} and {candidate.share.threads_percent}% of the SMs"
            )
            if limits_clients(facts.gpu):
                yield f"Kernels of all tenants run at the same time; each has {part}."
            else:
                yield "Kernels of all tenants run at the same time."
            if situation.cooperating:
                yield f"It is made for many small processes that work together, such as {situation.workload}."
            if situation.isolation is Isolation.MEMORY:
                yield "It limits the memory of each tenant, which time-slicing does not."
        case Way.TIME_SLICING:
            yield "Tenants that are idle in between cost the others nothing: who works has the whole GPU."
            yield "It works on every GPU, and needs no daemon."
        case Way.VGPU:
            yield f"Each tenant has a virtual machine, and sees an ordinary GPU with up to {each}."
            yield "Inside of the machines Kubernetes and Slurm need nothing special: each GPU is exclusive."
        case Way.EXCLUSIVE:
            yield f"One tenant has the whole {facts.gpu.product} with {each}, and no neighbours."
            if situation.workload is Workload.TRAINING:
                yield "Large training needs all of a GPU."


def _against(candidate: Candidate, situation: Situation, facts: GpuFacts) -> Iterator[str]:
    match candidate.way:
        case Way.MIG:
            yield from _against_mig(candidate, situation, facts)
        case Way.MPS:
            yield "A fatal error of one tenant ends the work of all tenants of the GPU."
            if limits_clients(facts.gpu):
                yield "The limits apply to each process: one process in each container is the safe use."
                if candidate.share.guarantee is Guarantee.GUARDED:
                    yield "They hold where no container may be root: have such pods refused."
            else:
                yield "A GPU older than Volta limits neither memory nor SMs of a tenant."
            if candidate.share.asks:
                yield "Only memory is shared out by amounts: compute is not."
            if not situation.cooperating:
                yield "It is made for processes that work together, and these do not."
        case Way.TIME_SLICING:
            yield "Nothing limits memory: when one tenant takes all of it, the others fail."
            yield "With guard: true in the policy, Python programs get a limit, which a tenant can drop."
            yield "More shares give no more compute: tenants that work at the same time wait for each other."
            if situation.prefer is Preference.LATENCY:
                yield "An answer waits until it is the tenant's turn."
        case Way.VGPU:
            yield "It needs NVIDIA's licence and a GPU on NVIDIA's list for vGPUs."
            yield "The hypervisor makes the vGPUs, not Partage, in the sizes that NVIDIA has types for."
            yield "Without MIG below them, vGPUs take turns for compute."
        case Way.EXCLUSIVE:
            yield "What the tenant does not use is used by nobody: 10 to 30 % is usual."
    if situation.scheduler is Scheduler.SLURM and candidate.way is Way.TIME_SLICING:
        yield "Slurm calls it shard, and cannot offer it beside MPS in one cluster."


def _against_mig(candidate: Candidate, situation: Situation, facts: GpuFacts) -> Iterator[str]:
    assert facts.geometry is not None, "a MIG layout has a geometry"
    spare = candidate.share.shares - situation.tenants
    if spare:
        yield f"{count_of(spare, 'MIG device')} of {candidate.share.shares} would be spare."
    idle = facts.geometry.compute_slices - sum(item.profile.compute_slices for item in candidate.layout)
    if idle:
        slices = f"{idle} of {facts.geometry.compute_slices} compute slices"
        yield f"The layout leaves {slices} unused."
    yield "What one tenant does not use is lost to the others: sizes are fixed."
    if situation.workload in (Workload.MPI, Workload.TRAINING):
        yield "A process uses one MIG device only: work that spans several devices cannot run."
    if situation.workload is Workload.RENDERING and not candidate.layout[0].profile.attributes:
        yield "These MIG devices have no graphics (OpenGL, Vulkan): only rendering by CUDA runs."
    if situation.virtualised:
        yield "In a virtual machine, turning MIG on may take a reboot."
    elif facts.mig_needs_reset:
        yield "Turning MIG on resets the GPU, which has to be idle."
