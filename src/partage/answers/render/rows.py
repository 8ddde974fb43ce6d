"""The rows of the tables as text: what is put together in one row, and how it is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from partage.answers.wording import pod_name, product_word, shares_of, sharing_text
from partage.model.gpu import Gpu, Inventory, Link, LostGpu
from partage.model.ids import GpuUuid
from partage.model.share import DeviceOffer, Guarantee, NodeOffer, Resource, resources_of
from partage.plan.reconcile.node_plan import GpuPlan, NodePlan, Phase
from partage.plan.report import JobLimit
from partage.plan.serve.ledger_entry import Hold, LedgerEntry
from partage.text import count_of, listed, numbers
from partage.units import format_bytes
from partage.values import Frozen

if TYPE_CHECKING:  # the report imports all of the agent's status
    from partage.answers.documents.report import EntryRow, ReportedGpuRow
    from partage.answers.documents.show import ShownShare


class OfferLine(Frozen):
    """Equal shares of one resource. name: empty from the second line of a resource on."""

    name: str
    count: int
    gpus: str
    sharing_text: str
    share: str
    guarantee: Guarantee


def offer_lines(offer: NodeOffer) -> list[OfferLine]:
    """What is offered, resource by resource."""
    return [line for resource in resources_of(offer).values() for line in _resource_lines(resource)]


def _resource_lines(resource: Resource) -> list[OfferLine]:
    alike: dict[tuple[str, str, Guarantee], list[DeviceOffer]] = {}
    for offering in resource.offerings:
        key = (
            sharing_text(offering),
            _share(offering),
            offering.guarantee,
        )
        alike.setdefault(key, []).append(offering)
    names = [str(resource.name)] + [""] * (len(alike) - 1)
    return [
        OfferLine(
            name=name,
            count=sum(offering.count for offering in offerings),
            gpus=numbers(offering.gpu_index for offering in offerings),
            sharing_text=how,
            share=share,
            guarantee=guarantee,
        )
        for name, ((how, share, guarantee), offerings) in zip(names, alike.items(), strict=True)
    ]


def _share(offering: DeviceOffer) -> str:
    compute = "" if offering.threads_percent is None else f", {offering.threads_percent}% of SMs"
    planned = ", planned" if offering.planned else ""
    each = " each" if offering.by_memory else ""
    return f"{format_bytes(offering.memory_bytes)}{each}{compute}{planned}"


def holder_cells(held: Sequence[ShownShare], offer: NodeOffer) -> Iterator[tuple[str, ...]]:
    """The cells of each held share: GPU, resource, share, who holds it, and how certain that is. Units of
    memory that are alike are one row.
    """
    shares = shares_of(offer)
    units: dict[tuple[str, ...], int] = {}
    for share in held:
        gpu = "?" if share.gpu is None else str(share.gpu)
        known = shares.get(share.id)
        name = share.id if known is None else known.words
        holders = " or ".join(share.holders) or "not known yet"
        if known is not None and known.offering.by_memory:
            key = (gpu, share.resource, holders, share.certainty)
            units[key] = units.get(key, 0) + known.offering.memory_bytes
        else:
            yield gpu, share.resource, name, holders, share.certainty
    for (gpu, resource, holders, certainty), amount_bytes in units.items():
        yield gpu, resource, format_bytes(amount_bytes), holders, certainty


def pending_lines(inventory: Inventory, pending: Mapping[GpuUuid, str]) -> list[str]:
    """What keeps GPUs from being as the policy wants them, a line for each."""
    found = ((gpu, pending[gpu.uuid]) for gpu in inventory if gpu.uuid in pending)
    return [text if text.startswith("GPU ") else f"GPU {gpu.index}: {text}" for gpu, text in found]


def unsettled_lines(plan: NodePlan, inventory: Inventory) -> list[str]:
    """GPUs whose steps cannot be carried out now, and why, a line for each."""
    stuck = (Phase.WAITING, Phase.BLOCKED, Phase.UNKNOWN, Phase.FAILED)
    reasons = {uuid: _reason(gpu_plan) for uuid, gpu_plan in plan.gpus.items() if gpu_plan.phase in stuck}
    return [f"not now: {line}" for line in pending_lines(inventory, reasons)]


def _reason(plan: GpuPlan) -> str:
    pods = _pods_of(plan.waiting_for)
    return f"{plan.reason}; it waits for {listed(pods, 4)}" if pods else plan.reason


def _pods_of(entries: Sequence[LedgerEntry | EntryRow]) -> list[str]:
    """The pods that hold these shares, without those that the kubelet has forgotten."""
    return sorted({pod_name(holder) for entry in entries if not entry.left for holder in entry.holders})


def _left_of(entries: Sequence[LedgerEntry | EntryRow]) -> list[str]:
    """The processes that are left of those."""
    found = set()
    for entry in entries:
        of_pods = f" of {listed(sorted(map(pod_name, entry.holders)), 4)}" if entry.holders else ""
        found |= {f"{process}{of_pods}" for process in entry.left}
    return sorted(found)


def job_lines(jobs: Sequence[JobLimit], gpu: GpuUuid) -> list[str]:
    """The jobs of Slurm that the driver is to limit on a GPU, and what is true of each now."""
    return [
        f"job {job.job}{f' of {job.user}' if job.user else ''}: memory limit "
        f"{format_bytes(job.limit.limit_bytes)}, {job.guarantee}"
        for job in jobs
        if job.gpu == gpu
    ]


def limit_lines(held: Sequence[EntryRow], jobs: Sequence[JobLimit]) -> list[str]:
    """Containers and jobs whose memory limit is not in force, or was not from the start, a sentence each."""
    limits = [(" or ".join(map(pod_name, entry.holders)) or entry.id, entry.limit) for entry in held]
    limits += [(f"job {job.job}", job.limit) for job in jobs]
    lines: dict[str, None] = {}
    for who, limit in limits:
        if limit is None:
            continue
        amount = format_bytes(limit.limit_bytes)
        if not limit.in_force:
            lines[f"the memory limit of {who}, {amount}, was not seen in force: {limit.reason}"] = None
        elif limit.late:
            lines[f"the memory limit of {who}, {amount}, was set late: until then it had none"] = None
    return list(lines)


def waiting_lines(waiting: Sequence[ReportedGpuRow]) -> list[str]:
    """GPUs that wait for their holders before they change, a sentence each."""
    lines = []
    for gpu in waiting:
        if gpu.phase is Phase.WAITING and gpu.reason and not gpu.waiting_for:
            continue  # its reason says for what
        awaited = [*_pods_of(gpu.waiting_for), *_left_of(gpu.waiting_for)]
        change = f"GPU {gpu.index} changes to {gpu.wanted_strategy or 'nothing'}"
        if awaited:
            lines.append(f"{change} when {listed(awaited, 4)} {'has' if len(awaited) == 1 else 'have'} ended")
        else:
            lines.append(f"{change} when {'its holders have ended' if gpu.waiting_for else 'it has settled'}")
    return lines


def withdrawn_lines(withdrawn: Collection[Hold]) -> list[str]:
    """How many shares of each resource are neither held nor free."""
    counts = Counter(resource for resource, _ in withdrawn)
    return [
        f"{count_of(count, 'share')} of {name} withdrawn: no container gets one before its GPU has changed"
        for name, count in sorted(counts.items())
    ]


def gpu_cells(gpu: Gpu | LostGpu, trouble: str) -> tuple[str, ...]:
    """The cells of one GPU: index, product, memory, MIG, compute mode, NUMA node, health."""
    if isinstance(gpu, LostGpu):
        return str(gpu.index), gpu.uuid or "?", "", "", "", "", f"lost: {gpu.reason}"
    return (
        str(gpu.index),
        product_word(gpu.product),
        format_bytes(gpu.memory_bytes),
        _mig_word(gpu),
        gpu.compute_mode.word,
        "" if gpu.numa_node is None else str(gpu.numa_node),
        trouble or "healthy",
    )


def _mig_word(gpu: Gpu) -> str:
    if gpu.mig_mode is None:
        return "-"
    word = "on" if gpu.mig_mode.current else "off"
    if gpu.mig_mode.pending != gpu.mig_mode.current:
        word += f" ({'on' if gpu.mig_mode.pending else 'off'} after a reset)"
    if not gpu.mig_devices:
        return word
    counts = Counter(device.profile for device in gpu.mig_devices)
    return ", ".join(profile if n == 1 else f"{n} x {profile}" for profile, n in counts.items())


def links_sentence(inventory: Inventory) -> str:
    """How the GPUs are connected, in one sentence; empty for fewer than two GPUs."""
    if not inventory.links:
        return ""
    kinds = Counter(map(_link_word, inventory.links))
    if len(kinds) == 1:
        return f"every two GPUs are joined by {next(iter(kinds))}"
    return "; ".join(f"{n} pairs by {kind}" for kind, n in sorted(kinds.items()))


def _link_word(link: Link) -> str:
    if link.nvlinks:
        return "one NVLink" if link.nvlinks == 1 else f"{link.nvlinks} NVLinks"
    return f"PCIe ({link.path.word.replace('-', ' ')})"
