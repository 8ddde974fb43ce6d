"""Keeps CDI specs in step with the node, where the policy asks for CDI. A task: nvidia-ctk is slow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from partage.agent.supervision import wait_at_most
from partage.errors import HardwareError
from partage.model.gpu import Inventory
from partage.model.policy import Options

if TYPE_CHECKING:
    from partage.edges.cdi.spec_writer import CdiSpecWriter

log = logging.getLogger(__name__)


CHECK_S = 60.0
CHECK_BARE_S = 5.0
"""While containers would have no libraries, seconds between two looks for a spec that has them."""

WAIT_LIMIT_S = 30.0
"""How long new MIG devices wait for their spec, in seconds: nvidia-ctk may hang."""


class CdiSpecs:
    """The state of the CDI specs, and the task that updates them.

    classes: CDI classes besides ``gpu`` that have a spec. trouble: why a spec is missing or incomplete.
    unusable: why containers have none of the driver's libraries; empty: they have, or need none.
    nvidia_limits: containers get NVIDIA's hook of memory limits with their GPUs.
    """

    def __init__(
        self,
        directory_of: Callable[[Inventory], Path],
        ask: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._directory_of = directory_of
        self._ask = ask
        self._clock = clock
        self._wanted: tuple[Inventory, Options] | None = None
        self._writer: CdiSpecWriter | None = None
        self._written: tuple[Inventory, Options] | None = None
        self._renew = asyncio.Event()
        self._news = asyncio.Event()
        self.classes: tuple[str, ...] = ()
        self.trouble = ""
        self.unusable = ""
        self.nvidia_limits = False

    def why_unusable(self, options: Options) -> str:
        """Why shares that are given under these options cannot be used; empty if they can."""
        if not options.uses_cdi:
            return ""
        return self.unusable if self._written else "its CDI spec is being written"

    def request(self, inventory: Inventory, options: Options) -> None:
        """Ask for specs of this node."""
        if not options.uses_cdi:
            self._wanted = self._written = None
            self.trouble, self.unusable, self.classes, self.nvidia_limits = "", "", (), False
        elif (inventory, options) != self._wanted:
            self._wanted = inventory, options
            self._renew.set()

    async def wait_until_written(self, inventory: Inventory) -> None:
        """Wait until the specs of this node are written, or failed, or WAIT_LIMIT_S is over."""
        if self._wanted is None:
            return
        self.request(inventory, self._wanted[1])
        try:
            async with asyncio.timeout(WAIT_LIMIT_S):
                while self._wanted is not None and self._written != self._wanted:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            log.warning("cdi spec is slow to be written", extra={"waited": f"{WAIT_LIMIT_S:g} s"})

    async def run(self) -> None:
        """Update on changes and every CHECK_S: a file may be gone or there, or nvidia-ctk may work now."""
        while True:
            pause_s = CHECK_BARE_S if self.unusable else CHECK_S
            await wait_at_most(self._renew, pause_s if self._wanted else None)
            self._renew.clear()
            if (wanted := self._wanted) is not None:
                await self._write(*wanted)
                self._written = wanted
                self._news.set()

    async def _write(self, inventory: Inventory, options: Options) -> None:
        from partage.edges.cdi.spec_writer import CdiSpecWriter

        self._writer = self._writer or CdiSpecWriter(self._directory_of(inventory))
        classes: tuple[str, ...] = ()
        limits = False
        try:
            spec = await self._writer.update(inventory, options, self._clock())
            trouble, classes, limits = spec.reason, spec.classes, spec.nvidia_limits
            unusable = f"containers would not have the driver's libraries: {trouble}" if spec.bare else ""
        except HardwareError as error:
            trouble = unusable = str(error)
        first = self._written is None
        before = self.trouble, self.unusable, self.classes, self.nvidia_limits
        if not first and (trouble, unusable, classes, limits) == before:
            return
        if trouble and trouble != self.trouble:
            log.warning("cdi spec is incomplete", extra={"reason": trouble})
        self.trouble, self.unusable, self.classes, self.nvidia_limits = trouble, unusable, classes, limits
        self._ask()
