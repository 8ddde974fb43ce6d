"""Executing steps: whatever fails, and whenever the process is killed, a GPU ends as desired or as it was."""

from __future__ import annotations

import random

import pytest

from partage.agent.reconciler.executor import (
    Executor,
    JournalFailed,
    StepStatus,
    TransactionEnd,
    layouts_before,
)
from partage.edges.files.catalogue import load_catalogue
from partage.edges.files.journal import Journal, JournalHeader, Unfinished, UnreadableJournal, read_journal
from partage.errors import DriverUnavailable, GpuInUse, HardwareTimeout, InsufficientResources, NotFound
from partage.model.gpu import Driver, Inventory, LostGpu
from partage.model.layout import DoesNotFit, LayoutItem, place
from partage.model.policy import DesiredMig
from partage.model.step import CreateCompute, CreateInstance, gpus_of
from partage.plan.reconcile.mig_plan import plan_mig
from tests.examples import variants
from tests.plan.reconcile.mig_card import Card

MODELS = sorted(
    model.id
    for model in load_catalogue().simulated_models()
    if model.geometry and any(spec.starts for spec in model.geometry.profiles)
)


class Killed(BaseException):
    """What SIGKILL is to the code that runs: nothing after it happens."""


class Cards:
    """Cards behind the hardware port. trouble: number of a step to what happens before, or after, it is done;
    steps from ``broken`` on all fail. refuses: what a card cannot do is an error, no mistake of the plan."""

    def __init__(self, *cards):
        self.cards = {card.gpu().uuid: card for card in cards}
        self.trouble = {}
        self.broken = None
        self.refuses = False
        self.lost = None
        self.steps = 0

    async def observe(self):
        gpus = [card.gpu() for card in self.cards.values()]
        lost = [LostGpu(gpu.index, gpu.uuid, None, "gone") for gpu in gpus if gpu.uuid == self.lost]
        there = tuple(gpu for gpu in gpus if gpu.uuid != self.lost)
        return Inventory(Driver("550", "12"), there, tuple(lost), boot_id="boot")

    async def uses(self):
        return ()

    async def perform(self, step):
        self.steps += 1
        if self.broken is not None and self.steps >= self.broken:
            raise DriverUnavailable("broken")
        when, error = self.trouble.get(self.steps, ("", None))
        if error is not None and when == "before":
            raise error
        try:
            for uuid in gpus_of(step):
                made = self.cards[uuid].does(step)
        except (AssertionError, KeyError, StopIteration) as refused:
            # Who was told that a step had failed, which was done, may ask for what is refused.
            if self.refuses or any(when == "after" for when, _ in self.trouble.values()):
                raise NotFound(f"refused: {refused}") from refused
            raise
        if error is not None:
            raise error
        return made

    def geometry_of(self, gpu):
        return self.cards[gpu.uuid].geometry

    def content(self):
        return {uuid: (card.mode, card.content()) for uuid, card in self.cards.items()}


def layout(rng, geometry):
    """A random layout that an empty card can have."""
    items: list[LayoutItem] = []
    for _ in range(rng.randrange(1, 9)):
        more = [*items, LayoutItem(rng.choice(geometry.profiles).profile)]
        try:
            place(geometry, more)
        except DoesNotFit:
            continue
        items = more
    return tuple(items)


def card_with(rng, model, mode=None):
    on = rng.random() < 0.8 if mode is None else mode
    card = Card(model, mode=(on, on))
    if on:
        for seat in place(card.geometry, layout(rng, card.geometry)):
            card.live(str(seat.item.profile), seat.placement.start)
    return card


def desired(rng, card):
    return DesiredMig(layout(rng, card.geometry)) if rng.random() < 0.9 else DesiredMig(enabled=False)


async def plan_of(node, desired_layouts):
    return plan_mig(await node.observe(), desired_layouts, node.geometry_of)


async def go(node, desired_layouts, state_dir, was=None, told=None):
    """Plan and execute; the outcomes."""
    plan = await plan_of(node, desired_layouts)
    assert not plan.blocked
    executor = Executor(node, Journal(state_dir), node.geometry_of, told or (lambda *_: None))
    inventory = await node.observe()
    living = layouts_before(inventory, plan.transactions)
    header = JournalHeader("boot", "digest", {**living, **(was or {})})
    return await executor.execute(plan.transactions, header, inventory)


@pytest.mark.parametrize("model", variants(MODELS, 3))
async def test_any_layout_becomes_any_other_and_what_fits_lives_on(model, tmp_path):
    rng = random.Random(model)
    for _ in range(10):
        node = Cards(card_with(rng, model))
        wanted = {"GPU-0": desired(rng, node.cards["GPU-0"])}
        (planned,) = (await plan_of(node, wanted)).planned
        outcomes = await go(node, wanted, tmp_path)
        assert all(outcome.ending is TransactionEnd.DONE for outcome in outcomes)
        assert node.cards["GPU-0"].content() == sorted(planned.layout)
        assert set(planned.kept) <= {one.uuid for one in node.cards["GPU-0"].gpu().mig_devices}
        assert (await plan_of(node, wanted)).transactions == ()
        assert read_journal(tmp_path) is None


