"""``partage apply --drain``: a command that makes holders leave."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING

from partage.answers import common_output
from partage.codec.values import encode
from partage.errors import InputError, Problem
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.model.gpu import Inventory
    from partage.plan.reconcile.node_plan import NodePlan

AGAIN_S = 2.0
"""Seconds between two requests for the holders: the kubelet limits the rate."""


class DrainCommand(Frozen):
    """``--drain``: runs a command with the holders as input, then waits until the next check."""

    line: str

    async def __call__(self, plan: NodePlan, inventory: Inventory, left_s: float) -> None:
        """Raises InputError if there is no such command. If it fails, a warning is printed, and it is
        retried."""
        from partage.answers.documents.plan import HoldersDocument, blocked_of, holder_rows

        document = encode(HoldersDocument(holders=holder_rows(blocked_of(plan), inventory)))
        began = asyncio.get_running_loop().time()
        trouble = await self._run(document, left_s)
        if trouble:
            common_output.print_problems([Problem("", "", "warning", f"--drain: {trouble}")])
        spent = asyncio.get_running_loop().time() - began
        await asyncio.sleep(max(0.0, min(AGAIN_S, left_s - spent)))

    async def _run(self, document: bytes, left_s: float) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(self.line), stdin=asyncio.subprocess.PIPE, stdout=2
            )
        except OSError as error:
            raise InputError(f"--drain: {self.line!r} cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(left_s):
                await process.communicate(document)
        except TimeoutError:
            process.kill()
            await process.wait()
            return f"the command did not end within {left_s:.0f} s"
        return f"the command ended with exit code {process.returncode}" if process.returncode else ""


def drain_command(line: str | None) -> DrainCommand | None:
    """The command that ``--drain`` names. Raises InputError where it is none."""
    try:
        if line is not None and not shlex.split(line):
            raise InputError("--drain names no command")
    except ValueError as error:
        raise InputError(f"--drain is not a command: {error}") from error
    return None if line is None else DrainCommand(line)
