"""The answers of ``plan --demand`` and ``fits``: as documents, in sentences, and as a policy in Partage's
format, which ``apply`` takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

from partage.answers.documents.document import Document, row
from partage.edges.files.catalogue import geometry_of, why_no_geometry
from partage.errors import InputError, Problem
from partage.model.geometry import Engines, Geometry, MigProfile, ProfileSpec, instance_memory
from partage.model.gpu import Driver, Gpu, NoDriver
from partage.model.ids import GpuUuid, MigUuid
from partage.model.layout import LayoutItem, compute_choices
from partage.packing.decide.candidates import UnavailableGpu
from partage.packing.decide.openings import MaximalLayout, maximal_layouts
from partage.packing.decide.pack import PackedGpu, Packing, PriceProof
from partage.plan.offer.mps_shares import client_cap
from partage.text import count_of, counted, gpus
from partage.values import Frozen, grouped

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
    by_reason = grouped((gpu.reason, (gpu.machine, gpu.gpu)) for gpu in unavailable)
    return [
        Problem("", "", "warning", f"not available: {places(found)}: {reason}")
        for reason, found in by_reason.items()
    ]


def places(found: Iterable[tuple[str | None, int]]) -> str:
    """``8xa100-40gb: GPUs 0-3``, machine by machine; on this node the GPUs alone."""
    by_machine = grouped(found)
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
    groups = grouped(
        (tuple(map(str, assignment.layout)), assignment.candidate.gpu.index)
        for assignment in packing.assignments
    )
    entries = [
        {"select": {"index": indexes}, "mig": {"layout": list(layout)}} for layout, indexes in groups.items()
    ]
    return {"version": "partage/v1", "gpus": entries}


class PlacementRows(Frozen):
    """A place for an instance, in memory slices."""

    starts: tuple[int, ...]
    size: int


class ProfileRow(Frozen):
    """One GPU instance profile. id: of ``nvidia-smi mig -lgip``. compute_instances: the compute slices that a
    compute instance in it can have. Null: not known.
    """

    profile: str
    id: int | None
    max_count: int
    memory_bytes: int
    multiprocessors: int | None
    compute_slices: int
    placements: PlacementRows
    engines: Engines | None
    compute_instances: tuple[int, ...]


class MigRow(Frozen):
    """What MIG allows on the model."""

    compute_slices: int
    memory_slices: int
    max_instances: int
    profiles: tuple[ProfileRow, ...]
    maximal_layouts: tuple[MaximalLayout, ...]


class FitsModelRow(Frozen):
    """One model. gpus: indexes on the machine. mig: null without MIG, and if its placements are not known;
    no_mig says which. sharing: how it can be shared besides, in sentences.
    """

    product: str
    model: str | None
    architecture: str
    compute_capability: str
    memory_bytes: int
    gpus: tuple[int, ...]
    mig: MigRow | None
    no_mig: str | None
    sharing: tuple[str, ...]


class FitsDocument(Document, kw_only=True):
    """The answer of ``fits``."""

    kind: Literal["Fits"] = "Fits"
    models: tuple[FitsModelRow, ...]


def fits_document(gpus: Sequence[Gpu], driver: Driver | NoDriver) -> FitsDocument:
    """The answer for all models among these GPUs."""
    return FitsDocument(models=tuple(_model_row(alike, driver) for alike in _by_model(gpus)))


def _by_model(gpus: Sequence[Gpu]) -> list[list[Gpu]]:
    """GPUs of one model together, in the order of the first of each."""
    found = grouped(((gpu.product, gpu.pci_device_id, gpu.memory_bytes), gpu) for gpu in gpus)
    return list(found.values())


def _model_row(alike: Sequence[Gpu], driver: Driver | NoDriver) -> FitsModelRow:
    gpu = alike[0]
    geometry = geometry_of(gpu)
    return row(
        FitsModelRow,
        gpu,
        model=geometry.model if geometry else None,
        compute_capability="{}.{}".format(*gpu.compute_capability),
        gpus=tuple(same.index for same in alike),
        mig=None if geometry is None else _mig_row(geometry, gpu),
        no_mig=None if geometry else why_no_geometry(gpu),
        sharing=_sharing(gpu, driver),
    )


def _sharing(gpu: Gpu, driver: Driver | NoDriver) -> tuple[str, ...]:
    cap = client_cap(gpu.compute_capability, driver)
    return (
        "time-slicing: any number of shares, which take turns; none of them has memory of its own",
        f"MPS: up to {cap.clients} shares side by side, each with a limit of memory and of SMs",
        "exclusive: the whole GPU for one container",
    )


def _mig_row(geometry: Geometry, gpu: Gpu) -> MigRow:
    return row(
        MigRow,
        geometry,
        profiles=tuple(_profile_row(spec, geometry, gpu) for spec in geometry.profiles),
        maximal_layouts=maximal_layouts(geometry),
    )


def _profile_row(spec: ProfileSpec, geometry: Geometry, gpu: Gpu) -> ProfileRow:
    return row(
        ProfileRow,
        spec,
        profile=str(spec.profile),
        id=spec.smi_id,
        memory_bytes=instance_memory(spec, geometry, gpu.memory_bytes),
        placements=PlacementRows(spec.starts, spec.size),
        compute_instances=compute_choices(spec.compute_slices),
    )


def layout_words(layout: MaximalLayout) -> str:
    """``1 x 3g.40gb + 4 x 1g.10gb``."""
    return counted(name for name, count in layout.profiles.items() for _ in range(count))


def is_plain(profile: str) -> bool:
    """Whether a profile has no attributes (``+me``, ``-me``)."""
    return "+" not in profile and not profile.endswith("-me")
