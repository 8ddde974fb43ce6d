"""MIG changed through NVML: the driver is the stand-in, which refuses what hardware refuses."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator

import pytest

from partage.agent.reconciler.executor import Executor, TransactionEnd, layouts_before
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.journal import JournalHeader
from partage.edges.hardware.nvml import NvmlHardware
from partage.errors import (
    GpuInUse,
    GpuLost,
    HardwareError,
    InsufficientResources,
    NotFound,
    NotPermitted,
    StateMismatch,
    Unsupported,
)
from partage.model.geometry import Placement
from partage.model.gpu import EmptyInstance, Gpu, MigMode
from partage.model.ids import GpuUuid
from partage.model.layout import LayoutItem
from partage.model.policy import DesiredMig
from partage.model.step import (
    CreateCompute,
    Created,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    SetMigMode,
    Verify,
)
from partage.plan.reconcile.mig_plan import plan_mig
from tests.edges.hardware.stub import StubNode

GPU = StubNode.uuid(0)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device files")
LOW, HIGH = Placement(0, 4), Placement(4, 4)
THREE = CreateInstance(GPU, "3g.40gb", HIGH)


@pytest.fixture
async def card(node: StubNode) -> AsyncIterator[NvmlHardware]:
    """A node of one H100 whose MIG mode is off; it changes without a reset."""
    node.add_h100s(1).with_live_mig()
    hardware = NvmlHardware(host=node.host)
    yield hardware
    await hardware.close()


@pytest.fixture
async def mig(card: NvmlHardware) -> NvmlHardware:
    """The same, in MIG mode."""
    await card.perform(SetMigMode(GPU, enabled=True))
    return card


async def gpu_of(hardware: NvmlHardware) -> Gpu:
    inventory = await hardware.observe()
    assert not inventory.lost, inventory.lost
    return inventory.gpus[0]


async def three(hardware: NvmlHardware, *cuts: str) -> list[Created]:
    """A 3g.40gb at 4, and compute instances in it."""
    made = [await hardware.perform(THREE)]
    made += [await hardware.perform(CreateCompute(GPU, "3g.40gb", HIGH, cut)) for cut in cuts]
    return [one for one in made if one is not None]


# --- the mode --------------------------------------------------------------------------------------


async def test_mig_mode_is_turned_on_and_off_at_once_where_it_needs_no_reset(card: NvmlHardware) -> None:
    assert (await gpu_of(card)).mig_mode == MigMode(current=False, pending=False)
    assert await card.perform(SetMigMode(GPU, enabled=True)) is None
    assert (await gpu_of(card)).mig_mode == MigMode(current=True, pending=True)
    await card.perform(SetMigMode(GPU, enabled=True))
    await card.perform(Verify(GPU, enabled=True))
    await card.perform(SetMigMode(GPU, enabled=False))
    assert (await gpu_of(card)).mig_mode == MigMode(current=False, pending=False)


async def test_a_mode_that_waits_for_a_reset_is_left_pending_and_can_be_taken_back(
    node: StubNode, card: NvmlHardware
) -> None:
    node.with_live_mig(direct=False)
    await card.perform(SetMigMode(GPU, enabled=True))
    assert (await gpu_of(card)).mig_mode == MigMode(current=False, pending=True)
    with pytest.raises(StateMismatch, match="after the next reset on"):
        await card.perform(Verify(GPU, enabled=True))
    with pytest.raises(Unsupported, match=r"MIG mode of GPU .* is off"):
        await card.perform(THREE)
    await card.perform(SetMigMode(GPU, enabled=False))
    await card.perform(Verify(GPU, enabled=False))


async def test_a_blocked_mode_change_names_the_process(node: StubNode, card: NvmlHardware) -> None:
    node.write(**{"gpu.0.monitor": 1})
    node.process(70, "nv-hostengine", "/dev/nvidia0", "/dev/nvidiactl")
    with pytest.raises(GpuInUse, match=r"it is pending.*monitor nv-hostengine") as caught:
        await card.perform(SetMigMode(GPU, enabled=True))
    assert caught.value.uses == ("monitor nv-hostengine (pid 70)",)


async def test_what_holds_a_gpu_without_a_process_is_guessed_at(node: StubNode, card: NvmlHardware) -> None:
    node.write(**{"gpu.0.monitor": 1})
    with pytest.raises(GpuInUse, match=r"used by no visible process$"):
        await card.perform(SetMigMode(GPU, enabled=True))
    node.file("sys/module/nvidia_drm/refcnt", "1\n")
    with pytest.raises(GpuInUse, match=r"no visible process \(.*modprobe -r nvidia_drm"):
        await card.perform(SetMigMode(GPU, enabled=True))


async def test_a_mode_that_needs_a_reset_is_pending_although_the_gpu_is_in_use(
    node: StubNode, card: NvmlHardware
) -> None:
    node.with_live_mig(direct=False).write(**{"gpu.0.monitor": 1})
    await card.perform(SetMigMode(GPU, enabled=True))
    assert (await gpu_of(card)).mig_mode == MigMode(current=False, pending=True)


async def test_a_gpu_that_should_need_no_reset_and_stays_pending_is_an_error_that_says_what_to_do(
    node: StubNode, card: NvmlHardware
) -> None:
    """As a Hopper board that is passed through into a virtual machine."""
    node.write(**{"gpu.0.live": "reset"})
    with pytest.raises(Unsupported, match=r"asks for a reset.*it is pending.*virtual machine reboot it"):
        await card.perform(SetMigMode(GPU, enabled=True))
    node.write(**{"gpu.0.live": "direct"})
    await card.perform(SetMigMode(GPU, enabled=True))
    assert (await gpu_of(card)).mig_mode == MigMode(current=True, pending=True)


async def test_a_mode_that_is_pending_from_before_does_not_hide_a_refusal(
    node: StubNode, card: NvmlHardware
) -> None:
    node.write(**{"gpu.0.monitor": 1})
    with pytest.raises(GpuInUse):
        await card.perform(SetMigMode(GPU, enabled=True))
    node.write(**{"gpu.0.monitor": None, "fail.nvmlDeviceSetMigMode": 999})
    with pytest.raises(HardwareError, match="it is pending"):
        await card.perform(SetMigMode(GPU, enabled=True))
    node.write(**{"fail.nvmlDeviceSetMigMode": None})
    await card.perform(SetMigMode(GPU, enabled=True))
    assert (await gpu_of(card)).mig_enabled


async def test_the_mode_is_not_turned_off_over_instances(mig: NvmlHardware) -> None:
    await three(mig)
    with pytest.raises(GpuInUse, match=r"there is still 3g.40gb at 4:4"):
        await mig.perform(SetMigMode(GPU, enabled=False))
    assert (await gpu_of(mig)).mig_enabled


async def test_a_gpu_that_leaves_mig_mode_gets_no_instance_any_more(
    node: StubNode, mig: NvmlHardware
) -> None:
    node.with_live_mig(direct=False)
    await mig.perform(SetMigMode(GPU, enabled=False))
    with pytest.raises(Unsupported, match="leaves MIG mode"):
        await mig.perform(THREE)


@pytest.mark.parametrize(("code", "kind"), [(4, NotPermitted), (19, GpuInUse), (999, HardwareError)])
async def test_a_mode_that_the_driver_refuses_to_change_stays(
    node: StubNode, card: NvmlHardware, code: int, kind: type[HardwareError]
) -> None:
    node.write(**{"fail.nvmlDeviceSetMigMode": code})
    with pytest.raises(kind, match=r"turn MIG mode on: .*the mode is unchanged") as caught:
        await card.perform(SetMigMode(GPU, enabled=True))
    assert type(caught.value) is kind


async def test_a_mode_that_changed_although_the_call_failed_has_changed(
    node: StubNode, card: NvmlHardware
) -> None:
    node.write(**{"lie.nvmlDeviceSetMigMode": 999})
    await card.perform(SetMigMode(GPU, enabled=True))
    assert (await gpu_of(card)).mig_enabled


async def test_a_gpu_without_mig_says_so(node: StubNode, card: NvmlHardware) -> None:
    node.write(**{"gpu.0.live": None, "gpu.0.mig": None})
    with pytest.raises(Unsupported, match="has no MIG mode"):
        await card.perform(SetMigMode(GPU, enabled=True))
    await card.perform(Verify(GPU, enabled=False))


# --- making ----------------------------------------------------------------------------------------


async def test_an_instance_is_made_where_it_is_wanted_and_seen_before_it_has_a_device(
    mig: NvmlHardware,
) -> None:
    assert await mig.perform(THREE) == Created(gi_id=2)
    gpu = await gpu_of(mig)
    assert gpu.empty_instances == (EmptyInstance(2, "3g.40gb", HIGH),)
    assert gpu.mig_devices == ()
    with pytest.raises(StateMismatch, match=r"an empty GPU instance 3g.40gb@4"):
        await mig.perform(Verify(GPU, enabled=True, devices=("3g.40gb@4",)))


async def test_a_made_device_has_the_uuid_that_is_listed_and_device_files_once_they_are_known(
    node: StubNode, mig: NvmlHardware
) -> None:
    instance, made = await three(mig, "3g.40gb")
    assert made == Created(instance.gi_id, 0, made.uuid)
    (device,) = (await gpu_of(mig)).mig_devices
    assert (device.uuid, device.profile, device.placement) == (made.uuid, "3g.40gb", HIGH)
    assert (device.gi_minor, device.ci_minor) == (None, None)
    node.file("proc/driver/nvidia-caps/mig-minors", "gpu0/gi2/access 21\ngpu0/gi2/ci0/access 22\n")
    (device,) = (await gpu_of(mig)).mig_devices
    assert (device.gi_minor, device.ci_minor) == (21, 22)
    assert (await gpu_of(mig)).empty_instances == ()
    await mig.perform(Verify(GPU, enabled=True, devices=("3g.40gb@4",)))


MINORS = "gpu0/gi2/access 21\ngpu0/gi2/ci0/access 22\n"


def knows_capabilities(node: StubNode, *, modify: int = 1) -> None:
    """The kernel module's files about capabilities. modify: whether others may make their device files."""
    node.file("proc/devices", "Character devices:\n195 nvidia\n237 nvidia-caps\n\nBlock devices:\n  8 sd\n")
    node.file("proc/driver/nvidia-caps/mig-minors", MINORS)
    for at, minor in (("gi2", 21), ("gi2/ci0", 22)):
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: {modify}\n"
        node.file(f"proc/driver/nvidia/capabilities/gpu0/mig/{at}/access", text)


