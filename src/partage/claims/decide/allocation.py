"""Which shares a claim gets for what the scheduler allocated to it, or why it gets none.

The scheduler counts what it has given away, and can be wrong: after a pod was deleted by force it gives a
device again that the node still holds (Kubernetes #141471). This is the last line: a claim holds ids as a
container of the device plugin does, and no id is held twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from partage.claims.decide.asked import watched_as, why_not_shared_so, why_not_sliced, why_not_watched
from partage.claims.decide.config import AskedDevice, ConfigError, share_config
from partage.claims.decide.devices import ClaimDevices
from partage.claims.decide.on_demand import PlaceOnDemand, excluded_by, shortage_for
from partage.claims.decide.slices import usable_memory
from partage.claims.model.claim import Claim, ClaimConfig, ClaimResult, ConfigSource
from partage.claims.model.grant import (
    EnforcedBy,
    Granted,
    GrantedShare,
    RefusalReason,
    RefusedClaim,
    ShareConfig,
)
from partage.claims.model.names import CORES, MEMORY, SHARES, ClaimNames, Mode, mode_of
from partage.model.allocation import LONGEST_REFUSAL
from partage.model.claim import ClaimRef
from partage.model.ids import DeviceUuid, GpuUuid, ShareId, device_of
from partage.model.share import DeviceOffer, Guarantee
from partage.plan.serve.claim_offer import InForce
from partage.plan.serve.ledger_entry import Hold
from partage.plan.serve.unit_allocation import name_of
from partage.text import count_of, listed, shortened
from partage.units import format_exactly

_MOST_NAMED = 6
_UID = re.compile(r"[0-9a-zA-Z]([0-9a-zA-Z-]{0,62}[0-9a-zA-Z])?", re.ASCII)
_ANEW = "delete the pod, so that it is scheduled anew"
_LATER = "it is tried again by itself, and succeeds once that has ended"


class _ClaimRefusal(Exception):
    def __init__(self, reason: RefusalReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def grant(
    claim: Claim,
    asked: ClaimRef,
    devices: ClaimDevices,
    kept: Iterable[Granted] = (),
    held: Mapping[Hold, str] | None = None,
    *,
    recorded: Mapping[str, GpuUuid] | None = None,
    in_force: InForce | None = None,
    guard: bool = True,
) -> Granted | RefusedClaim:
    """The shares of a claim, or a refusal of all of it.

    asked: what the kubelet asks for. kept: what claims have on this node, also claims of pods that were
    deleted; what this claim had itself does not count. held: what others hold, with words for the holder:
    ``pod team-a/train``. recorded: the GPUs of the devices that this claim was given before, by name.
    in_force: what the node is set to. guard: the guard's files are on the node.
    """
    in_force = in_force or InForce()
    others = [other for other in kept if other.claim.uid != claim.ref.uid]
    try:
        results = _results(claim, asked, devices)
        rows = [_row(result, devices, recorded or {}) for result in results]
        given = [
            AskedDevice(result.request, row.device, row.profile is not None)
            for result, row in zip(results, rows, strict=True)
        ]
        mine: list[GrantedShare] = []
        for result, plain, device in zip(results, rows, given, strict=True):
            config = _config(claim.configs, device, given, devices.names)
            row = configured(plain, config, guard=guard)
            so_far = (*others, Granted(claim.ref, tuple(mine)))
            by_class = [config for config in claim.configs if config.source is ConfigSource.CLASS]
            _check_asked(row, config, _config(by_class, device, given, devices.names), so_far, in_force)
            _check_need(row, config)
            _check_place(result, row, devices.places.get(result.device), so_far)
            mine.append(_share(result, row, config, _Taken(row, devices, so_far, held or {}), devices.places))
        _check_together(mine, devices)
    except _ClaimRefusal as refusal:
        return RefusedClaim(
            refusal.reason, shortened(f"claim {_named(claim.ref)} {refusal}", LONGEST_REFUSAL)
        )
    return Granted(claim.ref, tuple(mine))


def configured(row: DeviceOffer, config: ShareConfig, *, guard: bool) -> DeviceOffer:
    """What is offered, watched and with the guard as a claim wants it. guard: its files are on the node."""
    row = replace(row, guarantee=watched_as(row.guarantee, config))
    wanted = row.guard if config.guard is None else config.guard
    if (on := wanted and guard) == row.guard:
        return row
    # As for the device plugin: only where nothing else limits memory does the guard change the guarantee.
    plain = row.traits.in_shares and not row.traits.limits_memory
    weak = Guarantee.ADVISORY if on else Guarantee.NONE
    return replace(row, guard=on, guarantee=weak if plain else row.guarantee)


# --- what was allocated ------------------------------------------------------------------------


def _results(claim: Claim, asked: ClaimRef, devices: ClaimDevices) -> list[ClaimResult]:
    driver = devices.names.driver
    if claim.ref.uid != asked.uid:
        raise _ClaimRefusal(
            RefusalReason.REPLACED,
            f"was deleted and made again: the pod means the one with UID {asked.uid[:36]}, and there is "
            f"{claim.ref.uid[:36]} now. Make the pod anew, too",
        )
    _check_uid(claim.ref.uid)
    if not claim.allocated:
        raise _ClaimRefusal(RefusalReason.NOT_ALLOCATED, "has no allocation yet; it is tried again by itself")
    ours = [result for result in claim.results if result.driver == driver]
    if not ours:
        raise _ClaimRefusal(RefusalReason.NOT_OURS, f"has no device of the driver {driver}")
    for result in ours:
        if result.pool != devices.pool:
            raise _ClaimRefusal(
                RefusalReason.POOL,
                f"was given {result.device} of the pool {result.pool}, and the pool of this node is "
                f"{devices.pool}; {_ANEW}",
            )
        if result.share_id is not None:
            _check_uid(result.share_id)
    shares = [(result.device, result.share_id) for result in ours if not result.admin_access]
    if twice := next((share for share in shares if shares.count(share) > 1), None):
        raise _ClaimRefusal(
            RefusalReason.UNREADABLE, f"was given the same share of {twice[0]} twice; {_ANEW}"
        )
    return ours


def _check_uid(uid: str) -> None:
    """It becomes a part of names, also of a file's."""
    if _UID.fullmatch(uid) is None:
        raise _ClaimRefusal(RefusalReason.UNREADABLE, f"has {uid[:64]!r} in place of a UID")


