"""The state of a simulated node, and what each fault makes of it. State in, fault, state out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from partage.edges.files.catalogue import geometry_of, load, why_no_geometry
from partage.errors import InputError
from partage.model.gpu import (
    ComputeMode,
    Driver,
    Gpu,
    Inventory,
    Link,
    LostGpu,
    MigDevice,
    MigMode,
    NoDriver,
    RecoveryAction,
)
from partage.model.health import Condition
from partage.model.layout import DoesNotFit, LayoutItem
from partage.model.mps import DaemonSpec, Phase
from partage.model.policy import Interval
from partage.model.step import Use, UseKind
from partage.sim.faults import (
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
from partage.sim.machine import DRIVER, Machine, derived_uuid
from partage.sim.mig import lay_out


@dataclass(frozen=True, slots=True)
class Ward:
    """What the driver would say of one GPU's health, and how often it was reset since the boot."""

    recovery: RecoveryAction | None
    rows_pending: bool = False
    rows_failed: bool = False
    fabric_ok: bool | None = None
    resets: int = 0


@dataclass(frozen=True, slots=True)
class Tenant:
    """What there is to know of a process on a GPU beside its use. See ``faults.Occupy``."""

    memory_bytes: int | None = None
    cgroup: str = "/"
    mps: bool = False
    start: int = 1
    uid: int = 0


@dataclass(frozen=True, slots=True)
class Daemon:
    """An MPS daemon that was started and not stopped: as asked, and what became of it."""

    spec: DaemonSpec
    pid: int
    phase: Phase = Phase.SERVING

    @property
    def server(self) -> Use:
        """Its server, which has the GPU or MIG device open."""
        gpu, device = self.spec.gpu, self.spec.device
        part = None if device == gpu else device
        return Use(gpu, UseKind.PROCESS, "nvidia-cuda-mps-server", self.pid + 1, part)


@dataclass(frozen=True, slots=True)
class NodeState:
    """Everything about a simulated node.

    gpus:  every GPU as it answers, or would if it were not in ``lost``; by index, as all mappings here.
    births: MIG layouts and MIG devices made so far; it goes into the UUIDs of new MIG devices.
    uses:   who has GPUs and MIG devices open. tenants: more of some of them, by GPU UUID and pid.
    slices: time slices that are not default; None: that GPU keeps its own.
    daemons: MPS daemons, by the UUID of their GPU or MIG device.
    blind:  the node's processes cannot be seen.
    seats:  first compute slice, within its GPU instance, of MIG devices by UUID; of those without an entry
            the compute slices follow each other in the order of their ids.
    """

    driver: Driver | NoDriver
    last_driver: Driver
    gpus: Mapping[int, Gpu]
    wards: Mapping[int, Ward]
    lost: Mapping[int, LostGpu]
    links: tuple[Link, ...]
    control_nodes: tuple[str, ...]
    first_boot: str
    open_to_env: bool | None
    fabric_manager: bool | None = None
    virtual: bool | None = None
    boots: int = 0
    births: int = 0
    uses: tuple[Use, ...] = ()
    tenants: Mapping[tuple[str, int], Tenant] = field(default_factory=dict)
    slices: Mapping[int, Interval | None] = field(default_factory=dict)
    daemons: Mapping[str, Daemon] = field(default_factory=dict)
    blind: bool = False
    seats: Mapping[str, int] = field(default_factory=dict)

    @property
    def busy(self) -> tuple[Use, ...]:
        """Everybody who has something open: who was put there, and the servers of MPS daemons."""
        running = (one for one in self.daemons.values() if one.phase is not Phase.DEAD)
        return (*self.uses, *(one.server for one in running))

    @property
    def boot_id(self) -> str:
        """Changes with every boot; the machine's own at first."""
        return derived_uuid("", "boot", self.first_boot, self.boots) if self.boots else self.first_boot


def switched_on(machine: Machine) -> NodeState:
    """The node as its machine says."""
    inventory = machine.inventory
    driver = inventory.driver
    return NodeState(
        driver=driver,
        last_driver=driver if isinstance(driver, Driver) else DRIVER,
        gpus={gpu.index: gpu for gpu in inventory.gpus},
        wards={gpu.index: Ward(gpu.recovery) for gpu in inventory.gpus},
        lost={lost.index: lost for lost in inventory.lost},
        links=inventory.links,
        control_nodes=inventory.control_nodes,
        first_boot=inventory.boot_id,
        open_to_env=inventory.open_to_env,
        fabric_manager=inventory.fabric_manager,
        virtual=inventory.virtual,
        slices=machine.slices,
    )


