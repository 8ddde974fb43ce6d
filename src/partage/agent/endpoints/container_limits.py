"""Memory limits of containers: the hook on the node, and a CDI file for each set of limits that is held."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from partage.errors import HardwareError
from partage.model.allocation import AllocationRefused, ContainerAllocation
from partage.model.driver_limit import DriverLimit
from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid
from partage.model.policy import Options
from partage.model.share import DeviceOffer
from partage.plan.serve.limit_edits import (
    HOOK_NAME,
    NO_LIMIT_TERMS,
    LimitWay,
    limit_terms,
    limits_device,
    limits_name,
)

if TYPE_CHECKING:
    from partage.edges.cdi.hook_program import HookProgram
    from partage.edges.cdi.limit_files import LimitFiles

log = logging.getLogger(__name__)

HOOK_DIR, KEPT_DIR = "bin", "limits"
"""Below the state directory, at the same path in the agent's container and on the node."""


class ContainerLimits:
    """terms: what sets limits here. given: the sets that have a file, by name. trouble: why some have none.

    directory_of: where the CDI files of these GPUs go. nvidia: whether containers get NVIDIA's hook.
    compiled: as for ``HookProgram``.
    """

    def __init__(
        self,
        state_dir: Path,
        directory_of: Callable[[Inventory], Path],
        nvidia: Callable[[], bool],
        compiled: Path | None = None,
    ) -> None:
        self._state_dir, self._directory_of, self._nvidia = state_dir, directory_of, nvidia
        self._compiled = compiled
        self._loaded = False
        self._files: LimitFiles | None = None
        self._program: HookProgram | None = None
        self.terms = NO_LIMIT_TERMS
        self.given: dict[str, tuple[DriverLimit, ...]] = {}
        self.trouble = ""

    def request(self, offerings: Iterable[DeviceOffer], inventory: Inventory, options: Options) -> None:
        """After a turn, for what is offered now. What an agent before has given is taken over, and what is
        missing or was for another place of the hook is written again.
        """
        limited = any(offering.limited for offering in offerings)
        if not limited and self._loaded and not self.given:
            return
        if not limited and not self._loaded and not (self._state_dir / KEPT_DIR).is_dir():
            return
        files = self._opened(inventory)
        trouble = "" if inventory.simulated else self._installed()
        program = str(self._state_dir / HOOK_DIR / HOOK_NAME)
        terms = limit_terms(program, options.driver_root, trouble, nvidia=options.uses_cdi and self._nvidia())
        anew, self.terms = terms != self.terms, terms
        if terms.way is LimitWay.HOOK:
            trouble = self._write([held for held in self.given.values() if anew or not files.has(held)])
        if trouble and trouble != self.trouble:
            log.warning("memory limits of containers", extra={"reason": trouble})
        self.trouble = trouble

    def limited(self, answer: ContainerAllocation) -> ContainerAllocation:
        """The answer with the CDI name of its limits, whose file is there then: one small file, and a copy of
        it on the disk, if no container has the same limits. Raises AllocationRefused.
        """
        if self.terms.way is not LimitWay.HOOK:
            return answer  # its variables are in it
        name = limits_name(answer.limits)
        if name not in self.given:
            assert self._files is not None
            try:
                self._files.write(answer.limits, self.terms)
            except HardwareError as error:
                raise AllocationRefused(
                    f"its memory limit cannot be set before it starts: {error}; make room on the disk, or "
                    "set the chart's cdi.enabled"
                ) from error
            self.given[name] = answer.limits
        return replace(answer, cdi_devices=(*answer.cdi_devices, limits_device(answer.limits)))

    def sweep(self, kept: Collection[GpuUuid]) -> None:
        """Remove the files of sets that no pod needs. kept: GPUs that have a holder, or may have one."""
        for name, limits in [*self.given.items()]:
            if self._files is None or any(limit.gpu in kept for limit in limits):
                continue
            try:
                self._files.remove(limits)
            except HardwareError as error:
                log.warning("memory limits of containers", extra={"reason": str(error)})
            else:
                del self.given[name]

    def _opened(self, inventory: Inventory) -> LimitFiles:
        from partage.edges.cdi.limit_files import LimitFiles

        files = self._files = self._files or LimitFiles(
            self._directory_of(inventory), self._state_dir / KEPT_DIR
        )
        if not self._loaded:
            self.given.update(files.load())
            self._loaded = True
        return files

    def _installed(self) -> str:
        """Why our hook cannot be used; empty: it can."""
        from partage.edges.cdi.hook_program import HookProgram

        program = self._program = self._program or HookProgram(self._state_dir / HOOK_DIR, self._compiled)
        return program.install()

    def _write(self, sets: Iterable[tuple[DriverLimit, ...]]) -> str:
        assert self._files is not None
        try:
            for limits in sets:
                self._files.write(limits, self.terms)
        except HardwareError as error:
            return str(error)
        return ""
