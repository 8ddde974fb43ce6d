"""How much a claim gets of one device, and whether that much of it is free. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from partage.claims.decide.devices import ClaimDevices
from partage.claims.decide.on_demand import PlaceOnDemand
from partage.claims.model.claim import ClaimResult
from partage.claims.model.grant import (
    ANEW,
    LATER,
    EnforcedBy,
    Granted,
    GrantedShare,
    RefusalReason,
    ShareConfig,
)
from partage.claims.model.names import CORES, MEMORY, SHARES, Mode, mode_of, usable_memory
from partage.model.ids import DeviceUuid, ShareId, device_of
from partage.model.share import DeviceOffer
from partage.plan.serve.ledger_entry import Hold
from partage.plan.serve.unit_allocation import name_of
from partage.text import count_of, listed, shortened
from partage.units import format_exactly

_MOST_NAMED = 6


class ClaimRefusal(Exception):
    """Why a claim is refused, a clause that follows its name."""

    def __init__(self, reason: RefusalReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class TakenOfDevice:
    """What is taken of one device, and by whom.

    ids: to words for the holder. cores: percent. by_claims: who has it by a claim. in_the_way: holders of
    something else on the same GPU, which excludes this device.
    """

    def __init__(
        self, row: DeviceOffer, devices: ClaimDevices, kept: Iterable[Granted], held: Mapping[Hold, str]
    ) -> None:
        self.ids: dict[ShareId, str] = {}
        self.cores: dict[str, int] = {}
        self.by_claims: set[str] = set()
        self.in_the_way: list[str] = []
        own = set(row.share_ids)
        for granted in kept:
            for share in granted.shares:
                if share.gpu != row.gpu:
                    continue
                who = f"claim {granted.claim}"
                # With another size of units the same ids are other amounts.
                same = share.memory_bytes == row.memory_bytes * len(share.ids)
                fits = share.resource == row.resource and own.issuperset(share.ids) and same
                if fits and share.ids:
                    self.ids |= dict.fromkeys(share.ids, who)
                    self.cores[who] = self.cores.get(who, 0) + share.cores
                    self.by_claims.add(who)
                elif share.ids and _excludes(share.uuid, share.gpu, row):
                    self.in_the_way.append(who)
        for (resource, id_), who in held.items():
            if resource == row.resource and id_ in own:
                self.ids.setdefault(id_, who)
                continue
            device = device_of(id_)
            if _excludes(device, devices.gpu_of.get(device, device), row):
                self.in_the_way.append(who)

    def who(self) -> str:
        """The holders."""
        return listed(sorted({*self.ids.values()}), _MOST_NAMED)


def _excludes(device: DeviceUuid, gpu: DeviceUuid, row: DeviceOffer) -> bool:
    """Whether a hold of another kind keeps this device from being given. MIG devices of one GPU do not
    disturb each other.
    """
    apart = row.profile is not None and device.startswith("MIG-") and device != row.device
    return gpu == row.gpu and not apart


def share_of(
    result: ClaimResult,
    row: DeviceOffer,
    config: ShareConfig,
    taken: TakenOfDevice,
    place: PlaceOnDemand | None = None,
) -> GrantedShare:
    """What a claim gets of a device, the lowest ids that are free. row: as configured. taken: of it. place:
    of a device that is made on demand. Raises ClaimRefusal.
    """
    ids: tuple[ShareId, ...] = ()
    cores = 0
    if not result.admin_access:
        if taken.in_the_way:
            raise held_by(result, row, listed(sorted({*taken.in_the_way}), _MOST_NAMED))
        wanted = _wanted(result, row)
        free = [id_ for id_ in row.share_ids if id_ not in taken.ids]
        if len(free) < wanted:
            raise _too_much(result, row, wanted, len(free), taken)
        ids = () if row.planned else tuple(free[:wanted])
        cores = _cores(result, row, taken)
    item = None if place is None or result.admin_access else place.item
    return GrantedShare(
        request=result.request,
        pool=result.pool,
        device=result.device,
        share_id=result.share_id,
        uuid=row.device,
        gpu=row.gpu,
        resource=row.resource,
        ids=ids,
        memory_bytes=row.memory_bytes * len(ids),
        cores=cores,
        guarantee=row.guarantee,
        admin_access=result.admin_access,
        config=config,
        place="" if item is None else str(item),
        slot=slot_of(row, ids),
        enforced=_enforced_by(row),
    )


def slot_of(row: DeviceOffer, ids: Sequence[ShareId]) -> str:
    """The slot of who holds these ids of a device; empty: there is none."""
    return row.pipe_of(ids).rpartition("/")[2] if row.in_slots and ids else ""


def _enforced_by(row: DeviceOffer) -> EnforcedBy:
    if not row.traits.in_shares:
        return EnforcedBy.GPU if row.profile is None else EnforcedBy.MIG
    if row.traits.through_daemon:
        if row.limits_in_env:
            return EnforcedBy.ENVIRONMENT
        return EnforcedBy.NAMESPACE if row.in_slots else EnforcedBy.DAEMON
    if row.limited:
        return EnforcedBy.DRIVER_LIMIT
    return EnforcedBy.GUARD if row.guard else EnforcedBy.NOTHING


def _wanted(result: ClaimResult, row: DeviceOffer) -> int:
    """How many ids were allocated: of a device with amounts all, where none was named."""
    match mode_of(row):
        case Mode.WHOLE | Mode.MIG:
            return 1
        case Mode.REPLICAS:
            wanted, unit, what = result.consumed[SHARES], 1, count_of(result.consumed[SHARES], "share")
        case Mode.AMOUNTS:
            wanted, unit = result.consumed.get(MEMORY, usable_memory(row)), row.memory_bytes
            what = f"{wanted} bytes of memory" if wanted % unit else format_exactly(wanted)
    if wanted <= 0 or wanted % unit:
        grid = f"a multiple of {format_exactly(unit)}" if row.by_memory else "one or more"
        raise ClaimRefusal(
            RefusalReason.AMOUNT,
            f"was given {shortened(what, 60)} of {name_of(row)} ({result.device}), which is not {grid}; "
            f"{ANEW}",
        )
    if wanted > unit * row.count:
        raise ClaimRefusal(
            RefusalReason.AMOUNT,
            f"was given {shortened(what, 60)} of {name_of(row)} ({result.device}), which has "
            f"{_amount(row, row.count)} in all; {ANEW}",
        )
    return wanted // unit


def _cores(result: ClaimResult, row: DeviceOffer, taken: TakenOfDevice) -> int:
    cores = result.consumed.get(CORES, 0)
    if cores > 100:
        raise ClaimRefusal(
            RefusalReason.AMOUNT,
            f"was given {cores} % of the cores of {name_of(row)}, which has 100 %; {ANEW}",
        )
    given = sum(taken.cores.values())
    if given + cores > 100:
        whose = listed([f"{who} has {part} %" for who, part in taken.cores.items() if part], _MOST_NAMED)
        raise ClaimRefusal(
            RefusalReason.SUM,
            f"was given {cores} % of the cores of {name_of(row)}, of which {100 - given} % are free: "
            f"{whose}; {LATER}",
        )
    return cores


def _too_much(
    result: ClaimResult, row: DeviceOffer, wanted: int, free: int, taken: TakenOfDevice
) -> ClaimRefusal:
    if mode_of(row) in (Mode.WHOLE, Mode.MIG):
        return held_by(result, row, taken.who())
    reason = RefusalReason.SUM if {*taken.ids.values()} <= taken.by_claims else RefusalReason.HELD
    left = _amount(row, free) if free else "nothing"
    return ClaimRefusal(
        reason,
        f"was given {_amount(row, wanted)} of {name_of(row)} ({result.device}), of which {left} is free of "
        f"{_amount(row, row.count)}: {taken.who()} {'has' if len({*taken.ids.values()}) == 1 else 'have'} "
        f"the rest; {LATER}",
    )


def held_by(result: ClaimResult, row: DeviceOffer, who: str) -> ClaimRefusal:
    """The refusal of a device that others hold. who: their names."""
    return ClaimRefusal(
        RefusalReason.HELD, f"was given {name_of(row)} ({result.device}), which is held by {who}; {LATER}"
    )


def _amount(row: DeviceOffer, ids: int) -> str:
    return format_exactly(ids * row.memory_bytes) if row.by_memory else count_of(ids, "share")
