"""The ports between the servers for the kubelet and their users, without gRPC: of the device plugin, and of
the DRA driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from partage.edges.kubelet.checkpoint import CheckpointIdentity
from partage.edges.kubelet.other_plugins import OtherPlugin
from partage.model.claim import ClaimRef, DeviceCondition, PreparedDevice
from partage.model.ids import ResourceName, ShareId
from partage.model.share import CheckpointHolds, ContainerAllocation, ContainerHold, DeviceRow
from partage.values import Frozen


class DeviceList(Frozen):
    """The full device list for the kubelet. version increases with every change of rows."""

    version: int
    rows: tuple[DeviceRow, ...]


class EndpointState(Frozen):
    """State of one resource with the kubelet, for health and metrics. Times are of the endpoint's clock.

    serving:       the plugin's socket exists and answers.
    registered:    the current kubelet has accepted the resource.
    watching:      number of ListAndWatch streams that the kubelet has open.
    unwatched_since: since when it is registered and no stream is open; None: one is open, or not registered.
    since:         when serving or registered last changed.
    attempts:      registrations tried; registrations: those accepted, since the start.
    last_error:    why serving or registering failed last; empty after a success.
    other:         another process that offers the same, for which this one keeps back.
    kept:          names of earlier sockets that the kubelet keeps until it starts again.
    """

    resource: ResourceName
    serving: bool = False
    registered: bool = False
    watching: int = 0
    unwatched_since: float | None = None
    since: float = 0.0
    attempts: int = 0
    registrations: int = 0
    last_error: str = ""
    other: OtherPlugin | None = None
    kept: tuple[str, ...] = ()


class PluginHandler(Protocol):
    """Answers for one resource. All methods except ``changed`` and ``pre_start`` are look-ups that do not
    wait, because they run during the admission of a pod; ``allocate`` does for a moment in one rare case.
    """

    @property
    def resource(self) -> ResourceName:
        """The resource name that is registered."""
        ...

    @property
    def pre_start_required(self) -> bool:
        """Whether the kubelet should call PreStartContainer before each start."""
        ...

    def registering(self) -> None:
        """A kubelet that may be a new one is about to be told of the resource, and will ask for the list."""
        ...

    def devices(self) -> DeviceList:
        """The current list."""
        ...

    async def changed(self, seen_version: int) -> None:
        """Return when the list's version is no longer seen_version."""
        ...

    def preferred(
        self, available: Sequence[ShareId], must_include: Sequence[ShareId], size: int
    ) -> list[ShareId]:
        """The preferred ids. Raises partage.model.share.AllocationRefused."""
        ...

    async def allocate(self, ids: Sequence[ShareId]) -> ContainerAllocation:
        """The answer for a container that gets these ids. Raises AllocationRefused with NVIDIA's texts."""
        ...

    async def pre_start(self, ids: Sequence[ShareId]) -> None:
        """The container with these ids is about to start. Must not keep it from starting."""
        ...


class PodResources(Protocol):
    """Which containers hold which ids. One call at a time; callers that ask meanwhile share the next one."""

    async def held(self) -> tuple[ContainerHold, ...]:
        """All containers with devices. Raises Unreachable (no socket, refused, rate limited, timeout)."""
        ...


class Checkpoint(Protocol):
    """The kubelet's checkpoint of held ids."""

    def identity(self) -> CheckpointIdentity | None:
        """Of the file as it is now; None if there is none."""
        ...

    def held(self) -> CheckpointHolds | None:
        """Held ids; None: there is no file. Raises Unreachable if it cannot be read or is in an unknown
        format.
        """
        ...

    def listed(self) -> Mapping[ResourceName, frozenset[ShareId]] | None:
        """The healthy ids of the last lists; None: there is no file. Raises Unreachable as ``held``."""
        ...


class ConditionList(Frozen):
    """The health of all devices. version increases with every change of rows."""

    version: int
    rows: tuple[DeviceCondition, ...]


class DraHandler(Protocol):
    """Answers the kubelet. A claim that cannot be served gets a sentence, for the events of its pods."""

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """By UID of the claim: its devices, or why it has none now; the kubelet asks again."""
        ...

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        """By UID of the claim: why it cannot be taken back now; empty: it is, or was never prepared."""
        ...

    def conditions(self) -> ConditionList:
        """The health of all devices of the pool."""
        ...

    async def changed(self, seen_version: int) -> None:
        """Return when the version of ``conditions`` is no longer seen_version."""
        ...
