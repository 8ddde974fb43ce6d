"""The planner: phases by table, and what holds for any node: nothing that is held is ever in the steps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.model.geometry import Placement
from partage.model.gpu import ComputeMode, Inventory, NoDriver
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.ids import GpuUuid, ResourceName, ShareId, share_id
from partage.model.mps import ClientLimits, ConnectedClient, DaemonPhase, DaemonState, MpsServer
from partage.model.step import (
    CreateCompute,
    CreateInstance,
    DestroyCompute,
    Reset,
    SetComputeMode,
    SetMigMode,
    SetTimeSlice,
    StartDaemon,
    StartDaemonAt,
    StopDaemon,
)
from partage.model.strategy import Interval
from partage.plan.offer.desired import DesiredState, existing_offer, resolve
from partage.plan.reconcile.known_node import KnownNode, with_observed
from partage.plan.reconcile.node_plan import FailedAttempt, GpuPlan, NodePlan, Observed, Phase, Snapshot
from partage.plan.reconcile.planner import Planner, plan_node
from partage.plan.reconcile.settings_steps import OriginalSettings
from partage.plan.reconcile.transition import GpuServing
from partage.plan.serve.ledger_entry import Certainty, HeldIds, Holder, LedgerEntry
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from tests.examples import examples

HOPPER = "2xh100-sxm5-80gb"
WHOLE = "version: partage/v1\ngpus: []\n"
SLICED = "version: partage/v1\ngpus: [{select: {index: 0}, time-slicing: {replicas: 2}}]\n"
SHORT = "version: partage/v1\ngpus: [{select: {index: 0}, time-slicing: {replicas: 2, interval: short}}]\n"
MPS = "version: partage/v1\ngpus: [{select: {index: 0}, mps: {replicas: 2}}]\n"
HALVES = "version: partage/v1\ngpus: [{select: {index: 0}, mig: {layout: [3g.40gb, 3g.40gb]}}]\n"
HALVES_MPS = (
    "version: partage/v1\n"
    "gpus: [{select: {index: 0}, mig: {layout: [3g.40gb, 3g.40gb], mps: {replicas: 2}}}]\n"
)
GPU = ResourceName("nvidia.com/gpu")


def observe(machine: str = HOPPER) -> Inventory:
    return asyncio.run(SimulatedHardware(load_machine(machine)).observe())


def desired_of(text: str, inventory: Inventory) -> DesiredState:
    return resolve(parse_policy(text, "policy.yaml").policy, inventory, geometry_of)


def entry(resource: str, share: ShareId, pod: str = "train") -> LedgerEntry:
    return LedgerEntry(
        ResourceName(resource), share, Certainty.OBSERVED, (Holder("default", pod, "main"),), 0.0
    )


def held_of(entries: Iterable[LedgerEntry]) -> HeldIds:
    ids: dict[ResourceName, set[ShareId]] = {}
    for one in entries:
        ids.setdefault(one.resource, set()).add(one.id)
    return HeldIds({resource: frozenset(some) for resource, some in ids.items()})


def snapshot(inventory: Inventory, *entries: LedgerEntry, **more: object) -> Snapshot:
    """Nothing is served yet, nothing set, no daemon runs, unless ``more`` says otherwise."""
    of_observed = {name: more.pop(name) for name in [*more] if name in Observed.__struct_fields__}
    observed = Observed(with_observed(None, inventory), daemons=(), slices=_defaults(inventory))
    now = Snapshot(
        now_s=100.0,
        observed=replace(observed, **of_observed),
        held=held_of(entries),
        entries=entries,
    )
    return replace(now, **more)


def _defaults(inventory: Inventory) -> dict[GpuUuid, Interval]:
    return {gpu.uuid: Interval.DEFAULT for gpu in inventory}


def serving(desired: DesiredState) -> dict[GpuUuid, GpuServing]:
    return {gpu: GpuServing(offer) for gpu, offer in existing_offer(desired.offer).items()}


def first(plan: NodePlan) -> GpuPlan:
    return next(iter(plan.gpus.values()))


# --- phases --------------------------------------------------------------------------------------


def settled(inventory: Inventory) -> tuple[str, Snapshot]:
    return WHOLE, snapshot(inventory)


def waiting_for_a_pod(inventory: Inventory) -> tuple[str, Snapshot]:
    served = serving(desired_of(WHOLE, inventory))
    return SLICED, snapshot(inventory, entry(GPU, share_id(inventory.gpus[0].uuid)), served=served)


def waiting_for_a_process(inventory: Inventory) -> tuple[str, Snapshot]:
    use = GpuUse(inventory.gpus[0].uuid, UseKind.PROCESS, "python", 4711)
    return HALVES, snapshot(inventory, uses=(use,))


def withdrawing(inventory: Inventory) -> tuple[str, Snapshot]:
    return SLICED, snapshot(inventory, served=serving(desired_of(WHOLE, inventory)))


def ready_for_a_layout(inventory: Inventory) -> tuple[str, Snapshot]:
    return HALVES, snapshot(inventory)


def ready_for_a_daemon(inventory: Inventory) -> tuple[str, Snapshot]:
    return MPS, snapshot(inventory)


def changing(inventory: Inventory) -> tuple[str, Snapshot]:
    return HALVES, snapshot(inventory, in_hand={inventory.gpus[0].uuid: Phase.CHANGING})


def verifying(inventory: Inventory) -> tuple[str, Snapshot]:
    return HALVES, snapshot(inventory, in_hand={inventory.gpus[0].uuid: Phase.VERIFYING})


def failed(inventory: Inventory) -> tuple[str, Snapshot]:
    return HALVES, snapshot(inventory, attempts={inventory.gpus[0].uuid: FailedAttempt("no", 1, 130.0)})


def blocked_by_a_lost_gpu(inventory: Inventory) -> tuple[str, Snapshot]:
    node = KnownNode(inventory, {inventory.gpus[0].uuid: "it fell off the bus"}, {})
    return HALVES, snapshot(inventory, node=node)


def blocked_by_a_lost_gpu_that_is_not_to_change(inventory: Inventory) -> tuple[str, Snapshot]:
    return WHOLE, blocked_by_a_lost_gpu(inventory)[1]


def blocked_by_a_fixed_slice(inventory: Inventory) -> tuple[str, Snapshot]:
    fixed = {inventory.gpus[0].uuid: "the driver says no"}
    return SHORT, snapshot(inventory, slices={}, fixed_slices=fixed)


def unknown_daemons(inventory: Inventory) -> tuple[str, Snapshot]:
    return MPS, snapshot(inventory, daemons=None)


def unknown_holders(inventory: Inventory) -> tuple[str, Snapshot]:
    uuid = inventory.gpus[0].uuid
    served = serving(desired_of(WHOLE, inventory))
    draining = {**served, uuid: replace(served[uuid], draining=True, draining_since_s=99.0)}
    return SLICED, snapshot(inventory, served=draining, unknown=frozenset([uuid]))


def unknown_holders_of_a_gpu_that_was_never_served(inventory: Inventory) -> tuple[str, Snapshot]:
    return HALVES, snapshot(inventory, unknown=frozenset([inventory.gpus[0].uuid]))


def unknown_holders_of_a_gpu_that_is_as_it_should_be(inventory: Inventory) -> tuple[str, Snapshot]:
    _, now = unknown_holders_of_a_gpu_that_was_never_served(inventory)
    return SLICED, replace(now, served=serving(desired_of(SLICED, inventory)))


def failed_once_and_as_it_should_be(inventory: Inventory) -> tuple[str, Snapshot]:
    return WHOLE, failed(inventory)[1]


@pytest.mark.parametrize(
    ("case", "phase", "reason", "steps", "ready"),
    [
        (settled, Phase.SETTLED, "", 0, 0),
        (waiting_for_a_pod, Phase.WAITING, "held", 0, 0),
        (waiting_for_a_process, Phase.WAITING, "python (pid 4711)", 0, 0),
        (withdrawing, Phase.WITHDRAWING, "withdrawn", 0, 0),
        (ready_for_a_layout, Phase.READY, "2 x 3g.40gb", 6, 1),
        (ready_for_a_daemon, Phase.READY, "start the MPS daemon", 2, 1),
        (changing, Phase.CHANGING, "being changed", 6, 0),
        (verifying, Phase.VERIFYING, "being changed", 6, 0),
        (failed, Phase.FAILED, "no", 6, 0),
        (blocked_by_a_lost_gpu, Phase.BLOCKED, "fell off the bus", 0, 0),
        (blocked_by_a_lost_gpu_that_is_not_to_change, Phase.BLOCKED, "fell off the bus", 0, 0),
        (blocked_by_a_fixed_slice, Phase.BLOCKED, "the driver says no", 0, 0),
        (unknown_daemons, Phase.UNKNOWN, "which MPS daemons run", 0, 0),
        (unknown_holders, Phase.UNKNOWN, "who holds", 0, 0),
        (unknown_holders_of_a_gpu_that_was_never_served, Phase.UNKNOWN, "who holds", 6, 0),
        (unknown_holders_of_a_gpu_that_is_as_it_should_be, Phase.SETTLED, "", 0, 0),
        (failed_once_and_as_it_should_be, Phase.SETTLED, "", 0, 0),
    ],
)
def test_phases(case, phase, reason, steps, ready) -> None:
    inventory = observe()
    text, now = case(inventory)
    plan = plan_node(desired_of(text, inventory), now, geometry_of)
    one = first(plan)
    assert (one.phase, len(one.steps), len(plan.ready)) == (phase, steps, ready)
    assert reason in one.reason
    assert (one.reason == "") is (phase is Phase.SETTLED)
    assert plan.settled is (phase is Phase.SETTLED)
    assert plan.gpus[inventory.gpus[1].uuid].phase is Phase.SETTLED, "the other GPU is not concerned"


def test_a_time_slice_that_is_as_it_should_be_needs_nothing() -> None:
    inventory = observe()
    first = inventory.gpus[0].uuid
    desired = desired_of(SHORT, inventory)
    kept = snapshot(
        inventory,
        slices={**_defaults(inventory), first: Interval.SHORT},
        served=serving(desired),
        original={first: OriginalSettings(interval=Interval.DEFAULT)},
    )
    assert plan_node(desired, kept, geometry_of).settled
    unknown = plan_node(desired, replace(kept, observed=replace(kept.observed, slices={})), geometry_of)
    assert first_of(unknown) == (Phase.UNKNOWN, "its time slice is not known yet")


def first_of(plan: NodePlan) -> tuple[Phase, str]:
    return first(plan).phase, first(plan).reason


def test_a_gpu_that_serves_nothing_and_is_held_is_not_known_as_what_was_given() -> None:
    inventory = observe()
    text, now = waiting_for_a_pod(inventory)
    known_as = "it is not known as what they were given"
    first_uuid = inventory.gpus[0].uuid
    offer = now.served[first_uuid].offer
    for served, known in (
        (None, True),
        (GpuServing(()), False),
        (GpuServing(offer), True),
        (GpuServing((), leaving=offer), True),
    ):
        rest = {gpu: serves for gpu, serves in now.served.items() if gpu != first_uuid}
        late = replace(now, served=rest if served is None else {**rest, first_uuid: served})
        plan = first(plan_node(desired_of(text, inventory), late, geometry_of))
        assert (plan.phase, known_as not in plan.reason) == (Phase.WAITING, known)


@pytest.mark.parametrize("held", [True, False])
def test_a_gpu_that_waits_or_is_withdrawn_says_what_is_to_be_done(held: bool) -> None:
    desired, now = with_mps(observe())
    inventory = now.observed.node.inventory
    holds = [entry(GPU, share_id(inventory.gpus[0].uuid))] if held else []
    now = snapshot(inventory, *holds, served=serving(desired_of(WHOLE, inventory)))
    plan = first(plan_node(desired, now, geometry_of))
    assert plan.phase is (Phase.WAITING if held else Phase.WITHDRAWING)
    assert "start the MPS daemon" in plan.reason


def test_a_share_that_only_the_checkpoint_names_is_waited_for_with_that_reason() -> None:
    inventory = observe()
    text, now = waiting_for_a_pod(inventory)
    held = replace(now.entries[0], certainty=Certainty.UNCONFIRMED)
    said = "the kubelet's checkpoint has holds that PodResources does not name now"
    assert (
        said
        in first(plan_node(desired_of(text, inventory), replace(now, entries=(held,)), geometry_of)).reason
    )
    assert said not in first(plan_node(desired_of(text, inventory), now, geometry_of)).reason


def test_a_failed_attempt_is_ready_again_when_its_time_has_come() -> None:
    inventory = observe()
    text, now = failed(inventory)
    plan = plan_node(desired_of(text, inventory), replace(now, now_s=130.0), geometry_of)
    assert (first(plan).phase, first(plan).again_s, len(plan.ready)) == (Phase.FAILED, 130.0, 1)
    in_hand = replace(now, in_hand={inventory.gpus[0].uuid: Phase.CHANGING})
    plan = plan_node(desired_of(text, inventory), in_hand, geometry_of)
    assert (first(plan).phase, first(plan).again_s) == (Phase.CHANGING, None)


def test_ids_are_withdrawn_before_a_gpu_is_ready_and_what_was_not_published_does_not_count() -> None:
    inventory = observe()
    desired, uuid = desired_of(HALVES, inventory), inventory.gpus[0].uuid
    now = snapshot(inventory, served=serving(desired_of(WHOLE, inventory)))
    plan = plan_node(desired, now, geometry_of)
    assert (first(plan).phase, plan.ready) == (Phase.WITHDRAWING, ())
    later = replace(now, served=plan.serving, now_s=now.now_s + 1.0)
    plan = plan_node(desired, later, geometry_of)
    assert plan.serving[uuid] == GpuServing(())
    assert plan.ready == (), "that nothing is served any more has still to be published"
    plan = plan_node(desired, replace(later, served=plan.serving), geometry_of)
    assert len(plan.ready) == 1
    busy = replace(
        later,
        served=plan.serving,
        held=held_of([entry(GPU, share_id(uuid))]),
        entries=(entry(GPU, share_id(uuid)),),
    )
    assert plan_node(desired, busy, geometry_of).ready == (), "an Allocate that was under way counts"


def test_without_a_policy_nothing_moves() -> None:
    inventory = observe()
    served = serving(desired_of(WHOLE, inventory))
    plan = Planner(geometry_of).plan(None, snapshot(inventory, served=served))
    assert (plan.gpus, plan.transactions, plan.serving) == ({}, (), served)


def test_without_a_driver_nothing_moves() -> None:
    inventory = observe()
    served = serving(desired_of(WHOLE, inventory))
    gone = replace(inventory, driver=NoDriver("driver-missing", "no driver"))
    plan = plan_node(desired_of(SLICED, inventory), snapshot(gone, served=served), geometry_of)
    assert (plan.gpus, plan.transactions, plan.serving) == ({}, (), served)


# --- every kind of step ----------------------------------------------------------------------------


def with_mps(inventory: Inventory, text: str = MPS) -> tuple[DesiredState, Snapshot]:
    """A node on which the policy's daemons run as they should."""
    gpu = replace(inventory.gpus[0], compute_mode=ComputeMode.EXCLUSIVE_PROCESS)
    inventory = replace(inventory, gpus=(gpu, *inventory.gpus[1:]))
    desired = desired_of(text, inventory)
    (spec,) = desired.settings[gpu.uuid].daemons
    daemon = DaemonState(gpu.uuid, gpu.uuid, DaemonPhase.SERVING, 7, (), spec.limits, multi_user=True)
    original = {gpu.uuid: OriginalSettings(ComputeMode.DEFAULT)}
    return desired, snapshot(inventory, daemons=(daemon,), original=original, served=serving(desired))


