"""How GPUs change what they offer while containers hold their shares."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from partage.model.geometry import Placement
from partage.model.ids import GpuUuid, MigUuid, ResourceName, ShareId, share_id
from partage.model.share import DeviceOffer, GpuOffer, Guarantee, NodeOffer
from partage.model.strategy import Interval, Strategy
from partage.plan.reconcile.transition import (
    GpuServing,
    answerable_offer,
    awaited_entries,
    foreign_holds,
    listed_shares,
    next_due_s,
    transition,
    withdrawn,
)
from partage.plan.serve.ledger_entry import Certainty, HeldIds, Holder, LedgerEntry
from tests.examples import examples

GPU_0_0 = ShareId("GPU-0::0")
GPU_0_1 = ShareId("GPU-0::1")
GPU_0_3 = ShareId("GPU-0::3")
MIG_0_0 = ShareId("MIG-0-0")

GPU = ResourceName("nvidia.com/gpu")
GPU_0, GPU_1 = GpuUuid("GPU-0"), GpuUuid("GPU-1")
SHARED = ResourceName("nvidia.com/gpu.shared")
WITHDRAW_S = 2.0


def whole(gpu: GpuUuid = GPU_0) -> DeviceOffer:
    return DeviceOffer(
        device=gpu,
        gpu=gpu,
        index=gpu[-1],
        gpu_index=int(gpu[-1]),
        resource=GPU,
        strategy=Strategy.EXCLUSIVE,
        shared=Strategy.EXCLUSIVE,
        replicas=1,
        memory_bytes=80,
        guarantee=Guarantee.HARD,
    )


def sliced(
    gpu: GpuUuid = GPU_0, replicas: int = 4, strategy: Strategy = Strategy.TIME_SLICING
) -> DeviceOffer:
    return replace(
        whole(gpu),
        resource=SHARED,
        strategy=strategy,
        shared=strategy,
        replicas=replicas,
        count=replicas,
        memory_bytes=80 // replicas,
        guarantee=Guarantee.NONE if strategy is Strategy.TIME_SLICING else Guarantee.GUARDED,
    )


def mig(number: int, gpu: GpuUuid = GPU_0, strategy: Strategy = Strategy.MIG) -> DeviceOffer:
    return replace(
        whole(gpu),
        device=MigUuid(f"MIG-{gpu[-1]}-{number}"),
        index=f"{gpu[-1]}:{number}",
        resource=ResourceName("nvidia.com/mig-1g.10gb"),
        strategy=strategy,
        profile="1g.10gb",
    )


def holding(resource: ResourceName, *ids: ShareId) -> HeldIds:
    return HeldIds({resource: frozenset(ids)})


NOTHING = HeldIds()


def ids_listed(serving: dict[GpuUuid, GpuServing], now_held: HeldIds) -> list[ShareId]:
    return [row.id for rows in listed_shares(serving, now_held).values() for row in rows]


def test_a_gpu_that_nobody_serves_starts_with_what_is_wanted():
    serving = transition({}, {GPU_0: (whole(),)}, NOTHING, 0, WITHDRAW_S)
    assert serving == {GPU_0: GpuServing((whole(),))}
    assert ids_listed(serving, NOTHING) == [share_id(GPU_0)]


def test_a_gpu_whose_offer_is_as_wanted_is_left_alone():
    before = {GPU_0: GpuServing((sliced(),))}
    assert transition(before, {GPU_0: (sliced(),)}, holding(SHARED, GPU_0_1), 5, WITHDRAW_S) == before


def test_a_gpu_in_use_drains_and_lists_only_what_is_held():
    before = {GPU_0: GpuServing((sliced(),))}
    now_held = holding(SHARED, GPU_0_1)
    serving = transition(before, {GPU_0: (whole(),)}, now_held, 5, WITHDRAW_S)
    assert serving == {GPU_0: GpuServing((sliced(),), draining=True, draining_since_s=5)}
    assert ids_listed(serving, now_held) == ["GPU-0::1"]
    assert next_due_s(serving, WITHDRAW_S) is None
    assert answerable_offer(serving) == {GPU_0: (sliced(),)}, "an Allocate under way is still answered"


def test_a_free_gpu_changes_once_the_kubelet_has_had_time_to_see_its_ids_go():
    wanted = {GPU_0: (whole(),)}
    serving = transition({GPU_0: GpuServing((sliced(),))}, wanted, NOTHING, 5, WITHDRAW_S)
    assert ids_listed(serving, NOTHING) == []
    assert next_due_s(serving, WITHDRAW_S) == 7
    assert transition(serving, wanted, NOTHING, 6.9, WITHDRAW_S) == serving
    assert transition(serving, wanted, NOTHING, 7, WITHDRAW_S) == {GPU_0: GpuServing((whole(),))}


def test_an_allocate_that_was_under_way_keeps_the_gpu_as_it_is():
    wanted = {GPU_0: (whole(),)}
    serving = transition({GPU_0: GpuServing((sliced(),))}, wanted, NOTHING, 5, WITHDRAW_S)
    late = holding(SHARED, GPU_0_3)
    serving = transition(serving, wanted, late, 7, WITHDRAW_S)
    assert serving[GPU_0].offer == (sliced(),)
    assert serving[GPU_0].draining_since_s == 5
    assert ids_listed(serving, late) == ["GPU-0::3"]


def test_the_settling_time_counts_from_the_end_of_the_last_hold():
    """Until then its id was listed, so that an Allocate for it may be under way."""
    wanted = {GPU_0: (whole(),)}
    serving = transition({GPU_0: GpuServing((sliced(),))}, wanted, holding(SHARED, GPU_0_1), 0, WITHDRAW_S)
    serving = transition(serving, wanted, NOTHING, 100, WITHDRAW_S)
    assert serving[GPU_0].draining
    assert transition(serving, wanted, NOTHING, 102, WITHDRAW_S) == {GPU_0: GpuServing((whole(),))}


def test_a_gpu_stops_draining_when_its_offer_is_wanted_again():
    now_held = holding(SHARED, GPU_0_1)
    serving = transition({GPU_0: GpuServing((sliced(),))}, {GPU_0: (whole(),)}, now_held, 0, WITHDRAW_S)
    again = transition(serving, {GPU_0: (sliced(),)}, now_held, 1, WITHDRAW_S)
    assert again == {GPU_0: GpuServing((sliced(),))}


def test_other_gpus_change_while_one_drains():
    before = {GPU_0: GpuServing((sliced(GPU_0),)), GPU_1: GpuServing((sliced(GPU_1),))}
    wanted = {GPU_0: (whole(GPU_0),), GPU_1: (whole(GPU_1),)}
    now_held = holding(SHARED, GPU_0_1)
    serving = transition(before, wanted, now_held, 0, 0)
    assert serving[GPU_0].draining
    assert serving[GPU_1] == GpuServing((whole(GPU_1),))


def test_a_gpu_that_is_no_longer_wanted_drains_and_is_dropped():
    now_held = holding(SHARED, GPU_0_1)
    serving = transition({GPU_0: GpuServing((sliced(),))}, {}, now_held, 0, WITHDRAW_S)
    assert ids_listed(serving, now_held) == ["GPU-0::1"]
    serving = transition(serving, {}, NOTHING, 10, WITHDRAW_S)
    assert transition(serving, {}, NOTHING, 12, WITHDRAW_S) == {}


def test_each_change_of_what_a_share_is_makes_the_gpu_wait():
    base = sliced()
    changes = [
        replace(base, replicas=8, count=8),
        replace(base, resource=ResourceName("nvidia.com/gpu.other")),
        replace(base, strategy=Strategy.MPS, shared=Strategy.MPS),
        replace(base, guarantee=Guarantee.ADVISORY),
        replace(base, memory_bytes=1),
        replace(base, threads_percent=10),
        replace(base, guard=True),
    ]
    for change in changes:
        serving = transition({GPU_0: GpuServing((base,))}, {GPU_0: (change,)}, holding(SHARED, GPU_0_0), 0, 0)
        assert serving[GPU_0].draining, change


def test_where_a_device_is_and_how_long_its_time_slices_are_changes_at_once():
    base = sliced()
    changes = [
        replace(base, numa_node=1),
        replace(base, interval=Interval.LONG),
        replace(base, nodes=("/dev/nvidia7",)),
        replace(base, index="7", gpu_index=7),
        replace(base, single=True),
    ]
    for change in changes:
        serving = transition(
            {GPU_0: GpuServing((base,))}, {GPU_0: (change,)}, holding(SHARED, GPU_0_0), 0, WITHDRAW_S
        )
        assert serving == {GPU_0: GpuServing((change,))}


def test_planned_mig_devices_are_not_served():
    planned = replace(mig(0), placement=Placement(0, 1))
    assert transition({}, {GPU_0: (planned,)}, NOTHING, 0, 0) == {GPU_0: GpuServing(())}


def test_a_new_mig_device_is_offered_while_its_neighbours_are_held():
    before = {GPU_0: GpuServing((mig(0),))}
    serving = transition(before, {GPU_0: (mig(0), mig(1))}, holding(mig(0).resource, MIG_0_0), 0, WITHDRAW_S)
    assert serving == {GPU_0: GpuServing((mig(0), mig(1)))}


def test_a_mig_device_that_is_gone_leaves_when_nobody_holds_it_and_its_neighbours_go_on():
    now_held = holding(mig(0).resource, ShareId("MIG-0-1"))
    wanted = {GPU_0: (mig(0),)}
    serving = transition({GPU_0: GpuServing((mig(0), mig(1)))}, wanted, now_held, 0, WITHDRAW_S)
    assert serving == {GPU_0: GpuServing((mig(0),), leaving=(mig(1),))}
    assert ids_listed(serving, now_held) == ["MIG-0-0", "MIG-0-1"]
    serving = transition(serving, wanted, NOTHING, 10, WITHDRAW_S)
    assert ids_listed(serving, NOTHING) == ["MIG-0-0"]
    assert next_due_s(serving, WITHDRAW_S) == 12
    assert transition(serving, wanted, NOTHING, 12, WITHDRAW_S) == {GPU_0: GpuServing((mig(0),))}


def test_a_gpu_that_leaves_mig_mode_waits_for_its_mig_devices():
    now_held = holding(mig(0).resource, MIG_0_0)
    serving = transition({GPU_0: GpuServing((mig(0), mig(1)))}, {GPU_0: (whole(),)}, now_held, 0, 0)
    assert serving[GPU_0].draining
    assert ids_listed(serving, now_held) == ["MIG-0-0"]


def test_whole_gpu_and_mig_devices_are_never_offered_together_even_under_one_strategy():
    adopted = mig(0, strategy=Strategy.EXCLUSIVE)
    now_held = holding(adopted.resource, MIG_0_0)
    serving = transition({GPU_0: GpuServing((adopted,))}, {GPU_0: (whole(),)}, now_held, 0, 0)
    assert serving[GPU_0].draining
    serving = transition(
        {GPU_0: GpuServing((whole(),))}, {GPU_0: (adopted,)}, holding(GPU, share_id(GPU_0)), 0, 0
    )
    assert serving[GPU_0].draining


def test_mig_devices_of_another_strategy_wait_for_the_older_ones():
    now_held = holding(mig(0).resource, MIG_0_0)
    wanted = {GPU_0: (mig(1, strategy=Strategy.TIME_SLICING),)}
    assert transition({GPU_0: GpuServing((mig(0),))}, wanted, now_held, 0, 0)[GPU_0].draining


def test_each_mig_device_that_leaves_has_its_own_settling_time():
    serving = transition(
        {GPU_0: GpuServing((mig(0), mig(1), mig(2)))}, {GPU_0: (mig(0), mig(2))}, NOTHING, 0, WITHDRAW_S
    )
    wanted = {GPU_0: (mig(0),)}
    serving = transition(serving, wanted, NOTHING, 1.5, WITHDRAW_S)
    serving = transition(serving, wanted, NOTHING, 2, WITHDRAW_S)
    assert mig(2) in serving[GPU_0].leaving
    assert transition(serving, wanted, NOTHING, 3.5, WITHDRAW_S) == {GPU_0: GpuServing((mig(0),))}


def test_mig_devices_that_change_their_sharing_make_the_whole_gpu_wait():
    shared = replace(mig(0), shared=Strategy.TIME_SLICING, replicas=2, count=2)
    serving = transition(
        {GPU_0: GpuServing((mig(0), mig(1)))},
        {GPU_0: (shared, mig(1))},
        holding(mig(0).resource, MIG_0_0),
        0,
        0,
    )
    assert serving[GPU_0].draining


def test_a_held_share_that_fits_nothing_we_serve_makes_its_gpu_wait():
    """The state was lost, and the policy is another one."""
    now_held = holding(SHARED, GPU_0_3)
    serving = transition({}, {GPU_0: (whole(GPU_0),), GPU_1: (whole(GPU_1),)}, now_held, 0, WITHDRAW_S)
    assert serving[GPU_0] == GpuServing((), draining=True, draining_since_s=0)
    assert serving[GPU_1] == GpuServing((whole(GPU_1),))
    assert foreign_holds(serving, now_held) == {GPU_0: [(SHARED, "GPU-0::3")]}
    (row,) = listed_shares(serving, now_held)[SHARED]
    assert (row.id, row.gpu, row.offering) == ("GPU-0::3", GPU_0, None)


def test_a_gpu_with_a_foreign_hold_changes_when_the_hold_ends():
    wanted = {GPU_0: (whole(),)}
    serving = transition({}, wanted, holding(SHARED, GPU_0_3), 0, WITHDRAW_S)
    serving = transition(serving, wanted, holding(SHARED, GPU_0_3), 4, WITHDRAW_S)
    assert serving[GPU_0] == GpuServing((), draining=True, draining_since_s=0)
    serving = transition(serving, wanted, NOTHING, 5, WITHDRAW_S)
    assert transition(serving, wanted, NOTHING, 7, WITHDRAW_S) == {GPU_0: GpuServing((whole(),))}


def test_held_shares_that_fit_what_is_wanted_are_taken_for_it_after_the_state_was_lost():
    serving = transition({}, {GPU_0: (sliced(),)}, holding(SHARED, GPU_0_3), 0, WITHDRAW_S)
    assert serving == {GPU_0: GpuServing((sliced(),))}


def test_a_foreign_hold_that_appears_later_withdraws_the_free_shares():
    """PodResources answered for the first time after the GPU was served."""
    wanted = {GPU_0: (whole(),)}
    now_held = holding(SHARED, GPU_0_3)
    serving = transition({GPU_0: GpuServing((whole(),))}, wanted, now_held, 0, WITHDRAW_S)
    assert ids_listed(serving, now_held) == ["GPU-0::3"]
    assert transition(serving, wanted, NOTHING, 1, WITHDRAW_S) == {GPU_0: GpuServing((whole(),))}


def test_a_foreign_hold_of_a_mig_device_is_found_on_its_gpu():
    now_held = holding(mig(0).resource, ShareId("MIG-gone"))
    serving = transition({}, {GPU_0: (whole(),)}, now_held, 0, 0, gpu_of={MigUuid("MIG-gone"): GPU_0})
    assert serving[GPU_0].draining
    assert foreign_holds(serving, now_held) == {None: [(mig(0).resource, "MIG-gone")]}


def test_a_hold_on_no_known_gpu_keeps_nobody_waiting():
    now_held = holding(SHARED, ShareId("GPU-9::3"))
    serving = transition({}, {GPU_0: (whole(),)}, now_held, 0, 0)
    assert serving == {GPU_0: GpuServing((whole(),))}
    assert listed_shares(serving, now_held)[SHARED][0].gpu is None


def test_who_is_waited_for_is_said_with_names():
    before = {GPU_0: GpuServing((sliced(GPU_0),)), GPU_1: GpuServing((sliced(GPU_1),))}
    wanted = {GPU_0: (whole(GPU_0),), GPU_1: (whole(GPU_1),)}
    entry = LedgerEntry(SHARED, GPU_0_1, Certainty.OBSERVED, (Holder("default", "web", "main"),), 0)
    serving = transition(before, wanted, holding(SHARED, GPU_0_1), 0, WITHDRAW_S)
    assert awaited_entries(serving, [entry]) == {GPU_0: (entry,), GPU_1: ()}
    assert awaited_entries({GPU_0: GpuServing((sliced(),))}, [entry]) == {}


def test_only_the_holders_of_leaving_mig_devices_are_waited_for():
    resource = mig(0).resource
    entries = [LedgerEntry(resource, ShareId(f"MIG-0-{n}"), Certainty.OBSERVED, (), 0) for n in (0, 1)]
    serving = {GPU_0: GpuServing((mig(0),), leaving=(mig(1),))}
    assert awaited_entries(serving, entries) == {GPU_0: (entries[1],)}


def test_unequal_mps_clients_keep_their_ids_apart():
    big = replace(sliced(strategy=Strategy.MPS), resource=ResourceName("nvidia.com/gpu.big"), count=1)
    small = replace(sliced(strategy=Strategy.MPS), first=1, count=3)
    serving = {GPU_0: GpuServing((big, small), draining=True, draining_since_s=0)}
    now_held = HeldIds({big.resource: frozenset({GPU_0_0}), SHARED: frozenset({ShareId("GPU-0::2")})})
    assert ids_listed(serving, now_held) == ["GPU-0::0", "GPU-0::2"]
    assert foreign_holds(serving, now_held) == {}
    assert foreign_holds(serving, holding(SHARED, GPU_0_0)) == {GPU_0: [(SHARED, "GPU-0::0")]}


def test_a_resource_whose_ids_are_all_withdrawn_keeps_an_empty_list():
    serving = {GPU_0: GpuServing((sliced(),), draining=True, draining_since_s=0)}
    assert listed_shares(serving, NOTHING) == {SHARED: []}


# --- any interleaving -------------------------------------------------------------------------------


def test_settling_begins_anew_where_more_has_to_wait():
    serving = {GPU_0: GpuServing((mig(0),), (mig(1),), empty_since_s=0.0)}
    (now,) = transition(serving, {GPU_0: (whole(),)}, NOTHING, 10.0, WITHDRAW_S).values()
    assert (now.draining, now.empty_since_s) == (True, 10.0)


def test_nobody_else_gets_a_share_that_is_waited_for():
    def awaited(serving: dict[GpuUuid, GpuServing]) -> dict[ShareId, bool]:
        return {share.id: share.awaited for share in listed_shares(serving, held)[SHARED]}

    held = holding(SHARED, GPU_0_0, GPU_0_1)
    serving = {GPU_0: GpuServing((sliced(),))}
    assert set(awaited(serving).values()) == {False}
    drained = transition(serving, {GPU_0: (whole(),)}, held, 0.0, WITHDRAW_S)
    assert awaited(drained) == {GPU_0_0: True, GPU_0_1: True}
    given_up = transition(drained, {GPU_0: (whole(),)}, held, 1.0, WITHDRAW_S, gave_up={GPU_0})
    assert list(awaited(given_up).values()) == [True, True, False, False]


def test_after_a_drain_in_vain_each_free_share_is_given_once_more():
    wanted, held = {GPU_0: (whole(),)}, holding(SHARED, GPU_0_0)
    free = tuple((SHARED, share) for share in sliced().share_ids[1:])

    def once_more(serving: dict[GpuUuid, GpuServing], held: HeldIds, *in_conflict: GpuUuid) -> object:
        (now,) = transition(
            serving, wanted, held, 1.0, WITHDRAW_S, gave_up={GPU_0}, in_conflict=in_conflict
        ).values()
        return now.once_more

    begun = {GPU_0: GpuServing((sliced(),))}
    assert once_more(begun, held) == free
    assert once_more(begun, held, GPU_0) is None, "no share of it may be held"
    assert once_more(begun, NOTHING) is None, "it changes"
    given = transition(begun, wanted, held, 1.0, WITHDRAW_S, gave_up={GPU_0})
    assert once_more(given, holding(SHARED, GPU_0_0, GPU_0_1)) == free[1:]
    assert (
        once_more(
            transition(given, wanted, holding(SHARED, GPU_0_0, GPU_0_1), 2.0, WITHDRAW_S, gave_up={GPU_0}),
            held,
        )
        == free[1:]
    ), "and not twice"
    assert transition(begun, wanted, held, 1.0, WITHDRAW_S)[GPU_0].once_more is None


GPUS = (GPU_0, GPU_1)


def offers(gpu: GpuUuid) -> st.SearchStrategy[GpuOffer]:
    numbers = st.sets(st.integers(0, 2), max_size=3)
    return st.one_of(
        st.just((whole(gpu),)),
        st.sampled_from(
            [(sliced(gpu, n, kind),) for n in (2, 4) for kind in (Strategy.MPS, Strategy.TIME_SLICING)]
        ),
        numbers.map(lambda some: tuple(mig(n, gpu) for n in sorted(some))),
    )


class Changes(RuleBasedStateMachine):
    """Policies change, an Allocate comes for what the kubelet saw a while ago, pods end, agents restart."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.wanted: NodeOffer = {gpu: (whole(gpu),) for gpu in GPUS}
        self.serving: dict[GpuUuid, GpuServing] = {}
        self.held: dict[tuple[ResourceName, ShareId], DeviceOffer] = {}
        self.seen: list[tuple[float, ResourceName, ShareId]] = []
        self.step()

    def held_now(self) -> HeldIds:
        ids: dict[ResourceName, set[ShareId]] = {}
        for resource, share in self.held:
            ids.setdefault(resource, set()).add(share)
        return HeldIds({resource: frozenset(some) for resource, some in ids.items()})

    def step(self) -> None:
        self.serving = transition(self.serving, self.wanted, self.held_now(), self.now_s, WITHDRAW_S)
        rows = [row for some in listed_shares(self.serving, self.held_now()).values() for row in some]
        self.seen += [(self.now_s, row.resource, row.id) for row in rows]

    @rule(data=st.data(), gpu=st.sampled_from(GPUS))
    def policy_changes(self, data: st.DataObject, gpu: GpuUuid) -> None:
        self.wanted = {**self.wanted, gpu: data.draw(offers(gpu))}
        self.step()

    @rule(gpu=st.sampled_from(GPUS))
    def gpu_is_no_longer_wanted(self, gpu: GpuUuid) -> None:
        self.wanted = {other: offer for other, offer in self.wanted.items() if other != gpu}
        self.step()

    @rule(wait_s=st.floats(0.1, 3))
    def time_passes(self, wait_s: float) -> None:
        self.now_s += wait_s
        self.step()

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def kubelet_allocates(self, data: st.DataObject) -> None:
        """Something that was listed less than the settling time ago, and that nobody holds."""
        recent = {(r, share) for at_s, r, share in self.seen if self.now_s - at_s < WITHDRAW_S}
        free = sorted(recent - self.held.keys())
        if not free:
            return
        resource, share = data.draw(st.sampled_from(free))
        offered = [one for offer in answerable_offer(self.serving).values() for one in offer]
        matching = [one for one in offered if one.resource == resource and share in one.share_ids]
        assert len(matching) == 1, "what was listed a moment ago is answered, in one way"
        self.held[resource, share] = matching[0]
        self.step()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def pod_ends(self, data: st.DataObject) -> None:
        del self.held[data.draw(st.sampled_from(sorted(self.held)))]
        self.step()

    @invariant()
    def shares_held_on_one_gpu_belong_to_one_strategy(self) -> None:
        for gpu in GPUS:
            kinds = {(o.strategy, o.shared, o.replicas) for o in self.held.values() if o.gpu == gpu}
            assert len(kinds) <= 1

    @invariant()
    def no_id_is_listed_twice_and_every_held_one_is(self) -> None:
        rows = [row for some in listed_shares(self.serving, self.held_now()).values() for row in some]
        ids = [row.id for row in rows]
        assert len(ids) == len(set(ids))
        assert {share for _, share in self.held} <= set(ids)

    @invariant()
    def what_is_withdrawn_is_served_and_neither_listed_nor_held(self) -> None:
        rows = [row for some in listed_shares(self.serving, self.held_now()).values() for row in some]
        listed = {(row.resource, row.id) for row in rows if row.offering}
        offers = answerable_offer(self.serving).values()
        served = {(one.resource, share) for offer in offers for one in offer for share in one.share_ids}
        assert withdrawn(self.serving, self.held_now()) == served - listed

    @invariant()
    def what_is_listed_on_one_gpu_has_one_strategy(self) -> None:
        rows = [row for some in listed_shares(self.serving, self.held_now()).values() for row in some]
        for gpu in GPUS:
            assert len({row.offering.strategy for row in rows if row.gpu == gpu and row.offering}) <= 1

    @invariant()
    def it_settles_when_nobody_holds_anything(self) -> None:
        serving = transition(self.serving, self.wanted, NOTHING, self.now_s, WITHDRAW_S)
        due = next_due_s(serving, WITHDRAW_S)
        serving = transition(serving, self.wanted, NOTHING, due or self.now_s, WITHDRAW_S)
        serving = transition(serving, self.wanted, NOTHING, (due or self.now_s) + WITHDRAW_S, WITHDRAW_S)
        assert serving == {gpu: GpuServing(offer) for gpu, offer in self.wanted.items()}

    @invariant()
    def a_gpu_that_is_as_wanted_does_not_wait(self) -> None:
        """Nothing on the other GPU keeps it."""
        for gpu, now in self.serving.items():
            if now.offer == self.wanted.get(gpu) and not now.leaving:
                assert not now.draining


TestChanges = Changes.TestCase
TestChanges.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)
