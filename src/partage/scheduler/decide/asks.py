"""What pods ask for, and how much that is of each kind of GPU.

A pod whose requests fit on one kind together is placed there. One that needs several kinds at once, or all
devices of a node, is placed by its CPUs alone: SSP knows pods of one kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from partage.claims.decide.book import ClaimBook
from partage.claims.decide.scheduling import Placed, PodClaim, place
from partage.claims.model.claim import ClaimRequest, ClaimSpec, DeviceAsk, DeviceClass
from partage.claims.model.names import MEMORY, SHARES
from partage.plan.placement.mix import WHOLE_MILLI, PodType
from partage.scheduler.decide.kinds import OF_ONE_DEVICE, DeviceKind, Measure
from partage.values import Frozen

_OF_CLASS = "deviceclass.resource.kubernetes.io/"
_MOST_KNOWN = 100_000


class PodAsk(Frozen):
    """What pods of one kind ask for. devices: extended resources that may be GPUs."""

    cpu_milli: int
    memory_mib: int
    claims: tuple[ClaimSpec, ...] = ()
    devices: tuple[tuple[str, int], ...] = ()

    @property
    def wants_gpus(self) -> bool:
        """Whether it asks for more than CPUs and memory."""
        return bool(self.claims or self.devices)

    @property
    def without_gpus(self) -> PodType:
        """Its CPUs and memory alone."""
        return PodType(self.cpu_milli, self.memory_mib)


class KindAmount(Frozen):
    """What an ask is of one kind. gpus: different ones; milli: of each. rank: alternatives that it likes
    better.
    """

    gpus: int
    milli: int
    rank: int = 0


class AskReader:
    """Knows what each ask is of each kind. classes: of the cluster."""

    def __init__(self, classes: Mapping[str, DeviceClass]) -> None:
        self._classes = classes
        self._resources = {
            **{f"{_OF_CLASS}{name}": name for name in classes},
            **{one.extended: name for name, one in classes.items() if one.extended},
        }
        self._known: dict[tuple[PodAsk, str], KindAmount | AskReader | None] = {}

    def wanted(self, ask: PodAsk, kind: DeviceKind) -> KindAmount | None:
        """None: it can have none of this kind, or asks for no GPU."""
        key = ask, kind.key
        found = self._known.get(key, self)  # None is an answer; and another thread may clear it meanwhile
        if not isinstance(found, AskReader):
            return found
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        made = self._of_resource(ask, kind) if kind.resource else self._of_claims(ask, kind)
        self._known[key] = made
        return made

    def by_model(self, ask: PodAsk, kinds: Iterable[DeviceKind]) -> dict[str, KindAmount]:
        """What it is of each model."""
        found: dict[str, KindAmount] = {}
        for kind in kinds:
            if kind.model not in found and (wanted := self.wanted(ask, kind)) is not None:
                found[kind.model] = wanted
        return found

    def _of_resource(self, ask: PodAsk, kind: DeviceKind) -> KindAmount | None:
        count = dict(ask.devices).get(kind.resource, 0)
        if not count or ask.claims:
            return None
        if kind.measure is Measure.SLOTS:
            return KindAmount(count, WHOLE_MILLI)
        return KindAmount(1, kind.milli(count))

    def _of_claims(self, ask: PodAsk, kind: DeviceKind) -> KindAmount | None:
        requests = [request for spec in ask.claims for request in spec.requests]
        requests += [
            ClaimRequest(name, (DeviceAsk(name, self._resources[name], count=count),))
            for name, count in ask.devices
            if name in self._resources
        ]
        gpus = milli = rank = 0
        for request in requests:
            if all(way.admin for way in request.ways):
                continue  # it takes nothing
            for number, way in enumerate(request.ways):
                charge = None if way.every else self._charge(way, kind)
                if charge is not None:
                    gpus, milli, rank = gpus + way.count, max(milli, charge), max(rank, number)
                    break
            else:
                return None
        return KindAmount(gpus, milli, rank) if gpus else None

    def _charge(self, way: DeviceAsk, kind: DeviceKind) -> int | None:
        """Milli of one device of the kind; None: it is not enough, or not meant. What only tells devices of
        one kind apart is for the scheduler to see.
        """
        selectors = tuple(
            text for text in way.selectors if not any(f".{name}" in text for name in OF_ONE_DEVICE)
        )
        way = replace(way, name="r", count=1, selectors=selectors)
        assert kind.device is not None, "a kind that is not of a resource is for claims"
        claim = PodClaim("claim", ClaimSpec("", (ClaimRequest(way.name, (way,)),)))
        placed = place([claim], ClaimBook((kind.device,)), self._classes)
        if not isinstance(placed, Placed):
            return None
        amounts = placed.given[0].amounts
        match kind.measure:
            case Measure.MEMORY:
                return kind.milli(int(amounts[MEMORY]))
            case Measure.SHARES:
                return kind.milli(int(amounts[SHARES]))
            case _:
                return WHOLE_MILLI