def test_mps_that_runs_as_it_should_needs_nothing() -> None:
    desired, now = with_mps(observe())
    assert plan_node(desired, now, geometry_of).settled


def test_back_to_exclusive_the_daemon_stops_and_the_mode_is_given_back() -> None:
    _, now = with_mps(observe())
    desired = desired_of(WHOLE, now.observed.node.inventory)
    plan = plan_node(desired, replace(now, served=serving(desired)), geometry_of)
    assert [type(step) for step in first(plan).steps] == [StopDaemon, SetComputeMode]
    assert first(plan).offer == (), "an exclusive GPU is offered when the daemon has stopped"


def test_a_daemon_that_nobody_wants_is_stopped_though_nothing_else_was_set() -> None:
    _, now = with_mps(observe())
    desired = desired_of(WHOLE, now.observed.node.inventory)
    plan = plan_node(desired, replace(now, served=serving(desired), original={}), geometry_of)
    assert [type(step) for step in first(plan).steps] == [StopDaemon]


def test_no_layout_is_begun_while_it_is_not_known_which_daemons_have_to_stop() -> None:
    inventory = observe()
    text, now = ready_for_a_layout(inventory)
    unknown = replace(now, observed=replace(now.observed, daemons=None))
    plan = plan_node(desired_of(text, inventory), unknown, geometry_of)
    assert (len(plan.transactions), plan.ready) == (1, ())


