"""Whether the limits of MPS daemons are what was set: containers come, are seen, end unseen."""

from __future__ import annotations

from msgspec.structs import replace

from partage.model.gpu import Driver
from partage.model.ids import ContainerId, GpuUuid, PodUid, ResourceName, share_id
from partage.model.mps import (
    NO_HOST_PIDS,
    ClientLimits,
    ConnectedClient,
    DaemonPhase,
    DaemonState,
    MpsServer,
    PipeTenant,
    PipeTenants,
    ProcessRights,
)
from partage.plan.reconcile.limit_trust import (
    OUTDATED,
    UNSEEN_S,
    Answered,
    LimitTrust,
    Look,
    Now,
    Suspicion,
    next_trust,
    with_trust,
)
from partage.plan.serve.ledger_entry import Certainty, Holder, LedgerEntry

GPU, OTHER = GpuUuid("GPU-1"), GpuUuid("GPU-2")
POD = PodUid("0aa9e3a1-0000-4000-8000-000000000001")
HOLDER = Holder("ml", "train", "main")
INIT = Holder("ml", "train", "init")
SAFE = ProcessRights(7, 1000, 1000, 1000, no_new_privs=True, permitted=0)
ROOT = replace(SAFE, uid=0, no_new_privs=False)
A, B = ContainerId("a" * 64), ContainerId("b" * 64)


def daemon(*clients: int, device: GpuUuid = GPU, **more: object) -> DaemonState:
    server = MpsServer(20, 0, clients=tuple(map(ConnectedClient, clients)))
    known = DaemonState(device, device, DaemonPhase.SERVING, 19, (server,), multi_user=True)
    return replace(known, **more)


def entry(*holders: Holder, since_s: float = 0.0, number: int = 0) -> LedgerEntry:
    certainty = Certainty.OBSERVED if holders else Certainty.TENTATIVE
    return LedgerEntry(
        ResourceName("nvidia.com/gpu.shared"), share_id(GPU, number), certainty, holders, since_s
    )


def tenant(identity: ContainerId = A, *rights: ProcessRights) -> PipeTenant:
    return PipeTenant(GPU, POD, identity, rights=rights or (SAFE,))


class Node:
    """Moments of one node, one after the other. sets: limits are set again as soon as they have to be."""

    def __init__(self, *, sets: bool = True) -> None:
        self.sets = sets
        self.at_s = 100.0
        self.trust = LimitTrust()
        self.now = Now(
            self.at_s, (daemon(),), (), Driver("580.95.05", "13.0"), Look(PipeTenants(), {}, self.at_s)
        )
        self.then()

    def then(self, *, after_s: float = 1.0, look: bool = True, **changes: object) -> str:
        """Some time later; why the limits of the first GPU are doubted, empty: they are not."""
        self.at_s += after_s
        seen = self.now.look
        rows = changes.pop("tenants", seen.tenants)
        rows = rows if isinstance(rows, PipeTenants) else PipeTenants(tuple(rows))  # type: ignore[arg-type]
        seen = Look(rows, changes.pop("names", seen.names), self.at_s) if look else seen  # type: ignore[arg-type]
        self.now = replace(self.now, at_s=self.at_s, look=seen, **changes)
        self.trust = next_trust(self.trust, self.now)
        if self.trust.to_set and self.sets:
            self.set_limits()
        return self.trust.doubts.get(GPU, "")

    def set_limits(self) -> None:
        """As the planner does it for daemons that are unsettled."""
        told = with_trust(self.now.daemons, self.trust)
        assert {one.device for one in told if one.unsettled} == self.trust.to_set
        again = tuple(replace(one, set_ns=one.set_ns + 1) for one in self.now.daemons)
        self.now = replace(self.now, daemons=again)
        assert with_trust(again, self.trust) == again, "not again before the next look"
        self.trust = next_trust(self.trust, self.now)
        assert not self.trust.to_set


def test_limits_are_set_again_after_one_that_may_though_the_log_says_nothing():
    """What a daemon logs goes through ``pipe/log``, and a tenant may be the one that reads it."""
    node = Node(sets=False)
    held = (entry(HOLDER),)
    assert node.then(entries=held, names={A: HOLDER}, tenants=[tenant(A, ROOT)])
    assert not node.trust.to_set, "as long as it may, that changes nothing"
    assert with_trust(node.now.daemons, node.trust) == node.now.daemons
    assert "may have given it commands" in node.then(entries=(), names={}, tenants=[])
    assert node.trust.to_set == {GPU}
    assert node.then(), "until it was done"
    node.set_limits()
    assert node.then() == ""


def test_a_container_that_was_root_until_it_was_seen_may_have_changed_limits():
    node = Node(sets=False)
    node.then(entries=(entry(since_s=101),), look=False)
    assert "may have given it commands" in node.then(
        entries=(entry(HOLDER, since_s=101),), names={A: HOLDER}, tenants=[tenant()]
    )
    node.set_limits()
    assert node.then() == ""


