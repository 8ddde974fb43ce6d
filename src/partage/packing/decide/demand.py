"""A demand for MIG devices as text: ``3g.40gb=2,1g.10gb=9``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from partage.errors import InputError, Problem
from partage.model.geometry import MigProfile
from partage.model.layout import compute_choices
from partage.values import Frozen

_MOST_PROFILES = 32
_MOST_DIGITS = 7
_OPTION = "--demand"
_EXAMPLE = "write it like 3g.40gb=2,1g.10gb=9"


class Demand(Frozen):
    """How many MIG devices of which profiles; each profile once, with at least one device."""

    wanted: tuple[tuple[MigProfile, int], ...]

    @property
    def profiles(self) -> tuple[MigProfile, ...]:
        """The demanded profiles, in the order of the demand."""
        return tuple(profile for profile, _ in self.wanted)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of each of ``profiles``."""
        return tuple(count for _, count in self.wanted)

    @classmethod
    def parse(cls, text: str) -> Demand:
        """Inverse of ``str``; a profile without a number means one. Raises InputError with all problems."""
        terms = [term.strip() for term in text.split(",")]
        if not any(terms):
            raise InputError([_problem("nothing is demanded", _EXAMPLE)])
        problems: list[Problem] = []
        wanted: dict[MigProfile, int] = {}
        for term in terms:
            try:
                profile, count = _term(term)
            except ValueError as error:
                problems.append(_problem(str(error), _EXAMPLE))
                continue
            if profile in wanted:
                problems.append(_problem(f"{profile} is demanded twice", "add the two counts up"))
            wanted[profile] = count
        if len(wanted) > _MOST_PROFILES:
            problems.append(_problem(f"{len(wanted)} profiles; at most {_MOST_PROFILES} can be demanded"))
        if problems:
            raise InputError(problems)
        return cls(tuple(wanted.items()))

    def __str__(self) -> str:
        return ",".join(f"{profile}={count}" for profile, count in self.wanted)


def check_names(demand: Demand, known: Iterable[MigProfile]) -> None:
    """Raise InputError for every profile that no GPU model has, with similar names.

    known: GPU instance profiles of all models.
    """
    names = {profile: str(profile) for profile in known}
    problems = [problem for profile in demand.profiles for problem in _faults(profile, names)]
    if problems:
        raise InputError(problems)


def _faults(profile: MigProfile, names: dict[MigProfile, str]) -> Iterator[Problem]:
    if profile.gpu_instance not in names:
        yield _problem(f"no GPU model has a profile {profile.gpu_instance}", nearest_hint(profile, names))
    elif profile.compute_slices not in compute_choices(profile.gpu_slices):
        choices = ", ".join(map(str, compute_choices(profile.gpu_slices)))
        yield _problem(
            f"{profile}: a {profile.gpu_instance} instance can be split into compute instances of "
            f"{choices} slices only"
        )


def nearest_hint(profile: MigProfile, known: Iterable[MigProfile]) -> str:
    """``nearest: 3g.40gb, 3g.47gb``: by slices, then by memory; empty if none is known."""

    def distance(other: MigProfile) -> tuple[int, int, bool, str]:
        slices = abs(other.gpu_slices - profile.gpu_slices)
        memory = abs(other.gigabytes - profile.gigabytes)
        return slices, memory, other.attributes != profile.attributes, str(other)

    near = sorted(set(known), key=distance)[:3]
    return f"nearest: {', '.join(map(str, near))}" if near else ""


def _term(term: str) -> tuple[MigProfile, int]:
    name, equals, number = (part.strip() for part in term.partition("="))
    profile = MigProfile.parse(name)
    if not equals:
        return profile, 1
    if not (number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS and int(number) > 0):
        raise ValueError(f"{term[:60]!r}: '=' must be followed by a whole number of at least 1")
    return profile, int(number)


def _problem(message: str, hint: str = "") -> Problem:
    return Problem("", _OPTION, "error", message, hint)
