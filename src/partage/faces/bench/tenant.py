"""One tenant as a process of ours: begun, ordered about, listened to with a deadline, ended for certain."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partage.faces import child
from partage.faces.bench.model import Failure

WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True, slots=True)
class Launch:
    """How tenants are begun. python: the interpreter; the others as the worker's options."""

    python: str
    engine: str = "torch"
    device: str = "cuda"

    @property
    def argv(self) -> tuple[str, ...]:
        return (self.python, str(WORKER), "--engine", self.engine, "--device", self.device)


class TenantFailed(Exception):
    """The tenant cannot go on; ``failure`` says how. Not an error of the bench: a result."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.what}: {failure.message}")
        self.failure = failure


class Tenant:
    """A running worker. hello: its first event. start_s: from its start until then."""

    def __init__(self, process: child.Child) -> None:
        self._child = process
        self._begun = time.monotonic()
        self.hello: dict[str, Any] = {}
        self.start_s = 0.0

    @property
    def pid(self) -> int:
        return self._child.pid

    async def greet(self, deadline_s: float) -> None:
        """Wait until it can work. Raises TenantFailed."""
        self.hello = await self.event("hello", deadline_s)
        self.start_s = time.monotonic() - self._begun

    async def order(self, order: Mapping[str, object]) -> None:
        """Tell it what to do. One that has ended says so when it is listened to."""
        await self._child.say(json.dumps(order).encode())

    async def event(self, name: str, deadline_s: float) -> dict[str, Any]:
        """Its next event, which is to be of that name. Raises TenantFailed."""
        try:
            async with asyncio.timeout(deadline_s):
                found = await self._next()
        except TimeoutError:
            said = f"it did not say {name!r} within {deadline_s:g} s"
            raise TenantFailed(Failure("hung", said)) from None
        if found is None:
            raise TenantFailed(Failure("died", await self._child.last_words()))
        if found["event"] != name:
            what = found.get("what")
            message = str(found.get("message", f"it said {found['event']!r} in place of {name!r}"))
            raise TenantFailed(Failure(what if what in ("oom", "error") else "error", message))
        return found

    async def end(self) -> None:
        """It and whatever it started are gone afterwards."""
        await self._child.end()

    async def _next(self) -> dict[str, Any] | None:
        """The next line that is an event: an image's own start-up may print what it likes before."""
        while line := await self._child.hear():
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and isinstance(found.get("event"), str):
                    return found
        return None


async def begin(launch: Launch, environment: Mapping[str, str]) -> Tenant:
    """Start a tenant, in a process group of its own. Raises TenantFailed where that cannot be."""
    try:
        return Tenant(await child.begin(launch.argv, environment))
    except OSError as error:
        raise TenantFailed(Failure("died", f"{launch.python} cannot be run: {error.strerror}")) from error
