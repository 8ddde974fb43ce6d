"""Ask the driver what MIG allows on a GPU: profiles, their places, how many, their engines.

Only for a GPU whose placements no catalogue has. The driver answers root only, and before R550 only while MIG
mode is on. Compute instances are not asked for: the driver lists them for a GPU instance that exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from partage.edges.hardware.gpu_queries import Handle
from partage.edges.hardware.instances import possible_starts, profile_names
from partage.edges.hardware.nvml_queries import Nvml
from partage.errors import DriverUnavailable, GpuLost, HardwareError, NotPermitted, Unsupported
from partage.model.geometry import Geometry, MigProfile, ProfileSpec, driver_geometry
from partage.model.gpu import Gpu, MigMode
from partage.model.ids import GpuUuid

Lacks = Callable[[Gpu], bool]
"""Whether nothing but the driver knows what this GPU allows."""


class AskedGeometries:
    """The geometries that were asked for. What a driver said of a GPU holds as long as it is loaded; one that
    said nothing is asked again when the MIG mode has changed."""

    def __init__(self, lacks: Lacks) -> None:
        self._lacks = lacks
        self._found: dict[tuple[GpuUuid, str], Geometry] = {}
        self._nothing: set[tuple[GpuUuid, str, MigMode | None]] = set()

    def of(self, nvml: Nvml, handle: Handle, gpu: Gpu, driver_version: str) -> Geometry | None:
        """What the driver says of ``gpu``; None if it need not be asked, or says nothing. Raises GpuLost,
        DriverUnavailable."""
        known = self._found.get((gpu.uuid, driver_version))
        unanswered = (gpu.uuid, driver_version, gpu.mig_mode)
        if known is not None or unanswered in self._nothing:
            return known
        try:
            geometry = ask_geometry(nvml, handle, gpu) if self._lacks(gpu) else None
        except (GpuLost, DriverUnavailable):
            raise
        except HardwareError:
            return None  # the GPU works all the same; asked again next time
        if geometry is None:
            self._nothing.add(unanswered)
        else:
            self._found[gpu.uuid, driver_version] = geometry
        return geometry


def ask_geometry(nvml: Nvml, handle: Handle, gpu: Gpu) -> Geometry | None:
    """What the driver says; None if it says nothing of places to this user, or in this MIG mode. Raises
    HardwareError."""
    try:
        specs = tuple(_specs(nvml, handle, gpu.memory_bytes))
    except (NotPermitted, Unsupported):
        return None
    return driver_geometry(gpu.product, specs, nvml.most_mig_devices(handle))


def _specs(nvml: Nvml, handle: Handle, memory_bytes: int) -> Iterator[ProfileSpec]:
    kinds = nvml.gi_profiles(handle)
    for profile_id, (name, _) in profile_names(kinds, memory_bytes).items():
        places = possible_starts(nvml, handle, profile_id) or ()
        sizes = {place.size for place in places}
        if len(sizes) != 1:
            continue  # nowhere, or not a place that a step could name
        kind = kinds[profile_id]
        starts = tuple(sorted(place.start for place in places))
        yield ProfileSpec(
            profile=MigProfile.parse(name),
            compute_slices=kind.slices,
            size=sizes.pop(),
            starts=starts,
            preferred_starts=starts,
            max_count=kind.most,
            memory_bytes=kind.memory_bytes,
            engines=kind.engines,
        )
