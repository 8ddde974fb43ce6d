"""Carries a schedule out: sessions of tenants, whose samples fill the cells repeat by repeat."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from partage.errors import HardwareError
from partage.lab.bench.group import TenantGroup, tenant_group
from partage.lab.bench.memory import try_memory
from partage.lab.bench.model import (
    BenchCell,
    BenchSession,
    BenchSettings,
    CellKey,
    Experiment,
    MemoryTry,
    Repeat,
    experiments_of,
    guard_sessions,
    sessions,
)
from partage.lab.daemon import MpsDaemon
from partage.lab.place import TenantMode, TenantPlace
from partage.lab.tenant import TenantFailure, TenantLaunch

_CALIBRATED_S = 0.2
_MOST_ROUNDS = 10**8
_VERSIONS = ("python", "torch", "cuda")


class BenchRunner(Struct):
    """One run. say: told what is done. facts: what the last tenant of each mode said of itself."""

    settings: BenchSettings
    place: TenantPlace
    launch: TenantLaunch
    say: Callable[[str], None]
    facts: dict[TenantMode, Mapping[str, object]] = field(default_factory=dict)
    _rounds: dict[Experiment, int] = field(default_factory=dict)
    _cells: dict[CellKey, BenchCell] = field(default_factory=dict)

    def run(self) -> tuple[tuple[BenchCell, ...], tuple[MemoryTry, ...]]:
        """Everything that was asked for. Ctrl-C ends every tenant first."""

        async def everything() -> tuple[tuple[BenchCell, ...], tuple[MemoryTry, ...]]:
            return await self.cells(), await self.memory()

        return asyncio.run(everything())

    async def cells(self) -> tuple[BenchCell, ...]:
        """Every timed cell. Raises HardwareError where not even one process alone can compute."""
        todo = (*sessions(self.settings, self.place), *guard_sessions(self.settings))
        await self._calibrate()
        for number, session in enumerate(todo, 1):
            await self._session(session, f"[{number}/{len(todo)}]")
        return tuple(sorted(self._cells.values(), key=_order_of))

    async def memory(self) -> tuple[MemoryTry, ...]:
        """The allocations up to the limit and over it, in every mode there is."""
        found: list[MemoryTry] = []
        if "memory" in self.settings.experiments:
            async for memory_try in try_memory(self.settings, self.place, self.launch):
                self.say(
                    f"memory, {memory_try.mode}, {memory_try.thirds:g} thirds of the limit: {memory_try.seen}"
                )
                found.append(memory_try)
        return tuple(found)

    def versions(self) -> dict[str, str]:
        """Of what the tenants run."""
        said = self.facts.get(TenantMode.ALONE, {})
        return {name: str(said.get(name, "")) for name in _VERSIONS}

    def remarks(self) -> tuple[str, ...]:
        """What the tenants said of their own conditions."""
        found = []
        if guarded := self.facts.get(TenantMode.WITH_GUARD):
            said = guarded.get("guard") or "nothing, it capped no framework here"
            found.append(f"The guard said of itself: {said}.")
        modes = (TenantMode.ALONE, TenantMode.MPS)
        whole, part = (self.facts.get(mode, {}).get("multiprocessors") for mode in modes)
        if part != whole and None not in (part, whole):
            found.append(
                f"Under MPS a process could fill {part} of {whole} multiprocessors: the daemon's limit."
            )
        return tuple(found)

    # --- how much work -----------------------------------------------------------------------

    async def _calibrate(self) -> None:
        """Find the rounds that one process alone needs ``seconds`` for; they are the same in all modes.

        Where a process alone is refused (exclusive-process mode), they are found under MPS.
        """
        modes = (TenantMode.ALONE, TenantMode.MPS)[: 1 + (self.place.pipe is not None)]
        failures: list[TenantFailure] = []
        for mode in modes:
            environment = self.place.environment(mode)
            async with tenant_group(self.launch, [environment], self.settings.deadline_s) as group:
                failure = await self._calibrate_with(group)
            if failure is None:
                return
            failures.append(failure)
        raise HardwareError(f"not even one process alone can compute: {_said(failures[0])}")

    async def _calibrate_with(self, group: TenantGroup) -> TenantFailure | None:
        (only,) = group.tenants
        if isinstance(only, TenantFailure):
            return only
        self.facts[TenantMode.ALONE] = group.facts
        for experiment in experiments_of(self.settings):
            if experiment is Experiment.INFERENCE:
                continue
            rounds = await self._rounds_of(experiment, group)
            if isinstance(rounds, TenantFailure):
                return rounds
            self._rounds[experiment] = rounds
            self.say(f"{experiment}: {rounds} rounds of {self.settings.points(experiment)} points")
        return None

    async def _rounds_of(self, experiment: Experiment, group: TenantGroup) -> int | TenantFailure:
        rounds = 1
        while True:
            job = f"pi {self.settings.points(experiment)} {rounds}"
            (sample,) = (await group.together(job, 0, self.settings.deadline_s)).samples
            if sample.failure is not None:
                return sample.failure
            if sample.seconds >= min(_CALIBRATED_S, self.settings.seconds / 2) or rounds >= _MOST_ROUNDS:
                return max(1, math.ceil(rounds * self.settings.seconds / max(sample.seconds, 1e-9)))
            rounds *= 4

    # --- sessions ----------------------------------------------------------------------------

    async def _session(self, session: BenchSession, where: str) -> None:
        """All its cells. A cell in which a tenant fails is given up; the others go on with new tenants."""
        todo = [key for _ in range(session.repeats) for key in session.keys]
        while todo:
            todo = await self._with_one_group(session, todo)
        for key in session.keys:
            self.say(f"{where} {key}: {_seconds(self._cells[key])}")

    async def _with_one_group(self, session: BenchSession, todo: Sequence[CellKey]) -> list[CellKey]:
        """Measure until a tenant fails; what is left to do."""
        environments = [self.place.environment(session.mode, n) for n in range(session.processes)]
        pipe = self.place.pipe if session.mode is TenantMode.MPS else None
        daemon = None if pipe is None else MpsDaemon(pipe, self.place.driver_root)
        before = await daemon.clients() if daemon else None
        async with tenant_group(self.launch, environments, self.settings.deadline_s) as tenants:
            after = await daemon.clients() if daemon else None
            seen = None if before is None or after is None else after - before
            if not tenants.whole:  # they would not start for the next cell either
                for key in dict.fromkeys(todo):
                    self._note(key, tenants.failures(session.number), seen)
                return []
            self.facts[session.mode] = tenants.facts
            for done, key in enumerate(todo, 1):
                self._note(key, await self._repeat(tenants, key, session.number), seen)
                if not tenants.whole:
                    return [other for other in todo[done:] if other != key]
        return []

    async def _repeat(self, tenants: TenantGroup, key: CellKey, number: int) -> Repeat:
        work_s = 4 * self.settings.seconds * key.processes
        act = tenants.in_turn if key.mode is TenantMode.SEQUENTIAL else tenants.together
        return await act(self._job(key.experiment), number, work_s + self.settings.deadline_s)

    def _job(self, experiment: Experiment) -> str:
        if experiment is Experiment.INFERENCE:
            return f"inference {self.settings.seconds} {self.settings.keep}"
        return f"pi {self.settings.points(experiment)} {self._rounds[experiment]}"

    def _note(self, key: CellKey, repeat: Repeat, seen: int | None) -> None:
        rounds = self._rounds.get(key.experiment, 0)
        points = self.settings.points(key.experiment) if rounds else 0
        new = BenchCell(key.experiment, key.mode, key.processes, (), points, rounds, seen)
        cell = self._cells.get(key, new)
        fewest = min((clients for clients in (cell.clients_seen, seen) if clients is not None), default=None)
        self._cells[key] = replace(cell, repeats=(*cell.repeats, repeat), clients_seen=fewest)


def _order_of(key: CellKey) -> tuple[int, int, int]:
    return list(Experiment).index(key.experiment), key.processes, list(TenantMode).index(key.mode)


def _said(failure: TenantFailure) -> str:
    return f"{failure.what}: {failure.message}" if failure.message else failure.what


def _seconds(cell: BenchCell) -> str:
    """The result of a cell so far, in words."""
    failed = f"failed: {_said(cell.failures[0])}" if cell.failures else ""
    median = f"{statistics.median(cell.times_s):.3f} s" if cell.good else ""
    return "; ".join(part for part in (median, failed) if part)
