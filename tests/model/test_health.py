"""The life cycle of health: what the driver and its XIDs say, and what it takes to come back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.model.gpu import RecoveryAction
from partage.model.health import (
    FORGIVEN_S,
    NEXT,
    OVERRULED_S,
    PROBATION_CAP_S,
    PROBATION_S,
    SUSPECT_S,
    Event,
    GpuCondition,
    Health,
    HealthFinding,
    HealthState,
    NodeBooted,
    Unresponsive,
    Xid,
    keep_instances,
    next_health,
)
from partage.model.ids import GpuUuid
from partage.model.xid import IGNORED_XIDS, RESET_XIDS, XidClass, XidRules, describe

UUID = GpuUuid("GPU-0")
FINE = GpuCondition(UUID, recovery=RecoveryAction.NONE)
FINE_ON_AN_OLD_DRIVER = GpuCondition(UUID)
RESET_NEEDED = GpuCondition(UUID, recovery=RecoveryAction.GPU_RESET)


def after(
    *events: tuple[float, Event], health: Health | None = None, rules: XidRules | None = None
) -> Health:
    """The health after these events, each with its time."""
    health = health or Health()
    for at_s, event in events:
        health = next_health(health, event, at_s, rules or XidRules())
    return health


def state(*events: tuple[float, Event]) -> HealthState:
    return after(*events).gpu.state


def xid(code: int, gi_id: int | None = None) -> Xid:
    return Xid(UUID, code, gi_id)


def test_a_gpu_is_healthy_until_something_is_said_against_it():
    assert state() is HealthState.HEALTHY
    assert state((1, FINE)) is HealthState.HEALTHY
    assert Health().offered()


@pytest.mark.parametrize("code", sorted(IGNORED_XIDS))
def test_an_applications_xid_changes_nothing(code: int):
    assert after((1, xid(code))) == Health()


@pytest.mark.parametrize("code", sorted(RESET_XIDS))
def test_an_xid_of_the_reset_class_takes_the_gpu_away_at_once(code: int):
    health = after((1, xid(code)))
    assert health.gpu.state is HealthState.UNHEALTHY
    assert not health.offered()
    assert health.gpu.reason == describe(code)


def test_an_unknown_xid_makes_suspect_for_a_while_and_the_gpu_stays_offered():
    health = after((1, xid(999)), (2, FINE))
    assert health.gpu.state is HealthState.SUSPECT
    assert health.offered()
    assert state((1, xid(999)), (SUSPECT_S, FINE)) is HealthState.SUSPECT
    assert state((1, xid(999)), (1 + SUSPECT_S, FINE)) is HealthState.HEALTHY
    assert state((1, xid(999)), (200, xid(999)), (1 + SUSPECT_S, FINE)) is HealthState.SUSPECT


def test_an_old_driver_that_cannot_prove_a_reset_leaves_the_gpu_unhealthy():
    day = 24 * 3600
    assert (
        state((1, xid(79)), *((t, FINE_ON_AN_OLD_DRIVER) for t in range(5, day, 600)))
        is HealthState.UNHEALTHY
    )


def test_a_counted_reset_is_proof():
    health = after((1, GpuCondition(UUID, resets=2)), (2, xid(79)), (3, GpuCondition(UUID, resets=2)))
    assert health.gpu.state is HealthState.UNHEALTHY
    health = after((4, GpuCondition(UUID, resets=3)), health=health)
    assert health.gpu.state is HealthState.PROBATION
    assert not health.offered()
    assert (
        after((4 + PROBATION_S, GpuCondition(UUID, resets=3)), health=health).gpu.state is HealthState.HEALTHY
    )


def test_a_count_that_was_not_known_before_or_falls_is_no_proof():
    """The counter began again with the process that counts."""
    assert state((1, xid(79)), (2, GpuCondition(UUID, resets=1))) is HealthState.UNHEALTHY
    assert (
        state((1, GpuCondition(UUID, resets=5)), (2, xid(79)), (3, GpuCondition(UUID, resets=0)))
        is HealthState.UNHEALTHY
    )


def test_an_xid_that_arrives_after_the_reset_that_followed_it_asks_for_no_other():
    late = Xid(UUID, 79, resets=0)
    reset = replace(FINE_ON_AN_OLD_DRIVER, resets=1)
    for events in (((1, late), (2, reset)), ((1, reset), (2, late), (3, reset))):
        assert state(*events) is HealthState.PROBATION
        assert state(*events, (3 + PROBATION_S, reset)) is HealthState.HEALTHY
        assert state(*events, (4, Xid(UUID, 79, resets=1)), (5, reset)) is HealthState.UNHEALTHY


def test_a_reset_that_only_a_later_xid_tells_of_is_proof():
    reset = replace(FINE_ON_AN_OLD_DRIVER, resets=1)
    fell_off = ((1, replace(reset, resets=0)), (2, xid(79)))
    assert state(*fell_off, (3, Xid(UUID, 999, resets=1)), (4, reset)) is HealthState.PROBATION
    assert state(*fell_off, (3, Xid(UUID, 79, resets=1)), (4, reset)) is HealthState.UNHEALTHY


def test_a_recovery_action_that_the_driver_takes_back_is_proof():
    events: list[tuple[float, Event]] = [(1, xid(95)), (2, RESET_NEEDED), (3, RESET_NEEDED)]
    assert state(*events) is HealthState.UNHEALTHY
    assert state(*events, (4, FINE)) is HealthState.PROBATION
    assert state(*events, (4, FINE_ON_AN_OLD_DRIVER)) is HealthState.UNHEALTHY, "no word is no proof"


def test_the_drivers_wish_for_a_reset_needs_no_xid():
    health = after((1, RESET_NEEDED))
    assert health.gpu.state is HealthState.UNHEALTHY
    assert health.gpu.reason == "the driver asks for a reset of the GPU"
    assert after((2, FINE), health=health).gpu.state is HealthState.PROBATION


@pytest.mark.parametrize("action", [action for action in RecoveryAction if action])
def test_every_recovery_action_takes_the_gpu_away(action: RecoveryAction):
    assert state((1, GpuCondition(UUID, recovery=action))) is HealthState.UNHEALTHY


def test_a_driver_that_needs_nothing_for_long_enough_overrules_the_table():
    events: list[tuple[float, Event]] = [(1, xid(62)), (2, FINE), (OVERRULED_S, FINE)]
    assert state(*events) is HealthState.UNHEALTHY
    assert state(*events, (1 + OVERRULED_S, FINE)) is HealthState.PROBATION


def test_each_further_fault_makes_the_driver_wait_again_before_it_overrules():
    events: list[tuple[float, Event]] = [(1, xid(62)), (500, xid(62)), (1 + OVERRULED_S, FINE)]
    assert state(*events) is HealthState.UNHEALTHY
    assert state(*events, (500 + OVERRULED_S, FINE)) is HealthState.PROBATION


def test_a_reboot_of_the_node_is_proof():
    assert state((1, xid(79)), (2, NodeBooted())) is HealthState.UNHEALTHY, (
        "the driver has not been asked yet"
    )
    assert state((1, xid(79)), (2, NodeBooted()), (3, FINE_ON_AN_OLD_DRIVER)) is HealthState.PROBATION


def test_a_lost_gpu_is_unhealthy_at_once_and_comes_back_by_answering():
    lost = GpuCondition(UUID, lost="GPU is lost")
    health = after((1, lost), (2, lost))
    assert health.gpu.state is HealthState.UNHEALTHY
    assert health.gpu.reason == "does not answer: GPU is lost"
    assert after((3, FINE), health=health).gpu.state is HealthState.PROBATION


def test_a_gpu_that_fell_off_the_bus_does_not_come_back_by_answering():
    lost = GpuCondition(UUID, lost="GPU is lost")
    orders: list[tuple[Event, Event]] = [(lost, xid(79)), (xid(79), lost)]
    for first, second in orders:
        health = after((1, first), (2, second), (3, lost))
        assert health.gpu.reason == "XID 79 (GPU has fallen off the bus)"
        assert after((4, FINE), (5, FINE), health=health).gpu.state is HealthState.UNHEALTHY


def test_rows_that_wait_to_be_remapped_make_suspect_and_leave_the_gpu_usable():
    pending = GpuCondition(UUID, recovery=RecoveryAction.NONE, rows_pending=True)
    assert state((1, pending), (10_000, pending)) is HealthState.SUSPECT
    assert state((1, pending), (2, FINE)) is HealthState.HEALTHY


def test_pending_rows_do_not_hold_up_a_probation():
    pending = GpuCondition(UUID, recovery=RecoveryAction.NONE, rows_pending=True)
    health = after((1, RESET_NEEDED), (2, pending))
    assert health.gpu.state is HealthState.PROBATION
    assert after((2 + PROBATION_S, pending), health=health).gpu.state is HealthState.SUSPECT


@pytest.mark.parametrize("bad", [GpuCondition(UUID, rows_failed=True), GpuCondition(UUID, fabric_ok=False)])
def test_failed_rows_and_a_fabric_that_is_not_ready_take_the_gpu_away_while_they_last(bad: GpuCondition):
    assert state((1, bad), (10_000, bad)) is HealthState.UNHEALTHY
    assert state((1, bad), (2, FINE)) is HealthState.PROBATION


def test_the_fabric_of_a_gpu_in_mig_mode_is_not_waited_for():
    searching = GpuCondition(UUID, recovery=RecoveryAction.NONE, fabric_ok=False, mig_mode=True)
    assert state((1, searching), (10_000, searching)) is HealthState.HEALTHY


def test_a_fault_in_probation_doubles_it_up_to_a_limit():
    health, now_s, lengths = Health(), 0.0, []
    for _ in range(9):
        health = after((now_s, RESET_NEEDED), (now_s + 1, FINE), health=health)
        lengths.append(health.gpu.probation_s)
        now_s += 10
    assert lengths[:3] == [PROBATION_S, 2 * PROBATION_S, 4 * PROBATION_S]
    assert lengths[-1] == PROBATION_CAP_S
    assert all(a <= b for a, b in pairwise(lengths))


def test_a_long_probation_is_forgotten_after_a_long_time_in_health():
    health = after((0, RESET_NEEDED), (1, FINE), (2, RESET_NEEDED), (3, FINE), (3 + 2 * PROBATION_S, FINE))
    assert health.gpu.state is HealthState.HEALTHY
    soon = after((200, RESET_NEEDED), (201, FINE), health=health)
    assert soon.gpu.probation_s == 2 * PROBATION_S
    late = after((200 + FORGIVEN_S, RESET_NEEDED), (201 + FORGIVEN_S, FINE), health=health)
    assert late.gpu.probation_s == PROBATION_S


def test_an_unknown_xid_in_probation_starts_it_again():
    events: list[tuple[float, Event]] = [(0, RESET_NEEDED), (1, FINE), (50, xid(999))]
    assert state(*events, (1 + PROBATION_S, FINE)) is HealthState.PROBATION
    assert state(*events, (50 + PROBATION_S, FINE)) is HealthState.HEALTHY


def test_no_answer_makes_suspect_until_there_is_one_and_heals_nothing():
    assert state((1, Unresponsive("the helper died"))) is HealthState.SUSPECT
    assert state((1, Unresponsive("the helper died")), (2, FINE)) is HealthState.HEALTHY
    assert state((1, xid(79)), (2, Unresponsive("the helper died"))) is HealthState.UNHEALTHY
    probation: list[tuple[float, Event]] = [
        (0, RESET_NEEDED),
        (1, FINE),
        (55, Unresponsive("the helper died")),
    ]
    assert state(*probation, (1 + PROBATION_S, FINE)) is HealthState.PROBATION


def test_an_xid_of_one_gpu_instance_takes_only_that_instance_away():
    health = after((1, xid(48, gi_id=3)))
    assert health.offered()
    assert health.offered(gi_id=4)
    assert not health.offered(gi_id=3)
    assert health.status(3).reason == "XID 48 (double-bit ECC error)"


def test_an_xid_of_the_whole_gpu_takes_all_instances_away():
    assert not after((1, xid(48))).offered(gi_id=3)


def test_an_instance_comes_back_by_a_reset_of_its_gpu():
    health = after((1, xid(48, gi_id=3)), (2, RESET_NEEDED))
    assert not health.offered(gi_id=3)
    health = after((3, FINE), (3 + PROBATION_S, FINE), health=health)
    assert health.offered(gi_id=3)


def test_a_suspect_instance_is_watched_and_then_forgotten():
    health = after((1, xid(999, gi_id=3)), (2, FINE))
    assert health.status(3).state is HealthState.SUSPECT
    assert after((1 + SUSPECT_S, FINE), health=health) == Health()


def test_instances_that_no_longer_exist_are_forgotten():
    health = after((1, xid(48, gi_id=3)), (1, xid(48, gi_id=4)))
    assert keep_instances(health, frozenset({4, 5})).instances.keys() == {4}
    assert keep_instances(health, frozenset({3, 4})) is health
    assert after((2, NodeBooted()), health=health).instances == {}


def test_a_fault_of_an_unknown_gpu_makes_suspect_only():
    assert state((1, Xid(None, 79))) is HealthState.SUSPECT
    assert state((1, Xid(None, 13))) is HealthState.HEALTHY


# --- the operator's exceptions ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("disable", "enable", "code", "meaning"),
    [
        ("", "", 13, XidClass.IGNORED),
        ("", "", 79, XidClass.RESET),
        ("", "", 109, XidClass.RESET),
        ("", "", 94, XidClass.IGNORED),
        ("", "", 1234, XidClass.UNKNOWN),
        ("79, 48", "", 48, XidClass.IGNORED),
        ("79,foo,,-1,4 8", "", 48, XidClass.RESET),
        ("xids", "", 79, XidClass.IGNORED),
        ("ALL", "", 79, XidClass.IGNORED),
        ("all", "48", 48, XidClass.RESET),
        ("all", "48", 79, XidClass.IGNORED),
        ("", "13", 13, XidClass.FAULT),
        ("", "13", 31, XidClass.IGNORED),
        ("13", "13", 13, XidClass.FAULT),
        ("", "all", 45, XidClass.FAULT),
        ("xids", "all", 79, XidClass.RESET),
        ("99999999999999999999", "", 79, XidClass.RESET),
    ],
)
def test_the_two_variables_say_which_xids_count(disable: str, enable: str, code: int, meaning: XidClass):
    assert XidRules.parse(disable, enable).class_of(code) is meaning


def test_an_enabled_application_xid_takes_the_gpu_away_until_it_is_quiet():
    health = after((1, xid(13)), rules=XidRules.parse("", "13"))
    assert health.gpu.state is HealthState.UNHEALTHY
    assert after((2, FINE), (2 + PROBATION_S, FINE), health=health).offered()


def test_without_health_checks_only_a_lost_gpu_is_taken_away():
    rules = XidRules.parse("all", "")
    assert after((1, xid(79)), (2, RESET_NEEDED), rules=rules) == Health()
    assert not after((1, GpuCondition(UUID, lost="GPU is lost")), rules=rules).offered()


def test_without_xids_the_drivers_word_still_counts():
    assert not after((1, RESET_NEEDED), rules=XidRules.parse("xids", "")).offered()


# --- laws --------------------------------------------------------------------------------------------

CONDITIONS = st.builds(
    GpuCondition,
    gpu=st.just(UUID),
    lost=st.sampled_from([None, None, None, "lost"]),
    recovery=st.sampled_from([None, RecoveryAction.NONE, RecoveryAction.NONE, RecoveryAction.GPU_RESET]),
    rows_pending=st.booleans(),
    rows_failed=st.sampled_from([False, False, False, True]),
    fabric_ok=st.sampled_from([None, True, False]),
    resets=st.sampled_from([None, 0, 1, 2]),
)
XIDS = st.builds(
    Xid,
    gpu=st.sampled_from([UUID, UUID, None]),
    code=st.sampled_from([13, 48, 79, 94, 154, 999]),
    gi_id=st.sampled_from([None, 1]),
)
EVENTS = st.lists(
    st.tuples(
        st.floats(0, 5000),
        st.one_of(CONDITIONS, XIDS, st.just(NodeBooted()), st.just(Unresponsive("the helper died"))),
    ),
    max_size=25,
)


def lived(events: list[tuple[float, Event]]) -> tuple[Health, float]:
    health, now_s = Health(), 0.0
    for wait_s, event in events:
        now_s += wait_s
        health = next_health(health, event, now_s)
    return health, now_s


def test_the_table_answers_every_finding_in_every_state():
    assert {(a, b) for a in NEXT for b in NEXT[a]} == {(a, b) for a in HealthState for b in HealthFinding}


@given(EVENTS)
def test_a_gpu_never_goes_from_unhealthy_to_offered_without_probation(events: list[tuple[float, Event]]):
    health, now_s = Health(), 0.0
    for wait_s, event in events:
        now_s += wait_s
        later = next_health(health, event, now_s)
        assert not (health.gpu.state is HealthState.UNHEALTHY and later.gpu.state.offered)
        assert later.gpu.reason or later.gpu.state is HealthState.HEALTHY
        assert PROBATION_S <= later.gpu.probation_s <= PROBATION_CAP_S
        health = later


@given(EVENTS)
def test_with_proof_and_quiet_every_gpu_comes_back(events: list[tuple[float, Event]]):
    health, now_s = lived(events)
    health = next_health(health, NodeBooted(), now_s)
    for wait_s in (1, PROBATION_CAP_S, SUSPECT_S):
        now_s += wait_s
        health = next_health(health, FINE, now_s)
    assert health.gpu.state is HealthState.HEALTHY
    assert health.offered(gi_id=1)


@given(EVENTS)
def test_without_proof_no_gpu_of_an_old_driver_comes_back_from_a_fault_of_the_reset_class(
    events: list[tuple[float, Event]],
):
    health, now_s = lived(events)
    health = next_health(health, xid(79), now_s)
    for _ in range(5):
        now_s += 10_000
        health = next_health(health, FINE_ON_AN_OLD_DRIVER, now_s)
        assert not health.offered()


@given(EVENTS)
def test_asking_twice_at_one_moment_changes_nothing_more(events: list[tuple[float, Event]]):
    health, now_s = lived(events)
    health = next_health(next_health(health, FINE, now_s), FINE, now_s)
    assert next_health(health, FINE, now_s) == health
