"""The score of every node for every ask, remembered: only what changed is counted again."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum

from partage.plan.placement.mix import PodType
from partage.plan.placement.room import NO, NodeScores
from partage.scheduler.decide.asks import AskReader, KindAmount, PodAsk
from partage.scheduler.decide.kinds import NO_GPU, KindRoom

MOST_ASKS = 512
_STEP = 32


class ExtenderPolicy(StrEnum):
    """How nodes are scored. ssp: so that little of the GPUs is wasted for the pods to come. bestfit: the
    fullest node first. spread: the emptiest first.
    """

    SSP = "ssp"
    BESTFIT = "bestfit"
    SPREAD = "spread"


class Judge:
    """One state of all that scores depend on beside nodes. models: those that scores are known for."""

    def __init__(self, scores: NodeScores, reader: AskReader, models: Collection[str]) -> None:
        self._scores, self._reader, self._models = scores, reader, models

    def score(self, ask: PodAsk, rooms: Sequence[KindRoom]) -> float:
        """The score of a node, NO where the pod does not fit, or its models are not known yet.

        Other kinds of GPUs on the node lose CPUs to the pod.
        """
        for room in rooms:
            if room.kind is not None and room.room.model not in self._models:
                return NO
        alone = ask.without_gpus
        if not rooms or not rooms[0].room.fits(alone):
            return NO
        chosen, pod = -1, alone
        if ask.wants_gpus:
            wanted, some = self._choice(ask, rooms)
            if some and wanted is None:
                return NO
            if wanted is not None:
                chosen, pod = wanted
        return sum(
            self._scores.best(pod if number == chosen else alone, room.room)[0]
            for number, room in enumerate(rooms)
        )

    def _choice(self, ask: PodAsk, rooms: Sequence[KindRoom]) -> tuple[tuple[int, PodType] | None, bool]:
        """The room that the pod gets, and what it is of it; whether it can have any of these kinds at all."""
        found: list[tuple[int, KindAmount]] = []
        for number, room in enumerate(rooms):
            wanted = None if room.kind is None else self._reader.wanted(ask, room.kind)
            if wanted is not None:
                found.append((number, wanted))
        for number, wanted in sorted(found, key=lambda pair: pair[1].rank):
            pod = PodType(ask.cpu_milli, ask.memory_mib, wanted.gpus, wanted.milli)
            if rooms[number].room.fits(pod):
                return (number, pod), True
        return None, bool(found)

    def seen(self, ask: PodAsk, rooms: Iterable[KindRoom]) -> bool:
        """Whether amounts of a GPU are seen for this ask: not where a device plugin serves it."""
        return not any(
            room.kind is not None and room.kind.resource and self._reader.wanted(ask, room.kind)
            for room in rooms
        )


class _ScoreRow:
    """Scores of one ask, by the place of nodes. stale: places that changed since, or were not counted yet."""

    def __init__(self, judge: Judge, size: int) -> None:
        self.judge = judge
        self.scores = array("d", [NO]) * size
        self.stale = set(range(size))


class ScoreBoard:
    """Nodes, and what was counted of them."""

    def __init__(self, judge: Judge, most_asks: int = MOST_ASKS) -> None:
        self._judge, self._most = judge, most_asks
        self._places: dict[str, int] = {}
        self._free: list[int] = []
        self._rooms: list[tuple[KindRoom, ...]] = []
        self._rows: OrderedDict[PodAsk, _ScoreRow] = OrderedDict()
        self._next: dict[PodAsk, _ScoreRow] = {}

    def put(self, name: str, rooms: tuple[KindRoom, ...]) -> None:
        """A node is so now."""
        place = self._places.get(name)
        if place is None:
            place = self._free.pop() if self._free else len(self._rooms)
            self._places[name] = place
            if place == len(self._rooms):
                self._rooms.append(())
                for row in self._all_rows():
                    row.scores.append(NO)
        self._rooms[place] = rooms
        for row in self._all_rows():
            row.stale.add(place)

    def drop(self, name: str) -> None:
        """A node is gone."""
        place = self._places.pop(name, None)
        if place is not None:
            self._rooms[place] = ()
            self._free.append(place)

    def use(self, judge: Judge) -> Iterator[None]:
        """Count scores in another way. Those that are known are counted beforehand, some at each step; from
        the last step on all answers are by it.
        """
        self._next = {ask: _ScoreRow(judge, len(self._rooms)) for ask in self._rows}
        for row_ask, row in list(self._next.items()):
            places = list(self._places.values())
            for start in range(0, len(places), _STEP):
                self._count(row_ask, row, places[start : start + _STEP])
                yield
        self._judge, self._rows, self._next = judge, OrderedDict(self._next), {}

    def _all_rows(self) -> Iterator[_ScoreRow]:
        yield from self._rows.values()
        yield from self._next.values()

    @property
    def nodes(self) -> int:
        """How many there are."""
        return len(self._places)

    def rooms(self) -> Iterator[KindRoom]:
        """Of all nodes."""
        for rooms in self._rooms:
            yield from rooms

    def rooms_of(self, name: str) -> tuple[KindRoom, ...]:
        """Of one node; () for one that is not known."""
        place = self._places.get(name)
        return () if place is None else self._rooms[place]

    def sees_amounts(self, ask: PodAsk, name: str) -> bool:
        """Whether amounts of a GPU are seen for this ask on the node."""
        return self._judge.seen(ask, self.rooms_of(name))

    def scores(self, ask: PodAsk, names: Sequence[str]) -> list[float]:
        """Of nodes by name. NO for a node that is not known."""
        row, places = self._row(ask), self._places
        try:
            asked = list(map(places.__getitem__, names))
        except KeyError:
            return [self.scores(ask, [name])[0] if name in places else NO for name in names]
        self._count(ask, row, asked)
        return list(map(row.scores.__getitem__, asked))

    def _count(self, ask: PodAsk, row: _ScoreRow, places: Sequence[int]) -> None:
        """Those of these places that are stale."""
        if row.stale:
            for place in row.stale.intersection(places):
                row.scores[place] = row.judge.score(ask, self._rooms[place])
            row.stale.difference_update(places)

    def warm(self, ask: PodAsk) -> Iterator[None]:
        """Count all nodes for an ask that will be asked for soon, some at each step."""
        names = list(self._places)
        for start in range(0, len(names), _STEP):
            self.scores(ask, names[start : start + _STEP])
            yield

    def _row(self, ask: PodAsk) -> _ScoreRow:
        row = self._rows.get(ask)
        if row is None:
            row = self._rows[ask] = _ScoreRow(self._judge, len(self._rooms))
            if len(self._rows) > self._most:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(ask)
        return row


def supply_of(rooms: Iterable[KindRoom]) -> dict[str, int]:
    """Milli of each model, in all."""
    supply: dict[str, int] = {}
    for room in rooms:
        if room.room.model != NO_GPU:
            supply[room.room.model] = supply.get(room.room.model, 0) + 1000 * len(room.room.left)
    return supply