def test_a_daemon_that_died_is_started_under_its_holders() -> None:
    desired, now = with_mps(observe())
    (daemon,) = now.observed.daemons or ()
    dead = replace(now, observed=replace(now.observed, daemons=(replace(daemon, phase=DaemonPhase.DEAD),)))
    uuid = now.observed.node.inventory.gpus[0].uuid
    share = share_id(uuid, 0)
    held = replace(dead, held=held_of([entry("nvidia.com/gpu.shared", share)]))
    plan = plan_node(desired, held, geometry_of)
    assert [type(step) for step in plan.ready[0].steps] == [StartDaemon]
    assert first(plan).offer == desired.offer[uuid], "its shares stay listed"
    assert uuid in plan.unusable


def test_a_daemon_and_a_mode_that_a_reset_took_come_back_while_the_gpu_drains() -> None:
    """The mode was seen first: for a moment the daemon, which seemed to run, had to be stopped. A rule for
    new requests has changed, too, which touches no share that is held."""
    desired, now = with_mps(observe())
    gpu = now.observed.node.inventory.gpus[0]
    share = entry("nvidia.com/gpu.shared", share_id(gpu.uuid, 0))
    reset = replace(gpu, compute_mode=ComputeMode.DEFAULT)
    inventory = replace(now.observed.node.inventory, gpus=(reset, *now.observed.node.inventory.gpus[1:]))
    desired = desired_of(MPS, inventory)
    node = with_observed(None, inventory)
    (daemon,) = now.observed.daemons or ()
    dead = replace(daemon, phase=DaemonPhase.DEAD)
    before = tuple(replace(one, single=not one.single) for one in desired.offer[gpu.uuid])
    draining = GpuServing(before, draining=True, draining_since_s=0.0)
    late = replace(
        now,
        observed=replace(now.observed, node=node, daemons=(dead,)),
        served={**now.served, gpu.uuid: draining},
        held=held_of([share]),
        entries=(share,),
    )
    plan = plan_node(desired, late, geometry_of)
    assert [type(step) for step in plan.ready[0].steps] == [SetComputeMode, StartDaemon]
    assert plan.serving[gpu.uuid] == GpuServing(desired.offer[gpu.uuid])


