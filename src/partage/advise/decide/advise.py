"""The decision: which strategy fits, by which questions, what speaks for and against it, and how the others
rank. Pure.

What a share guarantees is not said here: ``TenantShare.guarantee`` says it, as ``plan/offer`` resolved it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from partage.advise.decide.candidate import LARGER, Candidate, TenantShare, WayRefusal, policy_of_entry
from partage.advise.decide.judge import judge
from partage.advise.decide.situation import (
    Asked,
    GpuFacts,
    Isolation,
    Preference,
    Scheduler,
    Situation,
    Way,
    Workload,
    settle,
)
from partage.errors import Problem, Unsatisfiable
from partage.model.share import Guarantee
from partage.plan.offer.mps_shares import limits_clients
from partage.text import count_of
from partage.units import format_bytes
from partage.values import Answer


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


class Question(Answer):
    """One question of the decision. leads_to: the strategy that a yes leads to. but: why that strategy cannot
    be had although the answer is yes, else None.
    """

    question: str
    answer: bool
    leads_to: Way | None
    but: str | None

    @property
    def decides(self) -> bool:
        """Whether the decision ends here."""
        return self.answer and self.leads_to is not None and self.but is None


class Alternative(Answer):
    """Another strategy, the better ones first. policy, share: None where it cannot be had; refusal says why,
    and hint what would make it possible.
    """

    strategy: Way
    possible: bool
    policy: Mapping[str, Any] | None = None
    share: TenantShare | None = None
    reasons: tuple[str, ...] = ()
    reasons_against: tuple[str, ...] = ()
    refusal: str | None = None
    hint: str | None = None


class ModelAdvice(Answer):
    """The advice for one GPU model. gpu: its id in the catalogue. policy: in Partage's format. share: what
    each tenant gets. reasons: what speaks for it. alternatives: the other strategies, the better ones first.
    assumptions: what was not said, in sentences. path: the questions in their order.
    """

    gpu: str
    product: str
    strategy: Way
    policy: Mapping[str, Any]
    share: TenantShare
    reasons: tuple[str, ...]
    reasons_against: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    situation: Situation
    assumptions: tuple[str, ...]
    path: tuple[Question, ...]


_SUITS = {
    Workload.INFERENCE: (Way.MPS, Way.MIG, Way.VGPU, Way.TIME_SLICING, Way.EXCLUSIVE),
    Workload.TRAINING: (Way.EXCLUSIVE, Way.MIG, Way.TIME_SLICING, Way.VGPU, Way.MPS),
    Workload.NOTEBOOKS: (Way.TIME_SLICING, Way.MIG, Way.VGPU, Way.MPS, Way.EXCLUSIVE),
    Workload.RENDERING: (Way.TIME_SLICING, Way.VGPU, Way.MIG, Way.MPS, Way.EXCLUSIVE),
    Workload.MPI: (Way.MPS, Way.TIME_SLICING, Way.MIG, Way.VGPU, Way.EXCLUSIVE),
}
"""How well the strategies suit a workload, best first: what each is made for (docs/adr/0120)."""


def advise(asked: Asked, facts: GpuFacts) -> ModelAdvice:
    """The advice for one GPU model.

    Raises Unsatisfiable, with a reason for each strategy, if no strategy gives the tenants what they need.
    """
    situation, assumptions = settle(asked, facts)
    judged = {way: judge(way, situation, facts) for way in Way}
    possible = [outcome for outcome in judged.values() if isinstance(outcome, Candidate)]
    refused = [outcome for outcome in judged.values() if isinstance(outcome, WayRefusal)]
    if not possible:
        raise Unsatisfiable(list(_impossible(situation, facts, refused)))
    path = _path(situation, facts, judged)
    decided = next((question.leads_to for question in path if question.decides), None)
    order = _order(situation)
    best, *others = sorted(
        possible, key=lambda candidate: (candidate.way is not decided, order.index(candidate.way))
    )
    refused.sort(key=lambda refusal: order.index(refusal.way))
    return ModelAdvice(
        gpu=facts.model,
        product=facts.gpu.product,
        strategy=best.way,
        policy=policy_of_entry(best.entry),
        share=best.share,
        reasons=reasons_for(best, situation, facts),
        reasons_against=reasons_against(best, situation, facts),
        alternatives=(
            *(_alternative(candidate, situation, facts) for candidate in others),
            *(
                Alternative(refusal.way, possible=False, refusal=refusal.why, hint=refusal.hint or None)
                for refusal in refused
            ),
        ),
        situation=situation,
        assumptions=assumptions,
        path=path,
    )


def _alternative(candidate: Candidate, situation: Situation, facts: GpuFacts) -> Alternative:
    return Alternative(
        strategy=candidate.way,
        possible=True,
        policy=policy_of_entry(candidate.entry),
        share=candidate.share,
        reasons=reasons_for(candidate, situation, facts),
        reasons_against=reasons_against(candidate, situation, facts),
    )


def _path(
    situation: Situation, facts: GpuFacts, judged: dict[Way, Candidate | WayRefusal]
) -> tuple[Question, ...]:
    """The questions up to the one that decides."""
    questions: list[Question] = []
    for text, answer, way in _questions(situation, facts):
        refused = judged.get(way) if answer and way is not None else None
        questions.append(
            Question(text, answer, way, refused.why if isinstance(refused, WayRefusal) else None)
        )
        if questions[-1].decides:
            break
    return tuple(questions)


def _questions(situation: Situation, facts: GpuFacts) -> Iterator[tuple[str, bool, Way | None]]:
    """The decision: each question, its answer, and the strategy if the answer is yes."""
    virtual = situation.virtualised and situation.licensed
    alone = situation.tenants == 1
    hardware = situation.isolation is Isolation.HARDWARE
    if alone and not virtual:
        yield "Does one tenant have the GPU alone?", True, Way.EXCLUSIVE
    elif alone:
        yield "Does one tenant have the GPU alone, without a virtual machine?", False, Way.EXCLUSIVE
    else:
        yield "Does one tenant have the GPU alone?", False, Way.EXCLUSIVE
        yield (
            "Do the tenants need hardware isolation, and can the GPU do MIG?",
            hardware and facts.mig,
            Way.MIG,
        )
    yield "Are the tenants in virtual machines, with a licence for vGPUs?", virtual, Way.VGPU
    yield "Do the tenants work together, as many small processes?", situation.cooperating, Way.MPS
    memory = situation.isolation is Isolation.MEMORY
    yield "Does each tenant need a limit of memory?", memory, Way.MPS
    yield "Is no isolation needed?", situation.isolation is Isolation.NONE, Way.TIME_SLICING


def _order(situation: Situation) -> tuple[Way, ...]:
    """The ranking. Where the time of an answer counts, MIG is first: it is the only one that keeps it."""
    suits = _SUITS[situation.workload]
    if situation.prefer is Preference.LATENCY:
        return (Way.MIG, *(way for way in suits if way is not Way.MIG))
    return suits


def _impossible(situation: Situation, facts: GpuFacts, refused: list[WayRefusal]) -> Iterator[Problem]:
    """What cannot be had, then each strategy with why."""
    tenants = "one tenant" if situation.tenants == 1 else f"{situation.tenants} tenants"
    isolation = "" if situation.isolation is Isolation.NONE else f" with {situation.isolation} isolation"
    product = facts.gpu.product
    text = f"{product}: no strategy serves {tenants}{isolation} on one GPU"
    yield Problem("", "", "error", text, "; ".join(_ways_out(situation, facts)))
    for refusal in refused:
        yield Problem("", "", "error", f"{product}: not {refusal.way}: {refusal.why}", refusal.hint)


def _ways_out(situation: Situation, facts: GpuFacts) -> Iterator[str]:
    """What would make it possible. Less isolation is tried, so that it is said only where it helps."""
    if situation.largest_bytes > facts.gpu.memory_bytes:
        yield f"take {LARGER}"
        return
    weaker = _WEAKER.get(situation.isolation)
    while weaker is not None:
        eased = replace(situation, isolation=weaker)
        if any(isinstance(judge(way, eased, facts), Candidate) for way in Way):
            yield f"ask for less, with --isolation {weaker}"
            break
        weaker = _WEAKER.get(weaker)
    if situation.tenants > 1:
        yield "ask for fewer tenants on each GPU, with --tenants"
    elif situation.memory_bytes is not None:
        yield f"take {LARGER}"


_WEAKER = {Isolation.HARDWARE: Isolation.MEMORY, Isolation.MEMORY: Isolation.NONE}
