"""Which MIG devices the tenants of a GPU get."""

from __future__ import annotations

from partage.advise.decide.candidate import LARGER, WayRefusal, fewer_or_larger
from partage.advise.decide.situation import GpuFacts, Situation, Way, Workload
from partage.model.geometry import Geometry, ProfileSpec, instance_memory
from partage.text import count_of
from partage.units import format_bytes

_GRAPHICS = "gfx"


def equal_profiles(
    geometry: Geometry, situation: Situation, facts: GpuFacts
) -> tuple[ProfileSpec, ...] | WayRefusal:
    """MIG devices of one profile: the largest of which there are enough."""
    specs = _suitable(geometry, situation)
    enough = [spec for spec in specs if spec.max_count >= situation.tenants]
    if not enough:
        most = max(spec.max_count for spec in specs)
        return WayRefusal(
            Way.MIG,
            f"{facts.gpu.product} has at most {count_of(most, 'MIG device')}, and there are "
            f"{situation.tenants} tenants",
            f"at most {count_of(most, 'tenant')} on each GPU, or less isolation",
        )
    best = max(enough, key=lambda spec: (spec.compute_slices, spec.size))
    has = instance_memory(best, geometry, facts.gpu.memory_bytes)
    if situation.memory_bytes is not None and has < situation.memory_bytes:
        return WayRefusal(
            Way.MIG,
            f"each of {count_of(situation.tenants, 'MIG device')} has {format_bytes(has)} "
            f"({best.profile}), and a tenant needs {format_bytes(situation.memory_bytes)}",
            fewer_or_larger(situation, facts),
        )
    return (best,) * best.max_count


def unequal_profiles(
    geometry: Geometry, situation: Situation, facts: GpuFacts
) -> tuple[tuple[ProfileSpec, ...], ...] | WayRefusal:
    """For each tenant the profiles with the least memory that is enough, those with less compute first."""
    specs = sorted(_suitable(geometry, situation), key=lambda spec: (spec.size, spec.compute_slices))
    has = {spec: instance_memory(spec, geometry, facts.gpu.memory_bytes) for spec in specs}
    choices = []
    for needed in situation.sizes:
        fitting = [spec for spec in specs if has[spec] >= needed]
        if not fitting:
            most = format_bytes(max(has.values()))
            why = f"the largest MIG device has {most}, and a tenant needs {format_bytes(needed)}"
            return WayRefusal(Way.MIG, why, LARGER)
        choices.append(tuple(spec for spec in fitting if spec.size == fitting[0].size))
    return tuple(choices)


def _suitable(geometry: Geometry, situation: Situation) -> list[ProfileSpec]:
    """With graphics for rendering, where the GPU has that."""
    graphics = [spec for spec in geometry.profiles if spec.profile.attributes == (_GRAPHICS,)]
    if situation.workload is Workload.RENDERING and graphics:
        return graphics
    return [spec for spec in geometry.profiles if not spec.profile.attributes]
