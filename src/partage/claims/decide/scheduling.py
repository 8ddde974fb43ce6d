"""Which devices of a node the claims of a pod get from the scheduler, or why there are not enough.

First fit in the order of the slices, as the scheduler tries it, and back where a later request gets nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from msgspec.structs import replace

from partage.claims.decide.allocation import grant
from partage.claims.decide.book import BookDevice, ClaimBook, DeviceKey, Taking
from partage.claims.decide.cel import SelectorError, read_selector, selects
from partage.claims.decide.cel_syntax import NotEvaluated
from partage.claims.decide.charge import Charge, CountersLeft, charge_of, no_room
from partage.claims.decide.device_reasons import (
    ClassSelectsOthers,
    DeviceReason,
    DeviceTainted,
    RuleForbids,
    SelectorBroken,
    SelectorSaysNo,
    TakenHere,
)
from partage.claims.model.claim import (
    Claim,
    ClaimRequest,
    ClaimResult,
    ClaimSpec,
    ConfigSource,
    DeviceAsk,
    DeviceClass,
    DeviceRule,
)
from partage.claims.model.grant import Granted, RefusedClaim
from partage.model.claim import ClaimRef
from partage.plan.serve.ledger_entry import Hold
from partage.values import Frozen

Classes = Mapping[str, DeviceClass]

MOST_TRIES = 1_000
"""Each looks at all devices of the node, and a tenant may have written the requests."""
_KEEPS_AWAY = ("NoSchedule", "NoExecute")


class PodClaim(Frozen):
    """A claim of a pod. name: as the pod calls it. namespace: of the pod."""

    name: str
    spec: ClaimSpec
    namespace: str = ""


class GivenDevice(Frozen):
    """What a request gets. way: the request, or the alternative of it. amounts: that it is charged."""

    claim: str
    way: DeviceAsk
    device: BookDevice
    amounts: Mapping[str, Decimal]

    @property
    def request(self) -> str:
        """``req``, as pods name it."""
        return self.way.name.partition("/")[0]


class WayVerdict(Frozen):
    """One alternative of a request, and why each device is not enough for it; None: it would do."""

    way: DeviceAsk
    devices: tuple[tuple[BookDevice, DeviceReason | None], ...]


class Unplaced(Frozen):
    """The first request that gets nothing. classes: those that it names and that nobody knows."""

    claim: PodClaim
    request: ClaimRequest
    ways: tuple[WayVerdict, ...] = ()
    classes: tuple[str, ...] = ()


class Placed(Frozen):
    """Every request gets devices."""

    given: tuple[GivenDevice, ...]


def place(
    claims: Sequence[PodClaim], book: ClaimBook, classes: Classes, most_tries: int = MOST_TRIES
) -> Placed | Unplaced:
    """All claims of a pod on a node, together."""
    for claim in claims:
        for request in claim.spec.requests:
            unknown = [way.device_class for way in request.ways if way.device_class not in classes]
            if unknown:
                return Unplaced(claim, request, classes=tuple(dict.fromkeys(unknown)))
    return _PlaceSearch(claims, book, classes, most_tries).run()


def not_evaluated(claims: Sequence[PodClaim], classes: Classes) -> Iterator[str]:
    """Expressions that only the scheduler can evaluate, noun phrases. They count as true."""
    for claim in claims:
        for request in claim.spec.requests:
            for way in request.ways:
                known = classes.get(way.device_class)
                for expression in (*(known.selectors if known else ()), *way.selectors):
                    try:
                        read_selector(expression)
                    except NotEvaluated as what:
                        yield f"the expression {expression[:120]!r} of request {way.name}: {what}"


class _SoFar:
    """What the requests before were given, and what it takes of the devices."""

    def __init__(self, given: tuple[GivenDevice, ...]) -> None:
        self.given = given
        self.takings = [
            Taking(got.device.key, got.way.name, (), got.amounts) for got in given if not got.way.admin
        ]
        self.of_device = defaultdict[DeviceKey, list[Taking]](list)
        for taking in self.takings:
            self.of_device[taking.device].append(taking)


class _PlaceSearch:
    def __init__(
        self, claims: Sequence[PodClaim], book: ClaimBook, classes: Classes, most_tries: int
    ) -> None:
        self._book, self._classes, self._most_tries = book, classes, most_tries
        self._counters = CountersLeft(book)
        self._slots = [(claim, request) for claim in claims for request in claim.spec.requests]
        self._alone: dict[tuple[str, str, DeviceKey], DeviceReason | Charge] = {}
        self._meant: dict[tuple[str, tuple[str, ...], DeviceKey], DeviceReason | None] = {}
        self._tries = 0
        self._deepest = -1
        self._missed: Unplaced | None = None

    def run(self) -> Placed | Unplaced:
        given = self._from(0, ())
        if given is not None:
            return Placed(given)
        assert self._missed is not None, "the first request that gets nothing was noted"
        return self._missed

    def _from(self, number: int, given: tuple[GivenDevice, ...]) -> tuple[GivenDevice, ...] | None:
        """Devices for this request and those after it."""
        if number == len(self._slots):
            return given
        claim, request = self._slots[number]
        so_far = _SoFar(given)
        ways = []
        for way in request.ways:
            rated = tuple((device, self._reason(claim, way, device, so_far)) for device in self._book.devices)
            ways.append(WayVerdict(way, rated))
            if any(isinstance(reason, SelectorBroken) for _, reason in rated):
                break  # the scheduler goes no further
            for chosen in self._choices(claim, way, rated, given):
                found = self._from(number + 1, (*given, *chosen))
                if found is not None:
                    return found
                if self._tries > self._most_tries:
                    return None
        if number > self._deepest:
            self._deepest, self._missed = number, Unplaced(claim, request, tuple(ways))
        return None

    def _choices(
        self,
        claim: PodClaim,
        way: DeviceAsk,
        rated: Sequence[tuple[BookDevice, DeviceReason | None]],
        given: tuple[GivenDevice, ...],
    ) -> Iterator[tuple[GivenDevice, ...]]:
        """The devices of one request, as often as they can be chosen."""
        fitting = [device for device, reason in rated if reason is None]
        if way.every:
            wanted = [reason for _, reason in rated if not isinstance(reason, _NOT_MEANT)]
            if fitting and len(fitting) == len(wanted):
                yield tuple(self._given(claim, way, device) for device in fitting)
            return
        yield from self._several(claim, way, fitting, given, ())

    def _several(
        self,
        claim: PodClaim,
        way: DeviceAsk,
        fitting: Sequence[BookDevice],
        given: tuple[GivenDevice, ...],
        chosen: tuple[GivenDevice, ...],
    ) -> Iterator[tuple[GivenDevice, ...]]:
        if len(chosen) == way.count:
            yield chosen
            return
        so_far = _SoFar((*given, *chosen))
        for place_, device in enumerate(fitting[: len(fitting) - (way.count - len(chosen)) + 1]):
            self._tries += 1
            if self._tries > self._most_tries:
                return
            if chosen and self._reason(claim, way, device, so_far) is not None:
                continue
            more = (*chosen, self._given(claim, way, device))
            yield from self._several(claim, way, fitting[place_ + 1 :], given, more)

    def _given(self, claim: PodClaim, way: DeviceAsk, device: BookDevice) -> GivenDevice:
        charge = charge_of(way, device.device)
        assert isinstance(charge, Charge), "a device that fits can be charged"
        return GivenDevice(claim.name, way, device, charge.amounts)

    def _reason(
        self, claim: PodClaim, way: DeviceAsk, device: BookDevice, so_far: _SoFar
    ) -> DeviceReason | None:
        """Why the device is not enough beside what was given already; None: it would do."""
        key = claim.name, way.name, device.key
        if key not in self._alone:
            self._alone[key] = self._reason_alone(way, device)
        charge = self._alone[key]
        if not isinstance(charge, Charge):
            return charge
        mine, own = so_far.takings, so_far.of_device.get(device.key)
        if own and no_room(charge, device, (*self._book.of_device(device.key), *own)) is not None:
            return TakenHere(own[0].who)
        if mine and (lacking := self._counters.lacking(device, mine)) is not None:
            named = {taking.who for taking in mine}
            return TakenHere(next(who for lack in lacking.lacking for who in lack.who if who in named))
        return _forbidden(claim, way, device, [got for got in so_far.given if got.claim == claim.name])

    def _reason_alone(self, way: DeviceAsk, device: BookDevice) -> DeviceReason | Charge:
        """The charge where it would do if the pod had no other request."""
        asked = way.device_class, way.selectors, device.key
        if asked not in self._meant:  # containers of a pod often ask alike
            self._meant[asked] = _not_wanted(way, self._classes[way.device_class], device)
        if (reason := self._meant[asked]) is not None:
            return reason
        for taint in device.device.taints:
            if taint.effect in _KEEPS_AWAY and not any(
                toleration.tolerates(taint.key, taint.value, taint.effect) for toleration in way.tolerations
            ):
                return DeviceTainted(taint.key, taint.value, taint.effect)
        charge = charge_of(way, device.device)
        if not isinstance(charge, Charge):
            return charge
        # A request that only looks is charged for this check, too, and then counts for nothing.
        alone = no_room(charge, device, self._book.of_device(device.key)) or self._counters.lacking(device)
        return alone or charge


_NOT_MEANT = (ClassSelectsOthers, SelectorSaysNo)


def _not_wanted(way: DeviceAsk, device_class: DeviceClass, device: BookDevice) -> DeviceReason | None:
    """By the expressions of the class, then those of the request."""
    for expression in (*device_class.selectors, *way.selectors):
        try:
            wanted = selects(expression, device.device, device.driver)
        except NotEvaluated:
            continue
        except SelectorError as error:
            return SelectorBroken(expression, str(error))
        if not wanted:
            if expression in device_class.selectors:
                return ClassSelectsOthers(device_class.name, device.text("mode") or device.text("type"))
            return SelectorSaysNo(expression, tuple(_read_of(expression, device)))
    return None


def _read_of(expression: str, device: BookDevice) -> Iterator[str]:
    """The attributes that an expression names, as the device has them."""
    for name, value in device.device.attributes.items():
        short = name.rpartition("/")[2]
        said = value.string or value.version or (None if value.number is None else str(value.number))
        if said is not None and f".{short}" in expression:
            yield f"{short} {said}"
    for name, capacity in device.device.capacity.items():
        if f".{name}" in expression:
            yield f"{name} {capacity.value}"


def _forbidden(
    claim: PodClaim, way: DeviceAsk, device: BookDevice, given: Sequence[GivenDevice]
) -> DeviceReason | None:
    for rule in claim.spec.rules:
        if not rule.names(way.name):
            continue
        value = _attribute(device, rule)
        others = [_attribute(got.device, rule) for got in given if rule.names(got.way.name)]
        if value is None or any((other == value) is rule.distinct for other in others):
            return RuleForbids(rule.attribute, rule.distinct)
    return None


def _attribute(device: BookDevice, rule: DeviceRule) -> object:
    domain, _, name = rule.attribute.rpartition("/")
    attributes = device.device.attributes
    return attributes.get(rule.attribute) or (attributes.get(name) if domain == device.driver else None)


# --- what the node says -------------------------------------------------------------------------------


def refused_by_node(
    claims: Sequence[PodClaim],
    placed: Placed,
    book: ClaimBook,
    classes: Classes,
    held: Mapping[Hold, str],
) -> RefusedClaim | None:
    """What the agent of the node would answer to what the scheduler gives; None: it gives it, or only what
    it publishes is known. held: who holds a share, as words.
    """
    if book.served is None:
        return None
    so_far: list[Granted] = []
    for claim in claims:
        mine = [got for got in placed.given if got.claim == claim.name]
        if not any(got.device.pool == book.served.pool for got in mine):
            continue
        asked = allocated(claim, mine, classes)
        answer = grant(asked, asked.ref, book.served, so_far, held)
        if isinstance(answer, RefusedClaim):
            return answer
        so_far.append(answer)
    return None


def allocated(claim: PodClaim, given: Sequence[GivenDevice], classes: Classes) -> Claim:
    """The claim as the scheduler would write it."""
    configs = []
    for got in given:
        configs += [
            replace(config, requests=(got.way.name,)) for config in classes[got.way.device_class].configs
        ]
    configs += [replace(config, source=ConfigSource.CLAIM) for config in claim.spec.configs]
    results = tuple(
        ClaimResult(
            one.way.name,
            one.device.pool,
            one.device.device.name,
            one.device.driver,
            str(number) if one.device.shared else None,
            {name: int(amount) for name, amount in one.amounts.items()},
            admin_access=one.way.admin,
        )
        for number, one in enumerate(given)
    )
    name = claim.spec.title.rpartition(" ")[2]
    # A name in place of the UID that the claim has not got yet: the answer may say it.
    ref = ClaimRef(claim.namespace or "default", name, f"new{sum(map(ord, claim.name))}")
    return Claim(ref, allocated=True, results=results, configs=tuple(configs))
