"""The lines of the tables as values: what is grouped with what, and how it is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partage.faces.reported import HeldShare
from partage.faces.wording import product_word, sharing_text
from partage.lab.share_names import shares_of
from partage.model.gpu import Gpu, Inventory, Link
from partage.model.ids import GpuUuid
from partage.model.share import DeviceOffer, Guarantee, NodeOffer, Resource, resources_of
from partage.plan.reconcile.node_plan import GpuPlan, NodePlan, Phase
from partage.text import listed, numbers
from partage.units import format_bytes
from partage.values import Frozen


class OfferLine(Frozen):
    """Shares of one resource that are alike. name: empty from a resource's second line on."""

    name: str
    count: int
    gpus: str
    sharing_text: str
    share: str
    guarantee: Guarantee


class GpuLine(Frozen):
    """One GPU of the node, in words."""

    index: str
    product: str
    memory: str
    mig: str
    mode: str
    numa: str
    health: str
    healthy: bool


class HolderLine(Frozen):
    """One held share, in words."""

    gpu: str
    resource: str
    share: str
    holder: str
    certainty: str


def offer_lines(offer: NodeOffer) -> list[OfferLine]:
    """What is offered, resource by resource."""
    return [line for resource in resources_of(offer).values() for line in _resource_lines(resource)]


def _resource_lines(resource: Resource) -> list[OfferLine]:
    alike: dict[tuple[str, str, Guarantee], list[DeviceOffer]] = {}
    for offering in resource.offerings:
        key = (
            sharing_text(offering.strategy, offering.shared, offering.replicas),
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
    return f"{format_bytes(offering.memory_bytes)}{compute}{planned}"


def holder_lines(held: Sequence[HeldShare], offer: NodeOffer) -> list[HolderLine]:
    """Held shares, in words."""
    shares = shares_of(offer)
    return [
        HolderLine(
            gpu="?" if share.gpu is None else str(share.gpu),
            resource=share.resource,
            share=shares[share.id].words if share.id in shares else share.id,
            holder=" or ".join(share.holders) or "not known yet",
            certainty=share.certainty,
        )
        for share in held
    ]


def pending_lines(inventory: Inventory, pending: Mapping[GpuUuid, str]) -> list[str]:
    """What keeps GPUs from being as the policy wants them, a line for each."""
    found = ((gpu, pending[gpu.uuid]) for gpu in inventory if gpu.uuid in pending)
    return [text if text.startswith("GPU ") else f"GPU {gpu.index}: {text}" for gpu, text in found]


def unsettled_lines(plan: NodePlan, inventory: Inventory) -> list[str]:
    """GPUs whose steps cannot be carried out now, and why, a line for each."""
    stuck = (Phase.WAITING, Phase.BLOCKED, Phase.UNKNOWN, Phase.FAILED)
    reasons = {uuid: _reason(one) for uuid, one in plan.gpus.items() if one.phase in stuck}
    return [f"not now: {line}" for line in pending_lines(inventory, reasons)]


def _reason(plan: GpuPlan) -> str:
    pods = sorted({f"{one.namespace}/{one.pod}" for entry in plan.waiting_for for one in entry.holders})
    return f"{plan.reason}, by {listed(pods, 4)}" if pods else plan.reason


def waiting_lines(waited_for: Sequence[Mapping[str, Any]]) -> list[str]:
    """GPUs that wait for their holders before they change, a sentence each."""
    lines = []
    for row in waited_for:
        pods = {f"{one['namespace']}/{one['pod']}" for share in row["waitingFor"] for one in share["holders"]}
        change = f"GPU {row['index']} changes to {row['wantedStrategy'] or 'nothing'}"
        if pods:
            lines.append(
                f"{change} when {listed(sorted(pods), 4)} {'has' if len(pods) == 1 else 'have'} ended"
            )
        else:
            lines.append(
                f"{change} when {'its holders have ended' if row['waitingFor'] else 'it has settled'}"
            )
    return lines


def gpu_lines(inventory: Inventory, troubles: Mapping[GpuUuid, str]) -> list[GpuLine]:
    """All GPUs, lost ones included, ordered by index. troubles: GPU UUID to what is wrong with it."""
    lines = {gpu.index: _gpu_line(gpu, troubles.get(gpu.uuid, "")) for gpu in inventory}
    for gpu in inventory.lost:
        lines[gpu.index] = GpuLine(
            str(gpu.index), gpu.uuid or "?", "", "", "", "", f"lost: {gpu.reason}", False
        )
    return [lines[index] for index in sorted(lines)]


def _gpu_line(gpu: Gpu, trouble: str) -> GpuLine:
    return GpuLine(
        index=str(gpu.index),
        product=product_word(gpu.product),
        memory=format_bytes(gpu.memory_bytes),
        mig=_mig_word(gpu),
        mode=gpu.compute_mode.word,
        numa="" if gpu.numa_node is None else str(gpu.numa_node),
        health=trouble or "healthy",
        healthy=not trouble,
    )


def _mig_word(gpu: Gpu) -> str:
    if gpu.mig_mode is None:
        return "-"
    word = "on" if gpu.mig_mode.current else "off"
    if gpu.mig_mode.pending != gpu.mig_mode.current:
        word += f" ({'on' if gpu.mig_mode.pending else 'off'} after a reset)"
    if not gpu.mig_devices:
        return word
    counts: dict[str, int] = {}
    for device in gpu.mig_devices:
        counts[device.profile] = counts.get(device.profile, 0) + 1
    return ", ".join(profile if n == 1 else f"{n} x {profile}" for profile, n in counts.items())


def links_sentence(inventory: Inventory) -> str:
    """How the GPUs are joined, in one sentence; empty for fewer than two GPUs."""
    if not inventory.links:
        return ""
    kinds: dict[str, int] = {}
    for link in inventory.links:
        kinds[_link_word(link)] = kinds.get(_link_word(link), 0) + 1
    if len(kinds) == 1:
        return f"every two GPUs are joined by {next(iter(kinds))}"
    return "; ".join(f"{n} pairs by {kind}" for kind, n in sorted(kinds.items()))


def _link_word(link: Link) -> str:
    if link.nvlinks:
        return "one NVLink" if link.nvlinks == 1 else f"{link.nvlinks} NVLinks"
    return f"PCIe ({link.path.word.replace('-', ' ')})"
