"""What each fault changes on a simulated node."""

import pytest

from partage.errors import DriverUnavailable, GpuLost, HardwareTimeout, InputError
from partage.model.gpu import Driver, NoDriver, RecoveryAction
from partage.model.health import GpuCondition, Xid
from partage.model.ids import GpuUuid
from partage.model.layout import LayoutItem
from partage.sim.node.faults import (
    XID_CONSEQUENCES,
    DriverGone,
    DriverLoaded,
    FailCall,
    GpuReturns,
    HangCall,
    HealCall,
    LoseCapabilityFiles,
    LoseGpu,
    RaiseXid,
    Reboot,
    ResetGpu,
    SetCondition,
    SetMig,
    TimedFault,
)
from partage.sim.node.files.machine_file import read_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.sim.node.machine import Machine
from partage.sim.node.machine_names import parse_machine

BALANCED = tuple(LayoutItem.parse(name) for name in ("3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"))


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def node(name="4xh100-sxm5-80gb", faults=(), **options):
    return SimulatedHardware(Machine(name, parse_machine(name).inventory, tuple(faults)), **options)


async def condition(hardware, gpu):
    inventory = parse_machine("4xh100-sxm5-80gb").inventory
    uuid = inventory.gpus[gpu].uuid
    return next(row for row in await hardware.conditions() if row.gpu == uuid)


async def gpu(hardware, index):
    return next(gpu for gpu in await hardware.observe() if gpu.index == index)


# --- loss --------------------------------------------------------------------------------------


async def test_a_lost_gpu_leaves_the_others_and_their_links_alone():
    hardware = node()
    before = await hardware.observe()
    await hardware.inject(LoseGpu(1, "fell off the bus"))
    after = await hardware.observe()
    assert [gpu.index for gpu in after] == [0, 2, 3]
    assert [(lost.index, lost.uuid, lost.reason) for lost in after.lost] == [
        (1, before.gpus[1].uuid, "fell off the bus")
    ]
    assert len(after.links) == 3
    assert (await condition(hardware, 1)).lost == "fell off the bus"
    assert (await condition(hardware, 0)).lost is None


async def test_a_lost_gpu_may_not_even_have_a_name_any_more():
    hardware = node()
    await hardware.inject(LoseGpu(1, nameless=True))
    (lost,) = (await hardware.observe()).lost
    assert (lost.index, lost.uuid, lost.pci_bus_id) == (1, None, None)
    assert len(await hardware.conditions()) == 3


async def test_a_gpu_that_was_lost_when_the_machine_was_switched_on_is_spoken_of():
    machine = read_machine(b"gpus: [{name: t4, index: 1}]\nlost: [{index: 0, uuid: GPU-gone}]", "m.yaml")
    hardware = SimulatedHardware(machine)
    gone, here = await hardware.conditions()
    assert gone == GpuCondition(GpuUuid("GPU-gone"), lost="GPU is lost")
    assert here.lost is None
    with pytest.raises(InputError, match="no GPU 0"):
        await hardware.inject(GpuReturns(0))


async def test_a_gpu_that_returns_is_the_one_that_went():
    hardware = node()
    before = await hardware.observe()
    await hardware.inject(LoseGpu(2))
    await hardware.inject(GpuReturns(2))
    assert await hardware.observe() == before
    assert (await condition(hardware, 2)).resets == 0


async def test_the_loss_of_a_gpu_is_not_an_event_of_itself():
    """No driver tells of it; it has to be asked."""
    hardware = node()
    await hardware.inject(LoseGpu(2))
    events = await hardware.events(0)
    assert (events.xids, events.changed) == ((), False)


# --- XIDs and ailments -------------------------------------------------------------------------


async def test_an_xid_is_delivered_once():
    hardware = node()
    uuid = (await gpu(hardware, 2)).uuid
    await hardware.inject(RaiseXid(2, 43))
    await hardware.inject(RaiseXid(None, 43))
    assert (await hardware.events(0)).xids == (Xid(uuid, 43, resets=0), Xid(None, 43))
    assert (await hardware.events(0)).xids == ()


