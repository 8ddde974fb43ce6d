"""A GPU model by its name, as ``advise`` judges it: on a simulated node with one such GPU."""

from __future__ import annotations

import re

from msgspec.structs import replace

from partage.advise.decide.situation import GpuFacts
from partage.edges.files.catalogue import load_catalogue, model_named
from partage.errors import InputError, Unsatisfiable
from partage.model.gpu import Driver
from partage.sim.node.machine import DRIVER, new_gpu, simulated_inventory

_DRIVER = re.compile(r"\d{3}(\.\d{1,4}){0,2}", re.ASCII)


def gpu_facts(name: str, driver: str | None) -> GpuFacts:
    """The facts. name: an id of the catalogue, or a product. driver: its version; None: a usual one, newer
    where MIG on this model needs that. Raises InputError with the nearest names, and Unsatisfiable for a
    model of which too little is known.
    """
    model, product = model_named(name)
    if model not in load_catalogue().simulated_models():
        raise Unsatisfiable(
            f"nothing can be advised for {model.id}: its memory and compute capability are not published",
            "on a node that has one, partage plan --policy FILE shows what a policy would give",
        )
    if driver is not None and _DRIVER.fullmatch(driver) is None:
        raise InputError(f"--driver {driver[:40]!r} is not the version of a driver", "580.95.05, or 580")
    inventory = simulated_inventory((new_gpu(0, model, product, None),))
    usual = int(DRIVER.version.partition(".")[0])
    if driver is None and model.mig_branch > usual:
        driver = str(model.mig_branch)
    used = DRIVER if driver is None else Driver(version=driver, cuda=DRIVER.cuda)
    return GpuFacts(
        model=model.id,
        names=(model.id,) if model.geometry else model.products or (model.id,),
        inventory=replace(inventory, driver=used),
        mig=model.mig,
        geometry=model.geometry,
        no_geometry=model.no_geometry,
        mig_branch=model.mig_branch,
        mig_needs_reset=model.mig_needs_reset,
    )