def test_who_connected_before_its_container_was_seen_may_use_more():
    """It may have been root until it was looked at: it raises the limit, connects, and gives root away."""
    node = Node(sets=False)
    held = (entry(since_s=101),)
    node.then(entries=held, look=False, daemons=(daemon(5),))
    named = (entry(HOLDER, since_s=101),)
    node.then(entries=named, names={A: HOLDER}, tenants=[tenant()], daemons=(daemon(5),))
    node.set_limits()
    assert "its clients of that time" in node.then(daemons=(daemon(5, 6),), within={6}, within_s=node.at_s)
    assert node.trust.suspected[GPU].clients == {5}, "who came after the limits were set again was limited"
    assert node.then(within={5}, within_s=node.at_s + 0.5) == ""


def test_until_limits_were_set_again_who_connects_may_use_more():
    """Between the look that saw nobody who may and the setting, they are what somebody made of them."""
    node = Node(sets=False)
    node.then(tenants=[tenant(A, ROOT)])
    node.then(tenants=[])
    assert node.then(daemons=(daemon(5),))
    set_again = replace(daemon(5, 6), set_ns=1)
    assert "its clients of that time" in node.then(daemons=(set_again,)), "6 may have come before it"
    assert node.trust.suspected[GPU].clients == {5, 6}
    assert node.then(daemons=(replace(daemon(7), set_ns=1),)) == ""


def test_a_silent_daemon_does_not_say_who_connected_before_a_container_was_seen():
    node = Node()
    node.then(entries=(entry(since_s=101),), look=False, daemons=(SILENT,))
    node.then(entries=(entry(HOLDER, since_s=101),), names={A: HOLDER}, tenants=[tenant()])
    assert "its clients of that time" in node.then(daemons=(replace(daemon(5), set_ns=1),))


def test_at_the_first_look_limits_are_set_again_where_somebody_has_the_pipe():
    node = Node(sets=False)
    node.trust = LimitTrust()
    node.then(tenants=[tenant()])
    assert node.trust.to_set == {GPU}
    node.trust = LimitTrust()
    assert node.then(tenants=[]) == "", "a daemon that was started a moment ago"


def test_where_clients_connect_through_namespaces_limits_are_not_set_again():
    node = Node(sets=False)
    node.trust = LimitTrust()
    node.then(tenants=[tenant()], daemons=(daemon(limits=ClientLimits(slots=2)),))
    assert not node.trust.to_set


def test_who_may_have_changed_limits_last_is_told():
    node = Node(sets=False)
    node.trust = LimitTrust()
    assert "nobody watched" in node.then(daemons=(daemon(5),))
    node.then(tenants=[tenant(A, ROOT)])
    assert "nobody watched" not in node.trust.suspected[GPU].reason
    assert "can set the limits" in node.trust.suspected[GPU].reason


def test_a_share_without_a_name_is_seen_with_no_container_that_has_none():
    node = Node()
    assert "has not been seen yet" in node.then(entries=(entry(since_s=101),), tenants=[tenant(A)], names={})


def test_a_share_that_has_ended_waits_for_no_container():
    node = Node()
    ended = replace(entry(since_s=101), ended_s=101.0)
    assert node.then(entries=(ended,)) == ""
    assert not node.trust.open


def test_a_look_that_sees_the_same_may_change_something_while_something_is_awaited():
    doubt = Suspicion("why", frozenset({5}), 1.0)
    assert LimitTrust(missing={A: 1.0}).open
    assert LimitTrust(suspected={GPU: doubt}).open
    assert LimitTrust(waiting={GPU: frozenset({Answered(entry().hold, 1.0)})}).open
    assert not LimitTrust(waiting={GPU: frozenset()}).open


def test_a_container_counts_as_one_that_may_from_the_answer_until_it_was_seen():
    node = Node()
    assert node.then() == ""
    assert "has not been seen yet" in node.then(entries=(entry(since_s=101),), look=False)
    names = {A: HOLDER}
    assert "has not been seen yet" in node.then(entries=(entry(HOLDER, since_s=101),), names=names)
    assert node.then(tenants=[tenant()]) == ""
    assert not node.trust.suspected


def test_one_that_may_is_told_with_what_to_change_and_its_time_is_not_forgotten():
    node = Node()
    held = (entry(HOLDER),)
    said = node.then(entries=held, names={A: HOLDER}, tenants=[tenant(A, ROOT)], daemons=(daemon(5),))
    assert "runAsNonRoot" in said
    after = node.then(entries=(), tenants=[], names={})
    assert "its clients of that time" in after, "client 5 may have connected while the limit was another"
    assert node.then(within=frozenset({5}), within_s=node.at_s - 1.5), "seen before: that says nothing"
    same = node.trust.suspected[GPU].since_s
    assert node.then(within=frozenset({5}), within_s=same), "at that very moment: that says nothing, either"
    assert node.then(within=frozenset({6}), within_s=node.at_s + 0.5), "another process was seen"
    assert node.then(within=frozenset({5}), within_s=node.at_s + 0.5) == ""


