"""What the kubelet's world needs of us, and gives us, in our own nouns. No gRPC here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from partage.model.answer import ContainerAnswer, HeldBy
from partage.model.ids import ResourceName


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device in ListAndWatch. numa_node: None sends no topology."""

    id: str
    healthy: bool
    numa_node: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceList:
    """The full list that the kubelet shall know. version rises with every change of rows."""

    version: int
    rows: tuple[DeviceRow, ...]


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
        """Which ids to take. Raises partage.model.answer.AllocationRefused."""
        ...

    def allocate(self, ids: Sequence[str]) -> ContainerAnswer:
        """What a container that gets these ids gets. Raises AllocationRefused with NVIDIA's words."""
        ...

    async def pre_start(self, ids: Sequence[str]) -> None:
        """The container with these ids is about to start. Never keeps it from starting."""
        ...


class PodResources(Protocol):
    """Who holds what. One call in flight."""

    async def held(self) -> tuple[HeldBy, ...]:
        """All containers with devices. Raises Unreachable (no socket, refused, rate limited, time-out)."""
        ...
