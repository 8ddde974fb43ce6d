"""A node as a machine for the simulation: with what Partage has set on it, besides the inventory."""

from __future__ import annotations

from partage.edges.hardware.port import Hardware
from partage.model.gpu import NoDriver
from partage.model.mps import DaemonPhase, DaemonSpec, DaemonState
from partage.model.strategy import Interval
from partage.sim.node.machine import Machine


async def observed_machine(hardware: Hardware) -> Machine:
    """The machine. Daemons that do not serve are left out, and so are time slices of a real GPU that could
    not be read. Raises HardwareError.
    """
    inventory = await hardware.observe()
    if isinstance(inventory.driver, NoDriver):
        return Machine("", inventory)
    slices: dict[int, Interval | None] = {}
    for time_slice in await hardware.time_slices():
        gpu = inventory.gpu(time_slice.gpu)
        keeps_its_own = time_slice.interval is None and inventory.simulated and gpu and not gpu.mig_enabled
        if gpu and (keeps_its_own or time_slice.interval not in (None, Interval.DEFAULT)):
            slices[gpu.index] = time_slice.interval
    daemons = [_spec(daemon) for daemon in await hardware.daemons()]
    return Machine("", inventory, time_slices=slices, daemons=tuple(filter(None, daemons)))


def _spec(daemon: DaemonState) -> DaemonSpec | None:
    if daemon.gpu is None or daemon.phase not in (DaemonPhase.SERVING, DaemonPhase.FAULT):
        return None
    limits = daemon.limits
    return DaemonSpec(
        daemon.gpu,
        daemon.device,
        limits.memory_bytes,
        limits.threads_percent,
        daemon.multi_user,
        limits.namespaces,
        limits.slots,
    )
