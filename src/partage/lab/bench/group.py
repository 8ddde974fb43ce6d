"""Tenants beside each other, and one repeat of an experiment with them."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from msgspec import Struct, field

from partage.lab.bench.model import Repeat, TenantSample
from partage.lab.tenant import TenantFailed, TenantFailure, TenantLaunch, TenantProcess, start_tenant

_LEAD_S, _LEAD_EACH_S = 0.02, 0.005
"""From the request to the start: enough for every tenant to have read it."""

_DIGITS = 6
"""Of a second. Rounded here, so that a recorded run gives the same figures as the run itself."""

_IDLE = TenantFailure("error", "it did not compute, because another process had failed")

T = TypeVar("T")


class TenantGroup(Struct):
    """tenants: by number; a failure in place of one that could not be started, or has failed since.

    facts: what the first tenant says of itself.
    """

    tenants: list[TenantProcess | TenantFailure] = field(default_factory=list)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Every tenant is there."""
        return len(self.alive) == len(self.tenants)

    @property
    def alive(self) -> list[TenantProcess]:
        return [tenant for tenant in self.tenants if isinstance(tenant, TenantProcess)]

    def failures(self, number: int) -> Repeat:
        """A repeat that did not take place, because a tenant has failed."""
        return self._repeat(number, [None] * len(self.tenants))

    async def together(self, job: str, number: int, deadline_s: float) -> Repeat:
        """All prepare the job, then all start it at one moment."""
        await self.each(lambda tenant: tenant.ask(job, deadline_s))
        start = time.monotonic() + _LEAD_S + _LEAD_EACH_S * len(self.tenants)
        return self._repeat(number, await self.each(lambda tenant: _run(tenant, start, start, deadline_s)))

    async def in_turn(self, job: str, number: int, deadline_s: float) -> Repeat:
        """All prepare the job, then one does it after the other; the others keep what they have allocated."""
        await self.each(lambda tenant: tenant.ask(job, deadline_s))
        origin = time.monotonic()
        samples = []
        for place in range(len(self.tenants)):
            act = functools.partial(
                _run, start=time.monotonic() + _LEAD_S, origin=origin, deadline_s=deadline_s
            )
            samples.append(await self._one(place, act))
        return self._repeat(number, samples)

    async def each(self, act: Callable[[TenantProcess], Awaitable[T]]) -> list[T | None]:
        """Do something with every tenant that is there, at once; None for one that is not, or fails."""
        return await asyncio.gather(*(self._one(place, act) for place in range(len(self.tenants))))

    async def _one(self, place: int, act: Callable[[TenantProcess], Awaitable[T]]) -> T | None:
        tenant = self.tenants[place]
        if isinstance(tenant, TenantFailure):
            return None
        try:
            return await act(tenant)
        except TenantFailed as error:
            self.tenants[place] = error.failure
            await tenant.end()
            return None

    def _repeat(self, number: int, samples: Sequence[TenantSample | None]) -> Repeat:
        return Repeat(
            number,
            tuple(
                TenantSample(failure=tenant)
                if isinstance(tenant, TenantFailure)
                else sample or TenantSample(failure=_IDLE)
                for tenant, sample in zip(self.tenants, samples, strict=True)
            ),
        )


@asynccontextmanager
async def tenant_group(
    launch: TenantLaunch, environments: Sequence[Mapping[str, str]], deadline_s: float
) -> AsyncIterator[TenantGroup]:
    """Tenants, one for each environment; all of them are gone afterwards, however this is left."""
    group = TenantGroup()
    started: list[TenantProcess] = []
    try:
        for environment in environments:
            try:
                started.append(await start_tenant(launch.argv(), environment, deadline_s))
                group.tenants.append(started[-1])
            except TenantFailed as error:
                group.tenants.append(error.failure)
        facts = await group.each(_connect)
        group.facts = next((fact for fact in facts if fact), {})
        yield group
    finally:
        await asyncio.gather(*(tenant.end() for tenant in started))


async def _connect(tenant: TenantProcess) -> Mapping[str, Any]:
    """Wait until it can work; what it says of itself."""
    await tenant.connected()
    found: Mapping[str, Any] = await tenant.ask("facts")
    return found


async def _run(tenant: TenantProcess, start: float, origin: float, deadline_s: float) -> TenantSample:
    """Its part, with times counted from ``origin``."""
    done = await tenant.ask(f"go {start}", deadline_s)
    return TenantSample(
        started_s=round(done["started"] - origin, _DIGITS),
        ended_s=round(done["ended"] - origin, _DIGITS),
        value=done.get("value"),
        requests=done.get("requests"),
        latencies_us=tuple(done.get("latenciesUs", ())),
        start_s=round(tenant.start_s, _DIGITS),
    )
