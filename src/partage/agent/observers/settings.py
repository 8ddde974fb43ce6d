"""What is asked of the hardware only where something has to be done: who uses GPUs, how they are set."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from partage.edges.hardware.port import Hardware
from partage.model.mps import DaemonState
from partage.model.policy import Interval
from partage.model.step import GpuUse

_AT_ONCE = -math.inf


@dataclass(slots=True)
class SettingsObserver:
    """The last answers.

    slices_s: how often time slices are asked for: nvidia-smi takes seconds on a node of many GPUs.
    daemons: None: nobody has asked yet. uses: processes; pods are known from elsewhere.
    slices: by GPU UUID; sliceless: why a GPU has none that could be set.
    """

    hardware: Hardware
    clock: Callable[[], float]
    slices_s: float
    daemons: tuple[DaemonState, ...] | None = None
    uses: tuple[GpuUse, ...] = ()
    slices: Mapping[str, Interval] = field(default_factory=dict)
    sliceless: Mapping[str, str] = field(default_factory=dict)
    _slices_due_s: float = _AT_ONCE

    async def look(self, *, users: bool, slices: bool) -> bool:
        """Ask how GPUs are set, and who uses them, what of that matters. Whether an answer is another one.

        Raises HardwareError.
        """
        seen = self.uses, self.daemons, self.slices
        self.daemons = await self.hardware.daemons()
        if slices and self.clock() >= self._slices_due_s:
            found = await self.hardware.time_slices()
            self.slices = {one.gpu: one.interval for one in found if one.interval is not None}
            self.sliceless = {one.gpu: one.reason for one in found if one.interval is None}
            self._slices_due_s = self.clock() + self.slices_s
        if users:
            self.uses = await self.hardware.uses()
        return (self.uses, self.daemons, self.slices) != seen

    def slices_changed(self) -> None:
        """They are out of date."""
        self._slices_due_s = _AT_ONCE

    @property
    def slices_are_old(self) -> bool:
        """Nobody has asked since they changed."""
        return self._slices_due_s == _AT_ONCE

    def forget(self) -> None:
        """The node has booted."""
        self.daemons = None
        self.slices_changed()

    def others(self) -> tuple[GpuUse, ...]:
        """Who uses the GPUs, our own MPS daemons left out: they go when they are told to."""
        pids = {server.pid for one in self.daemons or () for server in one.servers}
        pids |= {one.pid for one in self.daemons or () if one.pid is not None}
        return tuple(use for use in self.uses if use.pid is None or use.pid not in pids)