def _row(result: ClaimResult, devices: ClaimDevices, recorded: Mapping[str, GpuUuid]) -> DeviceOffer:
    row = devices.named(result.device)
    if row is None:
        there = listed(list(devices.rows), _MOST_NAMED) or "none"
        raise _ClaimRefusal(
            RefusalReason.DEVICE,
            f"was given {result.device}, and this node has no such device for claims now (it has {there}); "
            f"{_ANEW}",
        )
    before = recorded.get(result.device, row.gpu)
    if before != row.gpu:
        raise _ClaimRefusal(
            RefusalReason.OTHER_GPU,
            f"was given {result.device} when that was {before}; now it is {row.gpu}: {_ANEW}",
        )
    if not result.admin_access and (now := _other_kind(result, row, devices.names)):
        raise _ClaimRefusal(RefusalReason.KIND, f"was given {now}; {_ANEW}")
    return row


def _other_kind(result: ClaimResult, row: DeviceOffer, names: ClaimNames) -> str:
    """Whether the device was another one in kind when it was allocated, a clause; empty if not."""
    mode, amounts = mode_of(row), {name for name, amount in result.consumed.items() if amount}
    if mode is Mode.REPLICAS:
        fits = SHARES in result.consumed and not amounts & (
            {CORES} if names.share_memory else {MEMORY, CORES}
        )
    elif mode is Mode.AMOUNTS:
        fits = SHARES not in result.consumed
    else:
        fits = not amounts and result.share_id is None
    if fits:
        return ""
    was = "a part" if MEMORY in amounts or SHARES in amounts else "all"
    return f"{was} of {result.device} ({name_of(row)}), which is now offered as {_AS[mode]}"