def test_other_limits_wait_until_no_share_is_held() -> None:
    desired, now = with_mps(observe())
    (daemon,) = now.observed.daemons or ()
    other = replace(daemon, limits=ClientLimits(2**30, 10))
    wrong = replace(now, observed=replace(now.observed, daemons=(other,)))
    share = entry("nvidia.com/gpu.shared", ShareId(f"{daemon.gpu}::0"))
    plan = plan_node(desired, replace(wrong, held=held_of([share]), entries=(share,)), geometry_of)
    assert (first(plan).phase, first(plan).waiting_for, plan.ready) == (Phase.WAITING, (share,), ())
    assert "no share of it may be held" in first(plan).reason


def test_a_compute_mode_waits_until_no_share_is_held_and_a_daemon_alone_for_nothing() -> None:
    """Also where no agent says what is served."""
    desired, now = with_mps(observe())
    share = entry("nvidia.com/gpu.shared", share_id(now.observed.node.inventory.gpus[0].uuid, 0))
    alone = snapshot(now.observed.node.inventory, share)
    assert first(plan_node(desired, alone, geometry_of)).blocked is None
    plan = first(plan_node(desired_of(MPS, observe()), snapshot(observe(), share), geometry_of))
    assert plan.blocked is not None
    assert "no share of it may be held" in plan.reason


