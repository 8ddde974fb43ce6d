"""The answer of ``plan --demand``: as a document, in sentences, and as a policy in Partage's format, which
``apply`` takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

from partage.answers.documents.document import Document, row
from partage.errors import InputError, Problem
from partage.model.geometry import MigProfile
from partage.model.ids import GpuUuid, MigUuid
from partage.model.layout import LayoutItem
from partage.packing.decide.candidates import UnavailableGpu
from partage.packing.decide.pack import PackedGpu, Packing, PriceProof
from partage.text import count_of, gpus
from partage.values import Frozen

_MOST_MACHINES = 3


class OptimalityRow(Frozen, omit_defaults=True):
    """Why fewer do not suffice. prices: profile to its price, a fraction of a GPU, where prices prove it.
    worth: what the demand is worth at these prices. spared: what the best GPUs are worth above one.
    """

    sentences: tuple[str, ...]
    prices: Mapping[str, str] | None = None
    worth: str | None = None
    spared: str | None = None


class PackedDeviceRow(Frozen, omit_defaults=True):
    """A MIG device that exists. uuid: None for a GPU instance without MIG devices.

    start: its first memory slice, if it is destroyed.
    """

    uuid: MigUuid | None
    profile: str
    start: int | None = None


class AssignmentRow(Frozen):
    """What one GPU does for the demand. machine: None for this node; ``NAME#2`` for the second of one name.
    gpu: its index. mig_mode_change: MIG mode has to be turned on. layout: all MIG devices in the end, with
    their starts, fit for a policy. serves: profile to number. reused: live devices that serve. disturbed:
    what is destroyed.
    """

    machine: str | None
    gpu: int
    uuid: GpuUuid
    product: str
    mig_mode_change: bool
    layout: tuple[str, ...]
    serves: Mapping[str, int]
    reused: tuple[PackedDeviceRow, ...]
    disturbed: tuple[PackedDeviceRow, ...]


class PackingDocument(Document, kw_only=True):
    """The answer of ``plan --demand``.

    demand: profile to number. bound: fewer GPUs cannot serve it. gap: number of GPUs above the bound.
    disturbed: number of live instances that are destroyed. disturbed_bound: fewer cannot be.
    optimal: both bounds are reached. gpus_available: GPUs whose layout can be changed now.
    """

    kind: Literal["Packing"] = "Packing"
    demand: Mapping[str, int]
    gpus_used: int
    bound: int
    gap: int
    disturbed: int
    disturbed_bound: int
    optimal: bool
    proof: OptimalityRow
    gpus_available: int
    assignments: tuple[AssignmentRow, ...]
    unavailable: tuple[UnavailableGpu, ...]


def packing_document(packing: Packing, unavailable: Sequence[UnavailableGpu]) -> PackingDocument:
    """The answer."""
    return row(
        PackingDocument,
        packing,
        demand={str(profile): count for profile, count in packing.demand.wanted},
        gap=packing.gpus_used - packing.bound,
        proof=_proof_row(packing),
        gpus_available=packing.available,
        assignments=tuple(_assignment_row(assignment) for assignment in packing.assignments),
        unavailable=tuple(unavailable),
    )


def _assignment_row(packed_gpu: PackedGpu) -> AssignmentRow:
    gpu = packed_gpu.candidate.gpu
    return row(
        AssignmentRow,
        gpu,
        machine=packed_gpu.candidate.machine,
        gpu=gpu.index,
        mig_mode_change=not gpu.mig_enabled,
        layout=tuple(map(str, packed_gpu.layout)),
        serves=served_counts(packed_gpu.serves),
        reused=tuple(PackedDeviceRow(device.uuid, str(device.profile)) for device in packed_gpu.reused),
        disturbed=tuple(
            PackedDeviceRow(gone.uuid, str(gone.item.profile), gone.item.start)
            for gone in packed_gpu.disturbed
        ),
    )


def _proof_row(packing: Packing) -> OptimalityRow:
    sentences = (gpus_sentence(packing), disturbed_sentence(packing))
    proof = packing.proof
    if proof is None:
        return OptimalityRow(sentences)
    prices = {str(profile): str(price) for profile, price in proof.prices}
    return OptimalityRow(sentences, prices, str(proof.worth), str(proof.spared))


def served_counts(items: Iterable[LayoutItem]) -> dict[str, int]:
    """How many of which profile, the largest first."""
    counts: Counter[MigProfile] = Counter(item.profile for item in items)
    return {str(profile): counts[profile] for profile in sorted(counts, reverse=True)}


def demand_words(counts: Iterable[tuple[object, int]]) -> str:
    """``2 x 3g.40gb + 9 x 1g.10gb``."""
    return " + ".join(f"{count} x {profile}" for profile, count in counts)


def gpus_sentence(packing: Packing) -> str:
    """How many GPUs, and why not fewer; or how many fewer are not excluded."""
    used = count_of(packing.gpus_used, "GPU")
    if packing.gpus_used > packing.bound:
        gap = packing.gpus_used - packing.bound
        return (
            f"{used}, and perhaps {count_of(gap, 'GPU')} too many: the time was over. "
            f"Fewer than {packing.bound} cannot do{_because(packing.proof)}."
        )
    return f"{used}, and fewer cannot do{_because(packing.proof)}."


def _because(proof: PriceProof | None) -> str:
    if proof is None:
        return ": the search has excluded it"
    prices = ", ".join(f"{profile} = {_amount(price)}" for profile, price in proof.prices)
    spare = f" but for {_amount(proof.spared)} in all" if proof.spared else ""
    needed = proof.worth - proof.spared
    rest = f", {_amount(needed)} of it beyond that" if proof.spared else ""
    return (
        f": at {prices} no layout is worth more than one GPU{spare}, and the demand is worth "
        f"{_amount(proof.worth)}{rest}"
    )


def disturbed_sentence(packing: Packing) -> str:
    """What has to go, and why not less."""
    if not packing.disturbed:
        return "No live instance is disturbed."
    gone = demand_words(
        served_counts(d.item for assignment in packing.assignments for d in assignment.disturbed).items()
    )
    count = count_of(packing.disturbed, "live instance")
    if packing.disturbed == packing.disturbed_bound:
        return f"{count} destroyed ({gone}), and fewer cannot be on as few GPUs: the search has excluded it."
    return (
        f"{count} destroyed ({gone}), and perhaps fewer suffice: the time was over, "
        f"and fewer than {packing.disturbed_bound} are excluded."
    )


def mode_sentence(packing: Packing) -> str:
    """On how many GPUs MIG mode has to be turned on; empty for none."""
    count = sum(not assignment.candidate.gpu.mig_enabled for assignment in packing.assignments)
    if not count:
        return ""
    every = "each of them" if count == packing.gpus_used else f"{count} of them"
    return f"MIG mode has to be turned on, on {every}."


def unavailable_warnings(unavailable: Sequence[UnavailableGpu]) -> list[Problem]:
    """Which GPUs are out of the question, those with one reason together."""
    by_reason: dict[str, list[tuple[str | None, int]]] = {}
    for gpu in unavailable:
        by_reason.setdefault(gpu.reason, []).append((gpu.machine, gpu.gpu))
    return [
        Problem("", "", "warning", f"not available: {places(found)}: {reason}")
        for reason, found in by_reason.items()
    ]


def places(found: Iterable[tuple[str | None, int]]) -> str:
    """``8xa100-40gb: GPUs 0-3``, machine by machine; on this node the GPUs alone."""
    by_machine: dict[str | None, list[int]] = {}
    for machine, index in found:
        by_machine.setdefault(machine, []).append(index)
    named = [f"{name}: {gpus(numbers)}" if name else gpus(numbers) for name, numbers in by_machine.items()]
    if len(named) <= _MOST_MACHINES:
        return "; ".join(named)
    return f"{named[0]} and {len(named) - 1} more machines"


def _amount(amount: Fraction) -> str:
    """``3/7``; ``742 6/7`` for what is larger than one."""
    whole, part = divmod(amount, 1)
    if not whole or not part:
        return str(amount)
    return f"{whole} {part}"


def policy_of_packing(packing: Packing) -> dict[str, Any]:
    """The policy: the layout of each GPU that serves the demand, GPUs with equal layouts in one entry.

    Other GPUs are not in it: their MIG devices stay as they are. Raises InputError if several machines serve
    the demand: a policy is for one node.
    """
    machines = dict.fromkeys(str(gpu.candidate.machine) for gpu in packing.assignments)
    if len(machines) > 1:
        raise InputError(
            f"the demand takes {len(machines)} machines, and a policy is for one",
            "ask for one machine at a time, or take the layouts of each machine from -o json",
        )
    groups: dict[tuple[str, ...], list[int]] = {}
    for assignment in packing.assignments:
        groups.setdefault(tuple(map(str, assignment.layout)), []).append(assignment.candidate.gpu.index)
    entries = [
        {"select": {"index": indexes}, "mig": {"layout": list(layout)}} for layout, indexes in groups.items()
    ]
    return {"version": "partage/v1", "gpus": entries}
