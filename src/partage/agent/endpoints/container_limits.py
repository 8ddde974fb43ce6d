"""Memory limits of containers: the hook on the node, and a CDI file for each set of limits that is held."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from partage.agent.log import warn_anew
from partage.errors import HardwareError
from partage.model.driver_limit import LimitSetter, LimitWay
from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid, ResourceName
from partage.model.policy import Options
from partage.model.share import AllocationRefused, ContainerAllocation
from partage.plan.serve.limit_edits import (
    HOOK_NAME,
    NO_LIMIT_TERMS,
    LimitSet,
    LimitTerms,
    limit_set,
    limit_terms,
)

if TYPE_CHECKING:
    from partage.edges.cdi.limit_files import HookProgram, LimitFiles

log = logging.getLogger(__name__)

HOOK_DIR, KEPT_DIR = "bin", "limits"
"""Below the state directory, at the same path in the agent's container and on the node."""


class ContainerLimits:
    """wanted: as for ``request``. terms: what sets limits here then. given: the sets that have a file, by
    name. trouble: why some have none, or why our hook does not set them.

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
        self._options: Options | None = None
        self.wanted = False
        self.terms = NO_LIMIT_TERMS
        self.given: dict[str, LimitSet] = {}
        self.trouble = ""

    def setter(self, inventory: Inventory) -> LimitSetter:
        """What sets limits on this node, looked at anew. Where none is wanted, nothing is written for it."""
        return self._judged(inventory).setter

    def request(self, inventory: Inventory, options: Options, *, wanted: bool) -> None:
        """After a turn. What an agent before has given is taken over, and what is missing or was for another
        place of the hook is written again. wanted: the policy wants limits, and the driver can have them.
        """
        self.wanted = wanted
        if not wanted and self._loaded and not self.given:
            self._forget()
            return
        if not wanted and not self._loaded and not (self._state_dir / KEPT_DIR).is_dir():
            return
        self._options = options
        files = self._opened(inventory)
        terms = self._judged(inventory)
        trouble = terms.trouble
        anew, self.terms = terms != self.terms, terms
        if terms.way is LimitWay.HOOK:
            trouble = self._write([held for held in self.given.values() if anew or not files.has(held)])
        self.trouble = warn_anew(log, "memory limits of containers", trouble, self.trouble)

    def limited(self, answer: ContainerAllocation, resource: ResourceName) -> ContainerAllocation:
        """The answer with the CDI name of its limits, whose file is there then: one small file, and a copy of
        it on the disk, if no container has the same limits of this resource. Raises AllocationRefused.
        """
        if self.terms.way is not LimitWay.HOOK:
            return answer  # its variables are in it
        asked = limit_set(answer.limits, resource)
        if asked.name not in self.given:
            assert self._files is not None
            try:
                self._files.write(asked, self.terms)
            except HardwareError as error:
                raise AllocationRefused(
                    f"its memory limit cannot be set before it starts: {error}; make room on the disk, or "
                    "set the chart's cdi.enabled"
                ) from error
            self.given[asked.name] = asked
        return replace(answer, cdi_devices=(*answer.cdi_devices, asked.device))

    def sweep(self, kept: Collection[GpuUuid]) -> None:
        """Remove the files of sets that no pod needs. kept: GPUs that have a holder, or may have one."""
        for name, given in [*self.given.items()]:
            if self._files is None or any(limit.gpu in kept for limit in given.limits):
                continue
            try:
                self._files.remove(given)
            except HardwareError as error:
                log.warning("memory limits of containers", extra={"reason": str(error)})
            else:
                del self.given[name]

    def _forget(self) -> None:
        self._options, self.terms, self.trouble = None, NO_LIMIT_TERMS, ""

    def _judged(self, inventory: Inventory) -> LimitTerms:
        options = self._options
        trouble = "" if inventory.simulated else self._hook_trouble(install=options is not None)
        program = str(self._state_dir / HOOK_DIR / HOOK_NAME)
        nvidia = options is not None and options.uses_cdi and self._nvidia()
        return limit_terms(program, options.driver_root if options else "/", trouble, nvidia=nvidia)

    def _opened(self, inventory: Inventory) -> LimitFiles:
        from partage.edges.cdi.limit_files import LimitFiles

        files = self._files = self._files or LimitFiles(
            self._directory_of(inventory), self._state_dir / KEPT_DIR
        )
        if not self._loaded:
            self.given.update(files.load())
            self._loaded = True
        return files

    def _hook_trouble(self, *, install: bool) -> str:
        """Why our hook cannot be used; empty: it can."""
        from partage.edges.cdi.limit_files import HookProgram

        program = self._program = self._program or HookProgram(self._state_dir / HOOK_DIR, self._compiled)
        return program.install() if install else program.why_not()

    def _write(self, sets: Iterable[LimitSet]) -> str:
        assert self._files is not None
        try:
            for given in sets:
                self._files.write(given, self.terms)
        except HardwareError as error:
            return str(error)
        return ""
