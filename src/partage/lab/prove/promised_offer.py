"""What a node promises: by a policy, or by the MPS daemons that are there."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.errors import DaemonError, Unsupported
from partage.lab.daemon import MpsDaemon, find_pipe
from partage.model.gpu import ComputeMode, Gpu, Inventory
from partage.model.ids import GpuUuid
from partage.model.policy import ALL_EXCLUSIVE, AllDevices, GpuEntry, Mps, Policy
from partage.model.share import DeviceOffer, Guarantee, NodeOffer
from partage.model.strategy import Strategy
from partage.plan.offer.advertise import advertise
from partage.plan.offer.assign import assign
from partage.units import MIB

_REPLICAS = 4
IN_FOUR = Policy((GpuEntry("", AllDevices(), Mps(_REPLICAS)),))
"""What a simulated node promises where nothing is said: nothing but MPS can be tried there."""


def offer_of_policy(policy: Policy, inventory: Inventory) -> NodeOffer:
    """What a policy would offer here. Raises Unsatisfiable, InputError.

    A device in units of memory is tried as two containers have it that share it evenly.
    """
    offer = advertise(assign(policy, inventory, geometry_of), inventory, policy)
    return {gpu: tuple(_halves(row) if row.by_memory else row for row in rows) for gpu, rows in offer.items()}


def _halves(row: DeviceOffer) -> DeviceOffer:
    units = max(1, row.count // 2)
    return replace(
        row,
        replicas=min(2, row.count),
        count=min(2, row.count),
        memory_bytes=units * row.memory_bytes,
        by_memory=False,
        pipe=f"{row.pipe}{units}" if row.pipe else "",
    )


async def offer_of_daemons(
    inventory: Inventory, run_dir: Path, pipe: Path | None, driver_root: Path
) -> NodeOffer:
    """Every GPU exclusive, except where an MPS daemon with a limit serves it: then what the daemon says."""
    plain = offer_of_policy(ALL_EXCLUSIVE, inventory)
    found: dict[GpuUuid, tuple[DeviceOffer, ...]] = {}
    for gpu in inventory:
        rows = [await _by_daemon(row, gpu, run_dir, pipe, driver_root) for row in plain.get(gpu.uuid, ())]
        found[gpu.uuid] = tuple(rows)
    return found


async def _by_daemon(
    whole: DeviceOffer, gpu: Gpu, run_dir: Path, pipe: Path | None, driver_root: Path
) -> DeviceOffer:
    """The device as its daemon shares it; whole where there is no daemon, or no limit."""
    at = find_pipe(whole.device, run_dir, pipe)
    if at is None:
        return whole
    daemon = MpsDaemon(at, driver_root)
    try:
        limit = await daemon.memory_limit(whole.memory_bytes // _REPLICAS // MIB * MIB)
        threads = await daemon.threads_limit()
    except (DaemonError, Unsupported):
        return whole
    if limit is None:
        return whole
    guarded = gpu.compute_mode is ComputeMode.EXCLUSIVE_PROCESS and whole.profile is None
    return replace(
        whole,
        strategy=Strategy.MPS if whole.profile is None else Strategy.MIG,
        shared=Strategy.MPS,
        replicas=max(whole.memory_bytes // limit, 1),
        count=max(whole.memory_bytes // limit, 1),
        memory_bytes=limit,
        threads_percent=threads,
        guarantee=Guarantee.GUARDED if guarded else Guarantee.ADVISORY,
    )