@needs_root
async def test_the_device_files_of_a_made_device_are_made_too(node: StubNode, mig: NvmlHardware) -> None:
    knows_capabilities(node)
    await three(mig, "3g.40gb")
    (device,) = (await gpu_of(mig)).mig_devices
    assert device.missing_file == ""
    for minor in (21, 22):
        found = (node.root / f"dev/nvidia-caps/nvidia-cap{minor}").stat()
        assert (found.st_rdev, found.st_mode) == (os.makedev(237, minor), stat.S_IFCHR | 0o444)


@needs_root
async def test_a_device_file_of_a_kernel_module_that_was_unloaded_is_replaced(
    node: StubNode, mig: NvmlHardware
) -> None:
    knows_capabilities(node)
    path = node.root / "dev/nvidia-caps/nvidia-cap22"
    path.parent.mkdir(parents=True)
    os.mknod(path, stat.S_IFCHR | 0o444, os.makedev(240, 22))
    await three(mig, "3g.40gb")
    assert (await gpu_of(mig)).mig_devices[0].missing_file == ""
    assert path.stat().st_rdev == os.makedev(237, 22)


async def test_device_files_that_may_not_be_made_are_missing(node: StubNode, mig: NvmlHardware) -> None:
    knows_capabilities(node, modify=0)
    await three(mig, "3g.40gb")
    (device,) = (await gpu_of(mig)).mig_devices
    assert device.missing_file == "/dev/nvidia-caps/nvidia-cap21"
    assert not (node.root / "dev/nvidia-caps").exists()
    for minor in (21, 22):  # any file counts: the administrator's own way of making them
        node.file(f"dev/nvidia-caps/nvidia-cap{minor}", "")
    assert (await gpu_of(mig)).mig_devices[0].missing_file == ""


