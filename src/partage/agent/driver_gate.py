"""Lets go of the driver while the GPU Operator exchanges it, and waits for it at the start.

Before the first look at the driver: until the Operator has validated driver and toolkit, where there is an
Operator. Later the validations count no more, because they disappear and come back whenever its validator is
restarted; then a label of the Node pauses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from partage.edges.hardware.driver_pause import read_pause, write_pause
from partage.edges.hardware.port import Hardware
from partage.edges.host.waiting import until_tick
from partage.errors import HardwareError
from partage.model.ids import GpuUuid
from partage.model.mps import DaemonPhase
from partage.model.step import StopDaemon
from partage.plan.gpu_operator import not_validated, paused_by

log = logging.getLogger(__name__)


class DriverGate:
    """Writes and removes the note by which helper and verbs know that the driver is paused."""

    def __init__(
        self,
        run_dir: Path,
        validations: Path | None,
        hardware: Hardware,
        observe: Callable[[], Awaitable[object]],
    ) -> None:
        """validations: the Operator's directory, None: do not wait. observe: looks at the hardware anew."""
        self._run_dir = run_dir
        self._validations = validations
        self._hardware = hardware
        self._observe = observe
        self._labels: Mapping[str, str] = {}
        self._news = asyncio.Event()
        self._validated = validations is None
        self._written: str | None = None
        self._staying: dict[str, str] = {}

    def know_labels(self, labels: Mapping[str, str]) -> None:
        """The labels of the own Node, whenever they change."""
        self._labels = labels
        self._news.set()

    def check(self) -> str:
        """Why the driver is paused now; empty if it is not. The note says the same then."""
        reason = paused_by(self._labels)
        if reason:
            self._validated = self._validations is None  # what comes back is validated anew
        elif not self._validated:
            reason = not_validated(str(self._validations), self._validation_files())
            self._validated = not reason
        self._write(reason)
        return reason

    async def watch(self, period_s: float) -> None:
        """Check whenever the labels change, and every period_s while something is waited for."""
        was = self._written
        daemons_run = False
        try:
            while True:
                self._news.clear()
                reason = self.check()
                if reason != was:
                    was = reason
                    await self._observe()
                    daemons_run, self._staying = True, {}
                if daemons_run and paused_by(self._labels):
                    daemons_run = await self._stop_daemons()
                if self._validated and self._written == reason and not daemons_run:
                    await self._news.wait()
                else:
                    await until_tick(period_s, self._news)
        finally:
            self._write("")  # nobody asks the helper now; the next agent looks before it does

    def _validation_files(self) -> frozenset[str] | None:
        assert self._validations is not None
        try:
            return frozenset(path.name for path in self._validations.iterdir())
        except OSError:
            return None

    def _write(self, reason: str) -> None:
        if reason == self._written or (self._written is None and reason == read_pause(self._run_dir)):
            self._written = reason
            return
        try:
            if reason:
                self._run_dir.mkdir(parents=True, exist_ok=True)
            write_pause(self._run_dir, reason)
        except OSError as error:
            log.warning("driver cannot be paused", extra={"reason": error.strerror})
            return
        self._written = reason
        log.info("driver paused" if reason else "driver free", extra={"reason": reason or None})

    async def _stop_daemons(self) -> bool:
        """Whether some still run. MPS daemons have the driver open, also when their last client has gone.
        Those with clients stay until then: their pods keep the driver anyway.
        """
        staying: dict[str, str] = {}
        try:
            daemons = await self._hardware.daemons()
        except HardwareError as error:
            daemons, staying[""] = (), str(error)
        for daemon in daemons:
            if daemon.pid is None:
                continue
            if daemon.phase is DaemonPhase.SILENT:
                staying[daemon.device] = f"it may have clients: {daemon.reason}"
                continue
            gpu = daemon.gpu or GpuUuid(daemon.device)
            try:
                await self._hardware.perform(StopDaemon(gpu, daemon.device))
                log.info("MPS daemon stopped", extra={"device": daemon.device})
            except HardwareError as error:
                staying[daemon.device] = str(error)
        for device in staying.keys() - self._staying.keys():
            log.warning("MPS daemon stays", extra={"device": device, "reason": staying[device]})
        self._staying = staying
        return bool(staying)
