"""The state of a simulated node at one moment, as a value, and what every step asks of a GPU of it first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import field
from msgspec.structs import replace

from partage.errors import GpuInUse, GpuLost, InputError, NotFound, Unsupported
from partage.model.driver_limit import LimitBackend, LimitSupport
from partage.model.gpu import Driver, Gpu, Inventory, LostGpu, MigMode, NoDriver
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.health import GpuCondition
from partage.model.ids import DeviceUuid, GpuUuid, MigUuid
from partage.model.mps import SERVER_PROGRAM, DaemonPhase, DaemonSpec, MpsNamespace
from partage.model.strategy import Interval
from partage.sim.node.cgroups import CgroupTree
from partage.sim.node.load import Load, Sensors
from partage.sim.node.machine import DRIVER, Machine, derived_uuid, has_nvswitch
from partage.values import Frozen


class SimulatedProcess(Frozen):
    """What is known of a process on a GPU besides its use of it. See ``faults.Occupy``. since_s: when it
    came.
    """

    memory_bytes: int | None = None
    cgroup: str = "/"
    mps: bool = False
    start: int = 1
    uid: int = 0
    load: Load | None = None
    since_s: float = 0.0


_FIRST_DAEMON_PID = 900_000
"""Above the pids of most nodes: no process of this machine has the pid of a simulated daemon."""


class SimulatedDaemon(Frozen):
    """An MPS daemon that was started and not stopped. spec: what it was asked to be. set_ns: as in
    ``DaemonState``. slots: those that are not closed, by name.
    """

    spec: DaemonSpec
    pid: int
    phase: DaemonPhase = DaemonPhase.SERVING
    set_ns: int = 1
    slots: Mapping[str, MpsNamespace] = field(default_factory=dict)

    @property
    def server(self) -> GpuUse:
        """The process of its server, which has the GPU or the MIG device open."""
        gpu, device = self.spec.gpu, self.spec.device
        part = None if device == gpu else MigUuid(device)
        return GpuUse(gpu, UseKind.PROCESS, SERVER_PROGRAM, self.pid + 1, part)


class SimulatedNode(Frozen):
    """Everything about a simulated node. Mappings are by GPU index where nothing else is said.

    gpus: every GPU, lost ones too: a lost GPU is here as it would answer.
    conditions: what the driver says of each GPU's health. at_power_on: as it was when it was powered on.
    created: how many MIG layouts, MIG devices and daemons were made so far; a part of new UUIDs and pids.
    uses: who was put on GPUs and MIG devices. processes: details of some of them, by GPU UUID and pid.
    time_slices: time slices that are not the default; None: the GPU has no time slice to set.
    daemons: MPS daemons, by the UUID of their GPU or MIG device.
    processes_hidden: the driver lists no process, as in a pid namespace that is not the node's.
    without_files: GPUs whose MIG devices have no capability device files.
    sensors: of GPUs whose sensors were set. now_s: seconds since the first call, where a load is
    asked for or begins; 0 in a state that is kept.
    limits, cgroups: whether the driver limits the memory of containers (None: the machine does not say), and
            which limits they have.
    compute_starts: first compute slice, within its GPU instance, of MIG devices by UUID; those that are
            missing here follow each other in the order of their ids.
    """

    driver: Driver | NoDriver
    last_driver: Driver
    gpus: Mapping[int, Gpu]
    conditions: Mapping[int, GpuCondition]
    lost: Mapping[int, LostGpu]
    at_power_on: Inventory
    boots: int = 0
    created: int = 0
    uses: tuple[GpuUse, ...] = ()
    processes: Mapping[tuple[GpuUuid, int], SimulatedProcess] = field(default_factory=dict)
    time_slices: Mapping[int, Interval | None] = field(default_factory=dict)
    daemons: Mapping[DeviceUuid, SimulatedDaemon] = field(default_factory=dict)
    processes_hidden: bool = False
    without_files: frozenset[int] = frozenset()
    compute_starts: Mapping[MigUuid, int] = field(default_factory=dict)
    sensors: Mapping[int, Sensors] = field(default_factory=dict)
    now_s: float = 0.0
    limits: LimitSupport | None = None
    cgroups: CgroupTree = CgroupTree()

    @property
    def all_uses(self) -> tuple[GpuUse, ...]:
        """Who has something open: ``uses``, and the servers of MPS daemons that run."""
        running = (daemon for daemon in self.daemons.values() if daemon.phase is not DaemonPhase.DEAD)
        return (*self.uses, *(daemon.server for daemon in running))

    def holders(self, gpu: str) -> list[GpuUse]:
        """Who has this GPU or a part of it open and does not give way to a change of it."""
        return [use for use in self.all_uses if use.gpu == gpu and not use.gives_way]

    @property
    def boot_id(self) -> str:
        """The machine's own at first; another one after each reboot."""
        first = self.at_power_on.boot_id
        return derived_uuid("", "boot", first, self.boots) if self.boots else first


