"""A fleet of nodes that decide for themselves: tables, and laws of any history."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from partage.plan.cluster.rollout import (
    LEASE_S,
    CanaryNode,
    KnownFleet,
    NodeProgress,
    RolloutSettings,
    Sighting,
    Slot,
    Standing,
    Wish,
    decide,
    needs_slot,
    next_hold,
    next_sightings,
    settings_of,
)
from partage.plan.report import HeldBack, PolicyReason
from tests.examples import examples

WISH = Wish("n1", "p", "r2")
FREE, OTHER = Slot("s-0"), Slot("s-0", "n2", "p", "r2", version="1")
SEEN = {"s-0": Sighting(("n2", "1"), 950.0)}
ONE, CANARY = RolloutSettings(), RolloutSettings(canary={"pool": "test"})


@pytest.mark.parametrize(
    ("fleet", "answer"),
    [
        (KnownFleet(), "not known yet"),
        (KnownFleet(ONE, (FREE,), trouble="no answer"), "no answer"),
        (KnownFleet(ONE, (FREE,)), FREE),
        (KnownFleet(ONE, ()), "no Lease"),
        (KnownFleet(RolloutSettings(paused=True), (FREE,)), "paused"),
        (KnownFleet(ONE, (OTHER,), SEEN), "at most 1 node at once"),
        (KnownFleet(ONE, (OTHER, Slot("s-1")), SEEN), "at most 1 node at once"),
        (KnownFleet(RolloutSettings(2), (OTHER, Slot("s-1")), SEEN), Slot("s-1")),
        (KnownFleet(ONE, (replace(OTHER, holder="n1"),), SEEN), replace(OTHER, holder="n1")),
        (KnownFleet(RolloutSettings(2), (replace(OTHER, failure="bad"), Slot("s-1"))), "node n2: bad"),
        (
            KnownFleet(RolloutSettings(2), (replace(OTHER, failure="bad", revision="r1"), Slot("s-1"))),
            Slot("s-1"),
        ),
        (KnownFleet(ONE, (replace(OTHER, failure="bad", revision="r1"),)), "at most 1 node"),
        (
            KnownFleet(ONE, (OTHER,), {"s-0": Sighting(("n2", "1"), 1000.0 - LEASE_S)}),
            "nothing has been heard",
        ),
        (
            KnownFleet(ONE, (replace(OTHER, revision="r1"),), {"s-0": Sighting(("n2", "1"), 0.0)}),
            replace(OTHER, revision="r1"),
        ),
        (
            KnownFleet(
                ONE, (replace(OTHER, revision="r1", policy="q"),), {"s-0": Sighting(("n2", "1"), 0.0)}
            ),
            "at most 1 node",
        ),
        (KnownFleet(ONE, (FREE, Slot("s-1", "n2", "p", "r1"))), "at most 1 node"),
        (KnownFleet(CANARY, (FREE,)), "no node that has an agent"),
        (KnownFleet(CANARY, (FREE,), {}, (CanaryNode("c", "p", "r1", done=True),)), "change first"),
        (KnownFleet(CANARY, (FREE,), {}, (CanaryNode("c", "p", "r2", done=False),)), "change first"),
        (KnownFleet(CANARY, (FREE,), {}, (CanaryNode("c", "p", "r2+all-1g.10gb", done=True),)), FREE),
        (KnownFleet(CANARY, (FREE,), {}, (CanaryNode("c", "q", "r9", done=False),)), FREE),
    ],
)
def test_whether_a_node_may_change(fleet: KnownFleet, answer: Slot | str) -> None:
    found = decide(WISH, fleet, 1000.0)
    if isinstance(answer, str):
        assert isinstance(found, HeldBack)
        assert answer in found.message
    else:
        assert found == answer


def test_a_canary_does_not_wait_for_canaries() -> None:
    fleet = KnownFleet(CANARY, (FREE,), {}, (CanaryNode("c", "p", "r1", done=False),))
    assert decide(replace(WISH, canary=True), fleet, 0.0) == FREE


OWN = Slot("s-0", "n1", "p", "r2", version="1")
SETTLED, CHANGING, FAILED = NodeProgress.SETTLED, NodeProgress.CHANGING, NodeProgress.FAILED


@pytest.mark.parametrize(
    ("standing", "kept", "failure"),
    [
        (Standing("p", "r1", "r2", True, SETTLED), True, ""),  # it is about to be put in force
        (Standing("p", "r2", "r2", False, CHANGING), True, "old"),  # it is tried again
        (Standing("p", "r2", "r2", False, SETTLED), False, ""),
        (Standing("p", "r2", "r2", False, FAILED, why="GPU 0"), True, "GPU 0"),
        (Standing("p", "r1", "r2", False, SETTLED, refused="no GPU 7"), True, "no GPU 7"),
        (Standing("p", "r2", "r3", True, CHANGING), True, "old"),
        (Standing("p", "r2", "r3", True, FAILED, why="GPU 0"), False, ""),
        (Standing("p", "r1", "r1", False, SETTLED), False, ""),  # the edit was taken back
        (Standing("p", "r1", "r3", True, SETTLED), False, ""),
        (Standing("p", "r1", "r3", True, CHANGING), False, ""),
        (Standing("p", "r1", "r3", False, SETTLED, refused="no GPU 7"), False, ""),
    ],
)
def test_a_slot_is_held_while_the_node_changes(standing: Standing, kept: bool, failure: str) -> None:
    then = next_hold(replace(OWN, failure="old"), standing)
    assert (bool(then.holder), then.failure) == (kept, failure)


@pytest.mark.parametrize(
    ("standing", "asks"),
    [
        (Standing("p", "r2", "r2", False, SETTLED), False),
        (Standing("p", "r2", "r3", True, SETTLED), True),
        (Standing("p", "r1", "r2", False, SETTLED, refused="no GPU 7"), True),
        (Standing("p", "r1", "let-go", False, SETTLED, refused="no GPU 7"), False),
    ],
)
def test_a_node_that_is_to_change_or_cannot_asks_for_a_slot(standing: Standing, asks: bool) -> None:
    assert needs_slot(standing, "let-go") is asks


@pytest.mark.parametrize(
    ("canary", "labels", "first"),
    [
        ({"pool": "test"}, {"pool": "test"}, True),
        ({"pool": "test"}, {"pool": "test", "zone": "a"}, True),
        ({"pool": "test", "zone": "a"}, {"pool": "test"}, False),
        ({}, {"pool": "test"}, False),
    ],
)
def test_a_canary_has_all_labels_that_are_named(
    canary: dict[str, str], labels: dict[str, str], first: bool
) -> None:
    assert RolloutSettings(canary=canary).is_canary(labels) is first


def test_a_slot_that_is_held_and_not_renewed_is_due_once() -> None:
    fleet = KnownFleet(ONE, (OTHER, Slot("s-1")), {**SEEN, "s-1": Sighting(("", ""), 950.0)})
    assert fleet.next_due_s(1000.0) == 950.0 + LEASE_S
    assert fleet.next_due_s(950.0 + LEASE_S) is None
    assert KnownFleet(ONE, (OTHER,)).next_due_s(1000.0) is None, "it was not seen yet"
    assert KnownFleet(ONE, (Slot("s-1"),), fleet.sightings).next_due_s(951.0) is None


def test_a_slot_that_was_renewed_is_seen_anew() -> None:
    renewed = replace(OTHER, version="2")
    assert next_sightings(SEEN, [OTHER], 1000.0) == SEEN
    assert next_sightings(SEEN, [renewed], 1000.0) == {"s-0": Sighting(("n2", "2"), 1000.0)}
    assert next_sightings({}, [OTHER], 1000.0) == {"s-0": Sighting(("n2", "1"), 1000.0)}


@pytest.mark.parametrize("text", ["", "0", "-1", "2x", "1000", "²"])
def test_settings_that_are_wrong_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="maxChanging"):
        settings_of({"maxChanging": text}, "")


def test_a_person_can_pause_what_the_chart_does_not() -> None:
    assert settings_of({"maxChanging": "3", "canary": "a=b,c=d"}, "") == RolloutSettings(
        3, {"a": "b", "c": "d"}
    )
    assert settings_of({"paused": "false"}, "true").paused
    assert settings_of({"paused": "true"}, "").paused


# --- laws ------------------------------------------------------------------------------------------

RENEW_S = 30.0


@dataclass
class Node:
    """One node of the model. own: the slot that it knows to hold. seen: how it saw the slots last.

    offset_s: of its clock. cut: the API server does not hear it. heard_s: when that was last so, of all.
    """

    name: str
    canary: bool = False
    in_force: str = "r0"
    wanted: str = "r0"
    progress: NodeProgress = SETTLED
    up: bool = True
    cut: bool = False
    own: Slot | None = None
    seen: tuple[Slot, ...] = ()
    sightings: dict[str, Sighting] = field(default_factory=dict)
    offset_s: float = 0.0
    heard_s: float = 0.0
    renewed_s: float = 0.0
    let_go: str = ""
    refuses: bool = False

    @property
    def standing(self) -> Standing:
        differs = self.in_force != self.wanted
        refused = "no" if differs and self.refuses else ""
        why = "bad" if self.progress is FAILED else ""
        return Standing("p", self.in_force, self.wanted, differs and not refused, self.progress, refused, why)


INCIDENTS = (
    "pause",
    "resume",
    "crash",
    "start",
    "cut_off_or_back",
    "can_or_cannot_have_it",
    "hears_of_the_edit",
)


class AnyFleet(RuleBasedStateMachine):
    """Nodes and slots in any order of events. Each write is by the version that was read."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.edits = 0
        self.version = 0
        self.lost: set[str] = set()
        self.done_by_canaries: dict[str, set[str]] = {}

    @initialize(
        nodes=st.integers(1, 6), slots=st.integers(1, 3), canaries=st.integers(0, 2), seed=st.integers(0, 99)
    )
    def begin(self, nodes: int, slots: int, canaries: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.nodes = [
            Node(f"n{number}", number < canaries, offset_s=1000.0 * number) for number in range(nodes)
        ]
        self.slots = {f"s-{number}": Slot(f"s-{number}") for number in range(slots)}
        canary = {"pool": "test"} if canaries else {}
        self.settings = RolloutSettings(slots, canary)

    # --- what happens ---

    @rule(first=st.booleans())
    def edit(self, first: bool = False) -> None:
        self.edits += 1
        for node in self.nodes:
            if not first or node.canary:  # files reach nodes at different times
                node.wanted = f"r{self.edits}"

    @rule(numbers=st.lists(st.integers(0, 5), min_size=1, max_size=12), stale=st.booleans())
    def steps(self, numbers: list[int], stale: bool) -> None:
        for number in numbers:
            self._step(self._node(number), stale=stale)
            self.no_more_than_that_change()

    @rule(number=st.integers(0, 5), failed=st.booleans())
    def change_ends(self, number: int, failed: bool) -> None:
        node = self._node(number)
        if node.up and node.progress is not SETTLED:
            node.progress = FAILED if failed else SETTLED

    def _crash(self, node: Node) -> None:
        node.up, node.own, node.let_go = False, None, ""

    def _start(self, node: Node) -> None:
        if not node.up:
            node.up, node.seen, node.sightings = True, (), {}
            node.offset_s = self.random.uniform(-1e6, 1e6)  # the clock of another boot
            node.own = next((one for one in self.slots.values() if one.holder == node.name), None)

    def _cut_off_or_back(self, node: Node) -> None:
        node.cut = not node.cut

    def _can_or_cannot_have_it(self, node: Node) -> None:
        node.refuses = not node.refuses

    @rule(dt_s=st.sampled_from([1.0, 29.0, 200.0]))
    def time_passes(self, dt_s: float) -> None:
        for _ in range(int(dt_s // RENEW_S) + 1):
            self.now_s += min(dt_s, RENEW_S)
            for node in self.nodes:
                self._hold(node)

    def _hears_of_the_edit(self, node: Node) -> None:
        node.wanted = f"r{self.edits}"

    @rule(kind=st.sampled_from(INCIDENTS), number=st.integers(0, 5))
    def incident(self, kind: str, number: int) -> None:
        if kind == "pause":
            self._pause_or_go_on()
        elif kind == "resume":
            self._resume()
        else:
            incident: Callable[[Node], None] = getattr(self, f"_{kind}")
            incident(self._node(number))

    def _pause_or_go_on(self) -> None:
        self.settings = replace(self.settings, paused=not self.settings.paused)

    def _resume(self) -> None:
        for slot in tuple(self.slots.values()):
            if slot.failure:
                self.lost.add(slot.holder)
                self._write(slot, Slot(slot.name))

    # --- how a node behaves ---

    def _node(self, number: int) -> Node:
        return self.nodes[number % len(self.nodes)]

    def _write(self, before: Slot, then: Slot) -> Slot | None:
        """None: it has changed since it was read."""
        if self.slots[before.name].version != before.version:
            return None
        self.version += 1
        written = replace(then, version=str(self.version))
        self.slots[before.name] = written
        return written

    def _step(self, node: Node, *, stale: bool) -> None:
        if not node.up:
            return
        if not node.cut:
            self._look(node, stale=stale)
            standing = node.standing
            if needs_slot(standing, node.let_go) and (
                node.own is None or node.own.revision != standing.wanted
            ):
                self._try(node, standing, stale=stale)
        self._hold(node)
        fresh = self.now_s - node.renewed_s < LEASE_S
        if node.own is not None and fresh and node.own.revision == node.wanted and node.standing.waits:
            assert node.name not in self.lost
            node.in_force, node.progress = node.wanted, CHANGING

    def _look(self, node: Node, *, stale: bool) -> None:
        if not stale or not node.seen:
            node.seen = tuple(self.slots.values())
            node.sightings = next_sightings(node.sightings, node.seen, self.now_s + node.offset_s)

    def _try(self, node: Node, standing: Standing, *, stale: bool) -> None:
        canaries = tuple(
            CanaryNode(one.name, "p", one.wanted, done=self._is_done(one)) for one in self.nodes if one.canary
        )
        fleet = KnownFleet(self.settings, node.seen, node.sightings, canaries)
        clock_s = self.now_s + node.offset_s
        slot = decide(Wish(node.name, "p", standing.wanted, node.canary), fleet, clock_s)
        if isinstance(slot, HeldBack):
            return
        assert not self.settings.paused
        assert node.canary or all(self._is_done(one) for one in self.nodes if one.canary)
        others = [one for one in self.slots.values() if one.holder != node.name]
        if not stale:
            assert not any(one.failure and one.revision == standing.wanted for one in others)
        wanted = Slot(slot.name, node.name, "p", standing.wanted)
        before = node.own if node.own is not None else slot
        holder = self.slots[before.name].holder
        written = self._write(before, replace(wanted, name=before.name))
        if written is None:
            return
        if holder not in ("", node.name):
            owner = next(one for one in self.nodes if one.name == holder)
            assert self.now_s - owner.heard_s >= LEASE_S, "only from one that is silent"
            self.lost.add(holder)
        self.lost.discard(node.name)
        node.own, node.renewed_s, node.heard_s = written, self.now_s, self.now_s

    def _is_done(self, node: Node) -> bool:
        return node.in_force == node.wanted and (node.progress is SETTLED or node.let_go == node.wanted)

    def _hold(self, node: Node) -> None:
        """Renew, fail or free the own slot."""
        if not node.up or node.cut or node.own is None:
            return
        then = next_hold(node.own, node.standing)
        written = self._write(node.own, then)
        if written is not None:
            node.own = written if written.holder else None
            node.renewed_s = node.heard_s = self.now_s
        elif (now := self.slots[node.own.name]).holder == node.name:
            node.own = now
        else:
            if node.own.failure:
                node.let_go = node.own.revision
            node.own = None

    # --- laws ---

    @invariant()
    def no_more_than_that_change(self) -> None:
        if not hasattr(self, "nodes"):
            return
        begun = {one.name for one in self.nodes if one.progress is CHANGING}
        assert len(begun - self.lost) <= self.settings.max_changing
        holders = [one.holder for one in self.slots.values() if one.holder]
        assert len(holders) == len(set(holders)), "nobody has two"

    @precondition(lambda self: hasattr(self, "nodes"))
    @rule()
    def without_failures_it_ends(self) -> None:
        """From here on nothing fails, everybody is there, and a person lets it go on."""
        self.settings = replace(self.settings, paused=False)
        self.edit()
        for _ in range(3 * len(self.nodes) + 3):
            for node in self.nodes:
                node.cut = node.refuses = False
                self._start(node)
                if node.progress is not SETTLED:
                    node.progress = SETTLED
                self._step(node, stale=False)
        assert {one.in_force for one in self.nodes} == {f"r{self.edits}"}
        assert not any(one.holder for one in self.slots.values())
        self.lost.clear()


TestAnyFleet = AnyFleet.TestCase
TestAnyFleet.settings = hypothesis_settings(
    max_examples=examples(100),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_messages_of_nodes_that_wait_do_not_change_with_who_changes() -> None:
    """Each new message is written to every Node that waits."""
    texts = {
        decide(WISH, KnownFleet(ONE, (replace(OTHER, holder=name),), SEEN), 951.0)
        for name in ("n2", "n3", "n4")
    }
    assert len(texts) == 1
    assert next(iter(texts)).reason is PolicyReason.ROLLOUT_WAITS  # type: ignore[union-attr]
