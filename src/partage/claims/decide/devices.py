"""The devices of a node that claims can get, by their names in the pool.

Partage's names begin with the GPU's UUID and not with its index: an index moves when a GPU is lost or
replaced, and the name would then mean another GPU. NVIDIA's have the number of its device file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import field

from partage.claims.decide.on_demand import PlaceOnDemand, devices_on_demand, mig_name
from partage.claims.model.names import ClaimNames
from partage.model.claim import NO_DEMANDS, Demands
from partage.model.geometry import Geometry, MigProfile
from partage.model.gpu import Gpu, Inventory, MigDevice, gpu_of_mig_devices
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.share import DeviceOffer, NodeOffer, node_order
from partage.model.strategy import Via
from partage.plan.offer.select import GeometryOf
from partage.values import Frozen

_SHORTEST = 8
_OTHER = re.compile(r"[^0-9a-z]")


class ClaimDevices(Frozen):
    """What a node offers by claims.

    names: how all of it is called. node: its name. pool: of all its devices. rows: by name of the device, in
    the order of GPU index, MIG index and share; of a device that is made on demand and is not there, what it
    will be (``planned``). gpu_of: the GPU of each MIG device of the node. places: the devices of GPUs on
    demand, by name.
    """

    names: ClaimNames
    node: str
    pool: str
    rows: Mapping[str, DeviceOffer]
    gpu_of: Mapping[DeviceUuid, GpuUuid]
    places: Mapping[str, PlaceOnDemand] = field(default_factory=dict)

    def named(self, name: str) -> DeviceOffer | None:
        """The device with this name; None: there is none."""
        return self.rows.get(name)


def claim_devices(
    offers: NodeOffer,
    inventory: Inventory,
    node: str,
    geometry_of: GeometryOf,
    names: ClaimNames,
    *,
    on_demand: Demands = NO_DEMANDS,
) -> ClaimDevices:
    """The devices of these offers that are there for claims.

    offers: what is served now (``answerable_offer``). inventory: with the GPUs that are lost for now. A GPU
    of which nothing is known is left out: without its attributes, an expression of a claim would fail on it,
    and with it the pod. on_demand: GPUs whose MIG devices are made on demand: all that can be made is there
    for claims.
    """
    gpus = {gpu.uuid: gpu for gpu in inventory}
    short = {gpu.uuid: f"gpu-{gpu.minor}" for gpu in inventory} if names.by_minor else _gpu_names(gpus)
    fixed = {gpu: offer for gpu, offer in offers.items() if gpu not in on_demand}
    rows = sorted(_offered(fixed), key=lambda row: (*node_order(row), row.device))
    several = {row.device for row in rows if sum(other.device == row.device for other in rows) > 1}
    named = {}
    for row in rows:
        gpu = gpus.get(row.gpu)
        name = None if gpu is None else _name(row, gpu, short[row.gpu], geometry_of(gpu))
        if name is not None:
            named[f"{name}-from-{row.first}" if row.device in several else name] = row
    places = {}
    for gpu in inventory:
        geometry = geometry_of(gpu)
        if gpu.uuid not in on_demand or geometry is None:
            continue
        there = offers.get(gpu.uuid, ())
        for device in devices_on_demand(gpu, geometry, short[gpu.uuid], there, on_demand[gpu.uuid]):
            named[device.name], places[device.name] = device.row, device.place
    return ClaimDevices(names, node, names.pool(node), named, gpu_of_mig_devices(inventory), places)


def mig_device(row: DeviceOffer, gpu: Gpu) -> MigDevice | None:
    """The MIG device of an offer; None: it is a GPU, or gone."""
    return next((mig for mig in gpu.mig_devices if mig.uuid == row.device), None)


def _offered(offers: NodeOffer) -> Iterator[DeviceOffer]:
    for offer in offers.values():
        yield from (row for row in offer if row.via is Via.CLAIMS and not row.planned)


def _gpu_names(uuids: Iterable[GpuUuid]) -> dict[GpuUuid, str]:
    """``gpu-1b2c3d4e``: as much of each UUID as no other GPU has, at least eight digits."""
    digits = {uuid: _OTHER.sub("", uuid.removeprefix("GPU-").lower()) for uuid in uuids}
    names = {}
    for uuid, own in digits.items():
        others = [one for other, one in digits.items() if other != uuid]
        length = next(
            (
                length
                for length in range(_SHORTEST, len(own))
                if not any(other.startswith(own[:length]) for other in others)
            ),
            len(own),
        )
        names[uuid] = f"gpu-{own[:length]}"
    return names


def _name(row: DeviceOffer, gpu: Gpu, short: str, geometry: Geometry | None) -> str | None:
    """None for a MIG device that is gone."""
    if row.profile is None:
        return short
    mig = mig_device(row, gpu)
    if mig is None:
        return None
    profile = MigProfile.parse(mig.profile)
    spec = None if geometry is None else geometry.spec(profile)
    if spec is not None and mig.placement is not None and profile == profile.gpu_instance:
        return mig_name(short, spec, mig.placement.start)
    start = f"-{mig.placement.start}" if mig.placement is not None else f"-x{mig.gi_id}"
    kind = f"-{spec.smi_id}" if spec is not None and spec.smi_id is not None else ""
    # Several compute instances of one GPU instance have the same profile and the same place.
    part = "" if profile == profile.gpu_instance else f"-{mig.ci_id}"
    return f"{short}-mig-{_OTHER.sub('', mig.profile)}{kind}{start}{part}"
