"""What a claim's configuration asks for beside amounts, and whether the node can do it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from partage.claims.model.grant import LATER, Granted, RefusalReason, RefusedClaim, ShareConfig
from partage.model.policy import WatchAction
from partage.model.share import DeviceOffer, Guarantee
from partage.plan.serve.claim_offer import InForce
from partage.plan.serve.unit_allocation import name_of
from partage.plan.serve.watchdog import WATCH_ORDER


def why_not_as_asked(
    row: DeviceOffer, config: ShareConfig, by_class: ShareConfig, kept: Iterable[Granted], node: InForce
) -> RefusedClaim | None:
    """Why a device cannot be had as a claim's configuration asks; None: it can. text: a clause. row: as
    configured. by_class: what the class alone says.
    """
    return (
        _why_not_shared_so(row, config)
        or _why_not_sliced(row, config, kept, node)
        or _why_not_watched(row, config, by_class, node)
        or _why_too_weak(row, config)
    )


def configured(row: DeviceOffer, config: ShareConfig, *, guard: bool) -> DeviceOffer:
    """What is offered, watched and with the guard as a claim wants it. guard: its files are on the node."""
    row = replace(row, guarantee=_watched_as(row.guarantee, config))
    wanted = row.guard if config.guard is None else config.guard
    if (on := wanted and guard) == row.guard:
        return row
    # As for the device plugin: only where nothing else limits memory does the guard change the guarantee.
    plain = row.traits.in_shares and not row.traits.limits_memory
    weak = Guarantee.ADVISORY if on else Guarantee.NONE
    return replace(row, guard=on, guarantee=weak if plain else row.guarantee)


def _why_not_shared_so(row: DeviceOffer, config: ShareConfig) -> RefusedClaim | None:
    """Why the strategy that is asked for cannot be; None: it is how the GPU is shared. text: a clause.

    All who have something of a GPU share it as the policy says; a claim cannot change it.
    """
    wanted = config.strategy
    if wanted is None or wanted.traits.through_daemon == row.traits.through_daemon:
        return None
    now = "through MPS" if row.traits.through_daemon else "without MPS"
    word = wanted.traits.word
    return _wrong(
        f"asks for {word} in its configuration, and {name_of(row)} ({row.device}) is used {now}: leave the "
        f"strategy out of the claim, or let the policy of the node give GPUs with {word} to claims"
    )


def _why_not_sliced(
    row: DeviceOffer, config: ShareConfig, kept: Iterable[Granted], node: InForce
) -> RefusedClaim | None:
    """Why the time slice that is asked for cannot be; None: it can, or none is asked for. text: a clause.

    Time slices are a setting of the whole GPU, so one interval is possible at a time.
    """
    if config.interval is None:
        return None
    asks = f"asks for the time slice {config.interval} of {name_of(row)}"
    if row.profile is not None:
        return _wrong(f"{asks}, and MIG devices have no time slices of their own")
    if row.traits.through_daemon:
        return _wrong(f"{asks}, which is shared through MPS: there its processes run at the same time")
    if (fixed := node.fixed_slices.get(row.gpu)) is not None:
        return _wrong(f"{asks}, which cannot be set: {fixed}")
    for granted in kept:
        for share in granted.shares:
            other = share.config.interval
            if share.gpu == row.gpu and share.ids and other not in (None, config.interval):
                who = f"claim {granted.claim}"
                return RefusedClaim(RefusalReason.HELD, f"{asks}, of which {who} has {other}; {LATER}")
    return None


def _why_not_watched(
    row: DeviceOffer, config: ShareConfig, by_class: ShareConfig, node: InForce
) -> RefusedClaim | None:
    """Why its containers cannot be watched so; None: they can. text: a clause. by_class: what the class alone
    says.

    Where the policy or the class has those ended that exceed their shares, a claim cannot exempt itself: its
    owner is the tenant that is watched.
    """
    if config.watch is None or config.watch is by_class.watch:
        return None
    floor, who = by_class.watch, "its class"
    if floor is None:
        floor, who = node.watch_of.get(row.gpu, WatchAction.WARN), "the policy"
    if floor is not WatchAction.KILL or WATCH_ORDER.index(config.watch) >= WATCH_ORDER.index(floor):
        return None
    return _wrong(
        f"has 'watch: {config.watch}' in its ShareConfig, and {who} says 'watch: {floor}'; only the "
        "configuration of a DeviceClass can say less"
    )


def _why_too_weak(row: DeviceOffer, config: ShareConfig) -> RefusedClaim | None:
    if config.need is None or row.guarantee.strength >= config.need.strength:
        return None
    return RefusedClaim(
        RefusalReason.NEED,
        f"needs memory that is {config.need}, and a share of {name_of(row)} is {row.guarantee}: "
        f"{row.guarantee.means}. Ask for a device whose attribute 'guarantee' is strong enough, or let "
        "'need' of its ShareConfig say less",
    )


def _watched_as(row_guarantee: Guarantee, config: ShareConfig) -> Guarantee:
    """A guarantee, as far as it stands on the watchdog: nobody adds up what is not watched."""
    unwatched = config.watch is WatchAction.OFF and row_guarantee is Guarantee.GUARDED
    return Guarantee.ADVISORY if unwatched else row_guarantee


def _wrong(text: str) -> RefusedClaim:
    return RefusedClaim(RefusalReason.CONFIG, text)
