"""Which shares a claim gets for what the scheduler allocated to it, or why it gets none.

The scheduler counts what it has given away, and can be wrong: after a pod was deleted by force it gives a
device again that the node still holds (Kubernetes #141471). This is the last line: a claim holds ids as a
container of the device plugin does, and no id is held twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from partage.claims.decide.amounts import ClaimRefusal, TakenOfDevice, held_by, share_of
from partage.claims.decide.asked import configured, why_not_as_asked
from partage.claims.decide.config import AskedDevice, ConfigError, share_config
from partage.claims.decide.devices import ClaimDevices
from partage.claims.decide.on_demand import PlaceOnDemand, excluded_by, shortage_for
from partage.claims.model.claim import Claim, ClaimConfig, ClaimResult, ConfigSource
from partage.claims.model.grant import (
    ANEW,
    LATER,
    Granted,
    GrantedShare,
    RefusalReason,
    RefusedClaim,
    ShareConfig,
)
from partage.claims.model.names import CORES, MEMORY, SHARES, ClaimNames, Mode, mode_of
from partage.model.claim import ClaimRef
from partage.model.ids import GpuUuid
from partage.model.share import LONGEST_REFUSAL, DeviceOffer
from partage.plan.serve.claim_offer import InForce
from partage.plan.serve.ledger_entry import Hold
from partage.plan.serve.unit_allocation import name_of
from partage.text import listed, shortened

_MOST_NAMED = 6
_UID = re.compile(r"[0-9a-zA-Z]([0-9a-zA-Z-]{0,62}[0-9a-zA-Z])?", re.ASCII)


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

    asked: what the kubelet asks for. kept: what claims have on its GPUs, also claims of pods that were
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
            so_far, place = (*others, Granted(claim.ref, tuple(mine))), devices.places.get(result.device)
            by_class = [config for config in claim.configs if config.source is ConfigSource.CLASS]
            _check_asked(row, config, _config(by_class, device, given, devices.names), so_far, in_force)
            _check_place(result, row, place, so_far)
            mine.append(share_of(result, row, config, TakenOfDevice(row, devices, so_far, held or {}), place))
        _check_together(mine, devices)
    except ClaimRefusal as refusal:
        return RefusedClaim(refusal.reason, shortened(f"claim {claim.ref} {refusal}", LONGEST_REFUSAL))
    return Granted(claim.ref, tuple(mine))


# --- what was allocated ------------------------------------------------------------------------


def _results(claim: Claim, asked: ClaimRef, devices: ClaimDevices) -> list[ClaimResult]:
    driver = devices.names.driver
    if claim.ref.uid != asked.uid:
        raise ClaimRefusal(
            RefusalReason.REPLACED,
            f"was deleted and made again: the pod means the one with UID {asked.uid[:36]}, and there is "
            f"{claim.ref.uid[:36]} now. Make the pod anew, too",
        )
    _check_uid(claim.ref.uid)
    if not claim.allocated:
        raise ClaimRefusal(RefusalReason.NOT_ALLOCATED, "has no allocation yet; it is tried again by itself")
    ours = [result for result in claim.results if result.driver == driver]
    if not ours:
        raise ClaimRefusal(RefusalReason.NOT_OURS, f"has no device of the driver {driver}")
    for result in ours:
        if result.pool != devices.pool:
            raise ClaimRefusal(
                RefusalReason.POOL,
                f"was given {result.device} of the pool {result.pool}, and the pool of this node is "
                f"{devices.pool}; {ANEW}",
            )
        if result.share_id is not None:
            _check_uid(result.share_id)
    shares = [(result.device, result.share_id) for result in ours if not result.admin_access]
    if twice := next((share for share in shares if shares.count(share) > 1), None):
        raise ClaimRefusal(RefusalReason.UNREADABLE, f"was given the same share of {twice[0]} twice; {ANEW}")
    return ours


def _check_uid(uid: str) -> None:
    """It becomes a part of names, also of a file's."""
    if _UID.fullmatch(uid) is None:
        raise ClaimRefusal(RefusalReason.UNREADABLE, f"has {uid[:64]!r} in place of a UID")


def _row(result: ClaimResult, devices: ClaimDevices, recorded: Mapping[str, GpuUuid]) -> DeviceOffer:
    row = devices.named(result.device)
    if row is None:
        there = listed(list(devices.rows), _MOST_NAMED) or "none"
        raise ClaimRefusal(
            RefusalReason.DEVICE,
            f"was given {result.device}, and this node has no such device for claims now (it has {there}); "
            f"{ANEW}",
        )
    before = recorded.get(result.device, row.gpu)
    if before != row.gpu:
        raise ClaimRefusal(
            RefusalReason.OTHER_GPU,
            f"was given {result.device} when that was {before}; now it is {row.gpu}: {ANEW}",
        )
    if not result.admin_access and (now := _other_kind(result, row, devices.names)):
        raise ClaimRefusal(RefusalReason.KIND, f"was given {now}; {ANEW}")
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
        raise ClaimRefusal(
            RefusalReason.CONFIG, f"cannot be prepared for its request {device.request}: {wrong}"
        ) from None


def _check_asked(
    row: DeviceOffer, config: ShareConfig, by_class: ShareConfig, kept: Iterable[Granted], node: InForce
) -> None:
    if (refused := why_not_as_asked(row, config, by_class, kept, node)) is not None:
        raise ClaimRefusal(refused.reason, refused.text)


def _check_place(
    result: ClaimResult, row: DeviceOffer, place: PlaceOnDemand | None, kept: Sequence[Granted]
) -> None:
    """Whether other claims leave room for a device that is made on demand, be it there or not."""
    if place is None:
        return
    if result.admin_access and row.planned:
        text = f"was given {result.device} to look at, which is made only when a claim asks for all of it"
        raise ClaimRefusal(RefusalReason.DEVICE, f"{text}; {ANEW}")
    if result.admin_access:
        return
    if others := excluded_by(place, kept):
        who = [f"claim {granted.claim} ({share.device})" for granted, share in others]
        raise held_by(result, row, listed(sorted({*who}), _MOST_NAMED))
    if (short := shortage_for(place, kept)) is not None:
        who = [f"claim {granted.claim} ({share.device})" for granted, share in short.kept]
        beside = listed(sorted({*who}), _MOST_NAMED)
        raise ClaimRefusal(
            RefusalReason.SUM,
            f"was given {name_of(row)} ({result.device}), which needs {short.needs} of the {short.what} of "
            f"its GPU, and {short.left} of {short.total} are free beside {beside}; {LATER}",
        )


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
            raise ClaimRefusal(
                RefusalReason.TOGETHER,
                f"has in its request {request} shares of {named}, and a container can use one GPU through "
                "MPS, alone. Ask for one device, or for GPUs that are not shared through MPS",
            )
