"""What was seen of a node, one field for each thing that is looked at. Values only.

A field is None where there is no such thing here (a simulated node has no files, a Slurm node no kubelet),
and Unseen where it could not be looked at. Paths are those of the node, whatever root they were read below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import field

from partage.errors import Problem
from partage.model.gpu import Inventory
from partage.model.health import GpuCondition
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.node_labels import NodeLabels
from partage.model.policy import Policy
from partage.values import Frozen


class Unseen(Frozen):
    """It could not be looked at. why: a clause, ``only root may read it``."""

    why: str


class PciGpu(Frozen):
    """A GPU on the PCI bus. address: ``0000:1a:00.0``. driver: which kernel driver has it; empty: none."""

    address: str
    driver: str


class DriverParts(Frozen):
    """The parts of the NVIDIA driver that are there.

    module: version of the loaded kernel module; empty: it is not loaded. library: path of
    libnvidia-ml.so.1 with links resolved, empty: it is not there; library_version: as its file name says,
    empty: it does not. searched: where the library was looked for.
    """

    module: str = ""
    library: str = ""
    library_version: str = ""
    searched: str = "/"


class DeviceFile(Frozen):
    """A device file that has to be there. major: of the file; wanted_major: as the kernel says; None: not
    known, or no device.
    """

    path: str
    kind: Literal["device", "absent", "other"]
    major: int | None = None
    wanted_major: int | None = None


class RuntimeHandler(Frozen):
    """A way in which the container runtime starts containers. systemd_cgroup: None: its file does not say."""

    name: str
    binary: str
    systemd_cgroup: bool | None = None


class ContainerRuntime(Frozen):
    """The container runtime of the kubelet, as its files configure it.

    name: ``containerd``, ``CRI-O``. file: the first one of its configuration; problem: why it cannot be read.
    default: name of the handler of pods that ask for none. cdi: whether it knows CDI; None: the file does
    not say, and it depends on the release. char_links: the kernel's links in /dev/char to NVIDIA's device
    files are there; None: not known.
    """

    name: str
    file: str
    problem: str = ""
    handlers: tuple[RuntimeHandler, ...] = ()
    default: str = ""
    cdi: bool | None = None
    char_links: bool | None = None

    @property
    def of_nvidia(self) -> RuntimeHandler | None:
        """The handler that runs NVIDIA's runtime, the default one if it does."""
        handlers = [
            handler for handler in self.handlers if "nvidia" in handler.binary or handler.name == "nvidia"
        ]
        return next(
            (handler for handler in handlers if handler.name == self.default),
            handlers[0] if handlers else None,
        )

    @property
    def default_handler(self) -> RuntimeHandler | None:
        """The handler of pods that ask for none."""
        return next((handler for handler in self.handlers if handler.name == self.default), None)


class CdiFile(Frozen):
    """A CDI specification. problem: why it cannot be read. devices: full names, ``nvidia.com/gpu=0``.

    missing: files of the node that it names and that are not there. versions: of the driver, in names of
    libraries. ours: Partage wrote it, and nobody has changed it. order: of its directory; devices of a later
    one override those of an earlier one.
    """

    path: str
    problem: str = ""
    devices: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    ours: bool = False
    order: int = 0


class ClaimFile(Frozen):
    """The CDI file of a ResourceClaim. claim: ``namespace/name``; empty: it does not say it. pods: that run
    with the claim, ``namespace/name``; None: not known.
    """

    path: str
    claim: str = ""
    pods: tuple[str, ...] | None = None


class LimitFile(Frozen):
    """A CDI file of memory limits, a copy of one, or the hook. pods: that may need it, ``namespace/name``;
    None: not known.
    """

    path: str
    pods: tuple[str, ...] | None = None


class Kubelet(Frozen):
    """The kubelet as files and processes show it.

    directory: the device-plugins directory that was looked at; there: it exists. listens: somebody accepts
    connections at its kubelet.sock. running: a kubelet process was seen; None: processes cannot be seen.
    own_directory: the device-plugins directory that its command line says; empty: the usual one.
    pod_resources: the socket of PodResources is there. checkpoint_problem: why its checkpoint cannot be read.
    idle_sockets: sockets of device plugins of GPUs at which nobody listens. other_plugin: a sentence; empty:
    none. kept_sockets: of Partage, which the kubelet keeps until it starts again. cgroup_driver:
    ``systemd``, ``cgroupfs``; empty: not known.
    """

    directory: str
    there: bool = True
    listens: bool = True
    running: bool | None = None
    own_directory: str = ""
    pod_resources: bool = True
    checkpoint_problem: str = ""
    idle_sockets: tuple[str, ...] = ()
    other_plugin: str | Unseen = ""
    kept_sockets: tuple[str, ...] = ()
    cgroup_driver: str = ""