@pytest.mark.parametrize("model", variants(["a100-40gb", "h100-sxm5-80gb", "a30-24gb"], 3))
@pytest.mark.parametrize(
    ("when", "error"),
    [
        ("before", InsufficientResources("no room")),
        ("before", GpuInUse("in use")),
        ("before", HardwareTimeout("hangs")),
        ("after", HardwareTimeout("hangs")),
    ],
)
async def test_a_step_that_fails_is_taken_back_with_all_before_it(model, when, error, tmp_path):
    rng = random.Random(f"{model}{when}{error}")
    number, failed = 1, 1
    while failed:
        failed = 0
        for seed in range(4):
            rng.seed(seed)
            node = Cards(card_with(rng, model))
            wanted = {"GPU-0": desired(rng, node.cards["GPU-0"])}
            old = node.content()
            node.trouble = {number: (when, error)}
            outcomes = await go(node, wanted, tmp_path)
            if node.steps < number or outcomes[0].ending is TransactionEnd.DONE:
                continue
            failed += 1
            assert outcomes[0].error is error
            if when == "after" and isinstance(outcomes[0].failed, CreateInstance | CreateCompute):
                # Nobody knows whose it is: it is named, and stays.
                assert outcomes[0].ending is TransactionEnd.PARTIAL
                assert "left alone" in outcomes[0].reason
                assert str(outcomes[0].failed.placement) in outcomes[0].reason
                assert isinstance(read_journal(tmp_path), Unfinished)
                continue
            assert read_journal(tmp_path) is None
            assert outcomes[0].ending is TransactionEnd.ROLLED_BACK
            assert node.content() == old
        number += 1
    assert number > 5


@pytest.mark.parametrize("model", variants(["a100-40gb", "h100-sxm5-80gb", "a30-24gb"], 3))
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("back", [False, True])
async def test_killed_at_any_step_the_next_run_goes_on_or_back(model, when, back, tmp_path):
    rng = random.Random()
    number, killed = 1, 1
    while killed:
        killed = 0
        for seed in range(4):
            rng.seed(seed)
            node = Cards(card_with(rng, model))
            wanted = {"GPU-0": desired(rng, node.cards["GPU-0"])}
            old = node.content()
            node.trouble = {number: (when, Killed())}
            try:
                await go(node, wanted, tmp_path)
                continue
            except Killed:
                killed += 1
            unfinished = read_journal(tmp_path)
            assert isinstance(unfinished, Unfinished)
            assert unfinished.done == number - 1
            assert unfinished.open
            was = unfinished.header.before
            outcomes = await go(node, was if back else wanted, tmp_path, was)
            assert all(outcome.ending is TransactionEnd.DONE for outcome in outcomes)
            assert read_journal(tmp_path) is None
            if back:
                assert node.content() == old
            else:
                assert (await plan_of(node, wanted)).transactions == ()
        number += 1
    assert number > 5


def _admin_makes(node, profile, start, step):
    """An administrator makes an instance before step number ``step`` is performed."""

    def told(_step, phase, _reason):
        if node.steps == step - 1 and phase is StepStatus.DOING:
            node.cards["GPU-0"].live(profile, start)

    return told


async def test_an_instance_that_appears_at_our_place_is_not_ours_to_take_back(tmp_path):
    """Seen free, taken before the step came: the step is refused, and the instance stays."""
    node = Cards(Card("h100-sxm5-80gb").live("3g.40gb", 0))
    kept = node.content()["GPU-0"][1]
    node.trouble = {2: ("before", InsufficientResources("no room"))}
    wanted = {"GPU-0": DesiredMig((LayoutItem.parse("3g.40gb@0"), LayoutItem.parse("1g.10gb@6")))}
    wanted["GPU-0"] = DesiredMig((*wanted["GPU-0"].items, LayoutItem.parse("1g.10gb@4")))
    told = _admin_makes(node, "1g.10gb", 6, 2)
    (outcome,) = await go(node, wanted, tmp_path, told=told)
    assert outcome.ending is TransactionEnd.ROLLED_BACK
    assert node.content()["GPU-0"][1] == sorted([*kept, "1g.10gb@6"])
    (left,) = outcome.left_alone
    assert left.startswith("1g.10gb at 6:")
    assert "not known to have made it" in outcome.reason
    assert read_journal(tmp_path) is None


async def test_what_was_destroyed_is_made_again_beside_an_instance_that_has_appeared(tmp_path):
    node = Cards(Card("h100-sxm5-80gb").live("1g.10gb", 0).live("1g.10gb", 1))
    node.trouble = {5: ("before", InsufficientResources("no room"))}
    told = _admin_makes(node, "1g.10gb", 6, 5)
    (outcome,) = await go(node, {"GPU-0": DesiredMig((LayoutItem.parse("4g.40gb@0"),))}, tmp_path, told=told)
    assert outcome.ending is TransactionEnd.ROLLED_BACK
    assert node.content()["GPU-0"][1] == ["1g.10gb@0", "1g.10gb@1", "1g.10gb@6"]


