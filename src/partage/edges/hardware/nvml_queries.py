"""Queries to NVML about MIG devices, and its events, in the types and units of ``model``; None if absent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NewType

from partage.edges.hardware.binding import INVALID_ARGUMENT, NOT_FOUND, TIMEOUT
from partage.edges.hardware.gpu_queries import NOT_HERE, GpuQueries, Handle, MigInstance
from partage.errors import HardwareError, Unsupported
from partage.model.geometry import Engines, Placement
from partage.model.gpu import MigMode
from partage.model.ids import MigUuid
from partage.units import MIB
from partage.values import Frozen

_MIG_WITHOUT_RESET = 184
MOST_PROFILES = 64
"""More constants of profiles than any library knows; it says itself where its list ends."""

_ATTRIBUTES = {
    **dict.fromkeys((0, 1, 2, 3, 4, 5, 6, 9), ""),
    **dict.fromkeys((7, 8), "+me"),
    **dict.fromkeys((10, 11, 12, 17), "+gfx"),
    **dict.fromkeys((13, 14), "-me"),
    **dict.fromkeys((15, 16), "+me.all"),
}
"""Attributes in the names of GI profiles, by NVML's constant. The one with double memory (9) has none. The
driver says the names of later ones.
"""

_NAMED_ATTRIBUTE = re.compile(r"\d+gb(\S*)$", re.ASCII)
"""The ``+me`` of ``MIG 1g.10gb+me``, a name as the driver says it."""

NO_INSTANCE = 0xFFFFFFFF
"""In place of an instance's id: the whole GPU is meant."""

EVENT_XID = 0x8
EVENTS_CHANGED = 0x100 | 0x4000 | 0x8000
"""MIG configuration changed, GPU unavailable, recovery action changed: observe again."""

EventSet = NewType("EventSet", object)


class MigAttributes(Frozen):
    """Attributes of a MIG device. compute_slices: of its compute instance."""

    uuid: MigUuid
    gi_id: int
    ci_id: int
    compute_slices: int
    memory_bytes: int
    multiprocessors: int


class GiProfile(Frozen):
    """One GPU instance profile. slices: the ``3`` of 3g; attribute: ``+me``, ``-me`` ... or empty.

    most: how many an empty GPU can have.
    """

    slices: int
    attribute: str
    memory_bytes: int
    most: int
    engines: Engines


class NvmlEvent(Frozen):
    """One event. gpu: address of the handle, see ``GpuQueries.address``. data: the XID."""

    gpu: int
    kind: int
    data: int
    gi_id: int | None
    ci_id: int | None


