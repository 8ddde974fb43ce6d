"""What is offered by claims: the same shares under a DeviceClass, and never in a list of the kubelet's."""

from __future__ import annotations

import pytest

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.model.ids import GPU_CLASS, MIG_CLASS, SHARE_CLASS, ResourceName
from partage.model.share import DeviceOffer, plugin_resources, resources_of
from partage.model.strategy import Via
from partage.plan.offer.desired import DesiredState, resolve
from partage.plan.reconcile.transition import GpuServing, listed_shares, transition
from partage.plan.serve.ledger import Ledger
from partage.plan.serve.ledger_entry import Certainty, HeldIds, Holder, LedgerEntry, held_ids
from tests.plan.offers import gpu, node

WITHDRAW_S = 2.0


def desired(entry: str) -> DesiredState:
    """Two GPUs: the first as ``entry`` says, the other exclusive by the device plugin."""
    entries = f"- {{select: {{index: 0}}, {entry}}}\n- {{select: rest, exclusive: {{}}}}"
    text = f"version: partage/v1\ngpus:\n{entries}"
    return resolve(parse_policy(text, "p").policy, node(gpu(0), gpu(1)), geometry_of)


def first_row(entry: str) -> DeviceOffer:
    rows, _ = desired(entry).offer.values()
    return rows[0]


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("via: claims, exclusive: {}", GPU_CLASS),
        ("via: claims, mps: {unit: 1Gi}", GPU_CLASS),
        ("via: claims, time-slicing: {unit: 1Gi}", GPU_CLASS),
        ("via: claims, mps: {replicas: 4}", SHARE_CLASS),
        ("via: claims, time-slicing: {replicas: 4}", SHARE_CLASS),
        ("via: claims, mig: {layout: [3g.40gb]}", MIG_CLASS),
    ],
)
def test_the_class_follows_from_what_a_claim_can_get(entry: str, name: ResourceName) -> None:
    row = first_row(entry)
    assert (row.resource, row.via, row.single) == (name, Via.CLAIMS, False)


@pytest.mark.parametrize("sharing", ["exclusive: {}", "mps: {unit: 1Gi}", "time-slicing: {replicas: 4}"])
def test_the_shares_are_those_of_the_device_plugin(sharing: str) -> None:
    by_claim, by_plugin = first_row(f"via: claims, {sharing}"), first_row(sharing)
    assert by_claim.share_ids == by_plugin.share_ids
    assert (by_claim.memory_bytes, by_claim.guarantee) == (by_plugin.memory_bytes, by_plugin.guarantee)


def test_the_kubelet_gets_no_list_of_them() -> None:
    state = desired("via: claims, mps: {unit: 1Gi}")
    serving = transition({}, state.offer, HeldIds(), 0, WITHDRAW_S)
    assert set(listed_shares(serving, HeldIds())) == set(plugin_resources(state.offer)) == {"nvidia.com/gpu"}
    assert set(resources_of(state.offer)) == {GPU_CLASS, "nvidia.com/gpu"}


def test_nor_of_ids_that_a_claim_holds_of_an_offer_that_is_gone() -> None:
    """The state file was lost, or the policy names another strategy: a claim holds what is not offered."""
    state = desired("exclusive: {}")
    row = first_row("via: claims, mps: {unit: 1Gi}")
    held = HeldIds({GPU_CLASS: frozenset(row.share_ids[:3])})
    serving = transition({}, state.offer, held, 0, WITHDRAW_S)
    assert set(listed_shares(serving, held)) == {"nvidia.com/gpu"}


@pytest.mark.parametrize(
    ("before", "after"),
    [("exclusive: {}", "via: claims, exclusive: {}"), ("via: claims, exclusive: {}", "exclusive: {}")],
)
def test_a_gpu_passes_between_the_two_when_nothing_of_it_is_held(before: str, after: str) -> None:
    then, now = desired(before).offer, desired(after).offer
    (uuid, (row,)), _ = then.items()
    held = HeldIds({row.resource: frozenset(row.share_ids)})
    serving = transition(transition({}, then, HeldIds(), 0, WITHDRAW_S), now, held, 1, WITHDRAW_S)
    assert serving[uuid].draining
    assert serving[uuid].offer == (row,)
    serving = transition(serving, now, HeldIds(), 2, WITHDRAW_S)
    assert serving[uuid].draining
    assert transition(serving, now, HeldIds(), 4, WITHDRAW_S)[uuid] == GpuServing(now[uuid])


def test_what_a_claim_holds_is_held_until_the_claim_is_gone() -> None:
    ledger, (share, *_) = Ledger(), first_row("via: claims, exclusive: {}").share_ids
    entry = LedgerEntry(
        GPU_CLASS, share, Certainty.CLAIMED, (Holder("team", "train", "main"),), 5.0, claim="team/whole"
    )
    ledger.claimed([entry])
    version = ledger.version
    ledger.observed((), asked_s=100.0)  # the kubelet's device lists do not know it
    ledger.claimed([entry], [entry])
    assert ledger.entries() == (entry,)
    assert ledger.version == version
    assert ledger.held() == held_ids([entry])
    ledger.claimed([], [entry])
    assert ledger.entries() == ()
    assert ledger.version > version
