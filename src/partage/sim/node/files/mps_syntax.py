"""Reads the MPS daemons of a machine file."""

from __future__ import annotations

from collections.abc import Iterator

from partage.codec.fields import Field, Table
from partage.errors import HardwareError
from partage.model.gpu import Inventory
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.mps import DaemonSpec, MpsNamespace
from partage.model.step import StartDaemon
from partage.sim.node.daemons import start_daemon
from partage.sim.node.machine import Machine
from partage.sim.node.state import power_on

_LIMITS = ("memory-bytes", "threads-percent")
_KEYS = ("device", *_LIMITS, "multi-user", "namespaces")
_MOST_BYTES = 2**60


def read_daemons(top: Table, inventory: Inventory) -> Iterator[DaemonSpec]:
    """The daemons that serve, in the order of the file. Each has to be possible on the node, and is the only
    one of its device.
    """
    state = power_on(Machine("", inventory))
    homes: dict[str, tuple[GpuUuid, DeviceUuid]] = {}
    for gpu in inventory:
        homes[gpu.uuid] = gpu.uuid, gpu.uuid
        homes |= {mig.uuid: (gpu.uuid, mig.uuid) for mig in gpu.mig_devices}
    for place in top.value("mps-daemons", Field.items, []):
        row = place.table(_KEYS)
        device = row.needed("device", Field.some_text) if row else None
        if row is None or device is None:
            continue
        if device not in homes:
            row.here("device").error(f"no GPU and no MIG device of this machine has the UUID {device}")
            continue
        if device in state.daemons:
            row.here("device").error(f"{device} has a daemon already")
            continue
        try:
            spec = _spec(row, *homes[device])
            state = start_daemon(state, StartDaemon(spec.gpu, spec))
        except (ValueError, HardwareError) as error:
            place.error(str(error))
        else:
            yield spec


def _spec(row: Table, gpu: GpuUuid, device: DeviceUuid) -> DaemonSpec:
    """Raises ValueError."""
    multi_user = row.nullable("multi-user", Field.boolean, None)
    return DaemonSpec(gpu, device, *_limits(row), multi_user, tuple(_namespaces(row)))


def _namespaces(row: Table) -> Iterator[MpsNamespace]:
    for place in row.value("namespaces", Field.items, []):
        inner = place.table(("name", *_LIMITS))
        name = inner.needed("name", Field.some_text) if inner else None
        if inner is not None and name is not None:
            yield MpsNamespace(name, *_limits(inner))


def _limits(row: Table) -> tuple[int | None, int | None]:
    """Bytes for each client, and percent of the multiprocessors."""
    memory_bytes = row.nullable("memory-bytes", lambda field: field.integer(1, _MOST_BYTES), None)
    return memory_bytes, row.nullable("threads-percent", lambda field: field.integer(1, 100), None)
