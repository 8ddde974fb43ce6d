"""Reads the MPS daemons of a machine file."""

from __future__ import annotations

from collections.abc import Iterator

from partage.codec.fields import Field, Table
from partage.codec.reader import Reader, number
from partage.errors import HardwareError
from partage.model.gpu import Inventory
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.mps import DaemonSpec, MpsNamespace
from partage.model.step import StartDaemon
from partage.sim.node.daemons import start_daemon
from partage.sim.node.machine import Machine
from partage.sim.node.state import power_on

_KEYS = ("device", "memory-bytes", "threads-percent", "multi-user", "namespaces")
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
            home, uuid = homes[device]
            spec = _DAEMON.fill(row, gpu=home, device=uuid)
            state = start_daemon(state, StartDaemon(spec.gpu, spec))
        except (ValueError, HardwareError) as error:
            place.error(str(error))
        else:
            yield spec


def _namespaces(field: Field) -> tuple[MpsNamespace, ...]:
    """Raises ValueError."""
    tables = (place.table(_NAMESPACE.keys) for place in field.items() or ())
    return tuple(
        _NAMESPACE.fill(table, name=name)
        for table in tables
        if table and (name := table.needed("name", Field.some_text)) is not None
    )


_LIMITS = {"memory_bytes": number(1, _MOST_BYTES), "threads_percent": number(1, 100)}
_NAMESPACE = Reader(MpsNamespace, reads=_LIMITS, nulls=True)
_DAEMON = Reader(
    DaemonSpec,
    ("multi_user", "memory_bytes", "threads_percent", "namespaces"),
    reads={**_LIMITS, "namespaces": _namespaces},
    nulls=True,
)