def test_a_time_slice_that_cannot_be_set_matters_only_where_one_is_wanted() -> None:
    desired, now = with_mps(observe())
    fixed = {now.observed.node.inventory.gpus[0].uuid: "the driver says no"}
    observed = replace(now.observed, slices={}, fixed_slices=fixed)
    assert plan_node(desired, replace(now, observed=observed), geometry_of).settled


def out_of_date(now: Snapshot, **why: object) -> Snapshot:
    (daemon,) = now.observed.daemons or ()
    old = replace(daemon, **why or {"outdated": True})
    return replace(now, observed=replace(now.observed, daemons=(old,)))


@pytest.mark.parametrize("why", [{"outdated": True}, {"changed_slots": ("slot0",)}])
def test_a_daemon_that_is_out_of_date_serves_until_nobody_holds_a_share_and_is_then_started_again(
    why: dict[str, object],
) -> None:
    desired, now = with_mps(observe())
    gpu = now.observed.node.inventory.gpus[0].uuid
    share = entry("nvidia.com/gpu.shared", share_id(gpu, 0))
    now, planner = out_of_date(now, **why), Planner(geometry_of)

    held = planner.plan(desired, replace(now, held=held_of([share]), entries=(share,)))
    assert held.settled, "nobody waits for its holders"
    assert held.serving[gpu] == GpuServing(desired.offer[gpu])

    free = planner.plan(desired, now)
    assert first(free).phase is Phase.WITHDRAWING, "a planner that remembers the node as settled looks again"
    assert free.ready == ()
    came = planner.plan(desired, replace(now, served=free.serving, held=held_of([share]), entries=(share,)))
    assert came.settled, "somebody was faster"
    assert came.serving[gpu] == GpuServing(desired.offer[gpu])

    empty = planner.plan(desired, replace(now, now_s=now.now_s + 2, served=free.serving))
    withdrawn = planner.plan(desired, replace(now, now_s=now.now_s + 2, served=empty.serving))
    assert [[type(step) for step in one.steps] for one in withdrawn.ready] == [[StopDaemon, StartDaemon]]


