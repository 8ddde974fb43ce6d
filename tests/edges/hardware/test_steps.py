"""What every implementation of the hardware port must do for steps on MIG."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from partage.edges.hardware.port import Hardware
from partage.errors import GpuLost, HardwareError, InsufficientResources, NotFound, StateMismatch, Unsupported
from partage.model.geometry import Placement
from partage.model.gpu import EmptyInstance, Gpu, MigMode
from partage.model.ids import MigUuid
from partage.model.step import (
    CreateCompute,
    Created,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    Reset,
    SetMigMode,
    Step,
    Verify,
)
from tests.edges.hardware.conftest import Subject

LIMIT_S = 10.0
HALF, OTHER_HALF = Placement(4, 4), Placement(0, 4)


async def gpu_of(hardware: Hardware, index: int = 1) -> Gpu:
    return next(gpu for gpu in (await hardware.observe()).gpus if gpu.index == index)


async def refuses(hardware: Hardware, step: Step, kind: type[HardwareError]) -> None:
    """The act is refused with exactly that error, and the node is as it was."""
    before = await hardware.observe()
    with pytest.raises(kind) as caught:
        await hardware.perform(step)
    assert type(caught.value) is kind
    assert str(caught.value)
    assert await hardware.observe() == before


async def with_half(hardware: Hardware) -> tuple[Gpu, Created]:
    """GPU 1 in MIG mode, with an empty GPU instance on the second half."""
    uuid = (await gpu_of(hardware)).uuid
    assert await hardware.perform(SetMigMode(uuid, enabled=True)) is None
    made = await hardware.perform(CreateInstance(uuid, "3g.40gb", HALF))
    assert made is not None
    return await gpu_of(hardware), made


async def test_mig_mode_goes_on_and_off_and_touches_no_other_gpu(acting: Subject) -> None:
    hardware = acting.hardware
    before = await hardware.observe()
    uuid = before.gpus[1].uuid
    assert await hardware.perform(SetMigMode(uuid, enabled=True)) is None
    after = await hardware.observe()
    assert after.gpus[1].mig_mode == MigMode(current=True, pending=True)
    assert [gpu for gpu in after.gpus if gpu.index != 1] == [gpu for gpu in before.gpus if gpu.index != 1]
    await hardware.perform(SetMigMode(uuid, enabled=True))
    await hardware.perform(Verify(uuid, enabled=True))
    await hardware.perform(SetMigMode(uuid, enabled=False))
    await hardware.perform(Verify(uuid, enabled=False))
    assert await hardware.observe() == before


async def test_a_gpu_instance_is_seen_before_it_has_a_mig_device(acting: Subject) -> None:
    gpu, made = await with_half(acting.hardware)
    assert (made.ci_id, made.uuid) == (None, "")
    assert gpu.mig_devices == ()
    assert gpu.empty_instances == (EmptyInstance(made.gi_id, "3g.40gb", HALF),)


async def test_a_mig_device_is_made_at_its_place_and_said_what_it_is(acting: Subject) -> None:
    hardware = acting.hardware
    gpu, half = await with_half(hardware)
    made = await hardware.perform(CreateCompute(gpu.uuid, "3g.40gb", HALF, "3g.40gb"))
    (device,) = (await gpu_of(hardware)).mig_devices
    assert made == Created(half.gi_id, device.ci_id, device.uuid)
    assert (device.gi_id, device.profile, device.placement) == (half.gi_id, "3g.40gb", HALF)
    assert device.uuid.startswith("MIG-")
    assert (await gpu_of(hardware)).empty_instances == ()
    await hardware.perform(Verify(gpu.uuid, True, ("3g.40gb@4",)))


async def test_several_compute_instances_share_a_gpu_instance(acting: Subject) -> None:
    hardware = acting.hardware
    gpu, half = await with_half(hardware)
    made = [
        await hardware.perform(CreateCompute(gpu.uuid, "3g.40gb", HALF, profile))
        for profile in ("1c.3g.40gb", "2c.3g.40gb")
    ]
    devices = (await gpu_of(hardware)).mig_devices
    assert {one.uuid for one in made if one} == {device.uuid for device in devices}
    assert {device.gi_id for device in devices} == {half.gi_id}
    assert len({device.ci_id for device in devices}) == 2
    await hardware.perform(Verify(gpu.uuid, True, ("1c.3g.40gb@4", "2c.3g.40gb@4")))
    await refuses(hardware, CreateCompute(gpu.uuid, "3g.40gb", HALF, "1c.3g.40gb"), InsufficientResources)


async def test_a_device_made_again_has_a_new_uuid_and_its_neighbour_the_old_one(acting: Subject) -> None:
    hardware = acting.hardware
    gpu, half = await with_half(hardware)
    await hardware.perform(CreateInstance(gpu.uuid, "3g.40gb", OTHER_HALF))
    neighbour = await hardware.perform(CreateCompute(gpu.uuid, "3g.40gb", OTHER_HALF, "3g.40gb"))
    uuids = set()
    for _ in range(3):
        made = await hardware.perform(CreateCompute(gpu.uuid, "3g.40gb", HALF, "3g.40gb"))
        assert made is not None
        assert made.gi_id == half.gi_id
        uuids.add(made.uuid)
        destroy = DestroyCompute(gpu.uuid, "3g.40gb", HALF, "3g.40gb", made.gi_id, made.ci_id, made.uuid)
        assert await hardware.perform(destroy) is None
    assert len(uuids) == 3
    (left,) = (await gpu_of(hardware)).mig_devices
    assert neighbour is not None
    assert left.uuid == neighbour.uuid


async def test_a_gpu_instance_goes_once_it_is_empty_and_its_room_is_free_again(acting: Subject) -> None:
    hardware = acting.hardware
    gpu, half = await with_half(hardware)
    await hardware.perform(DestroyInstance(gpu.uuid, "3g.40gb", HALF, half.gi_id))
    assert (await gpu_of(hardware)).empty_instances == ()
    again = await hardware.perform(CreateInstance(gpu.uuid, "2g.20gb", Placement(4, 2)))
    assert again is not None
    await hardware.perform(DestroyInstance(gpu.uuid, "2g.20gb", Placement(4, 2)))  # by its place alone
    await hardware.perform(Verify(gpu.uuid, enabled=True))


async def test_what_is_taken_is_no_room(acting: Subject) -> None:
    gpu, _ = await with_half(acting.hardware)
    await refuses(acting.hardware, CreateInstance(gpu.uuid, "3g.40gb", HALF), InsufficientResources)
    await refuses(
        acting.hardware, CreateInstance(gpu.uuid, "1g.10gb", Placement(6, 1)), InsufficientResources
    )


@pytest.mark.parametrize(
    ("profile", "placement"),
    [("3g.40gb", Placement(2, 4)), ("3g.20gb", OTHER_HALF), ("9g.90gb", OTHER_HALF), ("", OTHER_HALF)],
)
async def test_what_the_gpu_does_not_have_is_unsupported(
    acting: Subject, profile: str, placement: Placement
) -> None:
    gpu, _ = await with_half(acting.hardware)
    await refuses(acting.hardware, CreateInstance(gpu.uuid, profile, placement), Unsupported)


async def test_without_mig_mode_nothing_can_be_made(acting: Subject) -> None:
    uuid = (await gpu_of(acting.hardware)).uuid
    await refuses(acting.hardware, CreateInstance(uuid, "3g.40gb", HALF), Unsupported)


async def test_what_is_not_there_cannot_be_destroyed(acting: Subject) -> None:
    hardware = acting.hardware
    gpu, half = await with_half(hardware)
    await hardware.perform(CreateCompute(gpu.uuid, "3g.40gb", HALF, "3g.40gb"))
    (device,) = (await gpu_of(hardware)).mig_devices
    there = DestroyCompute(
        gpu.uuid, "3g.40gb", HALF, "3g.40gb", device.gi_id, device.ci_id, MigUuid("MIG-of-long-ago")
    )
    await refuses(hardware, there, NotFound)
    await refuses(hardware, DestroyCompute(gpu.uuid, "3g.40gb", OTHER_HALF, "3g.40gb"), NotFound)
    await refuses(hardware, DestroyCompute(gpu.uuid, "3g.40gb", HALF, "1c.3g.40gb", half.gi_id, 0), NotFound)
    await refuses(hardware, DestroyInstance(gpu.uuid, "3g.40gb", HALF, half.gi_id + 1), NotFound)
    await refuses(hardware, DestroyInstance(gpu.uuid, "4g.40gb", OTHER_HALF), NotFound)
    await refuses(hardware, CreateCompute(gpu.uuid, "3g.40gb", OTHER_HALF, "3g.40gb"), NotFound)


@pytest.mark.parametrize(
    "act",
    [
        lambda gpu: SetMigMode(gpu, enabled=True),
        lambda gpu: Reset((gpu,), (gpu,)),
        lambda gpu: CreateInstance(gpu, "3g.40gb", HALF),
        lambda gpu: DestroyInstance(gpu, "3g.40gb", HALF),
        lambda gpu: Verify(gpu, enabled=False),
    ],
)
async def test_an_unknown_gpu_is_not_found(acting: Subject, act: Callable[[str], Step]) -> None:
    await refuses(acting.hardware, act("GPU-of-another-node"), NotFound)


async def test_verify_says_what_is_not_as_said(acting: Subject) -> None:
    hardware = acting.hardware
    gpu, _ = await with_half(hardware)
    await refuses(hardware, Verify(gpu.uuid, enabled=False), StateMismatch)
    await refuses(hardware, Verify(gpu.uuid, enabled=True), StateMismatch)  # a GPU instance is left over
    await hardware.perform(CreateCompute(gpu.uuid, "3g.40gb", HALF, "3g.40gb"))
    await refuses(hardware, Verify(gpu.uuid, enabled=True), StateMismatch)
    await refuses(hardware, Verify(gpu.uuid, True, ("3g.40gb@0",)), StateMismatch)
    await refuses(hardware, Verify(gpu.uuid, True, ("3g.40gb@4", "3g.40gb@4")), StateMismatch)
    await hardware.perform(Verify(gpu.uuid, True, ("3g.40gb@4",)))


async def test_a_reset_for_modes_that_are_in_force_does_nothing(acting: Subject) -> None:
    gpu, _ = await with_half(acting.hardware)
    await acting.hardware.perform(Reset((gpu.uuid,), (gpu.uuid,)))
    assert (await gpu_of(acting.hardware, gpu.index)).empty_instances == gpu.empty_instances


async def test_an_idle_node_has_no_uses(acting: Subject) -> None:
    assert await acting.hardware.uses() == ()


async def test_who_waits_for_events_hears_of_an_act(acting: Subject) -> None:
    hardware = acting.hardware
    await with_half(hardware)
    async with asyncio.timeout(LIMIT_S):
        while not (await hardware.events(1)).changed:
            pass


async def test_a_lost_gpu_takes_no_act_and_the_others_do(acting: Subject) -> None:
    if acting.lose is None:
        pytest.skip("nothing here can lose a GPU")
    hardware = acting.hardware
    gpu, _ = await with_half(hardware)
    await acting.lose(1)
    await refuses(hardware, CreateCompute(gpu.uuid, "3g.40gb", HALF, "3g.40gb"), GpuLost)
    other = (await gpu_of(hardware, 2)).uuid
    await hardware.perform(SetMigMode(other, enabled=True))
