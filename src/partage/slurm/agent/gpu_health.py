"""The health of the GPUs of a compute node, by the same rules as on a node of Kubernetes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from partage.agent.observers.hardware import HardwareObserver
from partage.model.health import Health, HealthState, HealthStatus
from partage.model.ids import GpuUuid
from partage.model.xid import XidRules
from partage.plan.gpu_health import healths_after
from partage.plan.reconcile.known_node import KnownNode

_WORDS = {HealthState.UNHEALTHY: "is unhealthy", HealthState.PROBATION: "is on probation"}


class GpuHealth(Struct):
    """Follows the health of the GPUs. ask: asks for a look at Slurm; not for each answer of the driver.

    in_hand: GPUs that are being changed. by_gpu: by UUID; some faults are over by proof only, also for the
    next agent. taken: called whenever it may be another. news: the hardware has been observed.
    """

    hardware: HardwareObserver
    clock: Callable[[], float]
    ask: Callable[[], None]
    rules: XidRules
    in_hand: Callable[[], Mapping[GpuUuid, Any]]
    news: asyncio.Event
    taken: Callable[[], None] = lambda: None
    by_gpu: Mapping[GpuUuid, Health] = field(default_factory=dict)

    async def run(self) -> None:
        """Take what is observed, until cancelled."""
        before: tuple[object, ...] = ()
        while True:
            await self.news.wait()
            self.news.clear()
            self.take()
            self.taken()
            now = (id(self.hardware.node), self.hardware.trouble, self.trouble)
            if now != before:
                before = now
                self.ask()

    def take(self) -> None:
        """Take what was observed since the last time."""
        news, node = self.hardware.take(), self.hardware.node
        if node is not None:
            self.by_gpu = healths_after(
                node, news, self.by_gpu, (), self.rules, now_s=self.clock(), in_hand=self.in_hand()
            )

    @property
    def trouble(self) -> str:
        """Which GPUs must get no jobs, a sentence; empty if all may. GPUs that are lost are not in it."""
        node = self.hardware.node
        return "; ".join(_unwell(node, self.by_gpu)) if node is not None else ""


def _unwell(node: KnownNode, healths: Mapping[GpuUuid, Health]) -> Iterator[str]:
    for gpu in node.inventory:
        health = healths.get(gpu.uuid, Health())
        if gpu.uuid in node.lost:
            continue
        if not health.offered():
            yield f"GPU {gpu.index} {_said(health.gpu)}"
            continue
        there = {device.gi_id for device in gpu.mig_devices}
        for gi_id, status in sorted(health.instances.items()):
            if gi_id in there and not status.state.offered:
                yield f"GPU {gpu.index}, GPU instance {gi_id}, {_said(status)}"


def _said(status: HealthStatus) -> str:
    return f"{_WORDS[status.state]}: {status.reason}"
