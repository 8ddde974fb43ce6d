"""Polls settings and uses of GPUs: MPS daemons, time slices, processes. Only if they matter."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from msgspec import Struct, field

from partage.edges.hardware.port import Hardware
from partage.model.gpu_use import GpuUse
from partage.model.ids import GpuUuid
from partage.model.mps import DaemonState
from partage.model.strategy import Interval
from partage.plan.offer.desired import DesiredState
from partage.plan.reconcile.known_node import KnownNode
from partage.plan.reconcile.node_plan import Observed
from partage.plan.reconcile.settings_steps import OriginalSettings

_AT_ONCE = -math.inf


class SettingsObserver(Struct):
    """The last answers.

    slices_s: how often time slices are asked for: nvidia-smi takes seconds on a node of many GPUs.
    daemons: None: not asked yet. uses: processes and monitors; pods are in the ledger.
    slices: by GPU UUID; fixed_slices: why a GPU's time slice cannot be set.
    """

    hardware: Hardware
    clock: Callable[[], float] = time.monotonic
    slices_s: float = 60.0
    daemons: tuple[DaemonState, ...] | None = None
    uses: tuple[GpuUse, ...] = ()
    slices: Mapping[GpuUuid, Interval] = field(default_factory=dict)
    fixed_slices: Mapping[GpuUuid, str] = field(default_factory=dict)
    _slices_due_s: float = _AT_ONCE

    async def observe(self, *, users: bool, slices: bool) -> bool:
        """Ask how GPUs are set, and what uses them. users, slices: whether that matters.

        Returns whether an answer has changed. Raises HardwareError.
        """
        last = self.uses, self.daemons, self.slices
        self.daemons = await self.hardware.daemons()
        if slices and self.clock() >= self._slices_due_s:
            found = await self.hardware.time_slices()
            self.slices = {
                slice_seen.gpu: slice_seen.interval for slice_seen in found if slice_seen.interval is not None
            }
            self.fixed_slices = {
                slice_seen.gpu: slice_seen.reason for slice_seen in found if slice_seen.interval is None
            }
            self._slices_due_s = self.clock() + self.slices_s
        if users:
            self.uses = without_daemons(await self.hardware.uses(), self.daemons)
        return (self.uses, self.daemons, self.slices) != last

    def observed(self, node: KnownNode) -> Observed:
        """The node with the last answers."""
        return Observed(node, self.daemons, self.slices, self.fixed_slices, self.uses)

    def slices_changed(self) -> None:
        """Ask for time slices again at the next observation."""
        self._slices_due_s = _AT_ONCE

    @property
    def slices_are_old(self) -> bool:
        """Time slices were not asked for since they changed."""
        return self._slices_due_s == _AT_ONCE

    def forget(self) -> None:
        """The node has booted: nothing is known."""
        self.daemons = None
        self.slices_changed()


def slices_matter(desired: DesiredState | None, original: Mapping[GpuUuid, OriginalSettings]) -> bool:
    """Whether time slices are desired, or have to be restored. original: by GPU UUID."""
    wanted = desired.settings.values() if desired is not None else ()
    return any(settings.interval is not None for settings in (*wanted, *original.values()))


def without_daemons(uses: tuple[GpuUse, ...], daemons: tuple[DaemonState, ...]) -> tuple[GpuUse, ...]:
    """Uses of GPUs, without Partage's MPS daemons: these stop when they are told to."""
    pids = {server.pid for daemon in daemons for server in daemon.servers}
    pids |= {daemon.pid for daemon in daemons if daemon.pid is not None}
    return tuple(use for use in uses if use.pid is None or use.pid not in pids)
