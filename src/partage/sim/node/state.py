"""Everything about a simulated node, at one moment; what a driver says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from partage.errors import InputError
from partage.model.gpu import (
    Driver,
    Gpu,
    Inventory,
    Link,
    LostGpu,
    NoDriver,
    RecoveryAction,
)
from partage.model.health import GpuCondition
from partage.model.mps import DaemonPhase, DaemonSpec
from partage.model.policy import Interval
from partage.model.step import GpuUse, UseKind
from partage.sim.node.machine import DRIVER, Machine, derived_uuid


@dataclass(frozen=True, slots=True)
class Ward:
    """What the driver would say of one GPU's health, and how often it was reset since the boot."""

    recovery: RecoveryAction | None
    rows_pending: bool = False
    rows_failed: bool = False
    fabric_ok: bool | None = None
    resets: int = 0


@dataclass(frozen=True, slots=True)
class SimulatedTenant:
    """What there is to know of a process on a GPU beside its use. See ``faults.Occupy``."""

    memory_bytes: int | None = None
    cgroup: str = "/"
    mps: bool = False
    start: int = 1
    uid: int = 0


@dataclass(frozen=True, slots=True)
class SimulatedDaemon:
    """An MPS daemon that was started and not stopped: as asked, and what became of it."""

    spec: DaemonSpec
    pid: int
    phase: DaemonPhase = DaemonPhase.SERVING

    @property
    def server(self) -> GpuUse:
        """Its server, which has the GPU or MIG device open."""
        gpu, device = self.spec.gpu, self.spec.device
        part = None if device == gpu else device
        return GpuUse(gpu, UseKind.PROCESS, "nvidia-cuda-mps-server", self.pid + 1, part)


@dataclass(frozen=True, slots=True)
class SimulatedNode:
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
    uses: tuple[GpuUse, ...] = ()
    tenants: Mapping[tuple[str, int], SimulatedTenant] = field(default_factory=dict)
    slices: Mapping[int, Interval | None] = field(default_factory=dict)
    daemons: Mapping[str, SimulatedDaemon] = field(default_factory=dict)
    blind: bool = False
    seats: Mapping[str, int] = field(default_factory=dict)

    @property
    def busy(self) -> tuple[GpuUse, ...]:
        """Everybody who has something open: who was put there, and the servers of MPS daemons."""
        running = (one for one in self.daemons.values() if one.phase is not DaemonPhase.DEAD)
        return (*self.uses, *(one.server for one in running))

    @property
    def boot_id(self) -> str:
        """Changes with every boot; the machine's own at first."""
        return derived_uuid("", "boot", self.first_boot, self.boots) if self.boots else self.first_boot


def switched_on(machine: Machine) -> SimulatedNode:
    """The node as its machine says."""
    inventory = machine.inventory
    driver = inventory.driver
    return SimulatedNode(
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


def observed(state: SimulatedNode) -> Inventory:
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


def conditions_of(state: SimulatedNode) -> tuple[GpuCondition, ...]:
    """The driver's word on every GPU whose UUID is known, by index."""
    rows = {index: _condition(gpu, state.wards[index]) for index, gpu in state.gpus.items()}
    for index, lost in state.lost.items():
        rows.pop(index, None)
        if lost.uuid is not None:
            rows[index] = GpuCondition(lost.uuid, lost=lost.reason)
    return tuple(row for _, row in sorted(rows.items()))


def _condition(gpu: Gpu, ward: Ward) -> GpuCondition:
    return GpuCondition(
        gpu=gpu.uuid,
        recovery=ward.recovery,
        rows_pending=ward.rows_pending,
        rows_failed=ward.rows_failed,
        fabric_ok=ward.fabric_ok,
        resets=ward.resets,
    )


def known_gpu(state: SimulatedNode, index: int) -> Gpu:
    """The GPU of that index, lost or not. Raises InputError."""
    gpu = state.gpus.get(index)
    if gpu is None:
        raise InputError(f"the simulated node has no GPU {index}")
    return gpu


def with_gpu(state: SimulatedNode, gpu: Gpu) -> SimulatedNode:
    """The node with this GPU in place of the one of its index."""
    return replace(state, gpus={**state.gpus, gpu.index: gpu})


def picture(state: SimulatedNode) -> str:
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


def _part(use: GpuUse) -> str:
    return "" if use.whole else f"  gi {use.gi_id}" + ("" if use.ci_id is None else f" ci {use.ci_id}")


def _gpu_line(state: SimulatedNode, index: int, gpu: Gpu) -> str:
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