@pytest.mark.parametrize("why", ["it has clients", "only the agent knows who holds shares"])
def test_a_daemon_that_is_out_of_date_is_left_alone_where(why: str) -> None:
    desired, now = with_mps(observe())
    now = out_of_date(now)
    if why == "it has clients":
        (daemon,) = now.observed.daemons or ()
        busy = replace(daemon, servers=(MpsServer(8, clients=(ConnectedClient(4711),)),))
        now = replace(now, observed=replace(now.observed, daemons=(busy,)))
    else:
        now = replace(now, served={})
    assert plan_node(desired, now, geometry_of).settled


def test_a_planner_that_remembers_looks_again_when_a_process_has_ended() -> None:
    inventory, planner = observe(), Planner(geometry_of)
    text, busy = waiting_for_a_process(inventory)
    desired = desired_of(text, inventory)
    assert planner.plan(desired, busy).ready == ()
    assert planner.plan(desired, replace(busy, observed=replace(busy.observed, uses=()))).ready


def test_a_daemon_whose_limits_are_not_verified_waits_for_its_clients() -> None:
    """It is to be started again, which would end them."""
    desired, now = with_mps(observe())
    (daemon,) = now.observed.daemons or ()
    loose = replace(daemon, phase=DaemonPhase.STARTING)
    idle = replace(now, observed=replace(now.observed, daemons=(loose,)))
    assert plan_node(desired, idle, geometry_of).ready
    busy = replace(loose, servers=(MpsServer(8, clients=(ConnectedClient(4711),)),))
    plan = plan_node(desired, replace(now, observed=replace(now.observed, daemons=(busy,))), geometry_of)
    assert (first(plan).phase, plan.ready) == (Phase.WAITING, ())
    assert "client process (pid 4711)" in first(plan).reason
    assert "start the MPS daemon" in first(plan_node(desired, idle, geometry_of)).reason


