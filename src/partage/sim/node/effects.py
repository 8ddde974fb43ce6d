"""What befalls a simulated node: state in, fault, state out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import assert_never

from partage.edges.files.catalogue import geometry_of, load, why_no_geometry
from partage.errors import InputError
from partage.model.gpu import (
    ComputeMode,
    Driver,
    Gpu,
    LostGpu,
    MigDevice,
    MigMode,
    NoDriver,
    RecoveryAction,
)
from partage.model.layout import DoesNotFit, LayoutItem
from partage.model.mps import DaemonPhase
from partage.model.step import GpuUse
from partage.sim.node.faults import (
    AFTERMATH,
    Ailing,
    Blind,
    DriverGone,
    DriverLoaded,
    FailCall,
    Fault,
    GpuReturns,
    HangCall,
    HealCall,
    LoseGpu,
    MpsTurns,
    Occupy,
    RaiseXid,
    Reboot,
    ResetGpu,
    SetMig,
    Vacate,
)
from partage.sim.node.mig import lay_out
from partage.sim.node.state import SimulatedDaemon, SimulatedNode, SimulatedTenant, Ward, known_gpu, with_gpu


def after(state: SimulatedNode, fault: Fault) -> SimulatedNode:
    """The node after that fault. Raises InputError for a GPU that it lacks, or a change that it refuses."""
    match fault:
        case LoseGpu():
            return _lose(state, fault)
        case GpuReturns(index):
            known_gpu(state, index)
            return replace(state, lost=_without(state.lost, index))
        case Ailing():
            return _ail(state, fault)
        case ResetGpu(index):
            return after_reset(state, known_gpu(state, index))
        case Reboot():
            return _reboot(state)
        case DriverGone(kind, reason):
            daemons = with_daemons(state, None, DaemonPhase.DEAD)
            return replace(state, driver=NoDriver(kind, reason), uses=(), daemons=daemons)
        case DriverLoaded():
            return _load_driver(state, fault)
        case SetMig():
            return _set_mig(state, fault)
        case Occupy() | Vacate() | Blind() | MpsTurns():
            return _peopled(state, fault)
        case RaiseXid(index):
            return _after_xid(state, fault) if index is not None else state
        case FailCall() | HangCall() | HealCall():
            return state
        case _:
            assert_never(fault)


def _load_driver(state: SimulatedNode, fault: DriverLoaded) -> SimulatedNode:
    last = state.last_driver
    driver = Driver(fault.version or last.version, fault.cuda or last.cuda)
    for index in state.gpus:
        state = _forget_settings(state, index)
    return replace(_forget_mig(state), driver=driver, last_driver=driver, uses=())


def _after_xid(state: SimulatedNode, xid: RaiseXid) -> SimulatedNode:
    """What the driver says besides the event."""
    assert xid.gpu is not None
    gpu = known_gpu(state, xid.gpu)
    _known_instance(gpu, xid.gi)
    aftermath = AFTERMATH.get(xid.code)
    return after(state, aftermath(xid.gpu)) if aftermath else state


def _known_instance(gpu: Gpu, gi: int | None) -> None:
    live = {one.gi_id for one in gpu.mig_devices} | {one.gi_id for one in gpu.empty_instances}
    if gi is not None and gi not in live:
        raise InputError(f"GPU {gpu.index} has no GPU instance {gi}")


def _peopled(state: SimulatedNode, fault: Occupy | Vacate | Blind | MpsTurns) -> SimulatedNode:
    """Who is there, and whether that can be seen."""
    if isinstance(fault, MpsTurns):
        gpu = known_gpu(state, fault.gpu)
        return replace(state, daemons=with_daemons(state, gpu.uuid, fault.phase))
    if isinstance(fault, Blind):
        return replace(state, blind=fault.on)
    return replace(state, uses=_uses_after(state, fault), tenants=_tenants_after(state, fault))


def _uses_after(state: SimulatedNode, fault: Occupy | Vacate) -> tuple[GpuUse, ...]:
    gpu = known_gpu(state, fault.gpu)
    if isinstance(fault, Vacate):
        return tuple(use for use in state.uses if use.gpu != gpu.uuid or fault.name not in (None, use.name))
    _known_instance(gpu, fault.gi)
    inside = [one for one in gpu.mig_devices if (one.gi_id, one.ci_id) == (fault.gi, fault.ci)]
    if fault.ci is not None and not inside:
        raise InputError(f"GPU {fault.gpu} has no compute instance {fault.ci} in GPU instance {fault.gi}")
    uuid = inside[0].uuid if inside else None
    return (*state.uses, GpuUse(gpu.uuid, fault.kind, fault.name, fault.pid, uuid, fault.gi, fault.ci))


def _tenants_after(state: SimulatedNode, fault: Occupy | Vacate) -> Mapping[tuple[str, int], SimulatedTenant]:
    """What the fault says of a process is remembered. Whoever comes later was started later."""
    if isinstance(fault, Vacate) or fault.pid is None:
        return state.tenants
    cgroup = "/"
    if fault.container:
        pod = f"/kubepods.slice/kubepods-pod{fault.pod.replace('-', '_')}.slice/cri-containerd-"
        cgroup = f"{pod}{fault.container}.scope" if fault.pod else f"/docker/{fault.container}"
    working = {(use.gpu, use.pid) for use in state.uses}
    starts = {at: tenant.start for at, tenant in state.tenants.items()}
    same = (start for at, start in starts.items() if at in working and at[1] == fault.pid)
    start = next(same, 1 + max(starts.values(), default=0))
    tenant = SimulatedTenant(fault.memory_bytes, cgroup, fault.mps, start)
    return {**state.tenants, (known_gpu(state, fault.gpu).uuid, fault.pid): tenant}


def _without(lost: Mapping[int, LostGpu], index: int) -> dict[int, LostGpu]:
    return {at: row for at, row in lost.items() if at != index}


def _lose(state: SimulatedNode, fault: LoseGpu) -> SimulatedNode:
    gpu = known_gpu(state, fault.gpu)
    uuid, bus = (None, None) if fault.nameless else (gpu.uuid, gpu.pci_bus_id)
    return replace(state, lost={**state.lost, fault.gpu: LostGpu(fault.gpu, uuid, bus, fault.reason)})


def _ail(state: SimulatedNode, fault: Ailing) -> SimulatedNode:
    known_gpu(state, fault.gpu)
    words = {
        "recovery": fault.recovery,
        "rows_pending": fault.rows_pending,
        "rows_failed": fault.rows_failed,
        "fabric_ok": fault.fabric_ok,
    }
    said = {word: value for word, value in words.items() if value is not None}
    return _with_ward(state, fault.gpu, lambda ward: replace(ward, **said))  # type: ignore[arg-type]


def _with_ward(state: SimulatedNode, index: int, change: Callable[[Ward], Ward]) -> SimulatedNode:
    return replace(state, wards={**state.wards, index: change(state.wards[index])})


def after_reset(state: SimulatedNode, gpu: Gpu) -> SimulatedNode:
    """Nothing that was on the GPU survives, no setting either; a MIG mode that was pending is in force."""
    mode = MigMode(gpu.mig_mode.pending, gpu.mig_mode.pending) if gpu.mig_mode else None
    state = with_gpu(state, replace(gpu, mig_mode=mode, mig_devices=(), empty_instances=()))
    state = _with_ward(_forget_settings(state, gpu.index), gpu.index, _well_again)
    uses = tuple(use for use in state.uses if use.gpu != gpu.uuid)
    daemons = with_daemons(state, gpu.uuid, DaemonPhase.DEAD)
    return replace(state, lost=_without(state.lost, gpu.index), uses=uses, daemons=daemons)


def with_daemons(state: SimulatedNode, gpu: str | None, phase: DaemonPhase) -> dict[str, SimulatedDaemon]:
    """The daemons, those of one GPU (None: of all) in that phase."""
    return {
        device: replace(one, phase=phase) if gpu in (None, one.spec.gpu) else one
        for device, one in state.daemons.items()
    }


def _forget_settings(state: SimulatedNode, index: int) -> SimulatedNode:
    """Compute mode and time slice are the driver's, kept nowhere else."""
    slices = {at: interval for at, interval in state.slices.items() if at != index or interval is None}
    gpu = replace(state.gpus[index], compute_mode=ComputeMode.DEFAULT)
    return replace(with_gpu(state, gpu), slices=slices)