def power_on(machine: Machine) -> SimulatedNode:
    """The node when its machine has just been powered on."""
    inventory = machine.inventory
    driver = inventory.driver
    return SimulatedNode(
        driver=driver,
        last_driver=driver if isinstance(driver, Driver) else DRIVER,
        gpus={gpu.index: gpu for gpu in inventory.gpus},
        conditions={
            gpu.index: GpuCondition(
                gpu.uuid, recovery=gpu.recovery, fabric_ok=_fabric_ok(gpu, inventory), resets=0
            )
            for gpu in inventory.gpus
        },
        lost={lost.index: lost for lost in inventory.lost},
        at_power_on=inventory,
        time_slices=machine.time_slices,
        limits=machine.limits,
        cgroups=CgroupTree(machine.limits.backend if machine.limits else LimitBackend.OFF),
        created=len(machine.daemons),
        daemons={
            spec.device: SimulatedDaemon(spec, daemon_pid(number))
            for number, spec in enumerate(machine.daemons)
        },
    )


def daemon_pid(number: int) -> int:
    """The pid of a daemon. number: how many layouts, MIG devices and daemons were made before."""
    return _FIRST_DAEMON_PID + 10 * number


def _fabric_ok(gpu: Gpu, inventory: Inventory) -> bool | None:
    """Hopper and later join the fabric of their NVSwitches by themselves, if the fabric manager runs."""
    same = [other for other in inventory if other.product == gpu.product]
    joins = gpu.architecture != "ampere" and has_nvswitch(same)
    return inventory.fabric_manager if joins else None


def gpu_at(state: SimulatedNode, index: int) -> Gpu:
    """The GPU of that index, lost or not. Raises InputError."""
    gpu = state.gpus.get(index)
    if gpu is None:
        raise InputError(f"the simulated node has no GPU {index}")
    return gpu


def with_gpu(state: SimulatedNode, gpu: Gpu) -> SimulatedNode:
    """The node with this GPU in place of the one of its index."""
    return replace(state, gpus={**state.gpus, gpu.index: gpu})


def answering_gpu(state: SimulatedNode, uuid: GpuUuid) -> Gpu:
    """The GPU of that UUID. Raises GpuLost, NotFound."""
    for index, lost in state.lost.items():
        if uuid == lost.uuid or (index in state.gpus and uuid == state.gpus[index].uuid):
            raise GpuLost(f"GPU {index}: {lost.reason}")
    found = next((gpu for gpu in state.gpus.values() if gpu.uuid == uuid), None)
    if found is None:
        raise NotFound(f"this node has no GPU {uuid}")
    return found


def gpu_in_mig_mode(state: SimulatedNode, uuid: GpuUuid, *, may_leave: bool = False) -> Gpu:
    """The GPU of that UUID, if it is in MIG mode. may_leave: also while the mode is to end at the next reset.

    Raises GpuLost, NotFound, Unsupported.
    """
    gpu = answering_gpu(state, uuid)
    if not gpu.mig_enabled:
        raise Unsupported(f"GPU {gpu.index} is not in MIG mode")
    if not may_leave and gpu.mig_mode != MigMode(current=True, pending=True):
        raise Unsupported(f"GPU {gpu.index} leaves MIG mode at its next reset")
    return gpu


def in_use_error(message: str, uses: Iterable[GpuUse]) -> GpuInUse:
    """The error that names who uses it."""
    names = tuple(str(use) for use in uses)
    return GpuInUse(f"{message}: {', '.join(names)}", uses=names)
