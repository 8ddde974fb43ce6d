"""GPUs with something on them, for the tests of packing."""

from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of, load_catalogue, why_no_geometry
from partage.model.gpu import Inventory, MigMode
from partage.model.layout import LayoutItem
from partage.packing.decide.candidates import survey
from partage.packing.decide.demand import Demand
from partage.packing.decide.pack import pack
from partage.sim.node.machine import DRIVER, new_gpu
from partage.sim.node.mig import create_layout


def gpu(model_id, live=(), index=0):
    """A GPU with these MIG devices, ``3g.40gb@4``; in MIG mode if there are any."""
    model = load_catalogue().by_id(model_id)
    assert model is not None
    bare = new_gpu(index, model, model.products[0], 0)
    if not live:
        return bare
    assert model.geometry is not None
    devices = create_layout(bare, model.geometry, [LayoutItem.parse(text) for text in live], "tests")
    return replace(bare, mig_mode=MigMode(True, True), mig_devices=devices)


def fleet(*gpus):
    """One node of these GPUs."""
    return Inventory(
        DRIVER, tuple(replace(one, index=index) for index, one in enumerate(gpus)), simulated=True
    )


def candidates(*gpus, held=()):
    """The GPUs that can be used if the devices ``held`` are in use."""
    found, _ = survey("node", fleet(*gpus), geometry_of, why_no_geometry, frozenset(held))
    return found


def packed(demand, *gpus, held=(), seconds=60.0):
    """The packing; its clock stands still, so that there is time for all of it."""
    return pack(Demand.parse(demand), candidates(*gpus, held=held), lambda: 0.0, seconds)


def uuid_of(one, profile, start):
    """The MIG device of that profile that begins there."""
    return next(d.uuid for d in one.mig_devices if d.profile == profile and d.placement.start == start)
