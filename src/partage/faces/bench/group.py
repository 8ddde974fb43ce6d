"""Tenants beside each other: started together, set off together, and a repeat of an experiment made of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from partage.faces.bench.model import Failure, Repeat, Turn
from partage.faces.bench.tenant import Launch, Tenant, TenantFailed, begin

_LEAD_S, _LEAD_EACH_S = 0.02, 0.005
"""From the word to the start: enough for every tenant to have read it."""

_DIGITS = 6
"""Of a second. Rounded here, so that a recorded run says exactly what was said when it was measured."""

_IDLE = Failure("error", "it did not compute, for another process had failed")

T = TypeVar("T")
Order = Mapping[str, object]


@dataclass(slots=True)
class Group:
    """Tenants by number; a failure where one could not be begun, or has failed since."""

    tenants: list[Tenant | Failure]

    @property
    def whole(self) -> bool:
        """Everybody is there."""
        return not any(isinstance(tenant, Failure) for tenant in self.tenants)

    @property
    def alive(self) -> list[Tenant]:
        return [tenant for tenant in self.tenants if isinstance(tenant, Tenant)]

    def failures(self, number: int) -> Repeat:
        """A repeat that did not take place, for somebody has failed."""
        return Repeat(number, tuple(self._turns([None] * len(self.tenants))))

    async def together(self, order: Order, number: int, deadline_s: float) -> Repeat:
        """All at once: ready, then one start for all of them."""
        await self.each(lambda tenant: _prepare(tenant, order, deadline_s))
        start = time.monotonic() + _LEAD_S + _LEAD_EACH_S * len(self.tenants)
        turns = await self.each(lambda tenant: _run(tenant, start, start, deadline_s))
        return Repeat(number, tuple(self._turns(turns)))

    async def in_turn(self, order: Order, number: int, deadline_s: float) -> Repeat:
        """All ready, then one after the other; the others wait with what they have allocated."""
        await self.each(lambda tenant: _prepare(tenant, order, deadline_s))
        turns: list[Turn | None] = []
        origin = time.monotonic()
        for place, tenant in enumerate(self.tenants):
            start = time.monotonic() + _LEAD_S
            turns.append(
                await self._or_failure(place, _run(tenant, start, origin, deadline_s))
                if isinstance(tenant, Tenant)
                else None
            )
        return Repeat(number, tuple(self._turns(turns)))

    async def each(self, act: Callable[[Tenant], Coroutine[None, None, T]]) -> list[T | None]:
        """Do it with everybody who is there, at once; None for who is not, or fails at it."""

        async def do(place: int, tenant: Tenant | Failure) -> T | None:
            return await self._or_failure(place, act(tenant)) if isinstance(tenant, Tenant) else None

        return await asyncio.gather(*(do(place, tenant) for place, tenant in enumerate(self.tenants)))

    async def _or_failure(self, place: int, work: Coroutine[None, None, T]) -> T | None:
        try:
            return await work
        except TenantFailed as error:
            tenant = self.tenants[place]
            self.tenants[place] = error.failure
            if isinstance(tenant, Tenant):
                await tenant.end()
            return None

    def _turns(self, turns: Sequence[Turn | None]) -> list[Turn]:
        return [
            Turn(failure=tenant) if isinstance(tenant, Failure) else turn or Turn(failure=_IDLE)
            for tenant, turn in zip(self.tenants, turns, strict=True)
        ]


@asynccontextmanager
async def group(
    launch: Launch, environments: Sequence[Mapping[str, str]], deadline_s: float
) -> AsyncIterator[Group]:
    """Tenants, one for each environment; all of them are gone afterwards, however this is left."""
    begun: list[Tenant] = []
    found = Group([])
    try:
        for environment in environments:
            try:
                tenant = await begin(launch, environment)
            except TenantFailed as error:
                found.tenants.append(error.failure)
                continue
            begun.append(tenant)
            found.tenants.append(tenant)
        await found.each(lambda tenant: tenant.greet(deadline_s))
        yield found
    finally:
        await asyncio.gather(*(tenant.end() for tenant in begun))


async def _prepare(tenant: Tenant, order: Order, deadline_s: float) -> None:
    await tenant.order(order)
    await tenant.event("ready", deadline_s)


async def _run(tenant: Tenant, start: float, origin: float, deadline_s: float) -> Turn:
    """Its turn, times counted from ``origin``."""
    await tenant.order({"go": start})
    done = await tenant.event("done", deadline_s)
    return Turn(
        started_s=round(done["started"] - origin, _DIGITS),
        ended_s=round(done["ended"] - origin, _DIGITS),
        value=done.get("value"),
        requests=done.get("requests"),
        latencies_us=tuple(done.get("latenciesUs", ())),
        start_s=round(tenant.start_s, _DIGITS),
    )
