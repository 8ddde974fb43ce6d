"""MPS daemons of a simulated node, as the hardware port shows them. Their clients' side is ``sim.mps``."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from partage.errors import GpuInUse, NotFound, Unsupported
from partage.model.ids import DeviceUuid
from partage.model.mps import (
    SERVER,
    ClientLimits,
    ConnectedClient,
    DaemonPhase,
    DaemonState,
    MpsServer,
    ServerStatus,
    closed_slot,
)
from partage.model.step import EndClient, SetNamespace, StartDaemon, StopDaemon
from partage.plan.offer.mps_shares import too_old_for_namespaces
from partage.sim.node.state import SimulatedDaemon, SimulatedNode, answering_gpu, daemon_pid

_REASONS = {
    DaemonPhase.FAULT: "a fatal fault of a client: no new clients until all have gone",
    DaemonPhase.STARTING: "its server started before the limits were set: its clients may have any memory",
}

_SETS = 10**6
"""A simulated daemon has its limits set fewer times than this: later ones have later times."""


def start_daemon(state: SimulatedNode, step: StartDaemon) -> SimulatedNode:
    """Raises GpuInUse, GpuLost, NotFound, Unsupported (the control program is too old for namespaces)."""
    spec = step.spec
    gpu = answering_gpu(state, spec.gpu)
    if spec.device not in {gpu.uuid, *(device.uuid for device in gpu.mig_devices)}:
        raise NotFound(f"GPU {gpu.index} has no MIG device {spec.device}")
    if spec.limits.apart and (too_old := too_old_for_namespaces(state.driver)):
        raise Unsupported(f"cannot {step}: {too_old}")
    now = state.daemons.get(spec.device)
    if now is not None and now.phase is not DaemonPhase.DEAD:
        if now.spec == spec and now.phase is not DaemonPhase.STARTING:
            again = replace(now, set_ns=now.set_ns + 1)
            return replace(state, daemons={**state.daemons, spec.device: again})
        _refuse_clients(state, spec.device)
    started = SimulatedDaemon(spec, daemon_pid(state.created), set_ns=state.created * _SETS + 1)
    daemons = {**state.daemons, spec.device: started}
    return replace(state, created=state.created + 1, daemons=daemons)


def stop_daemon(state: SimulatedNode, step: StopDaemon) -> SimulatedNode:
    """Raises GpuInUse while it has clients."""
    now = state.daemons.get(step.device)
    if now is None:
        return state
    if now.phase is not DaemonPhase.DEAD:
        _refuse_clients(state, step.device)
    return replace(
        state, daemons={device: daemon for device, daemon in state.daemons.items() if daemon is not now}
    )


def end_client(state: SimulatedNode, step: EndClient) -> SimulatedNode:
    """The node without the client's context. Raises NotFound."""
    if step.client not in {client.pid for client in _clients(state, step.device)}:
        raise NotFound(f"cannot {step}: there is no such client")
    return replace(state, uses=tuple(use for use in state.uses if use.pid != step.client))


def set_namespace(state: SimulatedNode, step: SetNamespace) -> SimulatedNode:
    """Raises NotFound for a daemon that does not serve, and for a namespace that it does not have."""
    daemon, wanted = state.daemons.get(step.device), step.namespace
    if daemon is None or daemon.phase is DaemonPhase.DEAD:
        raise NotFound(f"cannot {step}: it does not run")
    if wanted.name not in daemon.spec.slot_names:
        raise NotFound(f"cannot {step}: it has no such namespace")
    slots = {name: one for name, one in daemon.slots.items() if name != wanted.name}
    if wanted != closed_slot(wanted.name):
        slots[wanted.name] = wanted
    return replace(state, daemons={**state.daemons, step.device: replace(daemon, slots=slots)})


def daemons_of(state: SimulatedNode) -> tuple[DaemonState, ...]:
    """All of them, by device."""
    return tuple(_found(state, daemon) for _, daemon in sorted(state.daemons.items()))


def _found(state: SimulatedNode, daemon: SimulatedDaemon) -> DaemonState:
    spec = daemon.spec
    if daemon.phase is DaemonPhase.DEAD:
        return DaemonState(
            spec.gpu, spec.device, DaemonPhase.DEAD, limits=spec.limits, reason="its MPS daemon has ended"
        )
    faulty = daemon.phase is DaemonPhase.FAULT
    status = ServerStatus.FAULT if faulty else ServerStatus.ACTIVE
    name = SERVER if spec.limits.apart else ""
    server = MpsServer(daemon.pid + 1, 0, status, tuple(_clients(state, spec.device)), name)
    reason = _REASONS.get(daemon.phase, "")
    limits = ClientLimits() if daemon.phase is DaemonPhase.STARTING else spec.limits
    multi_user = spec.multi_user is not False
    known = DaemonState(
        spec.gpu, spec.device, daemon.phase, daemon.pid, (server,), limits, multi_user, reason
    )
    return replace(known, set_ns=daemon.set_ns, open_slots=tuple(sorted(daemon.slots)))


def _clients(state: SimulatedNode, device: DeviceUuid) -> Iterable[ConnectedClient]:
    for use in state.uses:
        process = None if use.pid is None else state.processes.get((use.gpu, use.pid))
        if process is not None and process.mps and device in (use.device, use.gpu) and use.pid is not None:
            yield ConnectedClient(use.pid, command=use.name)


def _refuse_clients(state: SimulatedNode, device: DeviceUuid) -> None:
    if names := tuple(str(client) for client in _clients(state, device)):
        raise GpuInUse(f"the MPS daemon of {device} has {', '.join(names)}", uses=names)