def test_a_time_slice_is_set_at_once_and_given_back() -> None:
    inventory = observe()
    desired, uuid = desired_of(SHORT, inventory), inventory.gpus[0].uuid
    plan = plan_node(desired, snapshot(inventory, served=serving(desired)), geometry_of)
    assert plan.ready[0].steps == (SetTimeSlice(uuid, Interval.SHORT, Interval.DEFAULT),)
    back = snapshot(
        inventory, slices={uuid: Interval.SHORT}, original={uuid: OriginalSettings(None, Interval.DEFAULT)}
    )
    plan = plan_node(desired_of(WHOLE, inventory), back, geometry_of)
    assert plan.ready[0].steps == (SetTimeSlice(uuid, Interval.DEFAULT, Interval.SHORT),)


def test_a_layout_under_mps_announces_one_daemon_for_each_device_and_no_compute_mode() -> None:
    inventory = observe()
    plan = plan_node(desired_of(HALVES_MPS, inventory), snapshot(inventory), geometry_of)
    kinds = [type(step) for step in first(plan).steps]
    assert kinds.count(StartDaemonAt) == 2
    assert SetComputeMode not in kinds


def test_the_daemons_of_a_layout_are_planned_where_its_devices_are_made_and_for_those_that_stay() -> None:
    """One device stays where it is, so the other is not made where an empty GPU would have it."""
    hardware = SimulatedHardware(load_machine(HOPPER))
    gpu = asyncio.run(hardware.observe()).gpus[0]
    place = Placement(0, 4)
    asyncio.run(hardware.perform(SetMigMode(gpu.uuid, enabled=True)))
    asyncio.run(hardware.perform(CreateInstance(gpu.uuid, "3g.40gb", place)))
    asyncio.run(hardware.perform(CreateCompute(gpu.uuid, "3g.40gb", place, "3g.40gb")))
    inventory = asyncio.run(hardware.observe())
    (stays,) = inventory.gpus[0].mig_devices
    plan = plan_node(desired_of(HALVES_MPS, inventory), snapshot(inventory), geometry_of)
    (made,) = [step for step in first(plan).steps if isinstance(step, CreateCompute)]
    daemons = [step for step in first(plan).steps if isinstance(step, (StartDaemon, StartDaemonAt))]
    kept, new = daemons
    assert isinstance(kept, StartDaemon)
    assert isinstance(new, StartDaemonAt)
    assert (kept.spec.device, kept.spec.limits) == (stays.uuid, new.limits)
    assert (new.profile, new.placement) == (made.profile, made.placement) == ("3g.40gb", Placement(4, 4))


def test_shares_of_a_mig_device_whose_daemon_runs_are_ready_before_those_of_another() -> None:
    hardware = SimulatedHardware(load_machine(HOPPER))
    uuid = asyncio.run(hardware.observe()).gpus[0].uuid
    asyncio.run(hardware.perform(SetMigMode(uuid, enabled=True)))
    for place in (Placement(0, 4), Placement(4, 4)):
        asyncio.run(hardware.perform(CreateInstance(uuid, "3g.40gb", place)))
        asyncio.run(hardware.perform(CreateCompute(uuid, "3g.40gb", place, "3g.40gb")))
    inventory = asyncio.run(hardware.observe())
    desired = desired_of(HALVES_MPS, inventory)
    runs, starts = desired.settings[uuid].daemons
    daemon = DaemonState(uuid, runs.device, DaemonPhase.SERVING, 7, (), runs.limits, multi_user=True)
    plan = plan_node(desired, snapshot(inventory, daemons=(daemon,)), geometry_of)
    assert [step.spec for step in first(plan).steps if isinstance(step, StartDaemon)] == [starts]
    assert {row.device for row in first(plan).offer} == {runs.device}


def test_all_gpus_of_a_shared_reset_wait_for_one_of_them() -> None:
    """An A100 board without the fabric manager: one card's MIG mode takes a reset of all."""
    machine = load_machine("4xa100-sxm4-40gb")
    inventory = replace(asyncio.run(SimulatedHardware(machine).observe()), fabric_manager=False)
    desired = desired_of(
        "version: partage/v1\ngpus: [{select: {index: 0}, mig: {layout: [1g.5gb]}}]\n", inventory
    )
    pod = entry(GPU, share_id(inventory.gpus[3].uuid))
    waits = plan_node(desired, snapshot(inventory, pod), geometry_of)
    assert first(waits).phase is Phase.WAITING
    assert all(waits.gpus[gpu.uuid].offer for gpu in inventory.gpus[1:]), "nothing lies idle meanwhile"
    free = plan_node(desired, snapshot(inventory), geometry_of)
    (transaction,) = free.ready
    assert any(isinstance(step, Reset) for step in transaction.steps)
    assert not any(plan.offer for plan in free.gpus.values())
    assert "reset together" in free.gpus[inventory.gpus[1].uuid].reason


