"""What was seen in force, against what is promised."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partage.model.gpu import ComputeMode
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.mps import ClientLimits, DaemonPhase, DaemonState, MpsNamespace
from partage.model.share import Guarantee
from partage.model.strategy import Via
from partage.plan.reconcile.verification import limits_share, stated_guarantee, verified_guarantee, verifier
from partage.plan.serve.ledger_entry import Certainty, HeldLimit, Holder, LedgerEntry
from partage.units import GIB
from tests.plan.offers import gpu, node, offering, unit_row
from tests.plan.reconcile.test_planner import WHOLE, desired_of, observe, snapshot, with_mps


def test_a_guarded_share_is_verified_by_daemon_mode_and_watchdog_together() -> None:
    desired, now = with_mps(observe())
    observed, uuid = now.observed, next(iter(desired.offer))
    (share,) = desired.offer[uuid]
    assert share.guarantee is Guarantee.GUARDED
    assert verified_guarantee(share, observed, {uuid}, {}) is Guarantee.GUARDED
    assert verified_guarantee(share, observed, (), {}) is Guarantee.ADVISORY, "nothing watches it"


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"phase": DaemonPhase.DEAD}, None),
        ({"phase": DaemonPhase.DEAD, "limits": ClientLimits()}, None),
        ({"phase": DaemonPhase.SILENT, "limits": ClientLimits()}, None),
        ({"phase": DaemonPhase.FAULT}, None),
        ({"limits": ClientLimits()}, Guarantee.NONE),
        ({"phase": DaemonPhase.STARTING, "limits": ClientLimits()}, Guarantee.NONE),
        ({"phase": DaemonPhase.STARTING}, None),
        ({"phase": DaemonPhase.STARTING, "pid": None, "limits": ClientLimits()}, None),
        ({"limits": ClientLimits(2**30, 50)}, Guarantee.NONE),
    ],
)
def test_what_the_daemon_does_not_hold_is_not_verified(change, seen) -> None:
    desired, now = with_mps(observe())
    (daemon,) = now.observed.daemons or ()
    observed = replace(now.observed, daemons=(replace(daemon, **change),))
    uuid = now.observed.node.inventory.gpus[0].uuid
    (share,) = desired.offer[uuid]
    assert verified_guarantee(share, observed, {uuid}, {}) is seen


def test_a_share_that_promises_no_limit_of_the_daemons_is_seen_without_one() -> None:
    desired, now = with_mps(observe())
    (daemon,) = now.observed.daemons or ()
    observed = replace(now.observed, daemons=(replace(daemon, limits=ClientLimits()),))
    uuid = next(iter(desired.offer))
    share = replace(desired.offer[uuid][0], guarantee=Guarantee.ADVISORY)
    assert verified_guarantee(share, observed, {uuid}, {}) is Guarantee.ADVISORY


def test_in_another_compute_mode_a_tenant_can_go_past_the_daemon() -> None:
    desired, now = with_mps(observe())
    node = now.observed.node
    first = replace(node.inventory.gpus[0], compute_mode=ComputeMode.DEFAULT)
    inventory = replace(node.inventory, gpus=(first, *node.inventory.gpus[1:]))
    observed = replace(now.observed, node=replace(node, inventory=inventory))
    (share,) = desired.offer[first.uuid]
    assert verified_guarantee(share, observed, {first.uuid}, {}) is Guarantee.ADVISORY


def test_what_somebody_else_may_have_changed_is_advisory() -> None:
    desired, now = with_mps(observe())
    uuid = next(iter(desired.offer))
    (share,) = desired.offer[uuid]
    doubts = {share.device: "root"}
    assert verified_guarantee(share, now.observed, {uuid}, doubts) is Guarantee.ADVISORY
    other: dict[DeviceUuid, str] = {GpuUuid("GPU-9"): "root"}
    assert verified_guarantee(share, now.observed, {uuid}, other) is Guarantee.GUARDED


def test_what_is_promised_less_is_still_looked_at() -> None:
    desired, now = with_mps(observe())
    uuid = next(iter(desired.offer))
    (share,) = desired.offer[uuid]
    promised = replace(share, guarantee=Guarantee.ADVISORY)
    assert verifier(desired.offer, now.observed, {uuid}, {})(promised) is Guarantee.GUARDED
    assert verifier({}, now.observed, {uuid}, {})(promised) is Guarantee.ADVISORY, (
        "of no kind that is guarded"
    )
    known = now.observed.node
    opened = replace(now.observed, node=replace(known, inventory=replace(known.inventory, open_to_env=True)))
    assert verifier(desired.offer, opened, {uuid}, {})(promised) is Guarantee.ADVISORY
    (daemon,) = now.observed.daemons or ()
    lost = replace(now.observed, daemons=(replace(daemon, limits=ClientLimits()),))
    assert verifier(desired.offer, lost, {uuid}, {})(promised) is Guarantee.NONE


def test_a_whole_gpu_is_verified_while_it_answers() -> None:
    inventory = observe()
    desired, now = desired_of(WHOLE, inventory), snapshot(inventory)
    uuid = inventory.gpus[0].uuid
    (share,) = desired.offer[uuid]
    assert verified_guarantee(share, now.observed, (), {}) is Guarantee.HARD
    lost = replace(now.observed, node=replace(now.observed.node, lost={uuid: "it fell off the bus"}))
    assert verified_guarantee(share, lost, (), {}) is None
    assert verified_guarantee(replace(share, gpu=GpuUuid("GPU-9")), now.observed, (), {}) is None


def test_a_mig_device_is_verified_while_it_is_there() -> None:
    has, row = gpu(0, migs=2), offering(0, mig=1)
    assert verified_guarantee(row, snapshot(node(has)).observed, (), {}) is Guarantee.HARD
    assert verified_guarantee(row, snapshot(node(gpu(0, migs=1))).observed, (), {}) is None


@pytest.mark.parametrize(("second", "seen"), [(2 * GIB, True), (GIB, False), (None, False)])
def test_units_are_limited_if_each_amount_has_its_namespace(second: int | None, seen: bool) -> None:
    row = replace(unit_row(0, 2), pipe="pipe/units")
    limits = ClientLimits(namespaces=(MpsNamespace("units1", GIB), MpsNamespace("units2", second)))
    daemon = DaemonState(row.gpu, row.device, DaemonPhase.SERVING, 7, (), limits)
    assert limits_share(daemon, row) is seen


def test_a_device_that_has_still_to_be_made_is_only_promised() -> None:
    inventory = observe()
    text = "version: partage/v1\ngpus: [{select: {index: 0}, mig: {layout: [7g.80gb]}}]\n"
    (share,) = desired_of(text, inventory).offer[inventory.gpus[0].uuid]
    assert verified_guarantee(share, snapshot(inventory).observed, (), {}) is None
    assert stated_guarantee(share, None) is Guarantee.HARD
    assert stated_guarantee(share, Guarantee.NONE) is Guarantee.NONE


def test_a_daemon_that_is_not_there_holds_nobody() -> None:
    desired, now = with_mps(observe())
    uuid = next(iter(desired.offer))
    (share,) = desired.offer[uuid]
    for daemons in ((), None):
        assert verified_guarantee(share, replace(now.observed, daemons=daemons), {uuid}, {}) is None


@pytest.mark.parametrize(("slots", "seen"), [(2, True), (1, False), (0, False)])
def test_slots_of_claims_are_limited_if_there_is_one_for_each_share(slots: int, seen: bool) -> None:
    row = replace(unit_row(0, 2), pipe="pipe/slot", via=Via.CLAIMS)
    daemon = DaemonState(row.gpu, row.device, DaemonPhase.SERVING, 7, (), ClientLimits(slots=slots))
    assert limits_share(daemon, row) is seen


def test_a_limit_of_the_drivers_is_hard_once_that_of_every_holder_was_read() -> None:
    row = replace(offering(0, 2), limited=True, guarantee=Guarantee.HARD)
    observed = snapshot(node(gpu(0))).observed

    def held(number: int, in_force: bool) -> LedgerEntry:
        holder = Holder("x", f"pod-{number}", "main")
        limit = HeldLimit(1, 1 if in_force else None)
        return LedgerEntry(
            row.resource, row.share_ids[number], Certainty.OBSERVED, (holder,), 0.0, limit=limit
        )

    assert verified_guarantee(row, observed, (), {}) is None, "nobody holds a share"
    assert verified_guarantee(row, observed, (), {}, [held(0, True)]) is Guarantee.HARD
    assert verified_guarantee(row, observed, (), {}, [held(0, True), held(1, False)]) is Guarantee.NONE
    assert stated_guarantee(row, None) is Guarantee.NONE
    assert stated_guarantee(row, Guarantee.HARD) is Guarantee.HARD
