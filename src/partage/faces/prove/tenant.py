"""One tenant as a process of ours that is asked, one line at a time: the simulated client, or ``program``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from partage.faces import child

OK = "ok"
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


class Lost(Exception):
    """A tenant died or hung, so that nobody can say what it would have seen."""


class NotLetIn(Exception):
    """A tenant got no context on the GPU. The text is the name of CUDA's error."""


class Tenant:
    """A running client."""

    def __init__(self, process: child.Child, deadline_s: float) -> None:
        self._child = process
        self._deadline_s = deadline_s
        self._entered: asyncio.Task[str] | None = None

    @property
    def pid(self) -> int:
        return self._child.pid

    async def entered(self, patience_s: float | None = None) -> bool:
        """Whether it has a context by then; one that still waits may be asked again.

        Raises NotLetIn, Lost, and without ``patience_s`` Lost for one that waits too long.
        """
        if self._entered is None:
            self._entered = asyncio.create_task(self._hear("begin"), name=f"tenant {self.pid} enters")
        if patience_s is not None:
            done, _ = await asyncio.wait({self._entered}, timeout=patience_s)
            if not done:
                return False
        answer = await self._entered
        if answer != OK:
            raise NotLetIn(answer)
        return True

    async def ask(self, request: str) -> str:
        """Its answer to one request. Raises Lost."""
        await self._child.say(request.encode())
        return await self._hear(request)

    async def allocate(self, amount_bytes: int) -> str:
        """``ok``, or the name of CUDA's error. Raises Lost."""
        return await self.ask(f"allocate {amount_bytes}")

    async def launch(self) -> str:
        """Whether it can still compute. Raises Lost."""
        return await self.ask("launch")

    async def end(self) -> None:
        """It is gone afterwards, and so is what it had of the GPU."""
        if self._entered is not None:
            self._entered.cancel()
            await asyncio.gather(self._entered, return_exceptions=True)
        await self._child.end()

    async def _hear(self, request: str) -> str:
        try:
            async with asyncio.timeout(self._deadline_s):
                line = await self._child.hear()
        except TimeoutError:
            raise Lost(f"a tenant did not answer {request!r} within {self._deadline_s:g} s") from None
        if not line:
            raise Lost(f"a tenant {await self._child.last_words()}")
        return line.decode(errors="replace").strip()


async def begin(argv: Sequence[str], environment: Mapping[str, str], deadline_s: float) -> Tenant:
    """Start one. Raises Lost where that cannot be."""
    try:
        return Tenant(await child.begin(argv, environment), deadline_s)
    except OSError as error:
        raise Lost(f"{argv[0]} cannot be run: {error.strerror}") from error