_AS = {
    Mode.WHOLE: "a whole GPU",
    Mode.AMOUNTS: "amounts of memory",
    Mode.REPLICAS: "even shares",
    Mode.MIG: "a whole MIG device",
}


# --- configuration -----------------------------------------------------------------------------


def _config(
    configs: Iterable[ClaimConfig], device: AskedDevice, given: Sequence[AskedDevice], names: ClaimNames
) -> ShareConfig:
    try:
        return share_config(configs, device, given, names)
    except ConfigError as wrong:
        raise _ClaimRefusal(
            RefusalReason.CONFIG, f"cannot be prepared for its request {device.request}: {wrong}"
        ) from None


def _check_asked(
    row: DeviceOffer, config: ShareConfig, by_class: ShareConfig, kept: Iterable[Granted], node: InForce
) -> None:
    refused = (
        why_not_shared_so(row, config)
        or why_not_sliced(row, config, kept, node)
        or why_not_watched(row, config, by_class, node)
    )
    if refused is not None:
        raise _ClaimRefusal(refused.reason, refused.text)


def _check_need(row: DeviceOffer, config: ShareConfig) -> None:
    if config.need is None or row.guarantee.strength >= config.need.strength:
        return
    raise _ClaimRefusal(
        RefusalReason.NEED,
        f"needs memory that is {config.need}, and a share of {name_of(row)} is {row.guarantee}: "
        f"{row.guarantee.means}. Ask for a device whose attribute 'guarantee' is strong enough, or let "
        "'need' of its ShareConfig say less",
    )


# --- one share ---------------------------------------------------------------------------------


class _Taken:
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
                who = f"claim {_named(granted.claim)}"
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
        """The holders, with how many ids each has."""
        counts: dict[str, int] = {}
        for holder in self.ids.values():
            counts[holder] = counts.get(holder, 0) + 1
        return listed([*counts], _MOST_NAMED)


def _excludes(device: DeviceUuid, gpu: DeviceUuid, row: DeviceOffer) -> bool:
    """Whether a hold of another kind keeps this device from being given. MIG devices of one GPU do not
    disturb each other.
    """
    apart = row.profile is not None and device.startswith("MIG-") and device != row.device
    return gpu == row.gpu and not apart


def _check_place(
    result: ClaimResult, row: DeviceOffer, place: PlaceOnDemand | None, kept: Sequence[Granted]
) -> None:
    """Whether other claims leave room for a device that is made on demand, be it there or not."""
    if place is None:
        return
    if result.admin_access and row.planned:
        text = f"was given {result.device} to look at, which is made only when a claim asks for all of it"
        raise _ClaimRefusal(RefusalReason.DEVICE, f"{text}; {_ANEW}")
    if result.admin_access:
        return
    if others := excluded_by(place, kept):
        who = [f"claim {_named(granted.claim)} ({share.device})" for granted, share in others]
        raise _held(result, row, listed(list(dict.fromkeys(who)), _MOST_NAMED))
    if (short := shortage_for(place, kept)) is not None:
        who = [f"claim {_named(granted.claim)} ({share.device})" for granted, share in short.kept]
        beside = listed(list(dict.fromkeys(who)), _MOST_NAMED)
        raise _ClaimRefusal(
            RefusalReason.SUM,
            f"was given {name_of(row)} ({result.device}), which needs {short.needs} of the {short.what} of "
            f"its GPU, and {short.left} of {short.total} are free beside {beside}; {_LATER}",
        )