class AgentProcess(Frozen):
    """A process ``partage agent``. command: its command line, without values that could be secret."""

    pid: int
    command: str


class AgentReason(Frozen):
    """What a running agent says of itself, with the codes of /healthz."""

    code: str
    message: str


class Agent(Frozen):
    """Partage's agent on this node.

    processes: those that were seen. locked: a process holds the lock of its run or state directory.
    served: when an agent that served a policy here wrote its state last, a date; empty: none did, as far as
    is known.
    state_file, state_problem: where its state is; why that cannot be used. missing: directories that a
    running agent needs and that are gone. report_problem: why its report cannot be used.
    ahead_s: how far its files are ahead of the clock, in seconds.
    """

    processes: tuple[AgentProcess, ...] = ()
    locked: bool = False
    served: str = ""
    state_file: str = ""
    state_problem: str = ""
    missing: tuple[str, ...] = ()
    report_problem: str = ""
    ahead_s: float = 0.0

    @property
    def runs(self) -> bool:
        """Whether an agent runs."""
        return self.locked or bool(self.processes)


class Disk(Frozen):
    """The file system of a directory. free_files: None where the file system has no limit of them."""

    path: str
    free_bytes: int
    free_files: int | None
    read_only: bool


class Clock(Frozen):
    """synchronised: the kernel knows that the clock is set by another one. error_s: how wrong it may be."""

    synchronised: bool
    error_s: float


class GpuDifference(Frozen):
    """A GPU that is not as the policy wants it. waits: it changes by itself, once something has ended."""

    index: int
    detail: str
    waits: bool = False


class ObservedPolicy(Frozen):
    """The policy of this node. source: its file, or who said it. policy: None: it cannot be read. problems:
    why it is refused, or does not hold on this node.

    sockets: problems with paths of sockets. unlimited: GPUs where it wants limits that the driver cannot set.
    differs: GPUs that are not as it wants them. mps: GPUs with daemons; shares: GPUs are shared at all.
    labels: that the agent would write; empty: not known.
    """

    source: str
    policy: Policy | None = None
    problems: tuple[Problem, ...] = ()
    sockets: tuple[Problem, ...] = ()
    unlimited: tuple[Problem, ...] = ()
    differs: tuple[GpuDifference, ...] | Unseen = ()
    mps: tuple[GpuUuid, ...] = ()
    shares: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


class MpsProcess(Frozen):
    """A control daemon or server of MPS. pipe: its CUDA_MPS_PIPE_DIRECTORY."""

    pid: int
    name: str
    pipe: str


class MpsDirectory(Frozen):
    """A directory of one of Partage's daemons. alive: a process uses it, or a step on it is under way."""

    path: str
    device: DeviceUuid
    alive: bool


class MpsState(Frozen):
    """MPS on this node. below: where Partage's daemons have their directories."""

    below: str
    processes: tuple[MpsProcess, ...] = ()
    directories: tuple[MpsDirectory, ...] = ()


class SlurmState(Frozen):
    """A node that Slurm manages.

    files: that were read. problems: of them. differs: from the GPUs of the node. live: from what slurmctld
    has read; live_unseen: why that is not known. devices_file: Partage's devices.json; strangers: UUIDs in
    it that no device of this node has. unreadable: why records of jobs cannot be read.
    """

    files: tuple[str, ...]
    problems: tuple[Problem, ...] = ()
    differs: tuple[Problem, ...] = ()
    live: tuple[Problem, ...] = ()
    live_unseen: str = ""
    devices_file: str = ""
    strangers: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


class Observation(Frozen, kw_only=True):
    """A node at one moment. See the module for None and Unseen. reasons: what the running agent reports."""

    inventory: Inventory
    pci_gpus: tuple[PciGpu, ...] | Unseen | None = field(default=None, name="cards")
    driver: DriverParts | Unseen | None = None
    device_files: tuple[DeviceFile, ...] | Unseen | None = None
    conditions: tuple[GpuCondition, ...] | Unseen | None = None
    runtime: ContainerRuntime | Unseen | None = None
    cdi: tuple[CdiFile, ...] | Unseen | None = None
    claims: tuple[ClaimFile, ...] | Unseen | None = None
    limits: tuple[LimitFile, ...] | Unseen | None = None
    kubelet: Kubelet | Unseen | None = None
    agent: Agent | Unseen | None = None
    reasons: tuple[AgentReason, ...] | Unseen | None = None
    disks: tuple[Disk, ...] | Unseen | None = None
    clock: Clock | Unseen | None = None
    policy: ObservedPolicy | Unseen | None = None
    mps: MpsState | Unseen | None = None
    slurm: SlurmState | Unseen | None = None
    labels: NodeLabels | Unseen | None = None