async def test_the_uuid_is_found_by_ids_where_the_driver_hands_out_the_parent(
    node: StubNode, mig: NvmlHardware
) -> None:
    node.write(parent=1)
    *_, made = await three(mig, "1c.3g.40gb", "2c.3g.40gb")
    assert made.ci_id == 1
    assert made.uuid == (await gpu_of(mig)).mig_devices[1].uuid


async def test_every_profile_of_the_gpu_can_be_made_by_its_name(mig: NvmlHardware) -> None:
    for profile, place in [
        ("1g.10gb", Placement(0, 1)),
        ("1g.10gb+me", Placement(1, 1)),
        ("1g.20gb", Placement(2, 2)),
        ("3g.40gb", HIGH),
    ]:
        await mig.perform(CreateInstance(GPU, profile, place))
        await mig.perform(CreateCompute(GPU, profile, place, profile))
    wanted = ("1g.10gb@0", "1g.10gb+me@1", "1g.20gb@2", "3g.40gb@4")
    await mig.perform(Verify(GPU, enabled=True, devices=wanted))
    assert [device.profile for device in (await gpu_of(mig)).mig_devices] == [
        name.partition("@")[0] for name in wanted
    ]


async def test_a_taken_place_says_who_is_there(mig: NvmlHardware) -> None:
    await mig.perform(THREE)
    for step in (THREE, CreateInstance(GPU, "1g.10gb", Placement(5, 1))):
        with pytest.raises(InsufficientResources, match=r"3g.40gb at 4:4 \(GPU instance 2\) is there"):
            await mig.perform(step)
    assert len((await gpu_of(mig)).empty_instances) == 1


