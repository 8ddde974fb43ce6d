"""What is measured in which order. Pure.

Every pass goes through all sessions; every second pass goes backwards, so that a GPU that slows down as it
grows warm does so for every mode. Within a session the cells take turns, repeat by repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from partage.faces.bench.model import Experiment, Key, Mode, Settings
from partage.faces.bench.places import Place

PLAIN = (Mode.ALONE, Mode.SEQUENTIAL, Mode.TIME_SLICING, Mode.PARALLEL)
"""Modes that the same processes can be measured in: their environment is the same."""


@dataclass(frozen=True, slots=True)
class Session:
    """Processes that live together for some cells. number: of the pass; repeats: of each cell in it."""

    number: int
    processes: int
    mode: Mode
    keys: tuple[Key, ...]
    repeats: int


def experiments_of(settings: Settings) -> tuple[Experiment, ...]:
    """The timed experiments that were asked for."""
    found: tuple[Experiment, ...] = ()
    if "pi" in settings.experiments:
        found += (Experiment.SMALL, Experiment.SATURATING)
    return found + ((Experiment.INFERENCE,) if "inference" in settings.experiments else ())


def sessions(settings: Settings, place: Place) -> tuple[Session, ...]:
    """All of them, in order."""
    found: list[Session] = []
    for number in range(1, settings.passes + 1):
        repeats = settings.repeats // settings.passes + (number <= settings.repeats % settings.passes)
        of_pass = list(_of_pass(settings, place, number, repeats)) if repeats else []
        found += of_pass if number % 2 else reversed(of_pass)
    return tuple(found)


def guard_sessions(settings: Settings) -> tuple[Session, ...]:
    """One process without and one with the guard, in turns: each repeat is a process of its own."""
    if not settings.guard or "pi" not in settings.experiments:
        return ()
    experiments = (Experiment.SMALL, Experiment.SATURATING)
    return tuple(
        Session(number, 1, mode, tuple(Key(experiment, mode, 1) for experiment in experiments), 1)
        for number in range(1, settings.repeats + 1)
        for mode in _turned((Mode.WITHOUT_GUARD, Mode.WITH_GUARD), number)
    )


def _turned(modes: tuple[Mode, ...], number: int) -> tuple[Mode, ...]:
    return modes if number % 2 else modes[::-1]


def _of_pass(settings: Settings, place: Place, number: int, repeats: int) -> Iterator[Session]:
    experiments = experiments_of(settings)
    if not experiments:
        return
    for processes in settings.processes:
        modes = place.modes(processes)
        plain = tuple(mode for mode in modes if mode in PLAIN)
        for together in (plain, *((mode,) for mode in modes if mode not in PLAIN)):
            keys = tuple(
                Key(experiment, mode, processes)
                for experiment in experiments
                for mode in together
                # Requests that wait for each other's process say nothing that one process alone does not.
                if not (experiment is Experiment.INFERENCE and mode is Mode.SEQUENTIAL)
            )
            if keys:
                yield Session(number, processes, together[-1], keys, repeats)
