"""What the kubelet is told of each share: healthy, unhealthy, or nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from partage.model.gpu import Gpu
from partage.model.health import Health
from partage.model.ids import SHARE_CLASS, DeviceUuid, GpuUuid, MigUuid, ResourceName, ShareId
from partage.model.share import DeviceOffer, DeviceRow
from partage.model.strategy import Via
from partage.plan.reconcile.transition import GpuServing
from partage.plan.serve.kubelet_view import (
    EMPTY_VIEW,
    KubeletView,
    ShareHealth,
    given_to_nobody_else,
    kubelet_view,
)
from partage.plan.serve.ledger_entry import HeldIds
from tests.plan.offers import NAME, gpu, offering, share

OTHER = ResourceName("nvidia.com/other")


def serves(*rows: DeviceOffer, draining: bool = False) -> Mapping[GpuUuid, GpuServing]:
    return {row.gpu: GpuServing((row,), draining=draining) for row in rows}


def health(
    *gpus: Gpu,
    unusable: Collection[DeviceUuid] = (),
    cordoned: Collection[int] = (),
    whole: bool = False,
) -> ShareHealth:
    """Of these GPUs, which are all well."""
    return ShareHealth(
        {one.uuid: one for one in gpus},
        {one.uuid: Health() for one in gpus},
        dict.fromkeys(unusable, "it does not answer"),
        whole=whole,
        cordoned=frozenset(gpu(index).uuid for index in cordoned),
    )


def held(*ids: ShareId, resource: ResourceName = NAME, left: Collection[ShareId] = ()) -> HeldIds:
    """All admitted by the kubelet."""
    both = {resource: frozenset(ids)}
    return HeldIds(both, both, {resource: 1}, {resource: frozenset(left)})


def view(
    serving: Mapping[GpuUuid, GpuServing],
    condition: ShareHealth,
    holds: HeldIds,
    *,
    before: KubeletView = EMPTY_VIEW,
    version: int = 1,
    applied_s: float = 0.0,
) -> KubeletView:
    return kubelet_view(
        serving, condition, holds, version, before, now_s=1.0, applied_s=applied_s, refused={}
    )


def healthy(found: KubeletView) -> dict[ShareId, bool]:
    return {row.id: row.healthy for row in found.by_resource[NAME]}


GPUS = [gpu(index) for index in range(3)]
WHOLE = [offering(index) for index in range(3)]
FIRST, SECOND, THIRD = (share(index) for index in range(3))


def test_of_a_cordoned_gpu_what_is_held_stays_healthy_while_another_share_is_free() -> None:
    found = view(serves(*WHOLE), health(*GPUS, cordoned=[0, 1]), held(FIRST))
    assert healthy(found) == {FIRST: True, SECOND: False, THIRD: True}
    assert found.awaited == {NAME: {FIRST}}
    assert found.blocked == {}


def test_with_the_last_free_share_what_is_held_of_a_cordoned_gpu_becomes_unhealthy() -> None:
    found = view(serves(*WHOLE), health(*GPUS, cordoned=[0]), held(FIRST, SECOND, THIRD))
    assert healthy(found) == {FIRST: False, SECOND: True, THIRD: True}
    assert found.blocked == {}, "nothing is free"


def test_a_free_share_that_cannot_be_used_is_no_choice_for_the_kubelet() -> None:
    found = view(serves(*WHOLE), health(*GPUS, cordoned=[0], unusable=[GPUS[2].uuid]), held(FIRST, SECOND))
    assert healthy(found) == {FIRST: False, SECOND: True, THIRD: False}


def test_free_shares_that_the_scheduler_cannot_give_are_counted() -> None:
    """The largest pod needs two, one is free: the held one is unhealthy, and takes the free one away."""
    holds = replace(held(FIRST), largest={NAME: 2})
    found = view(serves(*WHOLE[:2]), health(*GPUS, cordoned=[0]), holds)
    assert healthy(found) == {FIRST: False, SECOND: True}
    assert found.blocked == {NAME: 1}
    ill = view(serves(*WHOLE), health(*GPUS, unusable=[GPUS[0].uuid]), holds)
    assert healthy(ill) == {FIRST: False, SECOND: True, THIRD: True}
    assert ill.blocked == {}, "nobody waits for its end"


def test_what_was_given_back_and_is_still_awaited_is_no_free_share() -> None:
    rows = (DeviceRow(FIRST, healthy=True), DeviceRow(SECOND, healthy=True))
    (first, second) = given_to_nobody_else(rows, {FIRST}, {SECOND}, 1)
    assert (first.healthy, second.healthy) == (False, True)


def test_of_a_device_that_does_not_work_nothing_is_awaited() -> None:
    found = view(serves(*WHOLE), health(*GPUS, cordoned=[0], unusable=[GPUS[0].uuid]), held(FIRST))
    assert found.awaited == {}


def test_a_share_that_only_processes_of_a_former_holder_have_is_unhealthy() -> None:
    found = view(serves(*WHOLE), health(*GPUS), held(FIRST, left=[FIRST]))
    assert healthy(found) == {FIRST: False, SECOND: True, THIRD: True}


def test_a_gpu_in_mig_mode_is_healthy_only_where_it_is_offered_as_a_whole() -> None:
    divided = gpu(0, migs=1)
    assert healthy(view(serves(WHOLE[0]), health(divided), held())) == {FIRST: False}
    assert healthy(view(serves(WHOLE[0]), health(divided, whole=True), held())) == {FIRST: True}


def test_what_the_agent_before_may_have_listed_is_listed_as_unhealthy_first() -> None:
    shared = offering(0, 2)
    changing = serves(shared, draining=True)
    found = view(changing, health(*GPUS), held())
    assert healthy(found) == {share(0, 0): False, share(0, 1): False}
    later = view(changing, health(*GPUS), held(), before=found, applied_s=2.0)
    assert later.by_resource == {NAME: ()}, "the resource stays, without a share"
    by_claim = serves(replace(shared, via=Via.CLAIMS, resource=SHARE_CLASS), draining=True)
    assert view(by_claim, health(*GPUS), held()).by_resource == {}


def test_a_held_id_of_no_known_device_is_listed_once_its_gpu_is_known() -> None:
    device = replace(gpu(0, migs=1).mig_devices[0], uuid=MigUuid("MIG-of-before"))
    holds = held(ShareId(device.uuid), resource=OTHER)
    first = view(serves(*WHOLE), health(*GPUS), holds)
    assert OTHER not in first.by_resource
    known = health(replace(GPUS[0], mig_devices=(device,)), *GPUS[1:])
    then = view(serves(*WHOLE), known, holds, before=first)
    assert [(row.id, row.healthy) for row in then.by_resource[OTHER]] == [(ShareId(device.uuid), False)]
    assert view(serves(*WHOLE), known, holds, before=then) is then