async def test_used_up_engines_are_told_from_a_taken_place(mig: NvmlHardware) -> None:
    await mig.perform(CreateInstance(GPU, "1g.10gb+me", Placement(0, 1)))
    with pytest.raises(InsufficientResources, match="not enough resources on the GPU"):
        await mig.perform(CreateInstance(GPU, "1g.10gb+me", Placement(1, 1)))


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (CreateInstance(GPU, "2g.24gb", Placement(0, 2)), "has no profile 2g.24gb; it has 1g.10gb, "),
        (CreateInstance(GPU, "3g.40gb", Placement(2, 4)), "cannot be at 2:4, only at 0:4, 4:4"),
        (CreateInstance(GPU, "3g.40gb", Placement(0, 3)), "cannot be at 0:3"),
    ],
)
async def test_what_the_gpu_does_not_have_is_refused_before_it_is_tried(
    mig: NvmlHardware, step: CreateInstance, says: str
) -> None:
    with pytest.raises(Unsupported, match=says):
        await mig.perform(step)


async def test_the_first_instance_wants_an_idle_gpu(node: StubNode, mig: NvmlHardware) -> None:
    node.process(42, "python", listed="-1 -1")
    with pytest.raises(GpuInUse) as caught:
        await mig.perform(THREE)
    assert caught.value.uses == ("process python (pid 42)",)


async def test_compute_instances_fill_their_gpu_instance_and_no_more(mig: NvmlHardware) -> None:
    first, second, third = (await three(mig, "1c.3g.40gb", "2c.3g.40gb"))[:3]
    assert [(one.gi_id, one.ci_id) for one in (first, second, third)] == [(2, None), (2, 0), (2, 1)]
    with pytest.raises(InsufficientResources, match=r"holds 1c.3g.40gb, 2c.3g.40gb"):
        await mig.perform(CreateCompute(GPU, "3g.40gb", HIGH, "1c.3g.40gb"))
    with pytest.raises(NotFound, match=r"there is no 3g.40gb at 0:4; there is 3g.40gb at 4:4"):
        await mig.perform(CreateCompute(GPU, "3g.40gb", LOW, "3g.40gb"))
    with pytest.raises(Unsupported, match=r"cannot hold a 4c.7g.80gb"):
        await mig.perform(CreateCompute(GPU, "3g.40gb", HIGH, "4c.7g.80gb"))


