"""The driver's limits beside the ledger's entries: what each container has to have, and what is believed."""

from __future__ import annotations

from time import process_time

import pytest
from msgspec.structs import replace

from partage.model.driver_limit import LimitAt, LimitBackend, LimitState, LimitSupport, SeenLimit
from partage.model.gpu_use import GpuProcess, Processes, ProcessKind
from partage.model.ids import ContainerId, GpuUuid, MigUuid, ResourceName
from partage.model.policy import Mps, Policy, TimeSlicing, WatchAction
from partage.model.samples import Samples
from partage.model.share import DeviceOffer, Guarantee, NodeOffer
from partage.plan.offer.advertise import advertise
from partage.plan.reconcile.verification import stated_guarantee
from partage.plan.serve.held_limits import (
    as_seen,
    counted_devices,
    counted_places,
    held_limits,
    limits_read,
    read_limit,
    said_of,
    seen_on,
    to_repair,
    wanted_limits,
)
from partage.plan.serve.ledger import Ledger
from partage.plan.serve.ledger_entry import Certainty, HeldLimit, Holder, LedgerEntry
from partage.plan.serve.watchdog import ViolationKind, check_usage, grants_of
from partage.plan.usage import usage_of
from partage.units import GIB
from tests.plan.offers import assignment, gpu, node, target

A, B = Holder("team", "a", "main"), Holder("team", "b", "main")
OLD, NEW, OTHER = ContainerId("1" * 64), ContainerId("2" * 64), ContainerId("3" * 64)
NAMES = {OLD: A, NEW: A, OTHER: B}
CARD = replace(gpu(0), limits=LimitSupport(LimitBackend.DMEM))
SHARE = 20 * GIB


def offered(*, guard: bool = False, limited: bool = True) -> NodeOffer:
    of = target(CARD, TimeSlicing(4, limited=limited), guard=guard)
    return advertise(assignment(of), node(CARD, driver="615.71.09"), Policy())


def row_of(offer: NodeOffer) -> DeviceOffer:
    ((row,),) = offer.values()
    return row


ROW = row_of(offered())


def entry(share: int, *holders: Holder, claim: str = "", **more: object) -> LedgerEntry:
    certainty = Certainty.CLAIMED if claim else Certainty.OBSERVED
    made = LedgerEntry(ROW.resource, ROW.share_id(share), certainty, holders, 0.0, claim=claim)
    return replace(made, **more)


def at(container: ContainerId) -> LimitAt:
    return LimitAt(container, CARD.uuid)


def seen(container: ContainerId, hard_bytes: int | None, *, cgroup: str = "/c") -> dict[LimitAt, SeenLimit]:
    return {at(container): SeenLimit(at(container), LimitState(hard_bytes, 0, GIB), cgroup)}


def gone(container: ContainerId) -> dict[LimitAt, SeenLimit]:
    return {at(container): SeenLimit(at(container), why="it has no cgroup any more, or not yet")}


def test_a_container_has_to_have_the_sum_of_its_shares() -> None:
    entries = [entry(0, A), entry(1, A), entry(2, B)]
    assert wanted_limits(entries, offered(), NAMES) == {
        at(OLD): 2 * SHARE,
        at(NEW): 2 * SHARE,
        at(OTHER): SHARE,
    }


def test_the_kernel_counts_for_whoever_holds_a_whole_gpu_that_mps_does_not_serve() -> None:
    card, plain = replace(CARD, limits=LimitSupport(LimitBackend.MISC)), offered(limited=False)
    through_mps = advertise(assignment(target(CARD, Mps(4))), node(CARD, driver="615.71.09"), Policy())
    assert counted_devices(plain, node(CARD)) == {CARD.uuid}
    assert counted_devices(plain, node(card)) == counted_devices(through_mps, node(CARD)) == frozenset()
    on_mig = {CARD.uuid: (replace(row_of(plain), device=MigUuid("MIG-0")),)}
    assert counted_devices(on_mig, node(CARD)) == frozenset()
    assert counted_devices(plain, node(replace(CARD, limits=None))) == frozenset()
    entries = [entry(0, A), entry(1, A), entry(2, B, ended_s=1.0)]
    assert counted_places(entries, {CARD.uuid}, NAMES) == {at(OLD), at(NEW)}
    assert counted_places(entries, {GpuUuid("GPU-other")}, NAMES) == frozenset()


def test_every_container_of_a_claim_has_to_have_the_claims_limit() -> None:
    entries = [entry(0, A, B, claim="team/c"), entry(1, A, B, claim="team/c")]
    assert wanted_limits(entries, offered(), NAMES) == dict.fromkeys(map(at, NAMES), 2 * SHARE)


def test_a_holder_that_is_not_certain_has_none_and_shares_without_limits_neither() -> None:
    assert wanted_limits([entry(0, A, B), entry(1)], offered(), NAMES) == {}
    assert wanted_limits([entry(0, A)], offered(limited=False), NAMES) == {}
    assert wanted_limits([entry(0, A, ended_s=1.0)], offered(), NAMES) == {}
    assert wanted_limits([entry(0, A, resource=ResourceName("x/y"))], offered(), NAMES) == {}