def observed(state: NodeState) -> Inventory:
    """What an observer of the node sees."""
    if isinstance(state.driver, NoDriver):
        return Inventory(
            driver=state.driver,
            boot_id=state.boot_id,
            open_to_env=state.open_to_env,
            virtual=state.virtual,
            simulated=True,
        )
    gpus = tuple(
        replace(gpu, recovery=state.wards[index].recovery)
        for index, gpu in sorted(state.gpus.items())
        if index not in state.lost
    )
    answering = {gpu.uuid for gpu in gpus}
    return Inventory(
        driver=state.driver,
        gpus=gpus,
        lost=tuple(lost for _, lost in sorted(state.lost.items())),
        links=tuple(link for link in state.links if link.a in answering and link.b in answering),
        control_nodes=state.control_nodes,
        boot_id=state.boot_id,
        open_to_env=state.open_to_env,
        fabric_manager=state.fabric_manager,
        virtual=state.virtual,
        simulated=True,
    )


def conditions_of(state: NodeState) -> tuple[Condition, ...]:
    """The driver's word on every GPU whose UUID is known, by index."""
    rows = {index: _condition(gpu, state.wards[index]) for index, gpu in state.gpus.items()}
    for index, lost in state.lost.items():
        rows.pop(index, None)
        if lost.uuid is not None:
            rows[index] = Condition(lost.uuid, lost=lost.reason)
    return tuple(row for _, row in sorted(rows.items()))


def _condition(gpu: Gpu, ward: Ward) -> Condition:
    return Condition(
        gpu=gpu.uuid,
        recovery=ward.recovery,
        rows_pending=ward.rows_pending,
        rows_failed=ward.rows_failed,
        fabric_ok=ward.fabric_ok,
        resets=ward.resets,
    )


def after(state: NodeState, fault: Fault) -> NodeState:
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
            daemons = with_daemons(state, None, Phase.DEAD)
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


def _load_driver(state: NodeState, fault: DriverLoaded) -> NodeState:
    last = state.last_driver
    driver = Driver(fault.version or last.version, fault.cuda or last.cuda)
    for index in state.gpus:
        state = _forget_settings(state, index)
    return replace(_forget_mig(state), driver=driver, last_driver=driver, uses=())


def known_gpu(state: NodeState, index: int) -> Gpu:
    """The GPU of that index, lost or not. Raises InputError."""
    gpu = state.gpus.get(index)
    if gpu is None:
        raise InputError(f"the simulated node has no GPU {index}")
    return gpu


def _after_xid(state: NodeState, xid: RaiseXid) -> NodeState:
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


def _peopled(state: NodeState, fault: Occupy | Vacate | Blind | MpsTurns) -> NodeState:
    """Who is there, and whether that can be seen."""
    if isinstance(fault, MpsTurns):
        gpu = known_gpu(state, fault.gpu)
        return replace(state, daemons=with_daemons(state, gpu.uuid, fault.phase))
    if isinstance(fault, Blind):
        return replace(state, blind=fault.on)
    return replace(state, uses=_uses_after(state, fault), tenants=_tenants_after(state, fault))


def _uses_after(state: NodeState, fault: Occupy | Vacate) -> tuple[Use, ...]:
    gpu = known_gpu(state, fault.gpu)
    if isinstance(fault, Vacate):
        return tuple(use for use in state.uses if use.gpu != gpu.uuid or fault.name not in (None, use.name))
    _known_instance(gpu, fault.gi)
    inside = [one for one in gpu.mig_devices if (one.gi_id, one.ci_id) == (fault.gi, fault.ci)]
    if fault.ci is not None and not inside:
        raise InputError(f"GPU {fault.gpu} has no compute instance {fault.ci} in GPU instance {fault.gi}")
    uuid = inside[0].uuid if inside else None
    return (*state.uses, Use(gpu.uuid, fault.kind, fault.name, fault.pid, uuid, fault.gi, fault.ci))


def _tenants_after(state: NodeState, fault: Occupy | Vacate) -> Mapping[tuple[str, int], Tenant]:
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
    tenant = Tenant(fault.memory_bytes, cgroup, fault.mps, start)
    return {**state.tenants, (known_gpu(state, fault.gpu).uuid, fault.pid): tenant}


def _without(lost: Mapping[int, LostGpu], index: int) -> dict[int, LostGpu]:
    return {at: row for at, row in lost.items() if at != index}


def _lose(state: NodeState, fault: LoseGpu) -> NodeState:
    gpu = known_gpu(state, fault.gpu)
    uuid, bus = (None, None) if fault.nameless else (gpu.uuid, gpu.pci_bus_id)
    return replace(state, lost={**state.lost, fault.gpu: LostGpu(fault.gpu, uuid, bus, fault.reason)})


def _ail(state: NodeState, fault: Ailing) -> NodeState:
    known_gpu(state, fault.gpu)
    words = {
        "recovery": fault.recovery,
        "rows_pending": fault.rows_pending,
        "rows_failed": fault.rows_failed,
        "fabric_ok": fault.fabric_ok,
    }
    said = {word: value for word, value in words.items() if value is not None}
    return _with_ward(state, fault.gpu, lambda ward: replace(ward, **said))  # type: ignore[arg-type]


def _with_ward(state: NodeState, index: int, change: Callable[[Ward], Ward]) -> NodeState:
    return replace(state, wards={**state.wards, index: change(state.wards[index])})