# --- any layout, any holders -------------------------------------------------------------------------

LAYOUTS = [
    "[7g.80gb]",
    "[3g.40gb, 3g.40gb]",
    "[3g.40gb, 2g.20gb, 1g.10gb, 1g.10gb]",
    "[2g.20gb, 2g.20gb, 2g.20gb]",
    "[1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb]",
    "all-disabled",
    "[1c.3g.40gb, 2c.3g.40gb]",
]


def layout(text: str) -> str:
    return f"version: partage/v1\ngpus: [{{select: {{index: 0}}, mig: {{layout: {text}}}}}]\n"


async def carry_out(hardware: SimulatedHardware, text: str, *entries: LedgerEntry) -> NodePlan:
    """Everything that is ready; the plan afterwards."""
    for _ in range(4):
        inventory = await hardware.observe()
        plan = plan_node(desired_of(text, inventory), snapshot(inventory, *entries), geometry_of)
        for transaction in plan.ready:
            for step in transaction.steps:
                await hardware.perform(step)
    return plan


@given(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS), st.integers(0, 2**30))
@settings(deadline=None)
def test_what_is_offered_meanwhile_stays_and_what_is_held_is_never_destroyed(
    before: str, after: str, seed: int
) -> None:
    async def scenario() -> None:
        hardware = SimulatedHardware(load_machine(HOPPER))
        assert (await carry_out(hardware, layout(before))).settled
        inventory = await hardware.observe()
        gpu, other = inventory.gpus
        rng = random.Random(seed)
        busy = [one for one in gpu.mig_devices if rng.random() < 0.4]
        now_desired = desired_of(layout(before), inventory)
        resource = {one.device: one.resource for one in now_desired.offer[gpu.uuid]}
        entries = tuple(entry(resource[one.uuid], share_id(one.uuid)) for one in busy)
        now = snapshot(inventory, *entries, served=serving(now_desired))
        plan = plan_node(desired_of(layout(after), inventory), now, geometry_of)
        assert plan.gpus[other.uuid].offer, "the other GPU is offered all the time"
        destroyed = {step.uuid for step in plan.gpus[gpu.uuid].steps if isinstance(step, DestroyCompute)}
        assert destroyed.isdisjoint(one.uuid for one in busy)
        meanwhile = {one.device for one in plan.gpus[gpu.uuid].offer}
        assert meanwhile <= {gpu.uuid} | {one.uuid for one in gpu.mig_devices} - destroyed
        last = await carry_out(hardware, layout(after), *entries)
        there = {one.uuid for one in (await hardware.observe()).gpus[0].mig_devices}
        assert {one.uuid for one in busy} <= there
        if not busy:
            assert last.settled

    asyncio.run(scenario())


@given(st.data())
@settings(deadline=None, max_examples=examples(30))
def test_what_a_planner_remembers_never_changes_its_answer(data) -> None:
    inventory = observe()
    texts = [WHOLE, SLICED, SHORT, MPS, HALVES, HALVES_MPS]
    resolved = [desired_of(text, inventory) for text in texts]
    planner = Planner(geometry_of)
    served = serving(resolved[0])
    for _ in range(data.draw(st.integers(2, 6))):
        desired = data.draw(st.sampled_from(resolved))
        entries = data.draw(
            st.lists(
                st.sampled_from([entry(GPU, share_id(gpu.uuid)) for gpu in inventory]),
                unique=True,
                max_size=2,
            )
        )
        uses = data.draw(
            st.sampled_from([(), (GpuUse(inventory.gpus[0].uuid, UseKind.PROCESS, "python", 4711),)])
        )
        now = snapshot(inventory, *entries, uses=uses, served=served)
        plan = planner.plan(desired, now)
        assert plan == Planner(geometry_of).plan(desired, now)
        served = dict(plan.serving)