async def test_without_mig_mode_an_xid_may_name_instance_0():
    hardware = node()
    await hardware.inject(RaiseXid(2, 43, gi=0, ci=0))
    uuid = (await gpu(hardware, 2)).uuid
    assert (await hardware.events(0)).xids == (Xid(uuid, 43, 0, 0, resets=0),)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (43, {"recovery": RecoveryAction.NONE}),
        (48, {"recovery": RecoveryAction.GPU_RESET}),
        (63, {"rows_pending": True}),
        (64, {"rows_failed": True}),
        (95, {"recovery": RecoveryAction.GPU_RESET}),
    ],
)
async def test_the_driver_says_what_an_xid_asks_for(code, expected):
    hardware = node()
    await hardware.inject(RaiseXid(2, code))
    said = await condition(hardware, 2)
    assert {word: getattr(said, word) for word in expected} == expected


async def test_xid_79_is_the_loss_of_the_gpu():
    hardware = node()
    await hardware.inject(RaiseXid(0, 79))
    assert [lost.index for lost in (await hardware.observe()).lost] == [0]


async def test_what_a_gpu_needs_stands_in_the_inventory_too():
    hardware = node()
    await hardware.inject(SetCondition(0, recovery=RecoveryAction.DRAIN_AND_RESET, fabric_ok=False))
    assert (await gpu(hardware, 0)).recovery is RecoveryAction.DRAIN_AND_RESET
    assert (await condition(hardware, 0)).fabric_ok is False


async def test_the_device_files_of_mig_devices_can_be_missing():
    hardware = node()
    await hardware.inject(SetMig(1, BALANCED))
    await hardware.inject(LoseCapabilityFiles(1))
    assert [one.missing_file for one in (await gpu(hardware, 1)).mig_devices] == [
        one.capability_files[0] for one in (await gpu(hardware, 1)).mig_devices
    ]
    await hardware.inject(LoseCapabilityFiles(1, missing=False))
    assert {one.missing_file for one in (await gpu(hardware, 1)).mig_devices} == {""}


async def test_a_gpu_on_nvswitches_joins_their_fabric_except_in_mig_mode():
    hardware = node()
    assert (await condition(hardware, 0)).fabric_ok is True
    await hardware.inject(SetMig(0, BALANCED))
    said = await condition(hardware, 0)
    assert (said.fabric_ok, said.mig_mode) == (False, True)
    await hardware.inject(SetMig(0, None))
    assert (await condition(hardware, 0)).fabric_ok is True


@pytest.mark.parametrize("name", ["4xa100-sxm4-80gb", "4xl40s", "1xh100-sxm5-80gb"])
async def test_other_gpus_join_no_fabric(name: str):
    assert {row.fabric_ok for row in await node(name).conditions()} == {None}


async def test_a_reset_heals_the_gpu_counts_and_takes_its_mig_devices_along():
    hardware = node()
    await hardware.inject(SetMig(1, BALANCED))
    await hardware.inject(RaiseXid(1, 63))
    await hardware.inject(LoseGpu(1))
    await hardware.inject(ResetGpu(1))
    healed = await gpu(hardware, 1)
    assert healed.mig_enabled
    assert healed.mig_devices == ()
    assert await condition(hardware, 1) == GpuCondition(
        healed.uuid, recovery=RecoveryAction.NONE, fabric_ok=False, mig_mode=True, resets=1
    )
    assert (await condition(hardware, 0)).resets == 0


async def test_rows_that_could_not_be_remapped_stay_so():
    hardware = node()
    await hardware.inject(RaiseXid(1, 64))
    await hardware.inject(ResetGpu(1))
    assert (await condition(hardware, 1)).rows_failed


# --- MIG, reboot, driver -----------------------------------------------------------------------


async def test_a_layout_made_by_hand_is_seen_and_told_of():
    hardware = node()
    await hardware.inject(SetMig(1, BALANCED))
    assert (await hardware.events(0)).changed
    devices = (await gpu(hardware, 1)).mig_devices
    assert [(device.index, device.profile, str(device.placement), device.gi_id) for device in devices] == [
        (0, "3g.40gb", "4:4", 2),
        (1, "2g.20gb", "0:2", 3),
        (2, "1g.10gb", "2:1", 9),
        (3, "1g.10gb", "3:1", 10),
    ]


async def test_mig_devices_made_again_have_new_uuids():
    hardware = node()
    seen = set()
    for _ in range(3):
        await hardware.inject(SetMig(1, BALANCED))
        seen |= {device.uuid for device in (await gpu(hardware, 1)).mig_devices}
    assert len(seen) == 12


async def test_compute_instances_get_ids_of_their_own():
    hardware = node()
    await hardware.inject(SetMig(0, (LayoutItem.parse("1c.3g.40gb"),) * 4))
    assert [(device.gi_id, device.ci_id) for device in (await gpu(hardware, 0)).mig_devices] == [
        (1, 0),
        (2, 0),
        (2, 1),
        (2, 2),
    ]