async def test_where_one_has_appeared_at_the_old_place_the_rollback_says_that_it_is_not_whole(tmp_path):
    node = Cards(Card("h100-sxm5-80gb").live("1g.10gb", 0))
    node.refuses = True
    node.trouble = {3: ("before", InsufficientResources("no room"))}
    told = _admin_makes(node, "2g.20gb", 0, 3)
    (outcome,) = await go(node, {"GPU-0": DesiredMig((LayoutItem.parse("4g.40gb@0"),))}, tmp_path, told=told)
    assert outcome.ending is TransactionEnd.PARTIAL
    assert node.content()["GPU-0"][1] == ["2g.20gb@0"]
    assert "2g.20gb at 0:" in outcome.reason


async def test_mig_mode_is_not_turned_off_again_over_an_instance_that_has_appeared(tmp_path):
    node = Cards(Card("a100-40gb", mode=(False, False)))
    node.trouble = {3: ("before", InsufficientResources("no room"))}
    told = _admin_makes(node, "1g.5gb", 0, 3)
    (outcome,) = await go(node, {"GPU-0": DesiredMig((LayoutItem.parse("3g.20gb@0"),))}, tmp_path, told=told)
    assert outcome.ending is TransactionEnd.PARTIAL
    assert node.content()["GPU-0"] == ((True, True), ["1g.5gb@0"])


async def test_what_cannot_be_taken_back_is_told_and_its_journal_has_no_end(tmp_path):
    node = Cards(Card("h100-sxm5-80gb").live("3g.40gb", 0), Card("h100-sxm5-80gb", index=1))
    wanted = {uuid: DesiredMig((LayoutItem.parse("7g.80gb"),)) for uuid in node.cards}
    node.broken = 3
    first, second = await go(node, wanted, tmp_path)
    assert first.ending is TransactionEnd.PARTIAL
    assert "not as it was" in first.rollback_failure
    assert "broken" in first.rollback_failure
    assert second.ending is TransactionEnd.ROLLED_BACK
    assert isinstance(read_journal(tmp_path), Unfinished)
    node.broken = None
    assert all(outcome.ending is TransactionEnd.DONE for outcome in await go(node, wanted, tmp_path))
    assert read_journal(tmp_path) is None


async def test_a_gpu_that_dies_between_two_steps_keeps_no_other_from_its_layout(tmp_path):
    node = Cards(Card("h100-sxm5-80gb").live("3g.40gb", 0), Card("h100-sxm5-80gb", index=1))
    wanted = {uuid: DesiredMig((LayoutItem.parse("7g.80gb"),)) for uuid in node.cards}

    def told(step, phase, reason):
        if node.steps == 1:
            node.lost = "GPU-0"
            node.trouble = dict.fromkeys(range(2, 4), ("before", DriverUnavailable("it is gone")))

    first, second = await go(node, wanted, tmp_path, told=told)
    assert (first.ending, first.rollback_failure) == (TransactionEnd.PARTIAL, "GPU 0 is lost: it is gone")
    assert second.ending is TransactionEnd.DONE


async def test_nothing_is_done_that_cannot_be_written_down(tmp_path):
    node = Cards(Card("h100-sxm5-80gb"))
    (outcome,) = await go(node, {"GPU-0": DesiredMig((LayoutItem.parse("7g.80gb"),))}, tmp_path / "missing")
    assert outcome.ending is TransactionEnd.NOT_STARTED
    assert isinstance(outcome.error, JournalFailed)
    assert "cannot be written" in outcome.reason
    assert node.steps == 0


# --- the journal -----------------------------------------------------------------------------------


async def _cut_off(tmp_path):
    node = Cards(Card("h100-sxm5-80gb").live("3g.40gb", 4))
    node.trouble = {3: ("before", Killed())}
    with pytest.raises(Killed):
        await go(node, {"GPU-0": DesiredMig((LayoutItem.parse("7g.80gb"),))}, tmp_path)
    return tmp_path / "journal.jsonl"


async def test_a_torn_last_line_is_no_line(tmp_path):
    path = await _cut_off(tmp_path)
    content = path.read_bytes()
    whole = read_journal(tmp_path)
    assert isinstance(whole, Unfinished)
    assert whole.header.before == {"GPU-0": DesiredMig((LayoutItem.parse("3g.40gb@4"),))}
    for length in range(content.index(b"\n") + 1, len(content)):
        path.write_bytes(content[:length])
        found = read_journal(tmp_path)
        assert isinstance(found, Unfinished)
        assert found.header == whole.header
        assert found.done <= whole.done


@pytest.mark.parametrize(
    "content",
    [b"", b"{}\n", b"[]\n", b"\xff\n", b"[" * 100_000 + b"\n", b'{"version": 9}\n'],
)
def test_what_is_no_journal_says_so(content, tmp_path):
    (tmp_path / "journal.jsonl").write_bytes(content)
    assert isinstance(read_journal(tmp_path), UnreadableJournal)


def test_where_there_is_no_journal_nothing_is_unfinished(tmp_path):
    assert read_journal(tmp_path) is None
