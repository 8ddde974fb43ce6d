"""Holds that exclude each other are found, but only those that the kubelet's checkpoint confirms."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.model.gpu import Inventory
from partage.model.ids import ResourceName, ShareId, share_id
from partage.model.layout import LayoutItem
from partage.plan.offer.desired import DesiredState, existing_offer, resolve
from partage.plan.reconcile.conflicts import Conflicts, conflicts
from partage.plan.reconcile.known_node import with_observed
from partage.plan.reconcile.node_plan import NodePlan, Observed, Phase, Snapshot
from partage.plan.reconcile.planner import plan_node
from partage.plan.reconcile.transition import GpuServing, listed_shares
from partage.plan.serve.ledger_entry import Certainty, HeldIds, Holder, LedgerEntry
from partage.sim.node.faults import SetMig
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware

GPU, SHARED, OLD = map(ResourceName, ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/old"))
SLICED = "version: partage/v1\ngpus: [{select: all, time-slicing: {replicas: 4}}]\n"


async def _observe() -> Inventory:
    hardware = SimulatedHardware(load_machine("2xa100-40gb"))
    await hardware.inject(SetMig(1, tuple(map(LayoutItem.parse, ("3g.20gb", "1g.5gb")))))
    return await hardware.observe()


NODE = asyncio.run(_observe())
CARD, SPLIT = NODE.gpus
MIG = SPLIT.mig_devices[0].uuid


def entry(resource: ResourceName, share: ShareId, *pods: str, books: int = 1) -> LedgerEntry:
    """A hold that PodResources names for these pods; books: pods in the checkpoint."""
    holders = tuple(Holder("default", pod, "main") for pod in pods)
    return LedgerEntry(resource, share, Certainty.OBSERVED, holders, 0.0, books)


def share(
    number: int | None, resource: ResourceName = SHARED, *, pod: str = "a", books: int = 1
) -> LedgerEntry:
    return entry(resource, share_id(CARD.uuid, number), pod, books=books)


def held(entries: Iterable[LedgerEntry]) -> HeldIds:
    ids: dict[ResourceName, frozenset[ShareId]] = {}
    for one in entries:
        ids[one.resource] = ids.get(one.resource, frozenset()) | {one.id}
    return HeldIds(ids)


def desired() -> DesiredState:
    return resolve(parse_policy(SLICED, "policy.yaml").policy, NODE, geometry_of)


SERVED = {gpu: GpuServing(offer) for gpu, offer in existing_offer(desired().offer).items()}


def found(*entries: LedgerEntry, checkpoint: bool = True) -> Conflicts:
    known = with_observed(None, NODE).known
    return conflicts(SERVED, held(entries), entries, known, checkpoint=checkpoint)


@pytest.mark.parametrize(
    "entries",
    [
        (),
        (share(0), share(1, pod="b")),
        (entry(SHARED, share_id(CARD.uuid, 0), "a"), entry(SHARED, share_id(CARD.uuid, 1), "a")),
        (share(None, GPU),),
        (entry(OLD, ShareId("MIG-that-is-gone"), "a"), share(0)),
        (entry(OLD, ShareId("MIG-that-is-gone"), "a"), entry(OLD, ShareId("MIG-that-is-gone::0"), "b")),
        tuple(entry(OLD, ShareId(device.uuid), f"pod-{n}") for n, device in enumerate(SPLIT.mig_devices)),
    ],
    ids=[
        "nothing",
        "two shares",
        "one pod",
        "a foreign hold alone",
        "a device that is gone",
        "two holds of it",
        "MIG devices",
    ],
)
def test_holds_that_agree(entries: tuple[LedgerEntry, ...]) -> None:
    assert found(*entries) == Conflicts()


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (
            (entry(SHARED, share_id(CARD.uuid, 0), "a", "b", books=2),),
            f"several pods hold the same share: {SHARED} {CARD.uuid}::0 by default/a and default/b",
        ),
        ((share(None, GPU), share(0, pod="b")), "shares are held that exclude each other: nvidia.com/gpu "),
        ((share(None, GPU), share(None, OLD, pod="b")), "nvidia.com/old"),
        (
            (share(None, GPU), replace(entry(SHARED, share_id(CARD.uuid, 0)), certainty=Certainty.TENTATIVE)),
            f"{CARD.uuid}::0 by a pod that is not named yet",
        ),
        ((share(0), share(5, OLD, pod="b")), f"nvidia.com/old {CARD.uuid}::5 by default/b"),
        ((entry(OLD, ShareId(SPLIT.uuid), "a"), entry(OLD, ShareId(MIG), "b")), MIG),
    ],
    ids=["two pods", "whole and share", "two resources", "not named", "two offers", "GPU and MIG device"],
)
def test_holds_that_exclude_each_other(entries: tuple[LedgerEntry, ...], text: str) -> None:
    conflict = found(*entries)
    (message,) = conflict.found.values()
    assert text in message
    assert conflict.suspected == {one.hold for one in entries}


@pytest.mark.parametrize(
    "entries",
    [
        (entry(SHARED, share_id(CARD.uuid, 0), "a", "ended", books=1),),
        (share(None, GPU, books=0), share(0, pod="b")),
    ],
)
def test_what_the_checkpoint_does_not_confirm_is_only_suspected(entries: tuple[LedgerEntry, ...]) -> None:
    conflict = found(*entries)
    assert not conflict.found
    assert conflict.suspected == {one.hold for one in entries}
    assert found(*entries, checkpoint=False).found, "without one, PodResources is believed"


def plan(*entries: LedgerEntry, **more: object) -> NodePlan:
    node = with_observed(None, NODE)
    now = Snapshot(10.0, Observed(node, ()), SERVED, held(entries), entries)
    return plan_node(desired(), replace(now, **more), geometry_of)


def test_the_free_shares_of_the_gpu_are_withdrawn_and_no_other() -> None:
    entries = (share(None, GPU), share(0, pod="b"))
    now = plan(*entries)
    rows = listed_shares(now.serving, held(entries), {MIG: SPLIT.uuid})
    assert [row.id for row in rows[SHARED] if row.gpu == CARD.uuid] == [share_id(CARD.uuid, 0)]
    gpu = now.gpus[CARD.uuid]
    assert (gpu.phase, gpu.reason) == (Phase.WAITING, gpu.conflict)
    assert set(gpu.waiting_for) == set(entries)
    assert now.serving[SPLIT.uuid] == SERVED[SPLIT.uuid]
    assert not now.ready


def test_a_conflict_is_all_that_its_gpu_says_unless_the_gpu_is_being_changed() -> None:
    entries = (share(None, GPU), share(0, pod="b"))
    gpu = plan(*entries, spared={CARD.uuid: "not evicted: a/b"}).gpus[CARD.uuid]
    assert (gpu.phase, gpu.reason) == (Phase.WAITING, gpu.conflict)
    gpu = plan(*entries, in_hand={CARD.uuid: Phase.CHANGING}).gpus[CARD.uuid]
    assert gpu.phase is Phase.CHANGING
    assert gpu.conflict


def test_a_gpu_whose_conflict_is_over_offers_its_shares_again() -> None:
    entries = (entry(SHARED, share_id(CARD.uuid, 0), "a", "b", books=2),)
    node, rest = with_observed(None, NODE), (entry(SHARED, share_id(CARD.uuid, 0), "b"),)
    serving = plan(*entries).serving
    assert serving[CARD.uuid].draining
    after = plan_node(desired(), Snapshot(11.0, Observed(node, ()), serving, held(rest), rest), geometry_of)
    assert after.serving[CARD.uuid] == SERVED[CARD.uuid]
