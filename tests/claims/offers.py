"""Nodes and offers for the tests of claims."""

from __future__ import annotations

from msgspec.structs import replace

from partage.claims.decide.devices import ClaimDevices, claim_devices
from partage.claims.model.names import OWN_NAMES, ClaimNames
from partage.model.gpu import Gpu, Inventory
from partage.model.ids import GpuUuid, ResourceName
from partage.model.share import DeviceOffer, Guarantee, NodeOffer
from partage.model.strategy import Strategy, Via
from partage.units import GIB
from tests.plan.offers import gpu, node, offering, unit_row

AMOUNTS = ResourceName("gpu.partage.dev")
REPLICAS = ResourceName("share.partage.dev")
MIGS = ResourceName("mig.partage.dev")


def whole(index: int) -> DeviceOffer:
    """All of GPU ``index``."""
    return replace(offering(index), via=Via.CLAIMS, resource=AMOUNTS)


def amounts(index: int, units: int = 79, unit_bytes: int = GIB) -> DeviceOffer:
    """GPU ``index`` in units, under MPS, each claim with a namespace of its own."""
    row = unit_row(index, units, unit_bytes)
    return replace(
        row,
        via=Via.CLAIMS,
        resource=AMOUNTS,
        guarantee=Guarantee.GUARDED,
        limits_in_env=False,
        pipe="gpu/slot",
    )


def slices(index: int, units: int = 79) -> DeviceOffer:
    """GPU ``index`` in units of 1 GiB, under time slicing."""
    row = replace(amounts(index, units), shared=Strategy.TIME_SLICING, strategy=Strategy.TIME_SLICING)
    return replace(row, guarantee=Guarantee.NONE, pipe="")


def replicas(index: int, count: int = 4, shared: Strategy = Strategy.TIME_SLICING) -> DeviceOffer:
    """GPU ``index`` in even shares."""
    return replace(
        offering(index, count, shared=shared, single=True), via=Via.CLAIMS, resource=REPLICAS, strategy=shared
    )


def mig(index: int, number: int) -> DeviceOffer:
    """MIG device ``number`` of GPU ``index``, a 1g.10gb."""
    return replace(offering(index, mig=number), via=Via.CLAIMS, resource=MIGS, memory_bytes=10 * GIB)


def offers(*rows: DeviceOffer) -> NodeOffer:
    """The rows by GPU."""
    found: dict[GpuUuid, tuple[DeviceOffer, ...]] = {}
    for row in rows:
        found[row.gpu] = (*found.get(row.gpu, ()), row)
    return found


def machine(*rows: DeviceOffer) -> Inventory:
    """A node with the GPUs of these rows, each with its MIG devices."""
    migs: dict[int, int] = {}
    for row in rows:
        _, _, number = row.index.partition(":")
        migs[row.gpu_index] = max(migs.get(row.gpu_index, 0), int(number or -1) + 1)
    gpus: list[Gpu] = [gpu(index, migs=count) for index, count in sorted(migs.items())]
    return node(*gpus)


def devices(*rows: DeviceOffer, names: ClaimNames = OWN_NAMES) -> ClaimDevices:
    """The devices of a node ``node-a`` that offers these rows."""
    return claim_devices(offers(*rows), machine(*rows), "node-a", lambda _: None, names)