def _well_again(ward: Ward) -> Ward:
    """After a reset. Rows whose remapping failed stay failed: the memory is worn out."""
    return Ward(
        recovery=None if ward.recovery is None else RecoveryAction.NONE,
        rows_failed=ward.rows_failed,
        fabric_ok=None if ward.fabric_ok is None else True,
        resets=ward.resets + 1,
    )


def _reboot(state: SimulatedNode) -> SimulatedNode:
    for gpu in state.gpus.values():
        state = after_reset(state, gpu)
    state = _forget_mig(state)
    wards = {index: replace(ward, resets=0) for index, ward in state.wards.items()}
    return replace(state, wards=wards, boots=state.boots + 1, driver=state.last_driver, daemons={})


def _forget_mig(state: SimulatedNode) -> SimulatedNode:
    """No instance survives a reboot or the module's unloading; the mode does on Ampere, kept by the board."""
    return replace(state, gpus={index: _forgetful(gpu) for index, gpu in state.gpus.items()})


def _forgetful(gpu: Gpu) -> Gpu:
    if gpu.mig_mode is None:
        return gpu
    model = load().by_gpu(gpu)
    survives = model.mig_survives_reboot if model else gpu.architecture == "ampere"
    mode = MigMode(gpu.mig_mode.pending, gpu.mig_mode.pending) if survives else MigMode(False, False)
    return replace(gpu, mig_mode=mode, mig_devices=(), empty_instances=())


def _set_mig(state: SimulatedNode, fault: SetMig) -> SimulatedNode:
    """As an administrator would: switch the mode, reset the GPU where its chip asks for it, create anew."""
    gpu = known_gpu(state, fault.gpu)
    if fault.gpu in state.lost:
        raise InputError(f"GPU {fault.gpu} is lost: its MIG layout cannot be changed")
    if gpu.mig_mode is None:
        raise InputError(f"GPU {fault.gpu}, {gpu.product}, has no MIG")
    on = fault.layout is not None
    devices = _created(state, gpu, fault.layout) if fault.layout else ()
    model = load().by_gpu(gpu)
    if gpu.mig_mode.current is not on and model and model.mig_needs_reset:
        state = _with_ward(state, gpu.index, _well_again)
    laid_out = replace(gpu, mig_mode=MigMode(on, on), mig_devices=devices, empty_instances=())
    uses = tuple(use for use in state.uses if use.gpu != gpu.uuid or use.whole)
    return replace(with_gpu(state, laid_out), births=state.births + 1, uses=uses)


def _created(state: SimulatedNode, gpu: Gpu, layout: tuple[LayoutItem, ...]) -> tuple[MigDevice, ...]:
    geometry = geometry_of(gpu)
    if geometry is None:
        raise InputError(f"GPU {gpu.index}: {why_no_geometry(gpu)}")
    try:
        return lay_out(gpu, geometry, layout, f"{state.boots}/{state.births}")
    except DoesNotFit as error:
        raise InputError(f"GPU {gpu.index}: {error}") from error