@pytest.mark.parametrize(
    ("hard_bytes", "state"),
    [
        (SHARE, HeldLimit(SHARE, SHARE)),
        (SHARE - GIB, HeldLimit(SHARE, SHARE - GIB)),
        (SHARE + GIB, HeldLimit(SHARE, SHARE + GIB, reason="its cgroup may have 21 GiB")),
        (None, HeldLimit(SHARE, None, reason="its cgroup has no limit")),
    ],
)
def test_only_a_limit_that_was_read_is_in_force(hard_bytes: int | None, state: HeldLimit) -> None:
    found = held_limits([entry(0, A)], offered(), NAMES, gone(OLD) | seen(NEW, hard_bytes), ())
    assert found == {entry(0).hold: state}
    assert state.in_force == (not state.reason)


def test_a_container_that_was_not_seen_yet_has_none() -> None:
    for looked in ({}, gone(NEW)):
        (state,) = held_limits([entry(0, A)], offered(), {NEW: A}, looked, ()).values()
        assert not state.in_force
        assert "no cgroup" in state.reason


def test_why_no_limit_was_read_is_said() -> None:
    state = read_limit(SHARE, SeenLimit(at(NEW), cgroup="/c", why="the driver has no limits"), late=False)
    assert state == HeldLimit(SHARE, None, reason="the driver has no limits")


def test_a_limit_that_was_set_afterwards_is_said_to_be_late() -> None:
    (state,) = held_limits([entry(0, A)], offered(), {NEW: A}, seen(NEW, SHARE), {at(NEW)}).values()
    assert (state.in_force, state.late) == (True, True)


@pytest.mark.parametrize(("used", "in_force"), [(SHARE, True), (SHARE + GIB, False)])
def test_what_was_taken_before_a_limit_was_set_stays_and_is_said(used: int, in_force: bool) -> None:
    state = read_limit(SHARE, SeenLimit(at(NEW), LimitState(SHARE, 0, used), "/c"), late=True)
    assert (state.in_force, "21 GiB is in use" in state.reason) == (in_force, not in_force)


def test_of_several_containers_the_worst_counts() -> None:
    entries = [entry(0, A, B, claim="team/c")]
    (state,) = held_limits(
        entries, offered(), {NEW: A, OTHER: B}, seen(NEW, SHARE) | seen(OTHER, None), ()
    ).values()
    assert state.reason == "its cgroup has no limit"


def test_a_claim_of_several_containers_is_not_held_to_its_amount_and_its_neighbours_are_told() -> None:
    """Each of them has the limit of the whole claim."""
    shared, alone = entry(0, A, B, claim="team/c"), entry(1, Holder("team", "c", "main"))
    other = ContainerId("4" * 64)
    names = {NEW: A, OTHER: B, other: Holder("team", "c", "main")}
    looked = seen(NEW, SHARE) | seen(OTHER, SHARE) | seen(other, SHARE)
    found = held_limits([shared, alone], offered(), names, looked, ())
    assert (found[shared.hold].shared_by, found[shared.hold].in_force) == (2, False)
    assert found[shared.hold].reason.startswith("2 containers use it, each with this limit")
    assert found[alone.hold].in_force
    noted = [replace(one, limit=found[one.hold]) for one in (shared, alone)]
    assert seen_on(CARD.uuid, noted, Guarantee.NONE) is Guarantee.NONE
    assert not limits_read(offered(), noted)


def test_only_what_is_there_and_wrong_is_set_again() -> None:
    wanted = {at(OLD): SHARE, at(NEW): SHARE, at(OTHER): SHARE}
    looked = gone(OLD) | seen(NEW, None) | seen(OTHER, SHARE)
    assert to_repair(wanted, looked) == {at(NEW): SHARE}
    assert to_repair(wanted, seen(NEW, 2 * SHARE)) == {at(NEW): SHARE}
    assert to_repair({}, looked) == {}


# --- what is said -----------------------------------------------------------------------------------

HELD, LOST = HeldLimit(SHARE, SHARE), HeldLimit(SHARE, None, reason="its cgroup has no limit")


def test_hard_is_said_of_a_gpu_only_if_the_limit_of_every_holder_was_read() -> None:
    device = CARD.uuid
    assert seen_on(device, [entry(0, A, limit=HELD)], Guarantee.NONE) is Guarantee.HARD
    both = [entry(0, A, limit=HELD), entry(1, B, limit=LOST)]
    assert seen_on(device, both, Guarantee.NONE) is Guarantee.NONE
    assert seen_on(device, [entry(0, A, limit=HELD), entry(1, B)], Guarantee.NONE) is Guarantee.NONE
    ending = entry(1, B, certainty=Certainty.ENDING)
    assert seen_on(device, [entry(0, A, limit=HELD), ending], Guarantee.NONE) is Guarantee.HARD
    assert seen_on(device, [ending], Guarantee.NONE) is None


