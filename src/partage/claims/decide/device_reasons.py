"""Why a request gets nothing of a device: one of these, each a clause that follows the device."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from partage.claims.model.claim import amount_words
from partage.text import listed, shortened
from partage.values import Frozen, Tagged

_SHOWN = 4
_LONGEST = 120


class ClassSelectsOthers(Tagged):
    """The class of the request is for other devices. mode: what it is offered as; empty: not said."""

    device_class: str
    mode: str

    def __str__(self) -> str:
        offered = f": it is offered as {_MODES.get(self.mode, self.mode)}" if self.mode else ""
        return f"is no device of {self.device_class}{offered}"


_MODES = {
    "whole": "a whole GPU",
    "gpu": "a GPU",
    "amounts": "amounts of memory",
    "replicas": "even shares",
    "mig": "a MIG device",
}


class SelectorSaysNo(Tagged):
    """An expression of the request is false for it. has: attributes that it reads, with their values."""

    expression: str
    has: tuple[str, ...] = ()

    def __str__(self) -> str:
        has = f" (it has {listed(self.has, _SHOWN)})" if self.has else ""
        return f"is not selected by {shortened(self.expression, _LONGEST)}{has}"


class SelectorBroken(Tagged):
    """An expression fails on it: the scheduler gives the whole pod up, on every node."""

    expression: str
    why: str

    def __str__(self) -> str:
        return (
            f"breaks {shortened(self.expression, _LONGEST)}: {self.why}, and the scheduler then gives the "
            "whole pod up"
        )


class DeviceTainted(Tagged):
    """It has a taint that the request does not tolerate."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"has the taint {self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


class NoSuchCapacity(Tagged):
    """It has nothing of that name."""

    name: str
    has: tuple[str, ...]

    def __str__(self) -> str:
        return f"has no capacity {self.name}; it has {listed(self.has, _SHOWN) or 'none'}"


class CapacityTooSmall(Tagged):
    """It could not give so much if nobody had anything of it."""

    name: str
    asked: Decimal
    most: Decimal

    def __str__(self) -> str:
        return f"has {self.name} {amount_words(self.most)} in all, {amount_words(self.asked)} is asked for"


class CapacityTaken(Tagged):
    """Others have so much of it that too little is left. pods: of those others."""

    name: str
    asked: Decimal
    free: Decimal
    total: Decimal
    who: tuple[str, ...]
    pods: tuple[str, ...]

    def __str__(self) -> str:
        free = f"{amount_words(self.free)} of {amount_words(self.total)}" if self.free > 0 else "nothing"
        return f"has {free} of {self.name} left, {amount_words(self.asked)} is asked for{_held_by(self.who)}"


class DeviceTaken(Tagged):
    """Others have all of it."""

    who: tuple[str, ...]
    pods: tuple[str, ...]

    def __str__(self) -> str:
        return f"is taken{_held_by(self.who)}"


class LackingCounter(Frozen):
    """A counter of which others have left too little. by_pods: how much comes back when these end."""

    name: str
    asked: Decimal
    free: Decimal
    total: Decimal
    who: tuple[str, ...]
    by_pods: Mapping[tuple[str, ...], Decimal]


class CountersTaken(Tagged):
    """Others have devices that exclude it. lacking: the counters that they have used up."""

    lacking: tuple[LackingCounter, ...]

    def __str__(self) -> str:
        first = self.lacking[0]
        who = tuple(dict.fromkeys(who for lack in self.lacking for who in lack.who))
        return (
            f"needs {amount_words(first.asked)} of {first.name}, of which other devices leave "
            f"{amount_words(first.free)} of {amount_words(first.total)}{_held_by(who)}"
        )


class TakenHere(Tagged):
    """Another request of the same pod gets it, or what is left of it."""

    request: str

    def __str__(self) -> str:
        return f"goes to the request {self.request} of the same pod"


class RuleForbids(Tagged):
    """A constraint of the claim does not let it go together with what other requests get."""

    attribute: str
    distinct: bool

    def __str__(self) -> str:
        what = "distinctAttribute" if self.distinct else "matchAttribute"
        return f"does not go with the devices of other requests ({what} {self.attribute})"


def _held_by(who: tuple[str, ...]) -> str:
    named = [name for name in who if not name.startswith("?")]
    return f": held by {listed(named, _SHOWN)}" if named else ""


DeviceReason = (
    ClassSelectsOthers
    | SelectorSaysNo
    | SelectorBroken
    | DeviceTainted
    | NoSuchCapacity
    | CapacityTooSmall
    | CapacityTaken
    | DeviceTaken
    | CountersTaken
    | TakenHere
    | RuleForbids
)