@pytest.mark.parametrize(
    ("name", "survives"),
    [("a100-40gb", True), ("a30-24gb", True), ("h100-sxm5-80gb", False), ("b200-180gb", False)],
)
async def test_only_ampere_keeps_its_mig_mode_over_a_reboot_and_none_its_devices(name, survives):
    hardware = node(name)
    (first,) = await hardware.observe()
    await hardware.inject(SetMig(0, ()))
    await hardware.inject(Reboot())
    (after,) = await hardware.observe()
    assert after.mig_enabled is survives
    assert after.mig_devices == ()
    assert after.uuid == first.uuid


async def test_a_reboot_changes_the_boot_id_and_begins_the_counts_again():
    hardware = node()
    boots = {(await hardware.observe()).boot_id}
    await hardware.inject(ResetGpu(0))
    for _ in range(2):
        await hardware.inject(Reboot())
        boots.add((await hardware.observe()).boot_id)
    assert len(boots) == 3
    assert (await condition(hardware, 0)).resets == 0


@pytest.mark.parametrize(("name", "resets"), [("a100-40gb", 1), ("h100-sxm5-80gb", 0)])
async def test_switching_mig_mode_resets_only_the_chips_that_need_it(name, resets):
    hardware = node(name)
    await hardware.inject(SetMig(0, ()))
    (said,) = await hardware.conditions()
    assert said.resets == resets


async def test_without_a_driver_there_is_a_reason_and_no_gpu():
    hardware = node()
    await hardware.inject(DriverGone("version-mismatch", "library 590, module 580"))
    inventory = await hardware.observe()
    assert inventory.driver == NoDriver("version-mismatch", "library 590, module 580")
    assert inventory.gpus == ()
    with pytest.raises(DriverUnavailable, match="module 580"):
        await hardware.conditions()
    with pytest.raises(DriverUnavailable):
        await hardware.events(0)


async def test_a_new_driver_brings_the_gpus_back_and_is_told_of():
    hardware = node()
    before = await hardware.observe()
    await hardware.inject(DriverGone())
    await hardware.inject(DriverLoaded("590.44.01", "13.1"))
    after = await hardware.observe()
    assert after.driver == Driver("590.44.01", "13.1")
    assert after.gpus == before.gpus
    assert (await hardware.events(0)).changed


async def test_a_driver_that_is_loaded_again_is_the_one_that_was_there():
    hardware = node()
    before = (await hardware.observe()).driver
    await hardware.inject(DriverGone())
    await hardware.inject(DriverLoaded())
    assert (await hardware.observe()).driver == before


# --- strictness --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (LoseGpu(4), "no GPU 4"),
        (GpuReturns(4), "no GPU 4"),
        (RaiseXid(4, 43), "no GPU 4"),
        (RaiseXid(0, 43, gi=3), "no GPU instance 3"),
        (SetCondition(9, rows_pending=True), "no GPU 9"),
        (ResetGpu(-1), "no GPU -1"),
        (SetMig(0, (LayoutItem.parse("3g.20gb"),)), "3g.40gb"),
        (SetMig(0, (LayoutItem.parse("4g.40gb"),) * 2), "at most 1"),
    ],
)
async def test_what_cannot_happen_is_refused_and_changes_nothing(fault, words):
    hardware = node()
    before = hardware.state
    with pytest.raises(InputError, match=words):
        await hardware.inject(fault)
    assert hardware.state == before


@pytest.mark.parametrize(("name", "words"), [("l40s", "has no MIG"), ("a100-40gb", "is lost")])
async def test_a_layout_needs_a_gpu_that_can_have_it(name, words):
    hardware = node(name)
    await hardware.inject(LoseGpu(0))
    if name == "l40s":
        await hardware.inject(GpuReturns(0))
    with pytest.raises(InputError, match=words):
        await hardware.inject(SetMig(0, ()))


def test_every_consequence_of_an_xid_names_its_gpu():
    for consequence in XID_CONSEQUENCES.values():
        fault = consequence(3)
        assert isinstance(fault, LoseGpu | SetCondition)
        assert fault.gpu == 3


# --- calls -------------------------------------------------------------------------------------