class Nvml(GpuQueries):
    """Reads a node through an open session. Every method may raise a HardwareError."""

    # --- MIG -------------------------------------------------------------------------------------

    def mig_mode(self, handle: Handle) -> MigMode | None:
        modes = self.optional("nvmlDeviceGetMigMode", handle)
        return None if modes is None else MigMode(current=bool(modes[0]), pending=bool(modes[1]))

    def mig_without_reset(self, handle: Handle) -> bool:
        """Whether its MIG mode changes without a GPU reset; False if the driver does not report it."""
        answers = self.optional("nvmlDeviceGetFieldValues", handle, [_MIG_WITHOUT_RESET]) or ()
        return any(answer.nvmlReturn == 0 and answer.value.uiVal == 1 for answer in answers)

    def mig_handles(self, handle: Handle) -> dict[int, Handle]:
        """NVML's index to handle; indexes can have gaps."""
        found = {
            index: self.optional(
                "nvmlDeviceGetMigDeviceHandleByIndex", handle, index, absent=NOT_HERE | {NOT_FOUND}
            )
            for index in range(self.most_mig_devices(handle))
        }
        return {index: Handle(mig) for index, mig in found.items() if mig is not None}

    def mig_attributes(self, mig: Handle, uuid: MigUuid) -> MigAttributes:
        """uuid: its own."""
        attributes = self.call("nvmlDeviceGetAttributes", mig)
        return MigAttributes(
            uuid=uuid,
            gi_id=int(self.call("nvmlDeviceGetGpuInstanceId", mig)),
            ci_id=int(self.call("nvmlDeviceGetComputeInstanceId", mig)),
            compute_slices=int(attributes.computeInstanceSliceCount),
            # The header says MB; an A100's 1g.5gb answers 4864, the 4.75 GiB that nvidia-smi prints.
            memory_bytes=int(attributes.memorySizeMB) * MIB,
            multiprocessors=int(attributes.multiprocessorCount),
        )

    def gpu_instance(self, handle: Handle, gi_id: int) -> MigInstance:
        """Profile (nvidia-smi's id, not NVML's constant) and placement of a GPU instance. For root only."""
        info = self.call("nvmlGpuInstanceGetInfo", self.call("nvmlDeviceGetGpuInstanceById", handle, gi_id))
        return MigInstance(int(info.profileId), placement_of(gi_id, info))

    def gi_profiles(self, handle: Handle) -> Mapping[int, GiProfile]:
        """Profile id to profile, for this GPU: the same id means other profiles on other models.

        Remembered, unless there are none: older drivers know them only in MIG mode.
        """
        known, address = self.memory.profiles, self.address(handle)
        if not known.get(address):
            known[address] = self._gi_profiles(handle)
        return known[address]

    def _gi_profiles(self, handle: Handle) -> Mapping[int, GiProfile]:
        profiles: dict[int, GiProfile] = {}
        end = frozenset({INVALID_ARGUMENT})
        for constant in range(MOST_PROFILES):
            try:
                info = self.optional("nvmlDeviceGetGpuInstanceProfileInfo", handle, constant, 1, absent=end)
            except Unsupported:
                continue  # the GPU has no such profile
            if info is None:
                break
            attribute = self._attribute(handle, constant)
            if attribute is not None:
                profiles[int(info.id)] = GiProfile(
                    slices=int(info.sliceCount),
                    attribute=attribute,
                    memory_bytes=int(info.memorySizeMB) * MIB,
                    most=int(info.instanceCount),
                    engines=_engines(info),
                )
        return profiles

    def most_mig_devices(self, handle: Handle) -> int:
        """How many MIG devices the GPU can have; 0 if the driver does not report it."""
        return int(self.optional("nvmlDeviceGetMaxMigDeviceCount", handle) or 0)

    def _attribute(self, handle: Handle, constant: int) -> str | None:
        """The attribute in a profile's name; None if it is not known: the profile cannot be named then."""
        if constant in _ATTRIBUTES:
            return _ATTRIBUTES[constant]
        info = self.optional("nvmlDeviceGetGpuInstanceProfileInfo", handle, constant, 2, absent=NOT_HERE)
        match = _NAMED_ATTRIBUTE.search(_text(info.name)) if info is not None else None
        return match[1] if match else None

    # --- events ----------------------------------------------------------------------------------

    def create_event_set(self) -> EventSet:
        return EventSet(self.call("nvmlEventSetCreate"))

    def register(self, handle: Handle, event_set: EventSet) -> bool:
        """Subscribe to XIDs and changes of a GPU; False if it supports neither."""
        supported = self.optional("nvmlDeviceGetSupportedEventTypes", handle) or 0
        mask = supported & (EVENT_XID | EVENTS_CHANGED)
        if mask:
            self.optional("nvmlDeviceRegisterEvents", handle, mask, event_set)
        return bool(mask)

    def wait(self, event_set: EventSet, timeout_ms: int) -> NvmlEvent | None:
        """The next event; None after the timeout. Blocks the thread."""
        data = self.optional("nvmlEventSetWait_v2", event_set, timeout_ms, absent=frozenset({TIMEOUT}))
        if data is None:
            return None
        return NvmlEvent(
            gpu=self.address(data.device),
            kind=int(data.eventType),
            data=int(data.eventData),
            gi_id=None if data.gpuInstanceId == NO_INSTANCE else int(data.gpuInstanceId),
            ci_id=None if data.computeInstanceId == NO_INSTANCE else int(data.computeInstanceId),
        )

    def free_event_set(self, event_set: EventSet) -> None:
        self.optional("nvmlEventSetFree", event_set, absent=NOT_HERE)


def _engines(info: Any) -> Engines:  # noqa: ANN401 - a structure of pynvml
    return Engines(
        copy=int(info.copyEngineCount),
        decoder=int(info.decoderCount),
        encoder=int(info.encoderCount),
        jpeg=int(info.jpegCount),
        ofa=int(info.ofaCount),
    )


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def placement_of(gi_id: int, info: Any) -> Placement:  # noqa: ANN401 - a structure of pynvml
    """The placement in what NVML says of a GPU instance. Raises HardwareError if it is none."""
    try:
        return Placement(int(info.placement.start), int(info.placement.size))
    except ValueError as error:
        raise HardwareError(f"GPU instance {gi_id} reports an invalid placement: {error}") from error
