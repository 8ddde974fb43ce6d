"""The watchdog: containers that use more than their shares, and those for which that is not known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.model.gpu_use import GpuProcess, Processes, ProcessKind
from partage.model.ids import ContainerId, GpuUuid, ResourceName, ShareId
from partage.model.policy import WatchAction
from partage.model.share import DeviceOffer, Guarantee
from partage.model.step import EndProcess
from partage.model.strategy import Strategy
from partage.plan.serve.ledger_entry import Certainty, HeldLimit, Holder, LedgerEntry
from partage.plan.serve.watchdog import (
    ContainerUsage,
    GrantKind,
    ViolationKind,
    WatchResult,
    check_usage,
    gpus_that_claims_watch,
    grants_of,
)
from partage.units import GIB

NAME = ResourceName("nvidia.com/gpu.shared")
GPU, OTHER_GPU = GpuUuid("GPU-0"), "GPU-1"
TRAIN, NOTEBOOK = ContainerId("3f" * 32), ContainerId("a0" * 32)
HOLDERS = {TRAIN: Holder("team", "train", "main"), NOTEBOOK: Holder("team", "notebook", "main")}
UID = "0b5a1e0c-6f1e-4d3c-9b42-5c2d7f8e9a10"

SHARED = DeviceOffer(
    device=GPU,
    gpu=GPU,
    index="0",
    gpu_index=0,
    resource=NAME,
    strategy=Strategy.TIME_SLICING,
    shared=Strategy.TIME_SLICING,
    replicas=4,
    memory_bytes=20 * GIB,
    guarantee=Guarantee.NONE,
    count=4,
)


def process(
    pid: int,
    container: ContainerId = TRAIN,
    used: int | None = GIB,
    kind: ProcessKind = ProcessKind.COMPUTE,
    **more: object,
) -> GpuProcess:
    cgroups = (f"0::/kubepods/pod{UID}/{container}",) if container else ("0::/system.slice/x.service",)
    row = GpuProcess(GPU, pid, used, kind, name="python", cgroups=cgroups, start=pid * 10)
    return replace(row, **more)


def entry(number: int, container: ContainerId | None = TRAIN, device: str = GPU) -> LedgerEntry:
    holders = (HOLDERS[container],) if container else ()
    certainty = Certainty.OBSERVED if container else Certainty.TENTATIVE
    return LedgerEntry(NAME, ShareId(f"{device}::{number}"), certainty, holders, 0.0)


def watched(
    *rows: GpuProcess,
    entries: tuple[LedgerEntry, ...] = (entry(0),),
    offering: DeviceOffer = SHARED,
    mode: WatchAction | None = None,
    names: dict[ContainerId, Holder] = HOLDERS,
    hidden: str = "",
) -> WatchResult:
    watch_of = {} if mode is None else {GPU: mode}
    return check_usage(
        Processes(rows, hidden=hidden), names, grants_of(entries, {GPU: (offering,)}), watch_of
    )


def only(result: WatchResult) -> ContainerUsage:
    (usage,) = result.usages
    return usage


def test_all_processes_of_a_container_count_together_against_all_of_its_shares() -> None:
    result = watched(process(8, used=25 * GIB), process(7, used=14 * GIB), entries=(entry(0), entry(3)))
    usage = only(result)
    assert (usage.used_bytes, usage.granted_bytes, usage.pids) == (39 * GIB, 40 * GIB, (7, 8))
    assert (usage.grant, usage.guarantee, usage.over) == (GrantKind.HELD, Guarantee.NONE, False)
    assert (usage.holder, usage.pod) == (HOLDERS[TRAIN], UID)
    assert result.violations == ()
    assert result.unattributed == ()


def test_a_container_over_its_shares_is_named_with_both_figures() -> None:
    (verdict,) = watched(process(7, used=20 * GIB + 1)).violations
    assert verdict.concern is ViolationKind.OVER
    assert verdict.reason == "team/train, container main, uses 20 GiB of GPU-0; its shares are 20 GiB"
    assert (verdict.ends, verdict.clients) == ((), ())


def test_a_container_that_uses_all_of_its_shares_and_no_more_is_within_them() -> None:
    result = watched(process(7, used=20 * GIB))
    assert (result.violations, only(result).over) == ((), False)
    assert only(result).why_over == "uses 20 GiB of GPU-0; its shares are 20 GiB"


def test_containers_of_one_pod_are_judged_each_by_itself() -> None:
    result = watched(
        process(7, used=15 * GIB), process(8, NOTEBOOK, 15 * GIB), entries=(entry(0), entry(1, NOTEBOOK))
    )
    assert [usage.used_bytes for usage in result.usages] == [15 * GIB, 15 * GIB]
    assert result.violations == ()


def test_with_kill_every_process_of_the_container_is_to_be_ended_the_right_way() -> None:
    rows = (
        process(7, used=30 * GIB),
        process(8, used=None),
        process(9, kind=ProcessKind.MPS_CLIENT),
        process(10, start=None),
        process(11, NOTEBOOK),
    )
    entries = (entry(0), entry(1, NOTEBOOK))
    (verdict,) = watched(*rows, entries=entries, mode=WatchAction.KILL).violations
    assert verdict.ends == (EndProcess(GPU, 7, 70, TRAIN), EndProcess(GPU, 8, 80, TRAIN))
    assert verdict.clients == (9,)


def test_with_off_nothing_is_said_and_the_figures_are_there() -> None:
    result = watched(process(7, used=30 * GIB), mode=WatchAction.OFF)
    assert only(result).over
    assert result.violations == ()


@pytest.mark.parametrize("mode", [None, WatchAction.WARN, WatchAction.KILL])
def test_a_container_without_a_share_is_named_and_never_ended(mode: WatchAction | None) -> None:
    result = watched(process(8, NOTEBOOK), mode=mode)
    assert only(result).grant is GrantKind.NONE
    (verdict,) = result.violations
    assert verdict.concern is ViolationKind.UNGRANTED
    assert (verdict.ends, verdict.clients) == ((), ())
    assert verdict.reason == "team/notebook, container main, uses GPU-0 and holds no share of it"


@pytest.mark.parametrize(
    ("row", "entries", "names"),
    [
        (process(8, NOTEBOOK, 79 * GIB), (entry(0), entry(1, None)), HOLDERS),
        (process(7, used=79 * GIB), (entry(0),), {}),
        (process(7, used=79 * GIB), (replace(entry(0), holders=tuple(HOLDERS.values())),), HOLDERS),
    ],
    ids=["a share's holder is not known yet", "the container has no name", "a share has two holders"],
)
def test_what_is_not_certain_is_no_reason_to_say_anything(
    row: GpuProcess, entries: tuple[LedgerEntry, ...], names: dict[ContainerId, Holder]
) -> None:
    result = watched(row, entries=entries, names=names, mode=WatchAction.KILL)
    assert only(result).grant is GrantKind.UNKNOWN
    assert only(result).granted_bytes == 0
    assert result.violations == ()


def test_processes_of_no_container_are_listed_and_not_counted() -> None:
    host, server = process(1000, ContainerId("")), process(7, NOTEBOOK, kind=ProcessKind.MPS_SERVER)
    job = process(9, cgroups=("0::/system.slice/slurmstepd.scope/job_1/step_0",))
    result = watched(host, server, job, process(8))
    assert result.unattributed == (host, server, job)
    assert only(result).pids == (8,)


def test_what_is_called_an_mps_server_in_a_container_with_shares_is_that_tenants() -> None:
    """Partage's servers are in no container, or in the helper's; a tenant could use their name to hide."""
    (verdict,) = watched(
        process(7, used=30 * GIB, kind=ProcessKind.MPS_SERVER), mode=WatchAction.KILL
    ).violations
    assert verdict.usage.used_bytes == 30 * GIB
    assert (verdict.ends, verdict.clients) == ((), ())  # it may have clients of other containers


def test_memory_without_a_figure_is_said_and_what_is_known_may_be_too_much_all_the_same() -> None:
    usage = only(watched(process(7, used=None), process(8, used=GIB)))
    assert (usage.used_bytes, usage.partly, usage.over) == (GIB, True, False)
    assert not only(watched(process(8, used=GIB))).partly
    assert only(watched(process(7, used=None), process(8, used=21 * GIB))).over


def test_what_the_hardware_limits_cannot_be_exceeded() -> None:
    whole = replace(SHARED, guarantee=Guarantee.HARD, memory_bytes=GIB)
    assert watched(process(7, used=2 * GIB), offering=whole).violations == ()


@pytest.mark.parametrize(
    ("limit", "over"),
    [
        (None, True),
        (HeldLimit(20 * GIB, None, reason="the driver has no limits"), True),
        (HeldLimit(20 * GIB, None), True),
        (HeldLimit(20 * GIB, 20 * GIB), False),
    ],
    ids=["not tried", "could not be set", "not read yet", "in force"],
)
def test_what_the_driver_limits_cannot_be_exceeded(limit: HeldLimit | None, over: bool) -> None:
    offering = replace(SHARED, guarantee=Guarantee.HARD, limited=True)
    held = replace(entry(0), limit=limit)
    found = watched(process(7, used=25 * GIB), entries=(held,), offering=offering)
    assert bool(found.violations) is over


def test_a_mig_device_is_judged_by_its_own_shares() -> None:
    mig = replace(SHARED, device="MIG-1", memory_bytes=5 * GIB)
    entries = (entry(0, device="MIG-1"),)
    on_mig = process(7, used=6 * GIB, device="MIG-1", gi_id=2, ci_id=0)
    (verdict,) = watched(on_mig, offering=mig, entries=entries).violations
    assert (verdict.usage.device, verdict.usage.gpu, verdict.usage.granted_bytes) == ("MIG-1", GPU, 5 * GIB)
    server = replace(on_mig, kind=ProcessKind.MPS_SERVER)
    assert watched(server, offering=mig, entries=entries).unattributed == (), "the tenant's own"
    # Without permission the driver names the GPU only: on which part it is cannot be told.
    assert only(watched(process(7, used=6 * GIB), offering=mig, entries=entries)).grant is GrantKind.UNKNOWN


def test_what_cannot_be_seen_is_reported_and_what_can_be_seen_is_judged_all_the_same() -> None:
    result = watched(process(7, used=30 * GIB), hidden="we do not see all")
    assert result.hidden == "we do not see all"
    assert len(result.violations) == 1


def test_whose_share_is_in_no_offer_is_not_said_to_hold_none() -> None:
    """It was given out by an earlier policy, whose shares were of another size."""
    assert only(watched(process(7, used=79 * GIB), entries=(entry(9),))).grant is GrantKind.UNKNOWN


def test_a_share_that_is_in_no_offer_counts_for_no_container() -> None:
    assert grants_of([entry(9), entry(0, device="GPU-9")], {GPU: (SHARED,)}).by == {}


rows = st.builds(
    process,
    pid=st.integers(2, 40),
    container=st.sampled_from([TRAIN, NOTEBOOK, ""]),
    used=st.none() | st.integers(0, 40 * GIB),
    kind=st.sampled_from(ProcessKind),
)
entries = st.builds(entry, st.integers(0, 3), st.sampled_from([TRAIN, NOTEBOOK, None]))


@given(
    st.lists(rows, max_size=6, unique_by=lambda row: row.pid),
    st.lists(entries, max_size=4, unique_by=lambda one: one.id),
    st.sampled_from(WatchAction),
)
def test_every_process_is_somewhere_once_and_only_certain_holders_are_ended(
    found: list[GpuProcess], held: list[LedgerEntry], mode: WatchAction
) -> None:
    result = watched(*found, entries=tuple(held), mode=mode)
    placed = [row for usage in result.usages for row in usage.processes] + list(result.unattributed)
    assert sorted(row.pid for row in placed) == sorted(row.pid for row in found)
    certain = {one.holder for one in held}
    for verdict in result.violations:
        if verdict.ends or verdict.clients:
            assert mode is WatchAction.KILL
            assert verdict.usage.holder in certain - {None}
            assert verdict.usage.used_bytes > verdict.usage.granted_bytes


# --- a claim is one holder ---------------------------------------------------------------------------


def claimed(number: int, *containers: ContainerId, claim: str = "team/a", **more: object) -> LedgerEntry:
    holders = tuple(HOLDERS[container] for container in containers)
    row = LedgerEntry(NAME, ShareId(f"{GPU}::{number}"), Certainty.CLAIMED, holders, 0.0, claim=claim)
    return replace(row, **more)


def test_containers_of_one_claim_are_added_up() -> None:
    entries = (claimed(0, TRAIN, NOTEBOOK), claimed(1, TRAIN, NOTEBOOK))
    within = watched(process(7, used=25 * GIB), process(8, NOTEBOOK, 15 * GIB), entries=entries)
    assert (within.violations, [usage.over for usage in within.usages]) == ((), [False, False])
    beyond = watched(
        process(7, used=25 * GIB),
        process(8, NOTEBOOK, 15 * GIB + 1),
        entries=entries,
        mode=WatchAction.KILL,
    )
    assert sorted(step.pid for verdict in beyond.violations for step in verdict.ends) == [7, 8]
    assert beyond.violations[0].reason == (
        "team/train, container main, is one of 2 that use 40 GiB of GPU-0 together; their claim team/a has "
        "40 GiB"
    )


def test_a_container_that_uses_more_than_its_claim_by_itself_is_told_so() -> None:
    entries = (claimed(0, TRAIN, NOTEBOOK),)
    found = watched(process(7, used=25 * GIB), process(8, NOTEBOOK, GIB), entries=entries).violations
    reasons = {violation.usage.container: violation.reason for violation in found}
    assert reasons[TRAIN].endswith("uses 25 GiB of GPU-0; its shares are 20 GiB")
    assert "is one of 2 that use 26 GiB" in reasons[NOTEBOOK]


def test_containers_of_two_claims_are_judged_each_by_itself() -> None:
    entries = (claimed(0, TRAIN), claimed(1, NOTEBOOK, claim="team/b"))
    result = watched(process(7, used=5 * GIB), process(8, NOTEBOOK, 25 * GIB), entries=entries)
    assert [violation.usage.container for violation in result.violations] == [NOTEBOOK]
    assert [usage.together for usage in result.usages] == [None, None]


@pytest.mark.parametrize("policy", list(WatchAction))
@pytest.mark.parametrize("asked", [None, *WatchAction])
def test_what_a_claim_asks_for_counts_more_than_the_policy_and_for_it_alone(
    policy: WatchAction, asked: WatchAction | None
) -> None:
    entries = (claimed(0, TRAIN, watch=asked), claimed(1, NOTEBOOK, claim="team/b"))
    over = 21 * GIB
    result = watched(process(7, used=over), process(8, NOTEBOOK, over), entries=entries, mode=policy)
    wanted = {violation.usage.container: violation.wanted for violation in result.violations}
    said = {TRAIN: policy if asked is None else asked, NOTEBOOK: policy}
    assert wanted == {who: action for who, action in said.items() if action is not WatchAction.OFF}


def test_of_two_claims_of_a_container_the_stricter_one_counts() -> None:
    entries = (
        claimed(0, TRAIN, watch=WatchAction.KILL),
        claimed(1, TRAIN, claim="team/b", watch=WatchAction.OFF),
    )
    (verdict,) = watched(process(7, used=41 * GIB), entries=entries).violations
    assert verdict.wanted is WatchAction.KILL


def test_a_gpu_is_watched_for_a_claim_that_wants_it_and_for_no_other() -> None:
    offer = {GPU: (SHARED,)}
    assert gpus_that_claims_watch([claimed(0, TRAIN, watch=WatchAction.WARN)], offer) == {GPU}
    for watch in (None, WatchAction.OFF):
        assert gpus_that_claims_watch([claimed(0, TRAIN, watch=watch)], offer) == frozenset()