async def test_a_call_fails_as_often_as_it_was_told_to():
    hardware = node()
    await hardware.inject(FailCall("observe", GpuLost("gone"), times=2))
    for _ in range(2):
        with pytest.raises(GpuLost, match="gone"):
            await hardware.observe()
    assert (await hardware.observe()).gpus
    assert await hardware.conditions()


async def test_a_call_fails_until_it_is_healed():
    hardware = node()
    await hardware.inject(FailCall("conditions", DriverUnavailable("no"), times=None))
    for _ in range(3):
        with pytest.raises(DriverUnavailable):
            await hardware.conditions()
    await hardware.inject(HealCall("conditions"))
    assert await hardware.conditions()


async def test_a_call_that_hangs_ends_at_its_deadline():
    hardware = node(deadline_s=0.01)
    await hardware.inject(HangCall("observe"))
    with pytest.raises(HardwareTimeout, match="observe"):
        await hardware.observe()
    assert (await hardware.observe()).gpus


async def test_a_slow_call_answers_in_the_end():
    hardware = node(deadline_s=5)
    await hardware.inject(HangCall("observe", seconds=0.01))
    assert (await hardware.observe()).gpus


async def test_a_reboot_ends_what_befell_the_calls():
    hardware = node()
    await hardware.inject(FailCall("observe", GpuLost("gone"), times=None))
    await hardware.inject(Reboot())
    assert (await hardware.observe()).gpus


async def test_closing_twice_does_no_harm():
    hardware = node()
    await hardware.close()
    await hardware.close()


# --- faults that happen by themselves ----------------------------------------------------------


async def test_a_fault_happens_so_long_after_the_first_call():
    clock = Clock()
    hardware = node(faults=[TimedFault(RaiseXid(2, 79), after_s=5)], clock=clock)
    clock.now += 100
    assert (await hardware.observe()).lost == ()
    clock.now += 4.9
    assert (await hardware.observe()).lost == ()
    clock.now += 0.2
    assert [lost.index for lost in (await hardware.observe()).lost] == [2]
    assert [xid.code for xid in (await hardware.events(0)).xids] == [79]


async def test_a_fault_happens_at_the_call_after_so_many():
    hardware = node(faults=[TimedFault(LoseGpu(0), after_calls=2)])
    seen = [len((await hardware.observe()).lost) for _ in range(4)]
    assert seen == [0, 0, 1, 1]


async def test_faults_that_are_due_together_happen_in_their_order():
    clock = Clock()
    faults = [TimedFault(GpuReturns(0), after_s=2), TimedFault(LoseGpu(0), after_s=1)]
    hardware = node(faults=faults, clock=clock)
    await hardware.observe()
    clock.now += 3
    assert (await hardware.observe()).lost == ()


async def test_a_fault_that_has_become_impossible_is_said_and_harms_no_call():
    faults = [TimedFault(LoseGpu(0), after_calls=0), TimedFault(SetMig(0, BALANCED), after_calls=1)]
    hardware = node(faults=faults)
    for _ in range(2):
        assert len((await hardware.observe()).gpus) == 3
    assert "did not happen: GPU 0 is lost" in str(hardware)


async def test_waiting_for_events_ends_when_a_fault_happens_by_itself():
    hardware = node(faults=[TimedFault(RaiseXid(1, 31), after_s=0.01)])
    events = await hardware.events(30)
    assert [xid.code for xid in events.xids] == [31]


# --- the picture -------------------------------------------------------------------------------


async def test_the_state_prints_itself():
    hardware = node("2xh100-sxm5-80gb+l40s")
    await hardware.inject(SetMig(1, BALANCED[:1]))
    await hardware.inject(RaiseXid(0, 48))
    await hardware.inject(LoseGpu(2, "fell off the bus"))
    await hardware.inject(HangCall("events"))
    inventory = parse_machine("2xh100-sxm5-80gb+l40s").inventory
    device = hardware.state.gpus[1].mig_devices[0]
    assert str(hardware).splitlines() == [
        "boot 0, driver 580.95.05 cuda 13.0",
        f"gpu 0  NVIDIA H100 80GB HBM3  {inventory.gpus[0].uuid}  needs gpu reset",
        f"gpu 1  NVIDIA H100 80GB HBM3  {inventory.gpus[1].uuid}  mig on",
        f"  mig 0  3g.40gb 4:4  gi 2 ci 0  {device.uuid}",
        f"gpu 2  NVIDIA L40S  {inventory.gpus[2].uuid}  lost: fell off the bus",
        "events will hang",
    ]