def _share(
    result: ClaimResult,
    row: DeviceOffer,
    config: ShareConfig,
    taken: _Taken,
    places: Mapping[str, PlaceOnDemand],
) -> GrantedShare:
    ids: tuple[ShareId, ...] = ()
    cores = 0
    if not result.admin_access:
        if taken.in_the_way:
            raise _held(result, row, listed(list(dict.fromkeys(taken.in_the_way)), _MOST_NAMED))
        wanted = _wanted(result, row)
        free = [id_ for id_ in row.share_ids if id_ not in taken.ids]
        if len(free) < wanted:
            raise _too_much(result, row, wanted, len(free), taken)
        ids = () if row.planned else tuple(free[:wanted])
        cores = _cores(result, row, taken)
    held = not result.admin_access and result.device in places
    place = places[result.device].item if held else None
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
        place="" if place is None else str(place),
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
        raise _ClaimRefusal(
            RefusalReason.AMOUNT,
            f"was given {shortened(what, 60)} of {name_of(row)} ({result.device}), which is not {grid}; "
            f"{_ANEW}",
        )
    if wanted > unit * row.count:
        raise _ClaimRefusal(
            RefusalReason.AMOUNT,
            f"was given {shortened(what, 60)} of {name_of(row)} ({result.device}), which has "
            f"{_amount(row, row.count)} in all; {_ANEW}",
        )
    return wanted // unit


def _cores(result: ClaimResult, row: DeviceOffer, taken: _Taken) -> int:
    cores = result.consumed.get(CORES, 0)
    if cores > 100:
        raise _ClaimRefusal(
            RefusalReason.AMOUNT,
            f"was given {cores} % of the cores of {name_of(row)}, which has 100 %; {_ANEW}",
        )
    given = sum(taken.cores.values())
    if given + cores > 100:
        whose = listed([f"{who} has {part} %" for who, part in taken.cores.items() if part], _MOST_NAMED)
        raise _ClaimRefusal(
            RefusalReason.SUM,
            f"was given {cores} % of the cores of {name_of(row)}, of which {100 - given} % are free: "
            f"{whose}; {_LATER}",
        )
    return cores


def _too_much(result: ClaimResult, row: DeviceOffer, wanted: int, free: int, taken: _Taken) -> _ClaimRefusal:
    if mode_of(row) in (Mode.WHOLE, Mode.MIG):
        return _held(result, row, taken.who())
    reason = RefusalReason.SUM if {*taken.ids.values()} <= taken.by_claims else RefusalReason.HELD
    left = _amount(row, free) if free else "nothing"
    return _ClaimRefusal(
        reason,
        f"was given {_amount(row, wanted)} of {name_of(row)} ({result.device}), of which {left} is free of "
        f"{_amount(row, row.count)}: {taken.who()} {'has' if len({*taken.ids.values()}) == 1 else 'have'} "
        f"the rest; {_LATER}",
    )


def _held(result: ClaimResult, row: DeviceOffer, who: str) -> _ClaimRefusal:
    return _ClaimRefusal(
        RefusalReason.HELD, f"was given {name_of(row)} ({result.device}), which is held by {who}; {_LATER}"
    )


def _amount(row: DeviceOffer, ids: int) -> str:
    return format_exactly(ids * row.memory_bytes) if row.by_memory else count_of(ids, "share")


def _check_together(shares: Sequence[GrantedShare], devices: ClaimDevices) -> None:
    """The shares of one request all come into one container."""
    for request in dict.fromkeys(share.asked for share in shares):
        rows = [
            row
            for share in shares
            if share.asked == request and (row := devices.named(share.device)) is not None
        ]
        if len(rows) > 1 and any(row.traits.through_daemon for row in rows):
            named = listed([name_of(row) for row in rows], _MOST_NAMED)
            raise _ClaimRefusal(
                RefusalReason.TOGETHER,
                f"has in its request {request} shares of {named}, and a container can use one GPU through "
                "MPS, alone. Ask for one device, or for GPUs that are not shared through MPS",
            )


def _named(claim: ClaimRef) -> str:
    return f"{claim.namespace}/{claim.name}"
