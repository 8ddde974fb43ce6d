"""What claims hold, changed one by one, is what it would be if it were noted anew; and a change costs the
same beside many claims as beside few.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from partage.claims.agent.holds import ClaimHolds
from partage.claims.decide.allocation import grant
from partage.claims.decide.devices import claim_devices
from partage.claims.model.claim import Claim, ClaimResult
from partage.claims.model.grant import ClaimRecord, ClaimState, Granted, GrantedShare, ShareConfig
from partage.claims.model.names import OWN_NAMES
from partage.edges.files.catalogue import geometry_of
from partage.model.claim import ClaimHold, ClaimRef
from partage.model.share import DeviceOffer, Guarantee
from partage.plan.serve.ledger import Ledger
from tests.claims.offers import offers, replicas
from tests.plan.offers import gpu, node

ROWS = (replicas(0, 500), replicas(1, 500))


def share(row: DeviceOffer, number: int) -> GrantedShare:
    return GrantedShare(
        request="gpu",
        pool="n1-partage",
        device=f"gpu-{row.gpu}",
        share_id=f"s{number}",
        uuid=row.device,
        gpu=row.gpu,
        resource=row.resource,
        ids=(row.share_ids[number],),
        memory_bytes=row.memory_bytes,
        cores=0,
        guarantee=Guarantee.NONE,
        config=ShareConfig(),
    )


def record(number: int, *shares: GrantedShare, boot_id: str = "boot-1") -> ClaimRecord:
    return ClaimRecord(ClaimRef("team", f"c{number}", f"uid-{number}"), ClaimState.STARTED, boot_id, shares)


def asked_nothing() -> None:
    """Nobody makes turns here."""


def holds_of(*records: ClaimRecord) -> tuple[ClaimHolds, Ledger]:
    ledger = Ledger()
    return ClaimHolds(ledger, lambda: 7.0, asked_nothing, records), ledger


NUMBERS = st.integers(0, 5)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), NUMBERS, st.sampled_from([(0,), (1,), (0, 1), ()])),
        st.tuples(st.just("drop"), NUMBERS, st.just(())),
        st.tuples(st.just("put back"), NUMBERS, st.just(())),
        st.tuples(st.just("named"), NUMBERS, st.just(())),
        st.tuples(st.just("booted"), st.just(0), st.just(())),
    ),
    max_size=30,
)


@given(CHANGES)
def test_each_change_leaves_what_would_be_noted_anew(changes: list[tuple[str, int, tuple[int, ...]]]) -> None:
    holds, ledger = holds_of()
    named: list[ClaimHold] = []
    for what, number, gpus in changes:
        uid, version, before = f"uid-{number}", ledger.version, ledger.entries()
        match what:
            case "put":
                holds.put(record(number, *(share(ROWS[index], number) for index in gpus)))
            case "drop":
                holds.drop(uid)
            case "put back":
                holds.put_back(uid, holds.kept.get(uid))
            case "named":
                named = [ClaimHold("team", f"pod-{number}", "main", f"team/c{number}"), *named[:2]]
                holds.seen(named)
            case "booted":
                holds.booted("boot-1")
        anew, fresh = holds_of(*holds.kept.values())
        anew.seen(named)
        assert ledger.entries() == fresh.entries()
        assert (ledger.version == version) == (ledger.entries() == before)
        for row in ROWS:
            assert set(holds.on([row.gpu])) == {
                kept.granted for kept in holds.kept.values() if row.gpu in kept.gpus.values()
            }
        assert len(holds.on([row.gpu for row in ROWS])) == sum(
            bool(one.shares) for one in holds.kept.values()
        )


def calls_of(work: Callable[[], object]) -> int:
    """How many functions it calls."""
    count = 0

    def called(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_prepare_costs_the_same_beside_a_thousand_claims_of_other_gpus() -> None:
    row, inventory = replicas(2), node(gpu(0), gpu(1), gpu(2))
    devices = claim_devices(offers(*ROWS, row), inventory, "n1", geometry_of, OWN_NAMES)
    (name,) = [name for name, offered in devices.rows.items() if offered.gpu == row.gpu]
    consumed = {"shares": 1, "memory": 0}
    result = ClaimResult("gpu", "n1-partage", name, OWN_NAMES.driver, share_id="s", consumed=consumed)
    ref = ClaimRef("team", "new", "uid-new")
    claim = Claim(ref, allocated=True, results=(result,))

    def calls_beside(count: int) -> int:
        holds, _ = holds_of(*(record(n, share(ROWS[n % 2], n // 2)) for n in range(count)))

        def prepared_and_taken_back() -> None:
            granted = grant(claim, ref, devices, holds.on([row.gpu]), holds.of_others())
            assert isinstance(granted, Granted), granted
            holds.put(ClaimRecord(ref, ClaimState.STARTED, "boot-1", granted.shares))
            holds.drop(ref.uid)

        prepared_and_taken_back()
        return calls_of(prepared_and_taken_back)

    assert calls_beside(1000) == calls_beside(0)
