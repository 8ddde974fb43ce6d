"""The one port to GPUs and driver: coarse, serialisable, every call with a deadline.

Immutable values in and out, no handles. The list of verbs is closed: what is not here cannot be asked
of the privileged helper. Implementations: ``edges.hardware.nvml`` (in process), ``edges.hardware.remote``
(the helper process), ``sim.hardware`` (simulated). One contract suite holds for all three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from partage.model.gpu import Inventory
from partage.model.health import Condition, Xid

DEADLINE_S = 10.0
"""How long a caller waits for one call, unless it says otherwise. NVML answers in milliseconds; a GPU that
is falling off the bus can hold a call for seconds."""


@dataclass(frozen=True, slots=True)
class Events:
    """What happened since the last call. changed: MIG devices or driver changed; observe again."""

    xids: tuple[Xid, ...] = ()
    changed: bool = False


class Hardware(Protocol):
    """A node's GPUs. Every method may raise HardwareTimeout; a cancelled call leaves nothing behind."""

    async def observe(self) -> Inventory:
        """The whole node. A missing or broken driver is a state in the answer, not an error."""
        ...

    async def conditions(self) -> tuple[Condition, ...]:
        """The driver's word on the health of each GPU, lost ones included. Raises DriverUnavailable."""
        ...

    async def events(self, timeout_s: float) -> Events:
        """Wait until something happened, at most timeout_s; then an empty Events. Raises DriverUnavailable.

        Does not hold up the other calls. An event is delivered once.
        """
        ...

    async def close(self) -> None:
        """Give everything back. Idempotent."""
        ...
