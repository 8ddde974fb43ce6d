"""One pass as a function: whole states in, whole states out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.model.geometry import Placement
from partage.model.gpu import PAUSED, ComputeMode, Gpu, Inventory, LostGpu, MigDevice, MigMode, NoDriver
from partage.model.health import GpuCondition, HealthState, Xid
from partage.model.ids import GpuUuid, MigUuid, ResourceName, ShareId, share_id
from partage.model.mps import DaemonPhase, DaemonState
from partage.model.policy import Policy
from partage.model.share import DeviceRow
from partage.model.step import StartDaemon
from partage.plan.gpu_health import HealthNews
from partage.plan.offer.desired import DesiredState, existing_offer, resolve, with_driver_root
from partage.plan.reconcile.known_node import GONE, KnownNode, with_observed
from partage.plan.reconcile.node_plan import Observed, Snapshot
from partage.plan.reconcile.planner import Planner
from partage.plan.report import gpu_reports
from partage.plan.serve.kubelet_view import EMPTY_VIEW, KubeletView
from partage.plan.serve.ledger import Ledger
from partage.plan.turn import NodeState, TurnInput, TurnResult, after_restart, turn
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware

GPU = ResourceName("nvidia.com/gpu")
SHARED = ResourceName("nvidia.com/gpu.shared")
WITHDRAW_S = 1.0
MIG = MigUuid("MIG-1")
FEW = "4xa100-sxm4-40gb"
EXCLUSIVE = "version: partage/v1\ngpus: []\n"
SHARED_ONES = "version: partage/v1\ngpus:\n  - {select: {index: [0, 1]}, time-slicing: {replicas: 2}}\n"


def observed(machine: str = FEW) -> Inventory:
    return asyncio.run(SimulatedHardware(load_machine(machine)).observe())


def policy(text: str) -> Policy:
    return parse_policy(text, "policy.yaml").policy


def desired(text: str, inventory: Inventory) -> DesiredState:
    return resolve(policy(text), inventory, geometry_of)


class Turning:
    """Turns one after the other, as the loop does. ``turn`` takes fields of TurnInput and of its Snapshot."""

    def __init__(self, text: str = EXCLUSIVE, inventory: Inventory | None = None) -> None:
        self.inventory = inventory or observed()
        self.node = with_observed(None, self.inventory)
        self.desired = desired(text, self.inventory)
        self.ledger = Ledger()
        self.state = NodeState()
        self.view: KubeletView = EMPTY_VIEW
        self.now_s = 100.0
        self.planner = Planner(geometry_of, WITHDRAW_S)

    def turn(self, holders_known: bool = True, **seen: object) -> TurnResult:
        of_snapshot = {name: seen.pop(name) for name in [*seen] if name in Snapshot.__struct_fields__}
        news = {name: seen.pop(name) for name in [*seen] if name in HealthNews.__struct_fields__}
        snapshot = Snapshot(
            now_s=self.now_s,
            observed=Observed(self.node, daemons=(), slices={}),
            served=self.state.serving,
            held=self.ledger.held(),
            entries=self.ledger.entries(),
            unknown=frozenset() if holders_known else self.state.restored,
        )
        snapshot = replace(snapshot, **of_snapshot)
        values = TurnInput(
            snapshot, self.desired, replace(HealthNews(), **news), held_version=self.ledger.version
        )
        done = turn(replace(values, **seen), self.state, self.view, self.planner)
        self.state, self.view = done.state, done.view
        return done

    def healthy(self, name: ResourceName = GPU) -> list[bool]:
        return [row.healthy for row in self.view.by_resource.get(name, ())]


def test_a_node_that_nobody_served_starts_with_what_is_wanted() -> None:
    node = Turning(SHARED_ONES)
    node.turn()
    assert {name: len(rows) for name, rows in node.view.by_resource.items()} == {SHARED: 4, GPU: 2}


def test_a_turn_in_which_nothing_happened_keeps_the_very_rows() -> None:
    node = Turning(SHARED_ONES)
    first = node.turn().view
    node.now_s += 60
    assert node.turn().view is first


def test_a_gpu_changes_when_its_last_share_is_given_back_and_settled() -> None:
    node = Turning()
    node.turn()
    uuid = node.inventory.gpus[0].uuid
    share = share_id(uuid)
    node.ledger.allocated(GPU, [share], node.now_s)
    node.desired = desired(SHARED_ONES, node.inventory)
    done = node.turn()
    assert [entry.id for entry in done.plan.waiting[uuid]] == [share]
    assert node.view.by_resource[GPU][0].id == share
    node.ledger.offered_as_free(GPU, [share], node.now_s)
    done = node.turn()
    assert done.plan.due_s == node.now_s + WITHDRAW_S
    assert SHARED not in node.view.by_resource or len(node.view.by_resource[SHARED]) < 4
    node.now_s += WITHDRAW_S
    node.turn()
    assert len(node.view.by_resource[SHARED]) == 4


def test_an_id_that_was_just_withdrawn_stays_listed_as_unhealthy_for_a_moment() -> None:
    node = Turning()
    node.turn()
    node.desired = desired(SHARED_ONES, node.inventory)
    node.turn()
    share = share_id(node.inventory.gpus[1].uuid)
    assert DeviceRow(share, healthy=False, numa_node=0) in node.view.by_resource[GPU]
    node.now_s += WITHDRAW_S
    node.turn(answered_s=node.now_s)
    assert share not in {row.id for row in node.view.by_resource[GPU]}


def test_restored_gpus_do_not_move_before_it_is_known_who_holds_them() -> None:
    node = Turning()
    node.turn()
    node.state = after_restart(node.state)
    node.desired = desired(SHARED_ONES, node.inventory)
    for _ in range(3):
        node.turn(holders_known=False)
        node.now_s += 2 * WITHDRAW_S
    assert SHARED not in node.view.by_resource
    node.turn()
    node.now_s += WITHDRAW_S
    node.turn()
    assert len(node.view.by_resource[SHARED]) == 4


def test_an_xid_of_one_gpu_takes_it_away_and_one_of_nobody_makes_all_suspect() -> None:
    node = Turning()
    node.turn()
    uuids = [gpu.uuid for gpu in node.inventory]
    node.turn(xids=(Xid(uuids[2], 79),))
    assert node.healthy() == [True, True, False, True]
    node.turn(xids=(Xid(None, 79),))
    assert node.healthy() == [True, True, False, True]
    states = [node.state.health[uuid].status().state for uuid in uuids]
    assert states == [HealthState.SUSPECT, HealthState.SUSPECT, HealthState.UNHEALTHY, HealthState.SUSPECT]


@pytest.mark.parametrize("gi", [None, 0])
def test_without_mig_mode_an_xid_is_one_of_the_whole_gpu_whatever_instance_it_names(gi: int | None) -> None:
    node = Turning()
    node.turn()
    uuid = node.inventory.gpus[2].uuid
    node.turn(xids=(Xid(uuid, 79, gi, gi),))
    assert node.healthy() == [True, True, False, True]
    assert not node.state.health[uuid].instances


def test_in_mig_mode_an_xid_is_one_of_the_instance_that_it_names() -> None:
    plain = observed()
    device = MigDevice(MIG, 0, 0, 0, "7g.40gb", Placement(0, 8), 40 << 30)
    first = replace(plain.gpus[0], mig_mode=MigMode(True, True), mig_devices=(device,))
    node = Turning(inventory=replace(plain, gpus=(first, *plain.gpus[1:])))
    node.turn()
    node.turn(xids=(Xid(first.uuid, 48, 0, 0),))
    health = node.state.health[first.uuid]
    assert (health.offered(), health.offered(gi_id=0)) == (True, False)


def test_silence_takes_no_gpu_away() -> None:
    node = Turning()
    node.turn()
    node.turn(silent="the helper is away")
    assert node.healthy() == [True] * 4
    assert {health.status().state for health in node.state.health.values()} == {HealthState.SUSPECT}


def test_a_gpu_is_gone_only_when_the_node_was_looked_at() -> None:
    node = Turning()
    node.turn()
    gone = node.inventory.gpus[0].uuid
    unlisted(node)
    node.turn()
    assert node.state.health[gone].status().state is HealthState.HEALTHY
    node.turn(fresh=True)
    assert node.state.health[gone].status().state is HealthState.UNHEALTHY


def test_no_share_can_be_used_while_containers_would_not_have_the_drivers_libraries() -> None:
    node = Turning()
    node.turn(bare="no libraries")
    assert node.healthy() == [False] * 4


@pytest.mark.parametrize(("kind", "usable"), [(PAUSED, False), ("driver-missing", True)])
def test_while_the_driver_is_paused_no_share_can_be_used(kind: str, usable: bool) -> None:
    """One that only does not answer may be back in a moment."""
    node = Turning()
    node.turn()
    away = replace(node.inventory, driver=NoDriver(kind, "the operator exchanges it"))
    node.node = replace(node.node, inventory=away)
    node.turn()
    assert node.healthy() == [usable] * 4


def test_under_mig_strategy_none_a_gpu_in_mig_mode_is_healthy_as_a_whole() -> None:
    plain = observed()
    divided = replace(plain.gpus[0], mig_mode=MigMode(True, True))
    node = Turning(
        f"{EXCLUSIVE}resources: {{mig-strategy: none}}\n", replace(plain, gpus=(divided, *plain.gpus[1:]))
    )
    node.turn()
    assert node.healthy() == [True] * 4


def test_a_lost_gpu_keeps_its_rows_as_unhealthy() -> None:
    node = Turning()
    node.turn()
    gone = node.inventory.gpus[1]
    without = replace(
        node.inventory,
        gpus=tuple(gpu for gpu in node.inventory if gpu != gone),
        lost=(LostGpu(1, None, gone.pci_bus_id, "GPU is lost"),),
    )
    node.node = with_observed(node.node, without)
    node.desired = desired(EXCLUSIVE, node.node.inventory)
    node.turn(fresh=True)
    assert node.healthy() == [True, False, True, True]


def test_a_gpu_that_the_driver_no_longer_lists_keeps_its_rows_as_unhealthy() -> None:
    """After a driver reload NVML may count without it, and its index goes to the next GPU."""
    node = Turning(SHARED_ONES)
    node.turn()
    gone, *others = node.inventory.gpus
    moved = tuple(replace(gpu, index=index) for index, gpu in enumerate(others))
    node.node = with_observed(node.node, replace(node.inventory, gpus=moved))
    node.desired = desired(SHARED_ONES, node.node.inventory)
    node.turn(fresh=True)
    shares = {row.id: row.healthy for row in node.view.by_resource[SHARED]}
    assert shares[ShareId(f"{gone.uuid}::0")] is False
    assert node.state.health[gone.uuid].status().state is HealthState.UNHEALTHY


# --- GPUs that have left the node ------------------------------------------------------------------


def other_card(gpu: Gpu) -> Gpu:
    """Another card in its place."""
    return replace(gpu, uuid=gpu.uuid.replace("GPU-", "GPU-f"))


def moved(node: Turning) -> bool:
    """The virtual machine was stopped, and started on another host: another boot, all cards are others."""
    node.node = with_observed(
        None, replace(node.inventory, gpus=tuple(map(other_card, node.inventory)), boot_id="2")
    )
    return True


def replaced(node: Turning) -> bool:
    """The first card was replaced while the agent ran. Its index went to another GPU."""
    gone, *others = node.inventory.gpus
    gpus = (
        *(replace(gpu, index=index) for index, gpu in enumerate(others)),
        replace(other_card(gone), index=3),
    )
    node.node = with_observed(node.node, replace(node.inventory, gpus=gpus))
    return False


def replaced_in_place(node: Turning) -> bool:
    gone, *others = node.inventory.gpus
    gpus = (replace(other_card(gone), index=9), *others)
    node.node = with_observed(node.node, replace(node.inventory, gpus=gpus))
    return False


def unlisted(node: Turning) -> bool:
    """The driver lists one GPU less, in the same boot: it may be listed again."""
    node.node = with_observed(node.node, replace(node.inventory, gpus=node.inventory.gpus[1:]))
    return False


def lost_at_its_address(node: Turning) -> bool:
    gone, *others = node.inventory.gpus
    lost = LostGpu(gone.index, None, gone.pci_bus_id, "GPU is lost")
    node.node = with_observed(node.node, replace(node.inventory, gpus=tuple(others), lost=(lost,)))
    return False


def missing_after_a_boot(node: Turning) -> bool:
    gpus = node.inventory.gpus[1:]
    node.node = with_observed(node.node, replace(node.inventory, gpus=gpus, boot_id="2"))
    return True


def no_driver_after_a_boot(node: Turning) -> bool:
    node.node = with_observed(None, Inventory(NoDriver("driver-missing", "no driver"), boot_id="2"))
    return True


@pytest.mark.parametrize(
    ("happens", "listed", "while_held"),
    [
        (moved, 4, 5),
        (replaced, 4, 5),
        (replaced_in_place, 4, 5),
        (missing_after_a_boot, 3, 4),
        (unlisted, 4, 4),
        (lost_at_its_address, 4, 4),
        (no_driver_after_a_boot, 4, 4),
    ],
)
def test_gpus_that_left_the_node_are_dropped_once_nobody_holds_them(
    happens: Callable[[Turning], bool], listed: int, while_held: int
) -> None:
    node = Turning(inventory=replace(observed(), boot_id="1"))
    node.turn()
    first = node.inventory.gpus[0].uuid
    share = ShareId(first)
    node.ledger.allocated(GPU, [share], node.now_s)
    booted = happens(node)
    if not isinstance(node.node.inventory.driver, NoDriver):
        node.desired = desired(EXCLUSIVE, node.node.inventory)
    node.state = after_restart(node.state)
    node.turn(holders_known=False, fresh=True, booted=booted)
    node.now_s += 2 * WITHDRAW_S
    node.turn(holders_known=False)
    assert first in node.state.serving, "who holds it is not known yet"
    for _ in range(2):
        node.turn()
        node.now_s += WITHDRAW_S
    done = node.turn(answered_s=node.now_s)
    assert len(node.view.by_resource[GPU]) == while_held
    assert share in {row.id for row in node.view.by_resource[GPU]}
    node.ledger.offered_as_free(GPU, [share], node.now_s)
    node.turn()
    node.now_s += WITHDRAW_S
    done = node.turn(answered_s=node.now_s)
    assert len(node.view.by_resource[GPU]) == listed
    reports = gpu_reports(Snapshot(0.0, Observed(node.node)), done, node.desired, ())
    assert len(reports) == len(node.state.health) == listed


def test_a_gpu_that_comes_late_after_a_boot_is_offered_again() -> None:
    node = Turning(inventory=replace(observed(), boot_id="1"))
    node.turn()
    node.turn(fresh=True, booted=missing_after_a_boot(node))
    node.node = with_observed(node.node, replace(node.inventory, boot_id="2"))
    node.desired = desired(EXCLUSIVE, node.node.inventory)
    node.turn(fresh=True)
    node.now_s += 2 * WITHDRAW_S
    node.turn()
    assert len(node.view.by_resource[GPU]) == 4
    assert not node.state.absent


# --- recognising GPUs --------------------------------------------------------------------------


@pytest.mark.parametrize("known_by", ["uuid", "pci", "index"])
def test_a_lost_gpu_is_recognised_by_whatever_can_still_be_read(known_by: str) -> None:
    inventory = observed()
    gone = inventory.gpus[2]
    lost = LostGpu(
        index=gone.index,
        uuid=gone.uuid if known_by == "uuid" else None,
        pci_bus_id=gone.pci_bus_id if known_by == "pci" else None,
        reason="GPU is lost",
    )
    now = replace(inventory, gpus=tuple(gpu for gpu in inventory if gpu != gone), lost=(lost,))
    node = with_observed(with_observed(None, inventory), now)
    assert node.lost == {gone.uuid: "GPU is lost"}
    assert node.inventory.gpus == inventory.gpus
    assert node.inventory.lost == ()


def test_a_lost_gpu_that_was_never_seen_stays_a_stranger() -> None:
    inventory = replace(observed(), lost=(LostGpu(9, GpuUuid("GPU-x"), None, "GPU is lost"),))
    node = with_observed(None, inventory)
    assert node.lost == {}
    assert node.inventory.lost == inventory.lost


def test_a_gpu_that_is_no_longer_listed_is_lost_where_its_place_is_free() -> None:
    inventory = observed()
    last = inventory.gpus[-1]
    node = with_observed(with_observed(None, inventory), replace(inventory, gpus=inventory.gpus[:-1]))
    assert node.lost == {last.uuid: GONE}
    assert node.inventory.gpus == inventory.gpus


def test_without_a_driver_the_node_is_what_it_was() -> None:
    inventory = observed()
    before = with_observed(None, inventory)
    node = with_observed(before, Inventory(NoDriver("driver-missing", "no driver")))
    assert node.inventory.gpus == inventory.gpus
    assert isinstance(node.inventory.driver, NoDriver)
    assert with_observed(node, inventory) == before


def test_a_node_without_a_driver_from_the_start_has_no_gpus() -> None:
    node = with_observed(None, Inventory(NoDriver("driver-missing", "no driver")))
    assert node == KnownNode(Inventory(NoDriver("driver-missing", "no driver")))


def test_a_condition_of_a_lost_gpu_alone_makes_it_unhealthy() -> None:
    node = Turning()
    node.turn()
    uuid = node.inventory.gpus[0].uuid
    node.turn(conditions=(GpuCondition(uuid, lost="GPU is lost"),))
    assert node.healthy() == [False, True, True, True]


# --- laying a policy over the node ---------------------------------------------------------------


def test_shares_whose_daemon_takes_no_clients_are_unhealthy_until_it_does() -> None:
    policy_text = "version: partage/v1\ngpus:\n  - {select: {index: [0]}, mps: {replicas: 2}}\n"
    plain = observed()
    first = replace(plain.gpus[0], compute_mode=ComputeMode.EXCLUSIVE_PROCESS)
    node = Turning(policy_text, replace(plain, gpus=(first, *plain.gpus[1:])))
    (spec,) = node.desired.settings[first.uuid].daemons
    serving = DaemonState(
        first.uuid, first.uuid, DaemonPhase.SERVING, 7, (), spec.limits, multi_user=bool(spec.multi_user)
    )
    well, dead = (Observed(node.node, (one,)) for one in (serving, replace(serving, phase=DaemonPhase.DEAD)))
    node.turn(observed=well)
    assert node.healthy(SHARED) == [True, True]
    done = node.turn(observed=dead)
    assert node.healthy(SHARED) == [False, False], "they stay listed, and its daemon is started under them"
    assert [type(step) for step in done.plan.ready[0].steps] == [StartDaemon]
    node.turn(observed=well)
    assert node.healthy(SHARED) == [True, True]


@pytest.mark.parametrize("shared", [EXCLUSIVE, SHARED_ONES])
def test_a_mig_device_without_its_device_file_is_unhealthy_until_it_is_there(shared: str) -> None:
    plain = observed()
    device = MigDevice(MIG, 0, 0, 0, "7g.40gb", Placement(0, 8), 40 << 30, 3, 4)
    first = replace(plain.gpus[2], mig_mode=MigMode(True, True), mig_devices=(device,))
    node = Turning(shared, replace(plain, gpus=(*plain.gpus[:2], first, plain.gpus[3])))
    mig = ResourceName("nvidia.com/mig-7g.40gb")
    node.turn()
    assert node.healthy(mig) == [True]
    missing = replace(first, mig_devices=(replace(device, missing_file="/dev/nvidia-caps/nvidia-cap3"),))
    without = replace(plain, gpus=(*plain.gpus[:2], missing, plain.gpus[3]))
    node.node, node.desired = with_observed(node.node, without), desired(shared, without)
    done = node.turn(fresh=True)
    assert node.healthy(mig) == [False]
    assert "nvidia-cap3 does not exist" in done.plan.unusable[MIG]


def test_every_known_gpu_has_a_report_with_what_is_held_of_it() -> None:
    node = Turning()
    first, second = (gpu.uuid for gpu in node.inventory.gpus[:2])
    node.ledger.allocated(GPU, [share_id(first), ShareId("GPU-of-another-node")], node.now_s)
    done = node.turn(holders_known=False)
    seen = Snapshot(0.0, Observed(node.node), cordoned=frozenset([second]))
    reports = gpu_reports(seen, done, node.desired, node.ledger.entries())
    assert [(report.held, report.cordoned) for report in reports[:3]] == [(1, False), (0, True), (0, False)]
    nothing = replace(done, state=replace(done.state, serving={}))
    assert len(gpu_reports(seen, nothing, node.desired, ())) == 4


def test_a_layout_that_is_not_live_is_offered_by_none_and_named_as_pending() -> None:
    inventory = observed()
    text = "version: partage/v1\ngpus:\n  - {select: {index: [0]}, mig: {layout: [3g.20gb, 3g.20gb]}}\n"
    found = desired(text, inventory)
    assert existing_offer(found.offer)[inventory.gpus[0].uuid] == ()
    assert found.pending[inventory.gpus[0].uuid]


def test_the_command_lines_driver_root_overrules_the_files_and_takes_the_device_root_along() -> None:
    plain = policy(EXCLUSIVE)
    moved = with_driver_root(plain, "/run/nvidia/driver")
    assert (moved.options.driver_root, moved.options.dev_root) == ("/run/nvidia/driver",) * 2
    parted = replace(plain, options=replace(plain.options, dev_root="/host"))
    assert with_driver_root(parted, "/run/nvidia/driver").options.dev_root == "/host"
    assert with_driver_root(plain, None) is plain