def test_a_free_gpu_promises_hard_and_nobody_has_seen_it() -> None:
    row = row_of(offered())
    assert row.guarantee is Guarantee.HARD
    assert stated_guarantee(row, None) is Guarantee.NONE
    assert stated_guarantee(row, Guarantee.HARD) is Guarantee.HARD
    assert stated_guarantee(row_of(offered(guard=True)), None) is Guarantee.ADVISORY


def test_the_ledger_has_it_beside_its_entries() -> None:
    ledger = Ledger()
    ledger.claimed([entry(0, A, claim="team/c")])
    version = ledger.version
    assert ledger.note_limits({entry(0).hold: HELD, (ResourceName("x/y"), ROW.share_id(3)): LOST})
    assert [one.limit for one in ledger.entries()] == [HELD]
    assert ledger.version > version
    version = ledger.version
    assert not ledger.note_limits({entry(0).hold: HELD, (ResourceName("x/y"), ROW.share_id(3)): LOST})
    assert ledger.version == version
    ledger.claimed([], [entry(0, A, claim="team/c")])
    assert ledger.entries() == ()


# --- the watchdog -----------------------------------------------------------------------------------


def process(used_bytes: int | None, container: ContainerId = NEW) -> GpuProcess:
    return GpuProcess(CARD.uuid, 7, used_bytes, ProcessKind.COMPUTE, cgroups=(f"0::/docker/{container}",))


def test_a_lost_limit_makes_the_watchdog_look_again() -> None:
    """Limits that hold cannot be exceeded; one that is gone can."""
    for limit, violations in ((HELD, []), (LOST, [ViolationKind.OVER])):
        grants = grants_of([entry(0, A, limit=limit)], offered())
        found = check_usage(Processes((process(2 * SHARE),)), NAMES, grants, {CARD.uuid: WatchAction.WARN})
        assert [one.concern for one in found.violations] == violations


def test_what_is_counted_for_a_cgroup_needs_no_process() -> None:
    grants = grants_of([entry(0, A, limit=HELD)], offered())
    counted = {at(NEW): 3 * GIB, at(OTHER): 0}
    for rows in ((), (process(GIB),), (process(None),)):
        found = check_usage(Processes(rows, hidden="no host pids"), NAMES, grants, {}, counted)
        (usage,) = found.usages
        assert (usage.holder, usage.used_bytes, usage.partly, usage.counted) == (A, 3 * GIB, False, True)


def test_what_is_counted_for_a_job_is_of_no_container() -> None:
    found = check_usage(Processes(()), NAMES, grants_of([], offered()), {}, {at(ContainerId("78")): GIB})
    assert found.usages == ()


def test_use_says_what_is_counted_and_keeps_the_highest() -> None:
    """So does the history, from which ``rightsize`` reads: it samples this."""
    grants = grants_of([entry(0, A, limit=HELD)], offered())
    samples = Samples(processes=Processes((process(GIB),)))
    for counted, used in (({}, GIB), ({at(NEW): 3 * GIB}, 3 * GIB)):
        (use,) = usage_of(samples, NAMES, grants, counted=counted).containers
        assert (use.holder, use.amount.used_bytes, use.amount.peak_bytes) == (A, used, used)
        assert (use.amount.processes, use.guarantee, use.share_bytes) == (1, Guarantee.HARD, SHARE)


def test_five_hundred_holders_cost_a_few_milliseconds() -> None:
    """Looked at every five seconds. Best of several runs, of the processor's time: 5 ms here, 54 before."""
    row = replace(ROW, count=500)
    offer: NodeOffer = {CARD.uuid: (row,)}
    holders = [Holder("team", f"pod-{number}", "main") for number in range(500)]
    names = {ContainerId(f"{number:064x}"): holder for number, holder in enumerate(holders)}
    entries = [
        LedgerEntry(row.resource, row.share_id(number), Certainty.OBSERVED, (holder,), 0.0)
        for number, holder in enumerate(holders)
    ]

    def look() -> float:
        began = process_time()
        wanted = wanted_limits(entries, offer, names)
        counted = counted_places(entries, {CARD.uuid}, names)
        read = {place: SeenLimit(place, LimitState(SHARE), "/c") for place in wanted}
        assert not to_repair(wanted, read)
        held = held_limits(entries, offer, names, read, ())
        assert len(counted) == len(held) == 500
        return process_time() - began

    assert min(look() for _ in range(10)) < 0.02


def test_shares_that_nobody_holds_have_the_guarantee_that_can_be_seen() -> None:
    (row,) = next(iter(offered().values()))
    assert said_of(row, []) is Guarantee.NONE
    assert said_of(replace(row, guard=True), []) is Guarantee.ADVISORY
    assert said_of(replace(row, limited=False), []) is row.guarantee
    assert said_of(row, [entry(0, A, limit=HELD)]) is Guarantee.HARD


def test_an_offer_says_of_limited_shares_what_was_seen_and_of_others_what_is_promised() -> None:
    assert row_of(as_seen(offered(), [])).guarantee is Guarantee.NONE
    assert row_of(as_seen(offered(), [entry(0, A, limit=HELD)])).guarantee is Guarantee.HARD
    plain = offered(limited=False)
    assert as_seen(plain, []) == plain
