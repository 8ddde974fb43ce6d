"""Which MIG devices a GPU has now. The driver is asked for the UUID of each; for the rest only if it is new.

NVML gives the handle of a device that is gone to the next one (nvml.h, nvmlDeviceGetMigDeviceHandleByIndex).
So a handle from before is used only after its UUID was read again.
"""

from __future__ import annotations

from partage.edges.hardware.gpu_queries import Handle
from partage.edges.hardware.nvml_queries import Nvml
from partage.edges.hardware.session_memory import KnownMig, MigInstance
from partage.errors import DriverUnavailable, HardwareError, NotPermitted
from partage.model.ids import MigUuid


def known_migs(nvml: Nvml, gpu: Handle) -> tuple[KnownMig, ...]:
    """The MIG devices of a GPU, by index. Raises HardwareError, also if one vanishes meanwhile."""
    memory, address = nvml.memory.migs, nvml.address(gpu)
    before = memory.pop(address, {})
    now: dict[MigUuid, KnownMig] = {}
    for index, handle in nvml.mig_handles(gpu).items():
        uuid = MigUuid(nvml.uuid(handle))
        same = before.get(uuid) if _is_unique(uuid) else None
        now[uuid] = (
            _read(nvml, gpu, index, handle, uuid)
            if same is None
            else KnownMig(index, handle, same.attributes, same.instance, same.name)
        )
    memory[address] = now
    return tuple(now.values())


def mig_uuid(nvml: Nvml, gpu: Handle, gi_id: int, ci_id: int) -> MigUuid | None:
    """The UUID of the MIG device that is this compute instance now; None if there is none."""
    remembered = nvml.memory.migs.get(nvml.address(gpu), {})
    for one in (*remembered.values(),):
        if _is(one, gi_id, ci_id) and _is_there(nvml, one):
            return one.attributes.uuid
    return next((one.attributes.uuid for one in known_migs(nvml, gpu) if _is(one, gi_id, ci_id)), None)


def _read(nvml: Nvml, gpu: Handle, index: int, handle: Handle, uuid: MigUuid) -> KnownMig:
    attributes = nvml.mig_attributes(handle, uuid)
    instance: MigInstance | None = None
    try:
        instance = nvml.gpu_instance(gpu, attributes.gi_id)
    except NotPermitted:
        return KnownMig(
            index, handle, attributes, None, str(nvml.optional("nvmlDeviceGetName", handle) or "")
        )
    return KnownMig(index, handle, attributes, instance)


def _is_unique(uuid: MigUuid) -> bool:
    """Before driver 470 the UUID was made of GPU and ids, which the next device can have again."""
    return "/" not in uuid


def _is(one: KnownMig, gi_id: int, ci_id: int) -> bool:
    return (one.attributes.gi_id, one.attributes.ci_id) == (gi_id, ci_id)


def _is_there(nvml: Nvml, one: KnownMig) -> bool:
    try:
        return nvml.uuid(one.handle) == one.attributes.uuid
    except DriverUnavailable:
        raise
    except HardwareError:
        return False
