"""What the kubelet's world needs of us, and gives us, in our own nouns. No gRPC here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from partage.model.allocation import ContainerAllocation, ContainerHold
from partage.model.ids import ResourceName
from partage.model.share import DeviceRow


@dataclass(frozen=True, slots=True)
class DeviceList:
    """The full list that the kubelet shall know. version rises with every change of rows."""

    version: int
    rows: tuple[DeviceRow, ...]


@dataclass(frozen=True, slots=True)
class EndpointState:
    """How one resource stands with the kubelet; for health and metrics. Times are of the endpoint's clock.

    serving:       our socket is there and answers.
    registered:    this kubelet (not an earlier one) has accepted the resource.
    watching:      ListAndWatch streams that the kubelet holds open.
    since:         when serving or registered last changed.
    attempts:      registrations tried, and registrations accepted, since the start.
    last_error:    why the last attempt to serve or register failed; empty once it succeeded.
    """

    resource: ResourceName
    serving: bool = False
    registered: bool = False
    watching: int = 0
    since: float = 0.0
    attempts: int = 0
    registrations: int = 0
    last_error: str = ""


class PluginHandler(Protocol):
    """One resource, as the device-plugin server asks about it. All but ``changed`` and ``pre_start`` are pure
    look-ups that never wait: they are the admission path."""

    @property
    def resource(self) -> ResourceName:
        """The name that is registered."""
        ...

    @property
    def pre_start_required(self) -> bool:
        """Whether the kubelet shall call PreStartContainer before each start."""
        ...

    def devices(self) -> DeviceList:
        """The list of now."""
        ...

    async def changed(self, seen_version: int) -> None:
        """Return once the list's version is no longer seen_version."""
        ...

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Which ids to take. Raises partage.model.allocation.AllocationRefused."""
        ...

    def allocate(self, ids: Sequence[str]) -> ContainerAllocation:
        """What a container that gets these ids gets. Raises AllocationRefused with NVIDIA's words."""
        ...

    async def pre_start(self, ids: Sequence[str]) -> None:
        """The container with these ids is about to start. Never keeps it from starting."""
        ...


class PodResources(Protocol):
    """Who holds what. One call in flight: callers that come meanwhile share the next one."""

    async def held(self) -> tuple[ContainerHold, ...]:
        """All containers with devices. Raises Unreachable (no socket, refused, rate limited, time-out)."""
        ...
