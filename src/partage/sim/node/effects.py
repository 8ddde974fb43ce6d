"""What a fault changes on a simulated node: state and fault in, state out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of, why_no_geometry
from partage.errors import InputError
from partage.model.gpu import Driver, Gpu, LostGpu, MigDevice, MigMode, NoDriver
from partage.model.gpu_use import GpuUse
from partage.model.ids import GpuUuid
from partage.model.layout import DoesNotFit, LayoutItem
from partage.model.mps import DaemonPhase
from partage.sim.node.faults import (
    XID_CONSEQUENCES,
    DriverGone,
    DriverLoaded,
    FailCall,
    Fault,
    GpuReturns,
    HangCall,
    HealCall,
    HideProcesses,
    LastClientLeaves,
    LoseCapabilityFiles,
    LoseGpu,
    LoseLimits,
    Occupy,
    RaiseXid,
    Reboot,
    ResetGpu,
    SetCondition,
    SetDaemonPhase,
    SetMig,
    SetSensors,
    Vacate,
)
from partage.sim.node.limits import with_container
from partage.sim.node.mig import create_layout
from partage.sim.node.processes import without_empty_cgroups
from partage.sim.node.resets import (
    daemons_in_phase,
    load_driver,
    mode_change_needs_reset,
    reboot,
    reset_condition,
    reset_gpu,
    without_clients,
    without_lost,
)
from partage.sim.node.state import SimulatedNode, SimulatedProcess, gpu_at, with_gpu


def apply_fault(state: SimulatedNode, fault: Fault) -> SimulatedNode:
    """The node after that fault. Raises InputError for an unknown GPU or an impossible change."""
    match fault:
        case LoseGpu():
            return _lose_gpu(state, fault)
        case GpuReturns(index):
            gpu_at(state, index)
            return replace(state, lost=without_lost(state.lost, index))
        case SetCondition() | SetSensors():
            return _set_values(state, fault)
        case ResetGpu(index):
            return reset_gpu(state, gpu_at(state, index))
        case Reboot():
            return reboot(state)
        case DriverGone(kind, reason):
            daemons = daemons_in_phase(state, None, DaemonPhase.DEAD)
            return replace(state, driver=NoDriver(kind, reason), uses=(), daemons=daemons)
        case DriverLoaded(version, cuda):
            last = state.last_driver
            return load_driver(state, Driver(version or last.version, cuda or last.cuda))
        case SetMig() | LoseCapabilityFiles():
            return _change_mig(state, fault)
        case LoseLimits() | Occupy() | Vacate() | HideProcesses() | SetDaemonPhase() | LastClientLeaves():
            return _change_processes(state, fault)
        case RaiseXid(index):
            return _after_xid(state, fault) if index is not None else state
        case FailCall() | HangCall() | HealCall():
            return state
        case _:
            assert_never(fault)


# --- health --------------------------------------------------------------------------------------


def _lose_gpu(state: SimulatedNode, fault: LoseGpu) -> SimulatedNode:
    gpu = gpu_at(state, fault.gpu)
    uuid, bus = (None, None) if fault.nameless else (gpu.uuid, gpu.pci_bus_id)
    return replace(state, lost={**state.lost, fault.gpu: LostGpu(fault.gpu, uuid, bus, fault.reason)})


def _set_condition(state: SimulatedNode, fault: SetCondition) -> SimulatedNode:
    gpu_at(state, fault.gpu)
    before = state.conditions[fault.gpu]
    after = replace(
        before,
        recovery=before.recovery if fault.recovery is None else fault.recovery,
        rows_pending=before.rows_pending if fault.rows_pending is None else fault.rows_pending,
        rows_failed=before.rows_failed if fault.rows_failed is None else fault.rows_failed,
        fabric_ok=before.fabric_ok if fault.fabric_ok is None else fault.fabric_ok,
    )
    return replace(state, conditions={**state.conditions, fault.gpu: after})


def _set_values(state: SimulatedNode, fault: SetCondition | SetSensors) -> SimulatedNode:
    if isinstance(fault, SetCondition):
        return _set_condition(state, fault)
    gpu_at(state, fault.gpu)
    return replace(state, sensors={**state.sensors, fault.gpu: fault.sensors})


def _after_xid(state: SimulatedNode, xid: RaiseXid) -> SimulatedNode:
    """The node with what an XID brings besides its event."""
    assert xid.gpu is not None
    gpu = gpu_at(state, xid.gpu)
    if xid.gi or gpu.mig_enabled:  # without MIG mode, drivers may name instance 0 for the whole GPU
        _require_instance(gpu, xid.gi)
    consequence = XID_CONSEQUENCES.get(xid.code)
    return apply_fault(state, consequence(xid.gpu)) if consequence else state


def _require_instance(gpu: Gpu, gi: int | None) -> None:
    live = {device.gi_id for device in gpu.mig_devices} | {instance.gi_id for instance in gpu.empty_instances}
    if gi is not None and gi not in live:
        raise InputError(f"GPU {gpu.index} has no GPU instance {gi}")


# --- processes -----------------------------------------------------------------------------------


def _change_processes(
    state: SimulatedNode,
    fault: LoseLimits | Occupy | Vacate | HideProcesses | SetDaemonPhase | LastClientLeaves,
) -> SimulatedNode:
    """Processes come and go, are hidden or seen; daemons change their phase."""
    match fault:
        case SetDaemonPhase(index, phase):
            return replace(state, daemons=daemons_in_phase(state, gpu_at(state, index).uuid, phase))
        case LastClientLeaves(index):
            return without_clients(state, gpu_at(state, index))
        case HideProcesses(on):
            return replace(state, processes_hidden=on)
        case Occupy():
            uses = (*state.uses, _new_use(state, fault))
            state = replace(state, uses=uses, processes=_with_process(state, fault))
            gpu = gpu_at(state, fault.gpu).uuid
            return with_container(state, gpu, _cgroup(fault), fault.limit_bytes)
        case Vacate(index, name):
            gpu = gpu_at(state, index).uuid
            rest = tuple(use for use in state.uses if use.gpu != gpu or name not in (None, use.name))
            return without_empty_cgroups(replace(state, uses=rest))
        case LoseLimits(index):
            return replace(state, cgroups=state.cgroups.without_limits(gpu_at(state, index).uuid))


def _new_use(state: SimulatedNode, fault: Occupy) -> GpuUse:
    gpu = gpu_at(state, fault.gpu)
    _require_instance(gpu, fault.gi)
    inside = [device for device in gpu.mig_devices if (device.gi_id, device.ci_id) == (fault.gi, fault.ci)]
    if fault.ci is not None and not inside:
        raise InputError(f"GPU {fault.gpu} has no compute instance {fault.ci} in GPU instance {fault.gi}")
    uuid = inside[0].uuid if inside else None
    return GpuUse(gpu.uuid, fault.kind, fault.name, fault.pid, uuid, fault.gi, fault.ci)


def _with_process(state: SimulatedNode, fault: Occupy) -> Mapping[tuple[GpuUuid, int], SimulatedProcess]:
    """The details of processes, with those of the fault. A process that comes later has a later start."""
    if fault.pid is None:
        return state.processes
    working = {(use.gpu, use.pid) for use in state.uses}
    starts = {at: process.start for at, process in state.processes.items()}
    same = (start for at, start in starts.items() if at in working and at[1] == fault.pid)
    start = next(same, 1 + max(starts.values(), default=0))
    process = SimulatedProcess(
        fault.memory_bytes, _cgroup(fault), fault.mps, start, load=fault.load, since_s=state.now_s
    )
    return {**state.processes, (gpu_at(state, fault.gpu).uuid, fault.pid): process}


def _cgroup(fault: Occupy) -> str:
    """The cgroup path of a process, as Slurm, containerd or Docker names it."""
    if fault.job:
        name = f"job_{fault.job}" if fault.job.isdecimal() else fault.job
        return f"/system.slice/slurmstepd.scope/{name}/step_batch/user/task_0"
    if not fault.container:
        return "/"
    if not fault.pod:
        return f"/docker/{fault.container}"
    pod = f"/kubepods.slice/kubepods-pod{fault.pod.replace('-', '_')}.slice"
    return f"{pod}/cri-containerd-{fault.container}.scope"


# --- MIG -----------------------------------------------------------------------------------------


def _change_mig(state: SimulatedNode, fault: SetMig | LoseCapabilityFiles) -> SimulatedNode:
    if isinstance(fault, SetMig):
        return _set_mig(state, fault)
    others = state.without_files - {gpu_at(state, fault.gpu).index}
    return replace(state, without_files=others | {fault.gpu} if fault.missing else others)


def _set_mig(state: SimulatedNode, fault: SetMig) -> SimulatedNode:
    """As an administrator does it: set the mode, reset the GPU where it needs that, create the layout."""
    gpu = gpu_at(state, fault.gpu)
    if fault.gpu in state.lost:
        raise InputError(f"GPU {fault.gpu} is lost: its MIG layout cannot be changed")
    if gpu.mig_mode is None:
        raise InputError(f"GPU {fault.gpu}, {gpu.product}, has no MIG")
    on = fault.layout is not None
    devices = _create_devices(state, gpu, fault.layout) if fault.layout else ()
    if gpu.mig_mode.current is not on and mode_change_needs_reset(gpu):
        state = reset_condition(state, gpu.index)
    changed = replace(gpu, mig_mode=MigMode(on, on), mig_devices=devices, empty_instances=())
    uses = tuple(use for use in state.uses if use.gpu != gpu.uuid or use.whole)
    return replace(with_gpu(state, changed), created=state.created + 1, uses=uses)


def _create_devices(state: SimulatedNode, gpu: Gpu, layout: tuple[LayoutItem, ...]) -> tuple[MigDevice, ...]:
    geometry = geometry_of(gpu)
    if geometry is None:
        raise InputError(f"GPU {gpu.index}: {why_no_geometry(gpu)}")
    try:
        return create_layout(gpu, geometry, layout, f"{state.boots}/{state.created}")
    except DoesNotFit as error:
        raise InputError(f"GPU {gpu.index}: {error}") from error