def test_it_is_certain_again_when_no_client_of_that_time_is_left():
    node = Node()
    node.then(tenants=[tenant(A, ROOT)], daemons=(daemon(5),))
    assert node.then(tenants=[], daemons=(daemon(5),))
    assert node.then(daemons=(daemon(5, 6),))
    assert node.then(daemons=(daemon(6),)) == "", "it came after the limits were set again"
    assert node.then(daemons=(daemon(5, 6),)) == "", "a new process with that pid"


SILENT = replace(daemon(), phase=DaemonPhase.SILENT, servers=())
"""A tenant can bring that about at any moment: it holds a connection."""


def test_a_daemon_that_says_nothing_for_a_while_has_not_said_that_its_clients_have_gone():
    node = Node()
    node.then(tenants=[tenant(A, ROOT)], daemons=(daemon(5),))
    assert node.then(tenants=[], daemons=(SILENT,))
    assert node.then(daemons=(daemon(5),))
    assert node.then(daemons=(daemon(),)) == ""


def test_who_became_a_client_meanwhile_may_use_more():
    node = Node()
    node.then(tenants=[tenant(A, ROOT)], daemons=(SILENT,))
    assert node.then(tenants=[], daemons=(SILENT,))
    assert "its clients of that time" in node.then(daemons=(daemon(5),))
    assert node.then(daemons=(daemon(5, 6),))
    assert node.then(daemons=(daemon(6),)) == "", "who came later was limited"


def test_who_was_there_before_a_first_look_that_saw_nothing_may_use_more():
    node = Node()
    node.trust = LimitTrust()
    node.then(daemons=(SILENT,))
    assert "nobody watched its MPS daemon before" in node.then(daemons=(daemon(5),))


def test_an_init_container_that_ended_unseen_counts_as_one_that_may_have():
    node = Node()
    names = {A: HOLDER, B: INIT}
    held = (entry(HOLDER),)
    assert node.then(entries=held, names=names, tenants=[tenant(A)], daemons=(daemon(5),)) == ""
    said = node.then(after_s=UNSEEN_S)
    assert "container init of ml/train ended before it was seen" in said
    assert node.then(within=frozenset({5}), within_s=node.at_s + 0.5) == ""
    assert node.then(after_s=100) == "", "told apart once and for all"
    node = Node(sets=False)
    node.then(entries=held, names=names, tenants=[tenant(A)])
    assert "ended before it was seen" in node.then(after_s=UNSEEN_S), "without clients, too"
    assert node.trust.to_set == {GPU}


def test_a_container_beside_the_one_with_the_share_was_seen_with_it():
    node = Node()
    seen = [replace(tenant(A), beside=(B,))]
    node.then(entries=(entry(HOLDER),), names={A: HOLDER, B: INIT}, tenants=seen)
    assert node.then(after_s=UNSEEN_S) == ""


def test_a_container_that_started_again_has_to_be_seen_again():
    node = Node()
    node.then(entries=(entry(HOLDER),), names={A: HOLDER}, tenants=[tenant(A)])
    node.then(names={A: HOLDER, B: HOLDER}, tenants=[], daemons=(daemon(5),))
    assert "ended before it was seen" in node.then(after_s=UNSEEN_S)


def test_a_share_that_was_given_back_unseen_was_somebodys_who_may_have():
    for gone in ((), (entry(since_s=103),)):
        node = Node()
        node.then(entries=(entry(since_s=101),))
        said = node.then(entries=gone, daemons=(daemon(5),))
        assert said
        assert node.trust.suspected[GPU].clients == {5}


def test_what_was_before_the_first_look_is_not_known():
    first = Node()
    trust = next_trust(LimitTrust(), replace(first.now, daemons=(daemon(5),)))
    assert "nobody watched" in trust.doubts[GPU]
    assert next_trust(LimitTrust(), first.now).doubts == {}, "without clients there is nothing to know"


def test_commands_logs_and_old_directories_are_doubts_of_their_own():
    for change, words in (
        ({"unsettled": "somebody else told it"}, "somebody else"),
        ({"doubt": "the log is full"}, "full"),
        ({"outdated": True}, OUTDATED),
        ({"multi_user": False}, "users: single"),
    ):
        node = Node()
        doubt = node.then(daemons=(daemon(5, **change),))
        assert words in doubt
        assert "its clients of that time" not in doubt, "it is so now"
        assert node.trust.suspected[GPU].clients == {5}
        node = Node()
        assert "hostPID" in node.then(tenants=PipeTenants(unseen=NO_HOST_PIDS))


def test_each_daemon_is_doubted_for_itself():
    node = Node()
    both = (daemon(), daemon(device=OTHER))
    node.then(daemons=both, tenants=[tenant(A, ROOT)])
    assert set(node.trust.doubts) == {GPU}