def with_gpu(state: NodeState, gpu: Gpu) -> NodeState:
    """The node with this GPU in place of the one of its index."""
    return replace(state, gpus={**state.gpus, gpu.index: gpu})


def after_reset(state: NodeState, gpu: Gpu) -> NodeState:
    """Nothing that was on the GPU survives, no setting either; a MIG mode that was pending is in force."""
    mode = MigMode(gpu.mig_mode.pending, gpu.mig_mode.pending) if gpu.mig_mode else None
    state = with_gpu(state, replace(gpu, mig_mode=mode, mig_devices=(), empty_instances=()))
    state = _with_ward(_forget_settings(state, gpu.index), gpu.index, _well_again)
    uses = tuple(use for use in state.uses if use.gpu != gpu.uuid)
    daemons = with_daemons(state, gpu.uuid, Phase.DEAD)
    return replace(state, lost=_without(state.lost, gpu.index), uses=uses, daemons=daemons)


def with_daemons(state: NodeState, gpu: str | None, phase: Phase) -> dict[str, Daemon]:
    """The daemons, those of one GPU (None: of all) in that phase."""
    return {
        device: replace(one, phase=phase) if gpu in (None, one.spec.gpu) else one
        for device, one in state.daemons.items()
    }


def _forget_settings(state: NodeState, index: int) -> NodeState:
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


def _reboot(state: NodeState) -> NodeState:
    for gpu in state.gpus.values():
        state = after_reset(state, gpu)
    state = _forget_mig(state)
    wards = {index: replace(ward, resets=0) for index, ward in state.wards.items()}
    return replace(state, wards=wards, boots=state.boots + 1, driver=state.last_driver, daemons={})


def _forget_mig(state: NodeState) -> NodeState:
    """No instance survives a reboot or the module's unloading; the mode does on Ampere, kept by the board."""
    return replace(state, gpus={index: _forgetful(gpu) for index, gpu in state.gpus.items()})


def _forgetful(gpu: Gpu) -> Gpu:
    if gpu.mig_mode is None:
        return gpu
    model = load().by_gpu(gpu)
    survives = model.mig_survives_reboot if model else gpu.architecture == "ampere"
    mode = MigMode(gpu.mig_mode.pending, gpu.mig_mode.pending) if survives else MigMode(False, False)
    return replace(gpu, mig_mode=mode, mig_devices=(), empty_instances=())


def _set_mig(state: NodeState, fault: SetMig) -> NodeState:
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


def _created(state: NodeState, gpu: Gpu, layout: tuple[LayoutItem, ...]) -> tuple[MigDevice, ...]:
    geometry = geometry_of(gpu)
    if geometry is None:
        raise InputError(f"GPU {gpu.index}: {why_no_geometry(gpu)}")
    try:
        return lay_out(gpu, geometry, layout, f"{state.boots}/{state.births}")
    except DoesNotFit as error:
        raise InputError(f"GPU {gpu.index}: {error}") from error


def picture(state: NodeState) -> str:
    """The state as text, one line per thing."""
    driver = state.driver
    head = (
        f"driver {driver.version} cuda {driver.cuda}"
        if isinstance(driver, Driver)
        else f"no driver: {driver.reason}"
    )
    lines = [f"boot {state.boots}, {head}"]
    for index, gpu in sorted(state.gpus.items()):
        lines.append(_gpu_line(state, index, gpu))
        lines += [
            f"  mig {mig.index}  {mig.profile} {mig.placement}  gi {mig.gi_id} ci {mig.ci_id}  {mig.uuid}"
            for mig in gpu.mig_devices
        ]
        lines += [f"  empty  {one.profile} {one.placement}  gi {one.gi_id}" for one in gpu.empty_instances]
        lines += [f"  used by {use}{_part(use)}" for use in state.uses if use.gpu == gpu.uuid]
        daemons = (one for one in state.daemons.values() if one.spec.gpu == gpu.uuid)
        lines += [f"  mps daemon of {one.spec.device}: {one.phase}" for one in daemons]
    return "\n".join(lines)


def _part(use: Use) -> str:
    return "" if use.whole else f"  gi {use.gi_id}" + ("" if use.ci_id is None else f" ci {use.ci_id}")


def _gpu_line(state: NodeState, index: int, gpu: Gpu) -> str:
    ward, lost = state.wards[index], state.lost.get(index)
    words = [f"gpu {index}  {gpu.product}  {gpu.uuid}"]
    if lost:
        words.append(f"lost: {lost.reason}")
    if gpu.mig_mode and (gpu.mig_mode.current or gpu.mig_mode.pending):
        words.append("mig on" if gpu.mig_mode.current else "mig pending")
    if ward.recovery:
        words.append(f"needs {ward.recovery.name.lower().replace('_', ' ')}")
    words += [word.replace("_", " ") for word in ("rows_pending", "rows_failed") if getattr(ward, word)]
    if ward.fabric_ok is False:
        words.append("fabric broken")
    if ward.resets:
        words.append(f"resets {ward.resets}")
    return "  ".join(words)
