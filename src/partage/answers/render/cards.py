"""What the picture of a node shows, as values: cards of GPUs, blocks of devices, cells of shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import field
from msgspec.structs import replace

from partage.answers.render.slices import GpuSlices, SliceUse, slices_of
from partage.answers.wording import guarantee_words, product_word, sharing_text
from partage.model.geometry import Geometry
from partage.model.gpu import Gpu, Inventory, LostGpu
from partage.model.ids import GpuUuid, ShareId
from partage.model.share import DeviceOffer, GpuOffer, NodeOffer, weakest
from partage.model.strategy import Strategy
from partage.plan.offer.select import GeometryOf
from partage.plan.serve.ledger_entry import Hold
from partage.text import count_of
from partage.units import format_bytes
from partage.values import Frozen


class Mark(StrEnum):
    """How a part of a GPU is drawn.

    withdrawn: no container gets it before the GPU has changed. planned: it does not exist yet. cut: a MIG
    device that is not offered. uncut: nothing is there. idle: a compute slice that its instance does not use.
    """

    HELD = "held"
    FREE = "free"
    WITHDRAWN = "withdrawn"
    PLANNED = "planned"
    CUT = "cut"
    UNCUT = "uncut"
    IDLE = "idle"


class ShareCell(Frozen):
    """One share, or units of memory: all that one pod holds, or all that are free. holder: the pod that holds
    it; None: nobody does. weight: its width, relative to others. count: how many shares or units it stands
    for.
    """

    mark: Mark
    weight: int
    holder: str | None = None
    count: int = 1


class DeviceBlock(Frozen):
    """One device of a GPU, or a gap between MIG devices (no cells, no label).

    label: the MIG profile; empty for a whole GPU. weight: memory slices; 1 for a whole GPU.
    cells: its shares; () if nothing of the device is offered. planned: it does not exist yet. unit_bytes: of
    a unit, where it is shared by amounts of memory; else 0.
    """

    label: str
    weight: int
    cells: tuple[ShareCell, ...]
    planned: bool = False
    unit_bytes: int = 0

    @property
    def count(self) -> int:
        """How many shares, or units, it has."""
        return sum(cell.count for cell in self.cells)

    @property
    def held(self) -> int:
        """How many of them are held."""
        return sum(cell.count for cell in self.cells if cell.mark is Mark.HELD)

    @property
    def gone(self) -> int:
        """How many of them are withdrawn."""
        return sum(cell.count for cell in self.cells if cell.mark is Mark.WITHDRAWN)

    @property
    def held_text(self) -> str:
        """``3 of 8 held``; of units, ``24 GiB of 39 GiB held``."""
        return f"{self.amount(self.held)} of {self.amount(self.count)} held"

    def amount(self, count: int) -> str:
        """So many of its shares, or so much memory."""
        return format_bytes(count * self.unit_bytes) if count and self.unit_bytes else str(count)

    @property
    def mark(self) -> Mark:
        """As a whole: held if a share of it is, withdrawn if all are."""
        if not self.cells:
            return Mark.CUT if self.label else Mark.UNCUT
        if self.planned:
            return Mark.PLANNED
        return Mark.HELD if self.held else Mark.WITHDRAWN if self.gone == self.count else Mark.FREE


_LOST = "lost"
_UNUSED = {SliceUse.IDLE: Mark.IDLE, SliceUse.UNCUT: Mark.UNCUT}


class GpuCard(Frozen):
    """One GPU.

    trouble: what is wrong with it; may be empty. slices: of a GPU under MIG; None for other GPUs.
    standing: why it is not settled, ``waiting for pod a/train``; empty if it is, or nobody plans for it.
    """

    index: int
    product: str
    sharing_text: str
    strategy: Strategy | None
    blocks: tuple[DeviceBlock, ...]
    shares: str
    guarantee: str
    trouble: str = ""
    slices: GpuSlices | None = None
    standing: str = ""

    @property
    def lost(self) -> bool:
        """Whether the GPU does not answer."""
        return self.product == _LOST

    @property
    def compute(self) -> tuple[tuple[int, Mark | None], ...]:
        """The compute slices from left to right: a width in memory slices, and the mark; None: none is below
        these. () where they are not known.
        """
        if self.slices is None:
            return ()
        blocks = {
            instance.placement: block
            for (_, instance), block in zip(self.slices.memory_row, self.blocks, strict=True)
            if instance is not None
        }
        return tuple(
            (
                part.width,
                blocks[part.instance.placement].mark
                if part.use is SliceUse.RUNS and part.instance is not None
                else _UNUSED.get(part.use),
            )
            for part in self.slices.compute_row
        )

    @property
    def marks(self) -> frozenset[Mark]:
        """Those that are drawn."""
        parts = [cell.mark for block in self.blocks for cell in block.cells]
        parts += [block.mark for block in self.blocks if not block.cells]
        return frozenset((*parts, *(mark for _, mark in self.compute if mark is not None)))

    @property
    def facts(self) -> tuple[str, ...]:
        """How much of its memory is held, where it is shared by amounts; its shares; their guarantee."""
        amounts = [
            f"{block.label}: {block.held_text}" if block.label else block.held_text
            for block in self.blocks
            if block.unit_bytes and block.cells
        ]
        return tuple(filter(None, (*amounts, self.shares, self.guarantee)))


def gap_words(cards: Iterable[GpuCard]) -> str:
    """What an empty place in the bars of these cards means; empty: there is none."""
    empty = [card for card in cards if any(not block.cells and not block.label for block in card.blocks)]
    words = (
        "the GPU is lost" if card.lost else "no MIG device" if card.slices else "nothing is offered"
        for card in empty
    )
    return ", or ".join(sorted(set(words)))


class HeldOnNode(Frozen):
    """What happens on a node. holders: share id to the pod that holds it. withdrawn: shares that are neither
    held nor free. troubles, standings: GPU UUID to what is wrong with it, and to why it is not settled.
    """

    holders: Mapping[ShareId, str] = field(default_factory=dict)
    troubles: Mapping[GpuUuid, str] = field(default_factory=dict)
    withdrawn: frozenset[Hold] = frozenset()
    standings: Mapping[GpuUuid, str] = field(default_factory=dict)


def cards_of(
    inventory: Inventory, offer: NodeOffer, use: HeldOnNode, geometry_of: GeometryOf
) -> list[GpuCard]:
    """One card per GPU, lost GPUs too, ordered by index."""
    cards = [_card(gpu, offer.get(gpu.uuid, ()), use, geometry_of(gpu)) for gpu in inventory]
    cards += [_lost_card(gpu) for gpu in inventory.lost]
    return sorted(cards, key=lambda card: card.index)


def _card(gpu: Gpu, offer: GpuOffer, use: HeldOnNode, geometry: Geometry | None) -> GpuCard:
    trouble, standing = use.troubles.get(gpu.uuid, ""), use.standings.get(gpu.uuid, "")
    product = product_word(gpu.product)
    slices = slices_of(gpu, offer, geometry)
    if not offer:
        return GpuCard(
            index=gpu.index,
            product=product,
            sharing_text=_nothing(gpu),
            strategy=None,
            blocks=_mig_blocks(slices, use) if slices else (DeviceBlock("", 1, ()),),
            shares="",
            guarantee="",
            trouble=trouble,
            slices=slices,
            standing=standing,
        )
    return GpuCard(
        index=gpu.index,
        product=product,
        sharing_text=_sharing_text(offer),
        strategy=offer[0].strategy,
        blocks=_blocks(gpu, offer, use, slices),
        shares=_shares_text(offer),
        guarantee=guarantee_words(weakest(offering.guarantee for offering in offer)),
        trouble=trouble,
        slices=slices,
        standing=standing,
    )


def _nothing(gpu: Gpu) -> str:
    if not gpu.mig_enabled:
        return "offers nothing"
    return "MIG mode, offers nothing" if gpu.mig_devices else "MIG mode, no MIG device"


def _lost_card(gpu: LostGpu) -> GpuCard:
    return GpuCard(gpu.index, _LOST, "", None, (DeviceBlock("", 1, ()),), "", "", gpu.reason)


def _sharing_text(offer: GpuOffer) -> str:
    texts = dict.fromkeys(sharing_text(o) for o in offer)
    return next(iter(texts)) if len(texts) == 1 else "several ways"


def _shares_text(offer: GpuOffer) -> str:
    """``4 shares of 20 GiB``, ``1 x 40 GiB, 2 x 20 GiB``; the sizes of unequal shares, largest first."""
    sizes = Counter[int]()
    for offering in sorted(offer, key=lambda offering: -offering.memory_bytes):
        sizes[offering.memory_bytes] += offering.count
    if len(sizes) == 1:
        ((size, count),) = sizes.items()
        each = format_bytes(size)
        if offer[0].by_memory:
            return f"{count_of(count, 'unit')} of {each}"
        threads = offer[0].threads_percent
        compute = "" if threads is None else f" and {threads}% of the SMs"
        return each if count == 1 else f"{count_of(count, 'share')} of {each}{compute}"
    return ", ".join(f"{count} x {format_bytes(size)}" for size, count in sizes.items())


def _cells(offering: DeviceOffer, use: HeldOnNode) -> list[ShareCell]:
    weight = max(1, offering.memory_bytes >> 20)
    cells = []
    for share in offering.share_ids:
        holder = use.holders.get(share)
        if holder is not None:
            mark = Mark.HELD
        elif (offering.resource, share) in use.withdrawn:
            mark = Mark.WITHDRAWN
        else:
            mark = Mark.PLANNED if offering.planned else Mark.FREE
        cells.append(ShareCell(mark, weight, holder))
    return _amounts(cells) if offering.by_memory else cells


_ORDER = (Mark.HELD, Mark.WITHDRAWN, Mark.FREE, Mark.PLANNED)


def _amounts(units: Sequence[ShareCell]) -> list[ShareCell]:
    """A cell for each pod, in the order of their first unit; then what is withdrawn, then what is free."""
    found: dict[tuple[Mark, str | None], ShareCell] = {}
    for unit in units:
        before = found.get(key := (unit.mark, unit.holder))
        found[key] = unit if before is None else _sum(before, unit)
    return sorted(found.values(), key=lambda cell: _ORDER.index(cell.mark))


def _sum(cell: ShareCell, other: ShareCell) -> ShareCell:
    return replace(cell, weight=cell.weight + other.weight, count=cell.count + other.count)


def _unit_bytes(offerings: Sequence[DeviceOffer]) -> int:
    sizes = {offering.memory_bytes if offering.by_memory else 0 for offering in offerings}
    return sizes.pop() if len(sizes) == 1 else 0


def _blocks(gpu: Gpu, offer: GpuOffer, use: HeldOnNode, slices: GpuSlices | None) -> tuple[DeviceBlock, ...]:
    if slices is not None:
        return _mig_blocks(slices, use)
    if any(offering.profile for offering in offer):
        # Their placement is not known, so their memory gives their width.
        return tuple(_block(o.profile or "", [o], _width(o, gpu), use) for o in offer)
    return (_block("", offer, 1, use),)


def _mig_blocks(slices: GpuSlices, use: HeldOnNode) -> tuple[DeviceBlock, ...]:
    """The GPU's memory slices from left to right. Devices of one GPU instance share its slices."""
    return tuple(
        _block(instance.label, instance.offerings, width, use) if instance else DeviceBlock("", width, ())
        for width, instance in slices.memory_row
    )


def _block(label: str, offerings: Sequence[DeviceOffer], weight: int, use: HeldOnNode) -> DeviceBlock:
    cells = tuple(cell for offering in offerings for cell in _cells(offering, use))
    planned = any(offering.planned for offering in offerings)
    return DeviceBlock(label, weight, cells, planned, _unit_bytes(offerings))


def _width(offering: DeviceOffer, gpu: Gpu) -> int:
    whole = offering.memory_bytes * (offering.replicas if offering.traits.in_shares else 1)
    return max(1, round(whole * 8 / gpu.memory_bytes))