@pytest.mark.parametrize(
    "call", ["nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"]
)
async def test_what_was_made_although_the_call_failed_was_made(
    node: StubNode, mig: NvmlHardware, call: str
) -> None:
    node.write(**{f"lie.{call}": 999})
    _, made = await three(mig, "3g.40gb")
    assert [device.uuid for device in (await gpu_of(mig)).mig_devices] == [made.uuid]


@pytest.mark.parametrize(
    ("code", "kind"), [(4, NotPermitted), (15, GpuLost), (23, InsufficientResources), (999, HardwareError)]
)
async def test_what_was_not_made_is_an_error_with_the_drivers_word(
    node: StubNode, mig: NvmlHardware, code: int, kind: type[HardwareError]
) -> None:
    node.write(**{"fail.nvmlDeviceCreateGpuInstanceWithPlacement": code})
    with pytest.raises(kind, match=r"cannot create a GPU instance 3g.40gb at 4:4: ") as caught:
        await mig.perform(THREE)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    "call", ["nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"]
)
async def test_what_somebody_else_made_just_before_a_refused_call_is_not_said_to_be_ours(
    node: StubNode, mig: NvmlHardware, call: str
) -> None:
    """Same profile and place, made after the list was read: the refusal says that it is not ours."""
    node.write(**{f"lie.{call}": 23})
    with pytest.raises(InsufficientResources):
        await three(mig, "3g.40gb")
    gpu = await gpu_of(mig)
    assert len(gpu.empty_instances) + len(gpu.mig_devices) == 1


async def test_a_rollback_leaves_what_was_made_at_our_place_since_the_node_was_observed(
    node: StubNode, mig: NvmlHardware
) -> None:
    """Planned for an empty GPU; an administrator is faster with one of the two instances."""
    wanted = {GPU: DesiredMig((LayoutItem.parse("3g.40gb@0"), LayoutItem.parse("3g.40gb@4")))}
    before = await mig.observe()
    plan = plan_mig(before, wanted, geometry_of)
    admins = await three(mig, "3g.40gb")
    executor = Executor(mig, None, geometry_of, lambda *_: None)
    header = JournalHeader("boot", "", layouts_before(before, plan.transactions))
    (outcome,) = await executor.execute(plan.transactions, header, before)
    assert outcome.ending is TransactionEnd.ROLLED_BACK
    assert isinstance(outcome.error, InsufficientResources)
    assert [step for step, _ in outcome.done]  # ours at 0 was made, and has gone again
    assert outcome.left_alone == (f"3g.40gb at 4:4 ({admins[1].uuid})",)
    gpu = await gpu_of(mig)
    assert ([one.uuid for one in gpu.mig_devices], gpu.empty_instances) == ([admins[1].uuid], ())


# --- destroying ------------------------------------------------------------------------------------


def undone(made: Created, profile: str = "3g.40gb") -> DestroyCompute:
    return DestroyCompute(GPU, "3g.40gb", HIGH, profile, made.gi_id, made.ci_id, made.uuid)


async def test_what_was_made_can_be_destroyed_inside_first(mig: NvmlHardware) -> None:
    instance, made = await three(mig, "3g.40gb")
    destroy = DestroyInstance(GPU, "3g.40gb", HIGH, instance.gi_id)
    with pytest.raises(GpuInUse, match=r"still holds 3g.40gb"):
        await mig.perform(destroy)
    assert await mig.perform(undone(made)) is None
    assert await mig.perform(destroy) is None
    gpu = await gpu_of(mig)
    assert (gpu.mig_devices, gpu.empty_instances) == ((), ())
    with pytest.raises(NotFound):
        await mig.perform(destroy)


async def test_an_instance_in_use_stays_and_the_error_names_the_process(
    node: StubNode, mig: NvmlHardware
) -> None:
    *_, made = await three(mig, "3g.40gb")
    node.process(42, "python", listed="2 0")
    with pytest.raises(GpuInUse, match=r"used by process python \(pid 42\)") as caught:
        await mig.perform(undone(made))
    assert caught.value.uses == ("process python (pid 42)",)
    assert len((await gpu_of(mig)).mig_devices) == 1


