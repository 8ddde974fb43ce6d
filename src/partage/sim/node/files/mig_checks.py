"""Whether MIG devices and GPU instances of a file can exist on their GPU, and why not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from partage.model.geometry import Geometry
from partage.model.gpu import EmptyInstance, MigDevice
from partage.model.layout import DoesNotFit, LayoutItem, compute_choices, place
from partage.model.placement import Placement
from partage.model.profile import MigProfile


def device_problem(geometry: Geometry, profile: MigProfile, placement: Placement) -> str | None:
    """Why no MIG device of that profile can have that placement; None where one can."""
    try:
        place(geometry, [LayoutItem(profile, placement.start)])
    except DoesNotFit as error:
        return str(error)
    spec = geometry.spec(profile)
    if spec is not None and spec.size != placement.size:
        return f"{spec.profile} occupies {spec.size} memory slices of {geometry.model}, not {placement.size}"
    return None


def layout_problems(
    geometry: Geometry | None, devices: Sequence[MigDevice], empty: Sequence[EmptyInstance] = ()
) -> Iterator[str]:
    """Why these MIG devices and empty GPU instances cannot exist together; each alone is possible."""
    hosts: dict[int, list[MigDevice]] = {}
    for device in devices:
        hosts.setdefault(device.gi_id, []).append(device)
    unclear = [gi for gi, members in hosts.items() if len({_host(device) for device in members}) > 1]
    if unclear:
        yield f"GPU instance {unclear[0]} has several profiles or places"
        return
    for gi, members in hosts.items():
        yield from _instance_problems(gi, members)
    ids = [*hosts, *(one.gi_id for one in empty)]
    if len(set(ids)) < len(ids):
        yield "an empty GPU instance has an id that another one has"
        return
    instances: list[MigDevice | EmptyInstance] = [*(members[0] for members in hosts.values()), *empty]
    if geometry is None:
        yield from _overlaps(instances)
        return
    try:
        place(geometry, [LayoutItem(*_host(one)) for one in instances])
    except DoesNotFit as error:
        yield str(error)


def _host(device: MigDevice | EmptyInstance) -> tuple[MigProfile, int]:
    return MigProfile.parse(device.profile).gpu_instance, _place(device).start


def _place(device: MigDevice | EmptyInstance) -> Placement:
    return device.known_placement if isinstance(device, MigDevice) else device.placement


def _instance_problems(gi: int, members: Sequence[MigDevice]) -> Iterator[str]:
    profiles = [MigProfile.parse(device.profile) for device in members]
    ids = [device.ci_id for device in members]
    slices = profiles[0].gpu_slices
    if len(set(ids)) < len(ids):
        yield f"GPU instance {gi} has a compute instance id twice"
    used = sum(profile.compute_slices for profile in profiles)
    if used > slices:
        yield f"the compute instances of GPU instance {gi} need {used} compute slices, and it has {slices}"
    if any(profile.compute_slices not in compute_choices(slices) for profile in profiles):
        yield f"GPU instance {gi} has a compute instance of a size that does not exist"


def _overlaps(devices: Sequence[MigDevice | EmptyInstance]) -> Iterator[str]:
    for position, device in enumerate(devices):
        for other in devices[:position]:
            if _place(device).overlaps(_place(other)):
                yield f"GPU instances {other.gi_id} and {device.gi_id} overlap"
