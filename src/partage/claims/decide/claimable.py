"""What an operator is told of an offer for claims: what they can ask for, in words."""

from __future__ import annotations

from partage.claims.model.names import ClaimNames, Mode, mode_of, usable_memory
from partage.model.share import DeviceOffer, Guarantee, NodeOffer, node_order
from partage.model.strategy import Via
from partage.text import gpus
from partage.units import format_bytes, format_exactly
from partage.values import Answer, grouped


class ClaimableRow(Answer):
    """GPUs of which claims can ask for the same. gpus: their indexes. device_class: names them in a claim.
    asks: what a request can ask for of one, a noun phrase. guarantee: about its memory.
    """

    gpus: tuple[int, ...]
    device_class: str
    asks: str
    guarantee: Guarantee

    def __str__(self) -> str:
        return f"{gpus(self.gpus)} by claim: {self.device_class}, {self.asks} ({self.guarantee})"


def claimable(offer: NodeOffer, names: ClaimNames) -> tuple[ClaimableRow, ...]:
    """What an offer has for claims, also MIG devices that are still to be made; equal GPUs in one row. names:
    of the driver.
    """
    rows = sorted((row for some in offer.values() for row in some if row.via is Via.CLAIMS), key=node_order)
    found = grouped(
        ((str(names.class_of(row.resource)), _asks(row), row.guarantee), row.gpu_index) for row in rows
    )
    return tuple(
        ClaimableRow(tuple(dict.fromkeys(indexes)), name, asks, guarantee)
        for (name, asks, guarantee), indexes in found.items()
    )


def _asks(row: DeviceOffer) -> str:
    memory = format_bytes(usable_memory(row))
    match mode_of(row):
        case Mode.AMOUNTS:
            unit = format_exactly(row.memory_bytes)
            return f"memory {unit} to {memory} in steps of {unit}, or all of it"
        case Mode.REPLICAS:
            return f"1 to {row.count} shares of {format_bytes(row.memory_bytes)} each"
        case Mode.MIG:
            return f"the MIG device {row.profile} ({memory})"
        case Mode.WHOLE:
            return f"all of it ({memory})"
