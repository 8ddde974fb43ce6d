"""Who holds what: every way in which the kubelet speaks, alone and interleaved."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from time import perf_counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from partage.model.gpu_use import LeftProcess
from partage.model.ids import ContainerId, PodUid, ResourceName, ShareId
from partage.model.share import CheckpointHolds, ContainerHold
from partage.plan.serve.ledger import ADMISSION_S, Ledger
from partage.plan.serve.ledger_entry import Certainty, EndingHold, Holder, LedgerEntry
from tests.examples import examples

A = ShareId("a")
B = ShareId("b")
C = ShareId("c")

GPU = ResourceName("nvidia.com/gpu.shared")
OTHER = ResourceName("nvidia.com/gpu")


def says(pod: str, *ids: ShareId, container: str = "main", resource: ResourceName = GPU) -> ContainerHold:
    return ContainerHold("default", pod, container, resource, ids)


def holder(pod: str, container: str = "main") -> Holder:
    return Holder("default", pod, container)


def only(ledger: Ledger) -> LedgerEntry:
    (entry,) = ledger.entries()
    return entry


def test_what_allocate_gives_has_no_named_holder():
    ledger = Ledger()
    ledger.allocated(GPU, [A, B], 1)
    assert ledger.entries() == (
        LedgerEntry(GPU, A, Certainty.TENTATIVE, (), 1),
        LedgerEntry(GPU, B, Certainty.TENTATIVE, (), 1),
    )
    assert ledger.held().ids == {GPU: {"a", "b"}}
    assert only_holder(ledger, A) is None


def only_holder(ledger: Ledger, share: ShareId) -> Holder | None:
    return next(entry.holder for entry in ledger.entries() if entry.id == share)


def test_pod_resources_turns_a_tentative_entry_into_an_observed_one():
    ledger = Ledger()
    ledger.allocated(GPU, [A], 1)
    ledger.observed([says("web", A)], 2)
    assert only(ledger) == LedgerEntry(GPU, A, Certainty.OBSERVED, (holder("web"),), 1)
    assert only_holder(ledger, A) == holder("web")


def test_an_answer_that_names_one_more_container_adds_it():
    ledger = Ledger()
    ledger.allocated(GPU, [A], 1)
    ledger.observed([says("web", A)], 2)
    ledger.observed([says("web", A), says("web", A, container="log")], 3)
    assert only(ledger).holders == (holder("web", "log"), holder("web"))


def test_an_answer_that_was_asked_for_before_the_allocation_says_nothing():
    ledger = Ledger()
    ledger.allocated(GPU, [A], 5)
    for asked_s in (4, 5):  # of the same moment nobody knows which was first
        ledger.observed([says("before", A)], asked_s)
        ledger.observed([], asked_s)
        assert only(ledger) == LedgerEntry(GPU, A, Certainty.TENTATIVE, (), 5)


def test_an_observed_entry_ends_with_the_first_answer_that_does_not_name_it():
    ledger = Ledger()
    ledger.allocated(GPU, [A], 1)
    ledger.observed([says("web", A)], 2)
    ledger.observed([], 3)
    assert ledger.entries() == ()
    assert ledger.held().ids == {}


def test_an_answer_that_comes_very_late_does_not_end_an_observed_entry():
    ledger = Ledger()
    ledger.allocated(GPU, [A], 5)
    ledger.observed([says("web", A)], 6)
    ledger.observed([], 4)
    assert only_holder(ledger, A) == holder("web")


def test_of_two_answers_of_one_moment_the_one_that_names_a_holder_counts():
    ledger = Ledger()
    ledger.observed([says("web", A)], 2)
    ledger.observed([], 2)
    assert only_holder(ledger, A) == holder("web")


def test_a_share_that_is_never_named_is_held_until_the_checkpoint_no_longer_has_it():
    """An ordinary init container is never listed, and may run for hours."""
    ledger = Ledger(unlisted_grace_s=120)
    ledger.allocated(GPU, [A], 0)
    ledger.observed([], 119)
    assert only(ledger).certainty is Certainty.TENTATIVE
    assert not ledger.must_check
    ledger.observed([], 120)
    assert only(ledger).certainty is Certainty.UNCONFIRMED
    assert ledger.must_check == {(GPU, A)}
    ledger.checked({GPU: {A: frozenset({PodUid("uid")})}}, 120)
    assert only(ledger).certainty is Certainty.UNCONFIRMED
    ledger.checked({OTHER: {A: frozenset({PodUid("uid")})}}, 9_000)
    assert ledger.entries() == ()


def test_a_pod_that_ended_before_it_was_named_is_over_once_the_checkpoint_that_had_it_has_it_no_more():
    ledger = Ledger()
    ledger.allocated(GPU, [A, B], 0)
    ledger.know_pods(pods(a="old", b="old"))
    ledger.observed([], ADMISSION_S)
    assert all(entry.unlisted for entry in ledger.entries())
    assert not ledger.must_check, "it may be of before the Allocate"
    ledger.know_pods(pods(b="new"), is_newer=True)
    ledger.observed([], ADMISSION_S + 1)
    assert ledger.must_check == {(GPU, B)}, "the kubelet may not have noted the other one yet"
    ledger.checked({}, ADMISSION_S + 1)
    ledger.looked(ledger.ending_pods, [])
    assert only(ledger) == LedgerEntry(GPU, A, Certainty.TENTATIVE, (), 0, unlisted=True)
    ledger.observed([], 120)
    ledger.checked({}, 120)
    ledger.looked(ledger.ending_pods, [])
    assert ledger.entries() == ()


def test_what_a_checkpoint_has_says_nothing_of_an_allocate_after_it():
    ledger = Ledger()
    ledger.allocated(GPU, [A], 0)
    ledger.know_pods(pods(a="first"), is_newer=True)
    ledger.allocated(GPU, [A], 1)
    ledger.observed([], ADMISSION_S + 1)
    assert not ledger.must_check


def test_a_pod_that_is_being_admitted_is_not_missed_yet():
    ledger = Ledger()
    ledger.allocated(GPU, [A], 0)
    ledger.know_pods(pods(a="new"), is_newer=True)
    ledger.observed([], ADMISSION_S - 1)
    assert not ledger.must_check


def test_what_a_kubelet_that_has_just_started_does_not_name_is_still_held():
    ledger = Ledger()
    ledger.observed([says("web", A)], 1)
    ledger.kubelet_started()
    ledger.observed([], 2)
    assert only(ledger) == LedgerEntry(GPU, A, Certainty.UNCONFIRMED, (holder("web"),), 1)
    assert only_holder(ledger, A) == holder("web"), "its container runs on"
    ledger.observed([says("web", A)], 3)
    assert only(ledger) == LedgerEntry(GPU, A, Certainty.OBSERVED, (holder("web"),), 1)
    ledger.observed([], 4)
    assert ledger.entries() == (), "this kubelet has named it, and does so no more"


def test_a_checkpoint_without_an_unconfirmed_id_ends_it():
    ledger = Ledger()
    ledger.observed([says("web", A, B)], 1)
    ledger.kubelet_started()
    ledger.observed([], 2)
    ledger.checked({GPU: {B: frozenset({PodUid("uid")})}}, 2)
    assert only(ledger).id == B


def test_a_checkpoint_ends_nothing_that_was_allocated_or_named_meanwhile():
    ledger = Ledger()
    ledger.observed([says("web", A, B, C)], 1)
    ledger.kubelet_started()
    ledger.observed([says("web", B)], 2)
    ledger.allocated(GPU, [A], 3)
    ledger.checked({}, 2)
    assert {entry.id for entry in ledger.entries()} == {A, B}


def test_ids_of_the_checkpoint_are_held_from_the_start_of_the_agent():
    ledger = Ledger()
    ledger.observed([says("web", A)], 1)
    ledger.restored(GPU, [A, B], 5)
    assert [(entry.id, entry.certainty) for entry in ledger.entries()] == [
        (A, Certainty.OBSERVED),
        (B, Certainty.UNCONFIRMED),
    ]
    ledger.observed([says("web", A), says("db", B)], 5)
    assert only_holder(ledger, B) == holder("db")


def test_who_is_named_with_an_id_of_the_checkpoint_is_its_holder_and_its_pod_is_known():
    ledger = Ledger()
    ledger.restored(GPU, [A], 5)
    ledger.know_pods(pods(a="u1"))
    ledger.observed([says("web", A)], 7)
    assert only(ledger) == LedgerEntry(GPU, A, Certainty.OBSERVED, (holder("web"),), 5)
    assert not ledger.lacks_pods


def test_an_id_that_was_free_and_that_the_checkpoint_has_again_is_held_by_who_is_named_next():
    ledger = Ledger()
    ledger.observed([says("job-1", A)], 1)
    ledger.offered_as_free(GPU, [A], 2)
    ledger.restored(GPU, [A], 3)
    ledger.observed([says("job-1", A), says("job-2", A)], 4)
    assert only_holder(ledger, A) == holder("job-2")


def test_a_free_id_is_no_longer_unconfirmed():
    ledger = Ledger()
    ledger.restored(GPU, [A], 1)
    ledger.offered_as_free(GPU, [A], 2)
    assert ledger.entries() == ()


def test_a_suspected_hold_is_compared_with_the_checkpoint():
    """Before Kubernetes 1.36 a pod that ended may be named beside the one that holds the id."""
    ledger = Ledger()
    ledger.observed([says("web", A), says("db", A)], 1)
    assert not ledger.must_check
    assert ledger.suspect(frozenset({(GPU, A), (GPU, B)}))
    for _ in range(2):
        assert not ledger.suspect(frozenset({(GPU, A)}))
    assert ledger.must_check == {(GPU, A)}
    ledger.checked({GPU: {A: frozenset({PodUid("uid-1")})}}, 2)
    assert only(ledger).checkpoint_pods == 1
    ledger.checked({GPU: {A: frozenset({PodUid("uid-1"), PodUid("uid-2")})}}, 3)
    assert only(ledger).checkpoint_pods == 2
    ledger.observed([says("db", A)], 4)
    assert only(ledger).checkpoint_pods == 0, "other holders: to be compared again"


def test_a_suspected_hold_that_the_checkpoint_lacks_is_a_pods_that_ended():
    ledger = Ledger()
    ledger.observed([says("web", A)], 1)
    ledger.suspect(frozenset({(GPU, A)}))
    ledger.checked({}, 2)
    assert ledger.entries() == ()
    ledger.observed([says("web", A)], 3)
    assert ledger.entries() == (), "it is still named"
    ledger.observed([says("web", A), says("db", A)], 4)
    assert only_holder(ledger, A) == holder("db")


def test_a_suspected_hold_that_was_allocated_meanwhile_stays():
    ledger = Ledger()
    ledger.observed([says("web", A)], 1)
    ledger.suspect(frozenset({(GPU, A)}))
    ledger.allocated(GPU, [A], 3)
    ledger.checked({}, 2)
    assert only(ledger).certainty is Certainty.TENTATIVE


def test_a_suspected_hold_that_was_allocated_and_named_meanwhile_stays():
    ledger = Ledger()
    ledger.observed([says("web", A)], 1)
    ledger.suspect(frozenset({(GPU, A)}))
    ledger.allocated(GPU, [A], 3)
    ledger.observed([says("web", A), says("db", A)], 4)
    ledger.checked({}, 2)
    assert only_holder(ledger, A) == holder("db")


def test_a_checkpoint_that_lacks_a_suspected_id_ends_no_allocate_that_it_may_not_have_noted():
    ledger = Ledger()
    ledger.observed([says("web", A)], 1)
    ledger.suspect(frozenset({(GPU, A)}))
    ledger.allocated(GPU, [A], 3)
    ledger.checked({}, 4)
    assert only(ledger).certainty is Certainty.TENTATIVE


def test_the_checkpoint_after_the_first_answer_that_names_a_suspected_hold_can_end_it():
    ledger = Ledger()
    ledger.observed([says("web", A)], 2)
    ledger.suspect(frozenset({(GPU, A)}))
    ledger.checked({}, 2)
    assert ledger.entries() == ()


def test_two_containers_of_one_pod_may_have_the_same_id():
    ledger = Ledger()
    ledger.observed([says("web", A), says("web", A, container="sidecar")], 1)
    assert len(only(ledger).pods) == 1


def test_time_alone_releases_nothing_while_the_kubelet_does_not_answer():
    ledger = Ledger(unlisted_grace_s=120)
    ledger.allocated(GPU, [A], 0)
    ledger.allocated(GPU, [B], 100_000)
    assert len(ledger.entries()) == 2


def test_what_the_kubelet_lists_as_available_is_free_whatever_we_thought():
    ledger = Ledger()
    ledger.allocated(GPU, [A, B, ShareId("c")], 1)
    ledger.observed([says("web", B)], 2)
    ledger.offered_as_free(GPU, [A, B, ShareId("z")], 3)
    assert only(ledger).id == "c"


def test_ids_that_must_be_included_are_an_init_containers_and_stay_held():
    ledger = Ledger()
    ledger.allocated(GPU, [A, B], 1)
    ledger.offered_as_free(GPU, [A, B], 2, must_include=[ShareId("a")])
    assert only(ledger).id == "a"


def test_the_same_id_of_another_resource_is_another_share():
    ledger = Ledger()
    ledger.allocated(GPU, [A], 1)
    ledger.allocated(OTHER, [A], 1)
    ledger.offered_as_free(OTHER, [A], 2)
    assert ledger.held().ids == {GPU: {"a"}}


def test_an_ended_pod_that_is_still_listed_does_not_take_a_freed_share_back():
    """Before Kubernetes 1.36 ended pods stay in PodResources until they are deleted."""
    ledger = Ledger()
    ledger.allocated(GPU, [A], 1)
    ledger.observed([says("job-1", A)], 2)
    ledger.offered_as_free(GPU, [A], 3)
    ledger.observed([says("job-1", A)], 4)
    assert ledger.entries() == ()


def test_a_pod_that_ended_before_it_was_ever_named_does_not_take_a_freed_share_back():
    ledger = Ledger()
    ledger.allocated(GPU, [A], 1)
    ledger.offered_as_free(GPU, [A], 3)
    ledger.observed([says("job-1", A)], 4)
    assert ledger.entries() == ()
    ledger.allocated(GPU, [A], 5)
    ledger.observed([says("job-1", A)], 6)
    assert only_holder(ledger, A) is None


@pytest.mark.parametrize("asked_s", [3, 5])
def test_an_answer_that_is_older_than_the_end_forgets_no_former_holder(asked_s: float):
    ledger = Ledger()
    ledger.observed([says("job-1", A)], 1)
    ledger.offered_as_free(GPU, [A], 5)
    ledger.observed([], asked_s)
    ledger.observed([says("job-1", A)], 6)
    assert ledger.entries() == ()


def test_an_ended_pod_that_is_still_listed_is_not_taken_for_the_new_holder():
    ledger = Ledger()
    ledger.allocated(GPU, [A], 1)
    ledger.observed([says("job-1", A)], 2)
    ledger.allocated(GPU, [A], 3)
    ledger.observed([says("job-1", A)], 4)
    assert only(ledger) == LedgerEntry(GPU, A, Certainty.TENTATIVE, (holder("job-1"),), 3)
    assert only_holder(ledger, A) is None, "the name may be out of date"
    ledger.observed([says("job-1", A), says("job-2", ShareId("a"))], 5)
    assert only(ledger) == LedgerEntry(GPU, A, Certainty.OBSERVED, (holder("job-2"),), 3)


def test_when_the_new_holder_ends_before_the_older_one_is_forgotten_the_share_is_free():
    ledger = Ledger()
    ledger.allocated(GPU, [A], 1)
    ledger.observed([says("job-1", A)], 2)
    ledger.allocated(GPU, [A], 3)
    ledger.observed([says("job-1", A), says("job-2", ShareId("a"))], 4)
    ledger.observed([says("job-1", A)], 5)
    assert ledger.entries() == ()


def test_while_only_the_former_holder_is_named_to_a_new_kubelet_the_last_one_keeps_the_share():
    ledger = Ledger()
    ledger.observed([says("job-1", A)], 1)
    ledger.allocated(GPU, [A], 2)
    ledger.observed([says("job-1", A), says("job-2", A)], 3)
    ledger.kubelet_started()
    ledger.observed([says("job-1", A)], 4)
    assert only(ledger) == LedgerEntry(GPU, A, Certainty.UNCONFIRMED, (holder("job-2"),), 2)


def test_a_pod_of_the_same_name_is_new_once_the_old_one_was_gone_for_one_answer():
    """A StatefulSet makes its pod again under the same name."""
    ledger = Ledger()
    ledger.observed([says("db-0", A)], 1)
    ledger.allocated(GPU, [A], 2)
    ledger.observed([], 3)
    ledger.observed([says("db-0", A)], 4)
    assert only_holder(ledger, A) == holder("db-0")


def test_a_former_holder_that_was_not_named_beside_the_new_one_is_new_when_it_is_named_again():
    ledger = Ledger()
    ledger.observed([says("db-0", A)], 1)
    ledger.allocated(GPU, [A], 2)
    ledger.observed([says("db-0", A), says("db-1", A)], 3)
    ledger.observed([says("db-1", A)], 4)
    ledger.observed([says("db-0", A), says("db-1", A)], 5)
    assert only(ledger).holders == (holder("db-0"), holder("db-1"))


def test_after_a_restart_of_the_agent_the_first_answer_restores_the_ledger():
    ledger = Ledger()
    ledger.observed([says("web", A, B), says("db", ShareId("c"), resource=OTHER)], 7)
    assert [(entry.resource, entry.id, entry.certainty) for entry in ledger.entries()] == [
        (OTHER, "c", Certainty.OBSERVED),
        (GPU, "a", Certainty.OBSERVED),
        (GPU, "b", Certainty.OBSERVED),
    ]


def test_an_id_that_two_pods_name_is_held_and_ambiguous():
    ledger = Ledger()
    ledger.observed([says("one", A), says("two", ShareId("a"))], 1)
    assert only(ledger).holders == (holder("one"), holder("two"))
    assert only_holder(ledger, A) is None
    ledger.observed([says("two", A)], 2)
    assert only_holder(ledger, A) == holder("two")


def test_rows_of_one_container_on_several_numa_nodes_are_one_holder():
    ledger = Ledger()
    ledger.observed([says("web", A), says("web", ShareId("a"), B)], 1)
    assert {entry.holder for entry in ledger.entries()} == {holder("web")}


def test_the_init_container_and_the_main_container_get_the_same_ids_one_after_the_other():
    ledger = Ledger()
    ledger.allocated(GPU, [A], 1)
    ledger.allocated(GPU, [A], 1.1)
    ledger.observed([says("web", A)], 2)
    assert only(ledger) == LedgerEntry(GPU, A, Certainty.OBSERVED, (holder("web"),), 1.1)


def test_pre_start_proves_which_container_starts_and_later_answers_leave_it_proven():
    ledger = Ledger()
    ledger.allocated(GPU, [A, B], 1)
    ledger.proven(GPU, [B, A], [says("web", A, B)], 2)
    assert {entry.certainty for entry in ledger.entries()} == {Certainty.PROVEN}
    version = ledger.version
    ledger.observed([says("web", A, B)], 3)
    assert {entry.certainty for entry in ledger.entries()} == {Certainty.PROVEN}
    assert ledger.version == version


def test_the_container_with_exactly_these_ids_is_the_one_that_starts():
    """An ended pod is still listed with one of the ids and with others."""
    ledger = Ledger()
    ledger.allocated(GPU, [A], 1)
    ledger.proven(GPU, [A], [says("old", A, B), says("new", ShareId("a"))], 2)
    assert only(ledger) == LedgerEntry(GPU, A, Certainty.PROVEN, (holder("new"),), 1)
    ledger.observed([says("old", A, B), says("new", ShareId("a"))], 3)
    assert only_holder(ledger, A) == holder("new")


def test_an_init_container_that_starts_is_not_named_and_proves_nothing():
    ledger = Ledger()
    ledger.allocated(GPU, [A], 1)
    ledger.proven(GPU, [A], [says("web", ShareId("z"))], 2)
    assert only(ledger) == LedgerEntry(GPU, A, Certainty.TENTATIVE, (), 1)


def test_an_ended_pod_that_held_exactly_these_ids_before_is_not_proven():
    ledger = Ledger()
    ledger.observed([says("old", A)], 1)
    ledger.allocated(GPU, [A], 2)
    ledger.proven(GPU, [A], [says("old", A)], 3)
    assert only(ledger).certainty is Certainty.TENTATIVE


def test_two_containers_with_exactly_these_ids_prove_nothing():
    ledger = Ledger()
    ledger.proven(GPU, [A], [says("one", A), says("two", ShareId("a"))], 3)
    assert only(ledger).certainty is Certainty.OBSERVED
    assert only_holder(ledger, A) is None


def test_a_hold_that_the_answer_to_the_same_question_has_named_is_proven_by_it():
    ledger = Ledger()
    ledger.observed([says("web", A)], 3)
    ledger.proven(GPU, [A], [says("web", A)], 3)
    assert only(ledger) == LedgerEntry(GPU, A, Certainty.PROVEN, (holder("web"),), 3)


def test_a_container_that_starts_holds_its_share_even_where_nothing_else_is_known():
    ledger = Ledger()
    ledger.proven(GPU, [A], [], 3)
    assert only(ledger) == LedgerEntry(GPU, A, Certainty.TENTATIVE, (), 3)


def test_proof_for_a_share_that_was_given_away_meanwhile_says_nothing():
    ledger = Ledger()
    ledger.allocated(GPU, [A], 5)
    ledger.proven(GPU, [A], [says("before", A)], 4)
    assert only(ledger) == LedgerEntry(GPU, A, Certainty.TENTATIVE, (), 5)


def test_the_version_rises_with_changes_only():
    ledger = Ledger()
    ledger.observed([says("web", A)], 1)
    version = ledger.version
    ledger.observed([says("web", A)], 2)
    ledger.offered_as_free(GPU, [B], 3)
    assert ledger.version == version
    ledger.allocated(GPU, [B], 4)
    assert ledger.version > version


@pytest.mark.parametrize("held", [384, 4_000])
def test_allocate_does_not_grow_with_what_is_held(held: int):
    """Counted, not timed: the entries of other ids are not touched, and the lists are made when asked for."""
    ledger = Ledger()
    ledger.observed([says("web", *(ShareId(f"GPU-{n // 48}::{n % 48}") for n in range(held)))], 1)
    before = {entry.id: entry for entry in ledger.entries()}
    started = perf_counter()
    for turn in range(200):
        ledger.allocated(GPU, [ShareId("new")], 2 + turn)
    per_call_s = (perf_counter() - started) / 200
    assert all(before.get(entry.id) is entry for entry in ledger.entries() if entry.id != "new")
    assert per_call_s < 0.0005, "4,000 entries looked at would take longer"


# --- what is left of a former holder ---------------------------------------------------------------


def pods(**by_id: str) -> CheckpointHolds:
    return {GPU: {ShareId(one): frozenset(map(PodUid, uids.split())) for one, uids in by_id.items()}}


def process(pod: str, pid: int = 7) -> LeftProcess:
    return LeftProcess(PodUid(pod), ContainerId("c"), pid, "python", "D")


def held_by(pod: str, *ids: ShareId) -> Ledger:
    """Its ids are held by a pod, whose UID is known."""
    ledger = Ledger()
    ledger.allocated(GPU, ids, 1)
    ledger.observed([says("web", *ids)], 2)
    ledger.know_pods(pods(**dict.fromkeys(ids, pod)))
    return ledger


def test_a_hold_ends_when_the_kubelet_names_nobody_and_nothing_of_its_pod_is_left():
    ledger = held_by("u1", A)
    ledger.observed([], 3)
    u1 = (PodUid("u1"),)
    ending = LedgerEntry(GPU, A, Certainty.ENDING, (holder("web"),), 1, ended_s=3, former_pods=u1)
    assert only(ledger) == ending
    assert ledger.ending_pods == {"u1"}
    ledger.looked(frozenset({PodUid("u1")}), [process("u1"), process("u2")])
    assert only(ledger).left == (process("u1"),)
    assert ledger.held().ids == ledger.held().left == {GPU: {"a"}}
    version = ledger.version
    ledger.looked(frozenset({PodUid("u1")}), [process("u1")])
    assert ledger.version == version, "nothing new"
    ledger.looked(frozenset({PodUid("u1")}), [])
    assert (ledger.entries(), ledger.ending_pods) == ((), frozenset())
    assert ledger.version > version


def test_while_nobody_can_look_a_hold_is_waited_for_and_it_is_said_since_when():
    ledger = held_by("u1", A)
    ledger.observed([], 3)
    ledger.not_looked(ledger.ending_pods, "an error", 4)
    assert (only(ledger).unseen, only(ledger).unseen_s) == ("an error", 4)
    version = ledger.version
    ledger.not_looked(ledger.ending_pods, "an error", 9)
    assert ledger.version == version, "nothing new"
    ledger.looked(ledger.ending_pods, [process("u1")])
    assert (only(ledger).unseen, only(ledger).unseen_s) == ("", None)


def test_by_the_kubelets_word_ends_what_nobody_has_seen_and_nothing_else():
    ledger = held_by("u1", A)
    ledger.allocated(GPU, [B], 1)
    ledger.observed([says("web", A), says("db", B)], 2)
    ledger.know_pods(pods(a="u1", b="u2"))
    ledger.observed([], 3)
    ledger.looked(ledger.ending_pods, [process("u1"), process("u2")])
    ledger.looked(frozenset({PodUid("u2")}), [])
    ledger.restore_ending(
        [EndingHold(LedgerEntry(GPU, C, Certainty.ENDING, (), 1), frozenset({PodUid("u3")}))]
    )
    ledger.by_the_kubelets_word(ledger.ending_pods, "no hostPID", 5)
    assert (only(ledger).id, only(ledger).left, only(ledger).unseen) == (A, (process("u1"),), "no hostPID")


@pytest.mark.parametrize("end", ["free", "checkpoint"])
def test_every_way_in_which_a_hold_ends_waits_for_its_processes(end: str):
    ledger = held_by("u1", A)
    if end == "free":
        ledger.offered_as_free(GPU, [A], 3)
    else:
        ledger.kubelet_started()
        ledger.checked({}, 3)
    assert only(ledger).certainty is Certainty.ENDING
    ledger.observed([says("web", A)] if end == "free" else [], 4)
    assert only(ledger).certainty is Certainty.ENDING, "an ended pod may still be named"
    ledger.looked(ledger.ending_pods, [])
    assert ledger.entries() == ()


def test_a_hold_whose_pod_is_not_known_ends_by_the_kubelets_word():
    ledger = Ledger()
    ledger.observed([says("web", A)], 1)
    assert ledger.lacks_pods
    ledger.observed([], 2)
    assert ledger.entries() == ()


def test_the_pod_of_a_tentative_entry_is_known_for_now_and_asked_again():
    """The kubelet writes its checkpoint after Allocate: until then it has the former pod."""
    ledger = Ledger()
    ledger.allocated(GPU, [A], 1)
    ledger.know_pods(pods(a="old"))
    assert ledger.lacks_pods
    ledger.observed([says("web", A)], 2)
    assert ledger.lacks_pods
    ledger.know_pods(pods(a="new"))
    assert not ledger.lacks_pods
    assert ledger.former_pods(GPU, [A, B]) == {"new"}


def test_a_checkpoint_without_the_pod_of_a_named_hold_is_asked_again():
    ledger = Ledger()
    ledger.observed([says("web", A)], 1)
    ledger.know_pods({})
    assert ledger.lacks_pods
    assert not ledger.former_pods(GPU, [A])


def test_the_pod_of_a_named_hold_is_asked_once():
    """What the checkpoint has later may be of the next holder."""
    ledger = held_by("u1", A)
    ledger.know_pods(pods(a="u2"))
    assert ledger.former_pods(GPU, [A]) == {"u1"}


def test_one_more_container_of_a_pod_leaves_the_pod_known():
    ledger = held_by("u1", A)
    ledger.observed([says("web", A), says("web", A, container="log")], 3)
    assert not ledger.lacks_pods


def test_another_pod_that_is_named_without_an_allocate_holds_since_then_and_its_own_pod_is_asked_for():
    ledger = held_by("u1", A)
    ledger.observed([says("db", A)], 4)
    assert only(ledger) == LedgerEntry(GPU, A, Certainty.OBSERVED, (holder("db"),), 4)
    assert ledger.lacks_pods
    ledger.know_pods(pods(a="u2"))
    assert ledger.former_pods(GPU, [A]) == {"u2"}


def test_what_others_than_claims_hold_is_what_is_held_and_what_is_ending():
    ledger = held_by("u1", A, B)
    claimed = LedgerEntry(GPU, C, Certainty.CLAIMED, (), 3, claim="team/train")
    ledger.claimed([claimed])
    assert [entry.id for entry in ledger.unclaimed()] == [A, B]
    ledger.observed([says("web", B)], 4)
    assert sorted((entry.id, entry.certainty) for entry in ledger.unclaimed()) == [
        (A, Certainty.ENDING),
        (B, Certainty.OBSERVED),
    ]
    ledger.claimed([], [claimed])
    assert {entry.id for entry in ledger.unclaimed()} == {A, B}


def test_a_new_holder_is_shown_in_place_of_what_is_left_and_is_not_waited_for_itself():
    ledger = held_by("u1", A)
    ledger.offered_as_free(GPU, [A], 3)
    ledger.allocated(GPU, [A], 3)  # nobody could look in time
    assert only(ledger).certainty is Certainty.TENTATIVE
    ledger.looked(ledger.ending_pods, [process("u1")])
    ledger.observed([says("other", A)], 4)
    ledger.know_pods(pods(a="u1 u2"))
    assert only(ledger).certainty is Certainty.OBSERVED
    assert not ledger.held().left, "a container that starts again needs it"
    ledger.observed([], 5)
    assert ledger.former_pods(GPU, [A]) == {"u1", "u2"}
    ledger.looked(ledger.ending_pods, [process("u1")])
    assert only(ledger).left == (process("u1"),)
    assert ledger.ending_pods == {"u1"}


def test_the_checkpoint_is_not_asked_about_what_is_ending():
    ledger = held_by("u1", A)
    ledger.suspect(frozenset({(GPU, A)}))
    ledger.observed([], 3)
    assert not ledger.must_check
    ledger.kubelet_started()
    assert only(ledger).certainty is Certainty.ENDING


# --- a kubelet, and the ledger beside it -----------------------------------------------------------

IDS = [ShareId(f"GPU-0::{n}") for n in range(5)]


@dataclass
class Pod:
    name: str
    ids: frozenset[ShareId]
    ended: bool = False
    init_only: bool = False


@dataclass
class Kubelet:
    """Gives shares to pods as the kubelet does; lists_ended: as before Kubernetes 1.36.

    books: what it has noted. file: its checkpoint, and how often it was written. unknown: pods that it does
    not know yet after a start. admitted: a pod whose Allocate was answered, and the kubelet has not noted
    that yet; it admits one after the other.
    """

    lists_ended: bool
    pods: list[Pod] = field(default_factory=list)
    books: dict[str, frozenset[str]] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    count: int = 0
    file: dict[str, frozenset[str]] = field(default_factory=dict)
    written: int = 0
    admitted: Pod | None = None

    def note(self) -> None:
        """The answer to Allocate has arrived."""
        if self.admitted is not None:
            self.books[self.admitted.name] = self.admitted.ids
            self.admitted = None
            self.write()

    def write(self) -> None:
        self.file = dict(self.books)
        self.written += 1

    def restart(self) -> None:
        """It has what its file has. What it was about to give away is not given."""
        if self.admitted is not None:
            self.pods.remove(self.admitted)
        self.admitted = None
        self.books = dict(self.file)
        self.unknown = {pod.name for pod in self.pods}

    def in_use(self) -> set[ShareId]:
        return {share for pod in self.pods if not pod.ended for share in pod.ids}

    def update(self) -> None:
        """Ended pods are forgotten, once the pods are known."""
        if not self.unknown:
            live = {pod.name for pod in self.pods if not pod.ended}
            self.books = {name: ids for name, ids in self.books.items() if name in live}

    def free(self) -> list[ShareId]:
        self.update()
        return sorted(set(IDS) - {share for ids in self.books.values() for share in ids})

    def list(self) -> list[ContainerHold]:
        self.update()
        there = [pod for pod in self.pods if pod is not self.admitted]
        listed = [pod for pod in there if not pod.init_only and (self.lists_ended or not pod.ended)]
        return [says(pod.name, *sorted(pod.ids)) for pod in listed if pod.name not in self.unknown]

    def checkpoint(self) -> CheckpointHolds:
        uids = {share: {name for name, ids in self.file.items() if share in ids} for share in IDS}
        return {GPU: {share: frozenset(map(PodUid, names)) for share, names in uids.items() if names}}


class LedgerBesideAKubelet(RuleBasedStateMachine):
    """Any interleaving of pods that come and go, late answers, and restarts of agent and kubelet."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(unlisted_grace_s=20)
        self.kubelet = Kubelet(lists_ended=True)
        self.now_s = 0.0
        self.asked: tuple[float, list[ContainerHold]] | None = None
        self.restarted = False
        self.at_allocate = 0
        self.allocated_s = 0.0
        self.ended_unseen: set[str] = set()
        self.ids_ended_unseen: set[ShareId] = set()

    def tick(self, seconds: float = 1) -> float:
        """A kubelet that stands still has no answer for longer than the grace: not here."""
        self.now_s += seconds
        if self.now_s - self.allocated_s > 15:
            self.kubelet.note()
        return self.now_s

    @initialize(lists_ended=st.booleans())
    def kubelet_of_another_version(self, lists_ended: bool) -> None:
        self.kubelet.lists_ended = lists_ended

    @precondition(lambda self: self.kubelet.admitted is None)
    @rule(
        size=st.integers(1, 3),
        init=st.sampled_from(["none", "too", "only"]),
        ask_first=st.booleans(),
        at_once=st.booleans(),
    )
    def pod_comes(self, size: int, init: str, ask_first: bool, at_once: bool) -> None:
        free = self.kubelet.free()
        if len(free) < size:
            return
        if ask_first:
            self.ledger.offered_as_free(GPU, free, self.tick())
        taken = free[:size]
        for _ in range(2 if init == "too" else 1):
            self.ledger.allocated(GPU, taken, self.tick())
        self.at_allocate, self.allocated_s = self.kubelet.written, self.now_s
        self.kubelet.count += 1
        pod = Pod(f"pod-{self.kubelet.count}", frozenset(taken), init_only=init == "only")
        self.kubelet.pods.append(pod)
        self.kubelet.admitted = pod
        if at_once:
            self.kubelet.note()

    @precondition(lambda self: self.kubelet.admitted)
    @rule()
    def admission_goes_on(self) -> None:
        self.kubelet.note()

    @rule()
    def list_is_sent(self) -> None:
        """Whatever the kubelet does meanwhile, it writes its checkpoint."""
        self.kubelet.write()

    @rule()
    def checkpoint_is_read(self) -> None:
        newer = self.kubelet.written != self.at_allocate
        self.ledger.know_pods(self.kubelet.checkpoint(), is_newer=newer)

    @rule()
    def look_for_processes(self) -> None:
        self.ledger.looked(self.ledger.ending_pods, [])

    @precondition(lambda self: any(self.runs(pod) for pod in self.kubelet.pods))
    @rule(data=st.data())
    def pod_starts(self, data: st.DataObject) -> None:
        pod = data.draw(st.sampled_from([pod for pod in self.kubelet.pods if self.runs(pod)]))
        self.ledger.proven(GPU, sorted(pod.ids), self.kubelet.list(), self.tick())

    def runs(self, pod: Pod) -> bool:
        return not pod.ended and pod is not self.kubelet.admitted

    @precondition(lambda self: any(pod is not self.kubelet.admitted for pod in self.kubelet.pods))
    @rule(data=st.data(), deleted=st.booleans())
    def pod_ends(self, data: st.DataObject, deleted: bool) -> None:
        there = [pod for pod in self.kubelet.pods if pod is not self.kubelet.admitted]
        pod = data.draw(st.sampled_from(there))
        if not pod.ended:
            named = {name.pod for entry in self.ledger.entries() for name in entry.holders}
            if pod.name not in named:
                self.ended_unseen.add(pod.name)
                self.ids_ended_unseen |= pod.ids
        pod.ended = True
        if deleted:
            self.kubelet.pods.remove(pod)

    @rule()
    def question(self) -> None:
        self.asked = (self.tick(), self.kubelet.list())

    @precondition(lambda self: self.asked)
    @rule()
    def answer(self) -> None:
        assert self.asked
        self.ledger.observed(self.asked[1], self.asked[0])
        self.asked = None

    @rule()
    def checkpoint_after_a_question(self) -> None:
        asked_s = self.tick()
        self.ledger.observed(self.kubelet.list(), asked_s)
        self.kubelet.write()
        self.ledger.checked(self.kubelet.checkpoint(), asked_s)

    @precondition(lambda self: self.kubelet.admitted is None)
    @rule()
    def agent_restarts(self) -> None:
        self.ledger = Ledger(unlisted_grace_s=20)
        self.asked = None
        self.restarted = True
        for resource, ids in self.kubelet.checkpoint().items():
            self.ledger.restored(resource, ids, self.tick())
        self.ledger.observed(self.kubelet.list(), self.tick())

    @rule()
    def kubelet_restarts(self) -> None:
        """It knows no pods at first."""
        self.asked = None
        self.kubelet.restart()
        self.ledger.kubelet_started()

    @precondition(lambda self: self.kubelet.unknown)
    @rule()
    def kubelet_learns_its_pods(self) -> None:
        self.kubelet.unknown.clear()

    @rule(seconds=st.sampled_from([5, 30]))
    def time_passes(self, seconds: int) -> None:
        self.tick(seconds)

    @invariant()
    def no_held_share_is_missing(self) -> None:
        """Also what only an init container holds, except beside an ended pod that was never listed while it
        ran, and is still listed (ADR 20)."""
        unlisted = {share for pod in self.kubelet.pods if pod.init_only for share in pod.ids}
        unknown = unlisted & self.ids_ended_unseen if self.kubelet.lists_ended else set()
        held = self.ledger.held().ids.get(GPU, frozenset())
        assert self.kubelet.in_use() - unknown <= held

    @invariant()
    def a_certain_holder_of_a_share_in_use_is_the_right_one(self) -> None:
        """Unless the ledger meets a pod that ended before it was ever named: then it cannot know better."""
        if self.restarted:
            return
        owner = {share: pod for pod in self.kubelet.pods if not pod.ended for share in pod.ids}
        for entry in self.ledger.entries():
            if entry.holder is not None and entry.id in owner and entry.holder.pod not in self.ended_unseen:
                assert entry.holder.pod == owner[entry.id].name

    @invariant()
    def the_ledger_settles_to_what_the_kubelet_says(self) -> None:
        """A copy of the ledger that gets two fresh answers and one list of free ids holds what is in use."""
        settled = deepcopy(self.ledger)
        settled._grace_s = 0
        settled.observed(self.kubelet.list(), self.now_s + 0.1)
        settled.offered_as_free(GPU, sorted(set(IDS) - self.kubelet.in_use()), self.now_s + 0.2)
        settled.observed(self.kubelet.list(), self.now_s + 0.3)
        settled.looked(settled.ending_pods, [])
        in_use = self.kubelet.in_use()
        assert settled.held().ids.get(GPU, frozenset()) <= in_use
        listed = {share for row in self.kubelet.list() for share in row.ids}
        assert in_use & listed <= settled.held().ids.get(GPU, frozenset())


TestLedgerBesideAKubelet = LedgerBesideAKubelet.TestCase
TestLedgerBesideAKubelet.settings = settings(
    max_examples=examples(150), stateful_step_count=30, deadline=None
)
