"""The status of pods as the embedded kubelet knows them, in the words of Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import field
from msgspec.structs import replace

from partage.model.allocation import DeviceNode, Mount
from partage.model.ids import PodUid, ShareId
from partage.model.pod import Pod
from partage.values import Frozen


class PodPhase(StrEnum):
    """The phase of a pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ContainerState(StrEnum):
    """The state of a container."""

    WAITING = "Waiting"
    RUNNING = "Running"
    TERMINATED = "Terminated"


class ContainerStatus(Frozen):
    """One container: what it holds, and what the plugins of all its resources answered.

    ids:     resource name to the devices held.
    reason:  one word why it waits or has ended; message: the same as a sentence; both may be empty.
    """

    name: str
    state: ContainerState = ContainerState.WAITING
    reason: str = ""
    message: str = ""
    restarts: int = 0
    ids: Mapping[str, tuple[ShareId, ...]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()


class PodStatus(Frozen):
    """The status of a pod.

    containers: in the pod's order, init containers first; empty where the pod was refused.
    uid:        empty where it was never admitted.
    """

    pod: Pod
    phase: PodPhase
    reason: str = ""
    message: str = ""
    containers: tuple[ContainerStatus, ...] = ()
    uid: PodUid = PodUid("")

    @property
    def holds(self) -> bool:
        """Whether it holds its devices: pods that ended or were refused hold nothing."""
        return self.phase in (PodPhase.PENDING, PodPhase.RUNNING) and bool(self.containers)

    def container(self, name: str) -> ContainerStatus:
        """Raises KeyError."""
        for status in self.containers:
            if status.name == name:
                return status
        raise KeyError(f"pod {self.pod.key} has no container {name!r}")

    def with_container(self, changed: ContainerStatus) -> PodStatus:
        """The same with one container's status replaced."""
        containers = (changed if one.name == changed.name else one for one in self.containers)
        return replace(self, containers=tuple(containers))

    @property
    def waiting(self) -> tuple[ContainerStatus, ...]:
        """The containers that have not started, in the pod's order."""
        return tuple(one for one in self.containers if one.state is ContainerState.WAITING)