async def test_an_id_that_was_given_to_something_else_is_left_alone(mig: NvmlHardware) -> None:
    instance, made = await three(mig, "3g.40gb")
    await mig.perform(undone(made))
    await mig.perform(CreateCompute(GPU, "3g.40gb", HIGH, "3g.40gb"))
    with pytest.raises(NotFound, match=r"it does not exist; 3g.40gb at 4:4"):
        await mig.perform(undone(made))
    for wrong in (
        DestroyInstance(GPU, "3g.40gb", LOW, instance.gi_id),
        DestroyInstance(GPU, "2g.20gb", Placement(4, 2), instance.gi_id),
        DestroyInstance(GPU, "3g.40gb", HIGH, 1),
    ):
        with pytest.raises(NotFound, match=r"there is 3g.40gb at 4:4 \(GPU instance 2\)"):
            await mig.perform(wrong)
    assert len((await gpu_of(mig)).mig_devices) == 1


async def test_an_instance_without_a_known_id_is_found_by_its_placement(mig: NvmlHardware) -> None:
    await three(mig, "1c.3g.40gb", "2c.3g.40gb")
    await mig.perform(DestroyCompute(GPU, "3g.40gb", HIGH, "1c.3g.40gb"))
    assert [device.profile for device in (await gpu_of(mig)).mig_devices] == ["2c.3g.40gb"]
    await mig.perform(DestroyCompute(GPU, "3g.40gb", HIGH, "2c.3g.40gb"))
    await mig.perform(DestroyInstance(GPU, "3g.40gb", HIGH))
    await mig.perform(Verify(GPU, enabled=True))


async def test_of_two_alike_without_an_id_none_is_destroyed(mig: NvmlHardware) -> None:
    await three(mig, "1c.3g.40gb", "1c.3g.40gb")
    with pytest.raises(NotFound, match="several match"):
        await mig.perform(DestroyCompute(GPU, "3g.40gb", HIGH, "1c.3g.40gb"))
    assert len((await gpu_of(mig)).mig_devices) == 2
    with pytest.raises(StateMismatch):
        await mig.perform(Verify(GPU, enabled=True, devices=("1c.3g.40gb@4",)))
    await mig.perform(DestroyCompute(GPU, "3g.40gb", HIGH, "1c.3g.40gb", 2, 1))
    assert [device.ci_id for device in (await gpu_of(mig)).mig_devices] == [0]


async def test_what_has_gone_although_the_call_failed_has_gone(node: StubNode, mig: NvmlHardware) -> None:
    instance, made = await three(mig, "3g.40gb")
    node.write(**{"lie.nvmlComputeInstanceDestroy": 999, "lie.nvmlGpuInstanceDestroy": 999})
    await mig.perform(undone(made))
    await mig.perform(DestroyInstance(GPU, "3g.40gb", HIGH, instance.gi_id))
    await mig.perform(Verify(GPU, enabled=True))


async def test_who_is_not_there_or_does_not_answer_is_told_apart(node: StubNode, mig: NvmlHardware) -> None:
    with pytest.raises(NotFound, match="no GPU GPU-9"):
        await mig.perform(CreateInstance(GpuUuid("GPU-9"), "3g.40gb", HIGH))
    node.lose(0)
    with pytest.raises(GpuLost):
        await mig.perform(THREE)


async def test_who_may_not_list_instances_still_sees_mig_devices(node: StubNode, mig: NvmlHardware) -> None:
    await three(mig, "3g.40gb")
    await mig.perform(CreateInstance(GPU, "1g.10gb", Placement(0, 1)))
    node.write(**{"fail.nvmlDeviceGetGpuInstances": 4})
    gpu = await gpu_of(mig)
    assert (len(gpu.mig_devices), gpu.empty_instances) == (1, ())
    with pytest.raises(NotPermitted):
        await mig.perform(CreateInstance(GPU, "1g.10gb", Placement(1, 1)))
