"""A node of a running Slurm as the rules for requests see it. Pure."""

from __future__ import annotations

from partage.slurm.decide.node_view import SHARED, GresCount, SeenGpu, SlurmNodeView, parse_gres
from partage.slurm.model.live import LiveNode


def live_view(node: LiveNode) -> SlurmNodeView:
    """From ``Gres=`` alone. The units of a type are shared out equally among its GPUs, as gres.conf does
    where it gives one count for several files; without types, among all GPUs.
    """
    try:
        counts = parse_gres(node.gres)
    except ValueError:
        counts = ()
    gpus = tuple(
        SeenGpu(count.type) for count in counts if count.name == "gpu" for _ in range(count.count or 1)
    )
    names = dict.fromkeys(count.name for count in counts if count.name in SHARED)
    shares = {name: _units(name, counts, gpus) for name in names}
    held = {name: units for name, units in shares.items() if any(units)}
    return SlurmNodeView(node.name, gpus, held, node.features)


def _units(name: str, counts: tuple[GresCount, ...], gpus: tuple[SeenGpu, ...]) -> tuple[int, ...]:
    """Of each GPU, in the order of ``gpus``."""
    units = [0] * len(gpus)
    for count in counts:
        places = [place for place, gpu in enumerate(gpus) if count.type in ("", gpu.type)]
        if count.name == name and places:
            for place in places:
                units[place] += (count.count or 0) // len(places)
    return tuple(units) or tuple(count.count or 0 for count in counts if count.name == name)
