"""What is measured in which order. Pure.

Every pass goes through all sessions; every second pass goes backwards, so that a GPU that slows down as it
becomes warm does so for every mode. Within a session the cells take turns, repeat by repeat.
"""

from __future__ import annotations

from collections.abc import Iterator

from partage.lab.bench.model import BenchSettings, CellKey, Experiment
from partage.lab.place import TenantMode, TenantPlace
from partage.values import Frozen

PLAIN = (TenantMode.ALONE, TenantMode.SEQUENTIAL, TenantMode.TIME_SLICING, TenantMode.PARALLEL)
"""Modes that the same processes can be measured in: their environment is the same."""

_PI = (Experiment.SMALL, Experiment.SATURATING)


class BenchSession(Frozen):
    """Processes that live together for some cells. number: of the pass; repeats: of each cell in it."""

    number: int
    processes: int
    mode: TenantMode
    keys: tuple[CellKey, ...]
    repeats: int


def possible_modes(place: TenantPlace, processes: int) -> tuple[TenantMode, ...]:
    """In which modes that many processes can run beside each other there, apart from the guard's."""
    one = processes == 1
    if not place.on_gpu:
        return (TenantMode.ALONE,) if one else (TenantMode.SEQUENTIAL, TenantMode.PARALLEL)
    plain = (TenantMode.ALONE,) if one else (TenantMode.SEQUENTIAL, TenantMode.TIME_SLICING)
    mps = (TenantMode.MPS,) if place.pipe is not None else ()
    mig = (TenantMode.MIG,) if 1 < processes <= len(place.mig) else ()
    return plain + mps + mig


def experiments_of(settings: BenchSettings) -> tuple[Experiment, ...]:
    """The timed experiments that were asked for."""
    pi = _PI if "pi" in settings.experiments else ()
    return pi + ((Experiment.INFERENCE,) if "inference" in settings.experiments else ())


def sessions(settings: BenchSettings, place: TenantPlace) -> tuple[BenchSession, ...]:
    """All of them, in order."""
    found: list[BenchSession] = []
    for number in range(1, settings.passes + 1):
        repeats = settings.repeats // settings.passes + (number <= settings.repeats % settings.passes)
        of_pass = list(_of_pass(settings, place, number, repeats)) if repeats else []
        found += of_pass if number % 2 else reversed(of_pass)
    return tuple(found)


def guard_sessions(settings: BenchSettings) -> tuple[BenchSession, ...]:
    """One process without and one with the guard, in turns: each repeat is a new process."""
    if not settings.guard or "pi" not in settings.experiments:
        return ()
    both = (TenantMode.WITHOUT_GUARD, TenantMode.WITH_GUARD)
    return tuple(
        BenchSession(number, 1, mode, tuple(CellKey(experiment, mode, 1) for experiment in _PI), 1)
        for number in range(1, settings.repeats + 1)
        for mode in (both if number % 2 else both[::-1])
    )


def _of_pass(
    settings: BenchSettings, place: TenantPlace, number: int, repeats: int
) -> Iterator[BenchSession]:
    for processes in settings.processes:
        modes = possible_modes(place, processes)
        plain = tuple(mode for mode in modes if mode in PLAIN)
        for together in (plain, *((mode,) for mode in modes if mode not in PLAIN)):
            keys = tuple(
                CellKey(experiment, mode, processes)
                for experiment in experiments_of(settings)
                for mode in together
                # Requests in turn are those of one process alone.
                if not (experiment is Experiment.INFERENCE and mode is TenantMode.SEQUENTIAL)
            )
            if keys:
                yield BenchSession(number, processes, together[-1], keys, repeats)
