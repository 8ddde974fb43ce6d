"""The simulated GPU refuses what hardware refuses, and what it allows is legal."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.errors import (
    GpuInUse,
    GpuLost,
    HardwareError,
    InputError,
    InsufficientResources,
    NotFound,
    Unsupported,
)
from partage.model.geometry import MigProfile, Placement
from partage.model.gpu import MigMode
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.layout import LayoutItem, place
from partage.model.step import (
    CreateCompute,
    Created,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    Reset,
    SetMigMode,
    Verify,
)
from partage.sim.node.faults import DriverGone, FailCall, LoseGpu, Occupy, Reboot, ResetGpu, SetMig, Vacate
from partage.sim.node.hardware import SimulatedHardware
from partage.sim.node.machine_names import parse_machine
from partage.sim.node.state import power_on
from partage.sim.node.steps import perform_step
from tests.examples import examples

HALF, WHOLE = Placement(4, 4), Placement(0, 8)
HOPPER, AMPERE = "2xh100-sxm5-80gb", "2xNVIDIA A100 80GB PCIe"


async def node(name=HOPPER):
    """The node, and the UUID of its first GPU."""
    hardware = SimulatedHardware(parse_machine(name))
    return hardware, (await hardware.observe()).gpus[0].uuid


async def first(hardware):
    return (await hardware.observe()).gpus[0]


async def in_mig_mode(name=HOPPER):
    hardware, gpu = await node(name)
    await hardware.perform(SetMigMode(gpu, enabled=True))
    if (await first(hardware)).mig_mode == MigMode(current=False, pending=True):
        await hardware.perform(Reset((gpu,), (gpu,)))
    return hardware, gpu


async def with_half(name=HOPPER, profile="3g.40gb"):
    hardware, gpu = await in_mig_mode(name)
    await hardware.perform(CreateInstance(gpu, profile, HALF))
    return hardware, gpu, await hardware.perform(CreateCompute(gpu, profile, HALF, profile))


def destroy(gpu):
    return DestroyCompute(gpu, "3g.40gb", HALF, "3g.40gb")


# --- modes -------------------------------------------------------------------------------------


async def test_hopper_changes_its_mode_at_once():
    hardware, gpu = await node()
    await hardware.perform(SetMigMode(gpu, enabled=True))
    assert (await first(hardware)).mig_mode == MigMode(current=True, pending=True)


async def test_ampere_changes_its_mode_with_a_reset_and_makes_nothing_before():
    hardware, gpu = await node(AMPERE)
    await hardware.perform(SetMigMode(gpu, enabled=True))
    assert (await first(hardware)).mig_mode == MigMode(current=False, pending=True)
    with pytest.raises(Unsupported, match="not in MIG mode"):
        await hardware.perform(CreateInstance(gpu, "3g.40gb", HALF))
    await hardware.perform(Reset((gpu,), (gpu,)))
    assert (await first(hardware)).mig_mode == MigMode(current=True, pending=True)
    await hardware.perform(CreateInstance(gpu, "3g.40gb", HALF))


async def test_nothing_is_made_while_mig_mode_is_about_to_end():
    hardware, gpu = await in_mig_mode(AMPERE)
    await hardware.perform(SetMigMode(gpu, enabled=False))
    with pytest.raises(Unsupported, match="next reset"):
        await hardware.perform(CreateInstance(gpu, "3g.40gb", HALF))
    await hardware.perform(SetMigMode(gpu, enabled=True))  # a pending change is taken back without a reset
    await hardware.perform(CreateInstance(gpu, "3g.40gb", HALF))


async def test_a_reset_loses_every_instance_and_counts():
    hardware, gpu, _ = await with_half(AMPERE)
    await hardware.perform(CreateInstance(gpu, "3g.40gb", Placement(0, 4)))
    await hardware.perform(Reset((gpu,), ()))
    bare = await first(hardware)
    assert (bare.mig_devices, bare.empty_instances) == ((), ())
    assert bare.mig_enabled
    assert [row.resets for row in await hardware.conditions()] == [2, 0]


async def test_a_gpu_without_mig_has_no_mode():
    hardware, gpu = await node("l4")
    with pytest.raises(Unsupported, match="no MIG"):
        await hardware.perform(SetMigMode(gpu, enabled=True))
    await hardware.perform(Verify(gpu, enabled=False))


async def test_the_mode_does_not_end_under_instances():
    hardware, gpu, _ = await with_half()
    with pytest.raises(GpuInUse, match="still has"):
        await hardware.perform(SetMigMode(gpu, enabled=False))
    assert len((await first(hardware)).mig_devices) == 1


async def test_boards_that_are_joined_are_reset_together_or_not_at_all():
    machine = parse_machine("4xa100-80gb")
    hardware = SimulatedHardware(replace(machine, inventory=replace(machine.inventory, fabric_manager=False)))
    gpus = [gpu.uuid for gpu in (await hardware.observe()).gpus]
    for gpu in gpus[:2]:
        await hardware.perform(SetMigMode(gpu, enabled=True))
    with pytest.raises(Unsupported, match="GPU 1, 2, 3"):
        await hardware.perform(Reset((gpus[0],), (gpus[0],)))
    await hardware.inject(Occupy(3))
    with pytest.raises(GpuInUse):
        await hardware.perform(Reset(tuple(gpus), tuple(gpus[:2])))
    await hardware.inject(Vacate(3))
    await hardware.perform(Reset(tuple(gpus), tuple(gpus[:2])))
    assert [gpu.mig_enabled for gpu in await hardware.observe()] == [True, True, False, False]


async def test_with_the_fabric_manager_each_board_is_reset_by_itself():
    hardware, _ = await in_mig_mode("4xa100-80gb")
    assert (await hardware.observe()).fabric_manager
    assert [one.mig_enabled for one in await hardware.observe()] == [True, False, False, False]


async def test_compute_instances_lie_side_by_side_and_nobody_moves():
    hardware, gpu = await in_mig_mode()
    await hardware.perform(CreateInstance(gpu, "3g.40gb", HALF))
    ones = [CreateCompute(gpu, "3g.40gb", HALF, "1c.3g.40gb")] * 3
    made = [await hardware.perform(one) for one in ones]
    for number in (0, 2):
        one = made[number]
        await hardware.perform(DestroyCompute(gpu, "3g.40gb", HALF, "1c.3g.40gb", one.gi_id, one.ci_id))
    two = CreateCompute(gpu, "3g.40gb", HALF, "2c.3g.40gb")
    with pytest.raises(InsufficientResources, match="2 compute slices left, and not side by side"):
        await hardware.perform(two)
    await hardware.perform(DestroyCompute(gpu, "3g.40gb", HALF, "1c.3g.40gb", uuid=made[1].uuid))
    await hardware.perform(two)


async def test_a_virtual_machine_is_rebooted_where_others_reset_a_gpu():
    machine = parse_machine(AMPERE)
    hardware = SimulatedHardware(replace(machine, inventory=replace(machine.inventory, virtual=True)))
    gpu = (await first(hardware)).uuid
    await hardware.perform(SetMigMode(gpu, enabled=True))
    with pytest.raises(Unsupported, match=r"nvidia-smi -mig, reboot the virtual machine"):
        await hardware.perform(Reset((gpu,), (gpu,)))
    assert not (await first(hardware)).mig_enabled
    await hardware.inject(Reboot())
    assert (await first(hardware)).mig_enabled


@pytest.mark.parametrize(("name", "survives"), [(HOPPER, False), (AMPERE, True)])
async def test_a_reboot_loses_instances_and_hopper_its_mode_and_uuids_are_new(name, survives):
    hardware, gpu, made = await with_half(name)
    await hardware.inject(Reboot())
    assert (await first(hardware)).mig_devices == ()
    assert (await first(hardware)).mig_enabled is survives
    if not survives:
        await hardware.perform(SetMigMode(gpu, enabled=True))
    await hardware.perform(CreateInstance(gpu, "3g.40gb", HALF))
    again = await hardware.perform(CreateCompute(gpu, "3g.40gb", HALF, "3g.40gb"))
    assert (again.gi_id, again.ci_id) == (made.gi_id, made.ci_id)
    assert again.uuid != made.uuid


# --- who is in the way -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [UseKind.PROCESS, UseKind.MONITOR])
@pytest.mark.parametrize("name", [HOPPER, AMPERE])
async def test_a_change_of_mode_under_a_client_waits_and_says_for_whom(name, kind):
    hardware, gpu = await node(name)
    await hardware.inject(Occupy(0, "nv-hostengine", kind, pid=7))
    with pytest.raises(GpuInUse) as caught:
        await hardware.perform(SetMigMode(gpu, enabled=True))
    assert caught.value.uses == (f"{kind} nv-hostengine (pid 7)",)
    assert (await first(hardware)).mig_mode == MigMode(current=False, pending=True)
    with pytest.raises(GpuInUse):
        await hardware.perform(Reset((gpu,), (gpu,)))
    await hardware.inject(Vacate(0))
    await hardware.perform(SetMigMode(gpu, enabled=True))
    await hardware.perform(Reset((gpu,), (gpu,)))
    assert (await first(hardware)).mig_enabled


@pytest.mark.parametrize("name", [HOPPER, AMPERE])
async def test_the_persistence_daemon_gives_way_and_comes_back(name):
    hardware, gpu = await node(name)
    await hardware.inject(Occupy(0, "nvidia-persistenced", UseKind.MONITOR, pid=7))
    await hardware.perform(SetMigMode(gpu, enabled=True))
    await hardware.perform(Reset((gpu,), (gpu,)))
    assert (await first(hardware)).mig_enabled
    await hardware.perform(CreateInstance(gpu, "3g.40gb", HALF))
    assert [use.name for use in await hardware.uses()] == ["nvidia-persistenced"]


async def test_the_first_gpu_instance_needs_an_idle_gpu_and_the_next_do_not():
    hardware, gpu = await in_mig_mode()
    await hardware.inject(Occupy(0, "dcgm", UseKind.MONITOR))
    with pytest.raises(GpuInUse, match="dcgm"):
        await hardware.perform(CreateInstance(gpu, "3g.40gb", HALF))
    await hardware.inject(Vacate(0, "dcgm"))
    await hardware.perform(CreateInstance(gpu, "3g.40gb", HALF))
    await hardware.inject(Occupy(0, "dcgm", UseKind.MONITOR))
    await hardware.perform(CreateInstance(gpu, "3g.40gb", Placement(0, 4)))


async def test_a_mig_device_in_use_is_not_destroyed_and_its_neighbour_is():
    hardware, gpu, made = await with_half()
    await hardware.perform(CreateInstance(gpu, "3g.40gb", Placement(0, 4)))
    await hardware.perform(CreateCompute(gpu, "3g.40gb", Placement(0, 4), "3g.40gb"))
    await hardware.inject(Occupy(0, "train.py", gi=made.gi_id, ci=0, pid=99))
    process = UseKind.PROCESS
    assert await hardware.uses() == (GpuUse(gpu, process, "train.py", 99, made.uuid, made.gi_id, 0),)
    with pytest.raises(GpuInUse, match=r"train\.py"):
        await hardware.perform(destroy(gpu))
    await hardware.perform(DestroyCompute(gpu, "3g.40gb", Placement(0, 4), "3g.40gb"))
    await hardware.inject(Vacate(0, "train.py"))
    await hardware.perform(destroy(gpu))


async def test_a_gpu_instance_with_mig_devices_or_clients_is_not_destroyed():
    hardware, gpu, made = await with_half()
    with pytest.raises(GpuInUse, match=made.uuid):
        await hardware.perform(DestroyInstance(gpu, "3g.40gb", HALF))
    await hardware.perform(destroy(gpu))
    await hardware.inject(Occupy(0, gi=made.gi_id))
    with pytest.raises(GpuInUse, match="python"):
        await hardware.perform(DestroyInstance(gpu, "3g.40gb", HALF, made.gi_id))
    with pytest.raises(GpuInUse):
        await hardware.perform(Reset((gpu,), ()))
    await hardware.inject(Vacate(0))
    await hardware.perform(DestroyInstance(gpu, "3g.40gb", HALF, made.gi_id))


@pytest.mark.parametrize("fault", [Reboot(), ResetGpu(0), DriverGone(), Vacate(0)])
async def test_nobody_uses_what_was_reset_or_has_no_driver(fault):
    hardware, _, made = await with_half()
    await hardware.inject(Occupy(0))
    await hardware.inject(Occupy(0, gi=made.gi_id, ci=0))
    assert len(await hardware.uses()) == 2
    await hardware.inject(fault)
    assert hardware.state.uses == ()


async def test_whoever_is_in_a_mig_device_is_gone_with_an_administrators_new_layout():
    hardware, _, made = await with_half()
    await hardware.inject(Occupy(0, "inside", gi=made.gi_id, ci=0))
    await hardware.inject(Occupy(0, "dcgm", UseKind.MONITOR))
    await hardware.inject(SetMig(0, (LayoutItem.parse("7g.80gb"),)))
    assert [use.name for use in await hardware.uses()] == ["dcgm"]


@pytest.mark.parametrize("fault", [Occupy(9), Occupy(0, gi=5), Occupy(0, gi=2, ci=1), Vacate(9)])
async def test_nobody_can_be_where_nothing_is(fault):
    hardware, _, _ = await with_half()
    with pytest.raises(InputError):
        await hardware.inject(fault)


async def test_a_lost_gpu_is_used_by_nobody_that_can_be_seen_and_cannot_be_reset():
    hardware, gpu = await node()
    await hardware.inject(Occupy(0))
    await hardware.inject(LoseGpu(0))
    assert await hardware.uses() == ()
    with pytest.raises(GpuLost):
        await hardware.perform(Reset((gpu,), ()))


# --- what does not fit -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        (HOPPER, [("3g.40gb", 0, 4), ("2g.20gb", 2, 2)]),  # overlap
        (HOPPER, [("3g.40gb", 0, 4), ("4g.40gb", 0, 4)]),
        (HOPPER, [("1g.10gb+me", 0, 1), ("1g.10gb+me", 1, 1)]),  # one JPEG and OFA engine for all
        (HOPPER, [*(("1g.10gb", at, 1) for at in range(7)), ("1g.10gb", 6, 1)]),
        (HOPPER, [*(("1g.20gb", at, 2) for at in (0, 2, 4, 6)), ("1g.10gb", 0, 1)]),
    ],
)
async def test_the_last_one_finds_no_room(name, rows):
    hardware, gpu = await in_mig_mode(name)
    steps = [CreateInstance(gpu, profile, Placement(start, size)) for profile, start, size in rows]
    for step in steps[:-1]:
        await hardware.perform(step)
    before = hardware.state
    with pytest.raises(InsufficientResources):
        await hardware.perform(steps[-1])
    assert hardware.state == before


@pytest.mark.parametrize(
    ("profile", "placement"),
    [
        ("1g.10gb", Placement(7, 1)),
        ("3g.40gb", Placement(0, 3)),
        ("1c.3g.40gb", Placement(0, 4)),
        ("1g.5gb", Placement(0, 1)),
    ],
)
async def test_what_the_model_does_not_have_is_unsupported(profile, placement):
    hardware, gpu = await in_mig_mode()
    with pytest.raises(Unsupported):
        await hardware.perform(CreateInstance(gpu, profile, placement))


@pytest.mark.parametrize("profile", ["3g.20gb", "2g.20gb", "nonsense"])
async def test_a_compute_instance_belongs_to_its_gpu_instance(profile):
    hardware, gpu, _ = await with_half()
    await hardware.perform(destroy(gpu))
    with pytest.raises(Unsupported):
        await hardware.perform(CreateCompute(gpu, "3g.40gb", HALF, profile))


async def test_four_slices_are_not_split_into_three_and_one():
    hardware, gpu = await in_mig_mode()
    await hardware.perform(CreateInstance(gpu, "4g.40gb", Placement(0, 4)))
    with pytest.raises(Unsupported):
        await hardware.perform(CreateCompute(gpu, "4g.40gb", Placement(0, 4), "3c.4g.40gb"))


async def test_ids_are_used_again_and_positions_too():
    hardware, gpu = await in_mig_mode()
    await hardware.perform(CreateInstance(gpu, "7g.80gb", WHOLE))
    one_slice = CreateCompute(gpu, "7g.80gb", WHOLE, "1c.7g.80gb")
    made = [await hardware.perform(one_slice) for _ in range(7)]
    assert [(one.gi_id, one.ci_id) for one in made] == [(0, at) for at in range(7)]
    await hardware.perform(DestroyCompute(gpu, "7g.80gb", WHOLE, "1c.7g.80gb", 0, 3, made[3].uuid))
    assert [one.index for one in (await first(hardware)).mig_devices] == [0, 1, 2, 4, 5, 6]
    with pytest.raises(NotFound):
        await hardware.perform(DestroyCompute(gpu, "7g.80gb", WHOLE, "1c.7g.80gb", 0, 3, made[3].uuid))
    again = await hardware.perform(one_slice)
    assert (again.ci_id, again.uuid in {one.uuid for one in made}) == (3, False)
    with pytest.raises(NotFound):  # something else lives under the id by now
        await hardware.perform(DestroyCompute(gpu, "7g.80gb", WHOLE, "1c.7g.80gb", 0, 3, made[3].uuid))


def test_gpu_instances_are_numbered_as_hardware_partitions():
    state = power_on(parse_machine("h100-sxm5-80gb"))
    gpu = state.gpus[0].uuid
    state, _ = perform_step(state, SetMigMode(gpu, enabled=True))
    for profile, placement, number in (
        ("7g.80gb", WHOLE, 0),
        ("3g.40gb", Placement(0, 4), 1),
        ("3g.40gb", HALF, 2),
        ("2g.20gb", Placement(0, 2), 3),
        ("2g.20gb", Placement(4, 2), 5),
        ("1g.20gb", Placement(6, 2), 6),
        ("1g.10gb", Placement(0, 1), 7),
        ("1g.10gb", Placement(6, 1), 13),
    ):
        assert perform_step(state, CreateInstance(gpu, profile, placement))[1] == Created(number)


# --- everything at random ----------------------------------------------------------------------

MODELS = ["h100-sxm5-80gb", "a100-80gb", "a30-24gb", "b200-180gb", "rtx-pro-6000-blackwell-server"]


def tempting_steps(gpu, geometry):
    """Every GPU instance that the model knows, and everything that can be tried with those that live."""
    for spec in geometry.profiles:
        for start in spec.starts:
            yield CreateInstance(gpu.uuid, str(spec.profile), Placement(start, spec.size))
    places = {(str(MigProfile.parse(one.profile).gpu_instance), one.placement) for one in gpu.mig_devices}
    places |= {(one.profile, one.placement) for one in gpu.empty_instances}
    for profile, placement in sorted(places):
        yield DestroyInstance(gpu.uuid, profile, placement)
        name = MigProfile.parse(profile)
        for compute in range(1, name.gpu_slices + 1):
            device = str(MigProfile(name.gpu_slices, name.gigabytes, compute, name.attributes))
            yield CreateCompute(gpu.uuid, profile, placement, device)
            yield DestroyCompute(gpu.uuid, profile, placement, device)


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(MODELS), st.data())
def test_whatever_is_tried_the_card_stays_legal(model, data):
    state = power_on(parse_machine(model))
    gpu = state.gpus[0].uuid
    geometry = geometry_of(state.gpus[0])
    state, _ = perform_step(state, SetMigMode(gpu, enabled=True))
    if not state.gpus[0].mig_enabled:
        state, _ = perform_step(state, Reset((gpu,), (gpu,)))
    seen: set[str] = set()
    for _ in range(data.draw(st.integers(0, 25))):
        step = data.draw(st.sampled_from(list(tempting_steps(state.gpus[0], geometry))))
        before = state
        try:
            state, made = perform_step(state, step)
        except HardwareError:
            continue
        assert state != before
        if isinstance(step, CreateCompute):
            assert isinstance(made, Created)
            assert made.uuid not in seen
            seen.add(made.uuid)
        legal(state.gpus[0], geometry)


def legal(gpu, geometry):
    """No two GPU instances overlap, ids are unique, and the whole is a layout that the model can have."""
    parse = MigProfile.parse
    spans = {
        one.gi_id: (one.placement, MigProfile.parse(one.profile).gpu_instance) for one in gpu.mig_devices
    }
    assert spans.keys().isdisjoint(one.gi_id for one in gpu.empty_instances)
    spans |= {one.gi_id: (one.placement, parse(one.profile)) for one in gpu.empty_instances}
    for (one, _), (other, _) in pairwise(sorted(spans.values())):
        assert not one.overlaps(other)
    place(geometry, [LayoutItem(profile, placement.start) for placement, profile in spans.values()])
    assert len({(one.gi_id, one.ci_id) for one in gpu.mig_devices}) == len(gpu.mig_devices)
    for gi_id, (_, profile) in spans.items():
        inside = [parse(one.profile) for one in gpu.mig_devices if one.gi_id == gi_id]
        assert sum(one.compute_slices for one in inside) <= profile.gpu_slices


# --- faults of the acts themselves -------------------------------------------------------------


async def test_an_act_can_be_done_and_its_answer_lost():
    hardware, gpu = await node()
    await hardware.inject(FailCall("perform", GpuInUse("lost", uses=("somebody",)), done=True))
    with pytest.raises(GpuInUse) as caught:
        await hardware.perform(SetMigMode(gpu, enabled=True))
    assert caught.value.uses == ("somebody",)
    assert (await first(hardware)).mig_enabled


async def test_an_act_that_fails_changes_nothing():
    hardware, gpu = await node()
    before = hardware.state
    await hardware.inject(FailCall("perform", InsufficientResources("simulated")))
    with pytest.raises(InsufficientResources):
        await hardware.perform(SetMigMode(gpu, enabled=True))
    assert hardware.state == before
