"""Carries a schedule out: sessions of tenants, cells filled repeat by repeat, progress told as it comes."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from partage.errors import HardwareError
from partage.faces.bench.daemon import Daemon
from partage.faces.bench.group import Group, Order, group
from partage.faces.bench.memory import try_memory
from partage.faces.bench.model import Cell, Experiment, Failure, Key, MemoryTry, Mode, Repeat, Settings
from partage.faces.bench.places import Place
from partage.faces.bench.schedule import Session, guard_sessions, sessions
from partage.faces.bench.tenant import Launch

Say = Callable[[str], None]

_CALIBRATED_S = 0.2
_MOST_ROUNDS = 10**8


@dataclass(slots=True)
class Runner:
    """One run. facts: versions, as the first tenant said. hellos: of the last tenant of each mode."""

    settings: Settings
    place: Place
    launch: Launch
    say: Say
    facts: dict[str, str] = field(default_factory=dict)
    hellos: dict[Mode, Mapping[str, object]] = field(default_factory=dict)
    _rounds: dict[Experiment, int] = field(default_factory=dict)
    _cells: dict[Key, Cell] = field(default_factory=dict)

    async def cells(self) -> tuple[Cell, ...]:
        """Every timed cell. Raises HardwareError where not even one process alone can compute."""
        todo = (*sessions(self.settings, self.place), *guard_sessions(self.settings))
        await self._calibrate()
        for number, session in enumerate(todo, 1):
            await self._session(session, f"[{number}/{len(todo)}]")
        return tuple(sorted(self._cells.values(), key=lambda cell: _order_of(cell.key)))

    async def memory(self) -> tuple[MemoryTry, ...]:
        """The allocations up to the limit and over it, in every mode there is."""
        found: list[MemoryTry] = []
        if "memory" in self.settings.experiments:
            async for one in try_memory(self.settings, self.place, self.launch):
                self.say(f"memory, {one.mode}, {one.thirds:g} thirds of the limit: {one.seen}")
                found.append(one)
        return tuple(found)

    def remarks(self) -> tuple[str, ...]:
        """What the tenants themselves told of their conditions."""
        found = []
        if guarded := self.hellos.get(Mode.WITH_GUARD):
            said = guarded.get("guard") or "nothing, it capped no framework here"
            found.append(f"The guard said of itself: {said}.")
        whole, part = (self.hellos.get(mode, {}).get("multiprocessors") for mode in (Mode.ALONE, Mode.MPS))
        if part != whole and None not in (part, whole):
            found.append(
                f"Under MPS a process could fill {part} of {whole} multiprocessors: the daemon's limit."
            )
        return tuple(found)

    # --- how much work -----------------------------------------------------------------------

    async def _calibrate(self) -> None:
        """Rounds that one process alone needs ``seconds`` for, the same in all modes afterwards.

        Where a process alone is refused (exclusive-process mode), one under MPS says it.
        """
        modes = (Mode.ALONE, Mode.MPS) if self.place.pipe is not None else (Mode.ALONE,)
        failures: list[Failure] = []
        for mode in modes:
            environment = self.place.environment(mode)
            async with group(self.launch, [environment], self.settings.deadline_s) as one:
                failure = await self._calibrate_with(one)
            if failure is None:
                return
            failures.append(failure)
        raise HardwareError(f"not even one process alone can compute: {_said(failures[0])}")

    async def _calibrate_with(self, one: Group) -> Failure | None:
        (only,) = one.tenants
        if isinstance(only, Failure):
            return only
        self.facts = {name: str(only.hello.get(name, "")) for name in _FACTS}
        self.hellos[Mode.ALONE] = only.hello
        pi = (Experiment.SMALL, Experiment.SATURATING) if "pi" in self.settings.experiments else ()
        for experiment in pi:
            rounds = await self._rounds_of(experiment, one)
            if isinstance(rounds, Failure):
                return rounds
            self._rounds[experiment] = rounds
            self.say(f"{experiment}: {rounds} rounds of {self._points(experiment)} points")
        return None

    async def _rounds_of(self, experiment: Experiment, one: Group) -> int | Failure:
        rounds = 1
        while True:
            order = {"job": "pi", "points": self._points(experiment), "rounds": rounds}
            (turn,) = (await one.together(order, 0, self.settings.deadline_s)).turns
            if turn.failure is not None:
                return turn.failure
            if turn.seconds >= min(_CALIBRATED_S, self.settings.seconds / 2) or rounds >= _MOST_ROUNDS:
                return max(1, math.ceil(rounds * self.settings.seconds / max(turn.seconds, 1e-9)))
            rounds *= 4

    def _points(self, experiment: Experiment) -> int:
        small = experiment is Experiment.SMALL
        return self.settings.small_points if small else self.settings.saturating_points

    # --- sessions ----------------------------------------------------------------------------

    async def _session(self, session: Session, where: str) -> None:
        """All its cells. Where somebody fails, the other cells get tenants anew, and that cell no more."""
        todo = [key for _ in range(session.repeats) for key in session.keys]
        while todo:
            todo = await self._with_one_group(session, todo)
        for key in session.keys:
            self.say(f"{where} {key}: {_seconds(self._cells[key])}")

    async def _with_one_group(self, session: Session, todo: Sequence[Key]) -> list[Key]:
        """Do them until somebody fails; what is left."""
        environments = [self.place.environment(session.mode, n) for n in range(session.processes)]
        daemon = Daemon(self.place.pipe, self.place.driver_root) if session.mode is Mode.MPS else None
        before = await daemon.clients() if daemon else None
        async with group(self.launch, environments, self.settings.deadline_s) as tenants:
            after = await daemon.clients() if daemon else None
            seen = None if before is None or after is None else after - before
            if not tenants.whole:  # they would not begin for the next cell either
                for key in dict.fromkeys(todo):
                    self._note(key, tenants.failures(session.number), seen)
                return []
            self.hellos[session.mode] = tenants.alive[0].hello
            for done, key in enumerate(todo, 1):
                self._note(key, await self._repeat(tenants, key, session.number), seen)
                if not tenants.whole:
                    return [other for other in todo[done:] if other != key]
        return []

    async def _repeat(self, tenants: Group, key: Key, number: int) -> Repeat:
        work_s = 4 * self.settings.seconds * key.processes
        act = tenants.in_turn if key.mode is Mode.SEQUENTIAL else tenants.together
        return await act(self._order(key.experiment), number, work_s + self.settings.deadline_s)

    def _order(self, experiment: Experiment) -> Order:
        if experiment is Experiment.INFERENCE:
            return {"job": "inference", "seconds": self.settings.seconds, "keep": self.settings.keep}
        return {"job": "pi", "points": self._points(experiment), "rounds": self._rounds[experiment]}

    def _note(self, key: Key, repeat: Repeat, seen: int | None) -> None:
        pi = key.experiment is not Experiment.INFERENCE
        points, rounds = (self._points(key.experiment), self._rounds[key.experiment]) if pi else (0, 0)
        cell = self._cells.get(key, Cell(key, (), points, rounds, seen))
        fewest = min((one for one in (cell.clients_seen, seen) if one is not None), default=None)
        self._cells[key] = replace(cell, repeats=(*cell.repeats, repeat), clients_seen=fewest)


_FACTS = ("python", "torch", "cuda")


def _order_of(key: Key) -> tuple[int, int, int]:
    return list(Experiment).index(key.experiment), key.processes, list(Mode).index(key.mode)


def _said(failure: Failure) -> str:
    return f"{failure.what}: {failure.message}" if failure.message else failure.what


def _seconds(cell: Cell) -> str:
    """How it went, for whoever watches."""
    failures = [turn.failure for repeat in cell.repeats for turn in repeat.turns if turn.failure]
    failed = f"; failed: {_said(failures[0])}" if failures else ""
    if not cell.good:
        return failed.removeprefix("; ")
    return f"{statistics.median(cell.times_s):.3f} s{failed}"


def run(runner: Runner) -> tuple[tuple[Cell, ...], tuple[MemoryTry, ...]]:
    """Everything. Ctrl-C ends every tenant first, then this."""

    async def everything() -> tuple[tuple[Cell, ...], tuple[MemoryTry, ...]]:
        return await runner.cells(), await runner.memory()

    return asyncio.run(everything())
