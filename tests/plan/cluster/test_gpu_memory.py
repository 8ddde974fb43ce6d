"""Who holds how much of GPUs that are shared by memory, as a Node and its pods say it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partage.model.ids import MEMORY_RESOURCE
from partage.model.share import NodeOffer
from partage.plan.cluster.gpu_memory import (
    LONGEST,
    DeviceUnits,
    HeldUnit,
    NodeMemory,
    PodMemory,
    count_shared_gpus,
    memory_annotation,
    node_memory,
    pod_annotations,
    read_memory,
)
from partage.plan.serve.ledger_entry import Certainty, Holder, LedgerEntry
from partage.units import GIB
from tests.plan.offers import NAME, unit_row


def test_what_is_held_is_counted_by_pod_and_device():
    devices = [unit_row(0, 10), unit_row(1, 20)]
    offer = {device.gpu: (device,) for device in devices}
    a, b = Holder("x", "a", "main"), Holder("x", "b", "main")
    held: list[HeldUnit] = [(MEMORY_RESOURCE, id_, (a,), None) for id_ in devices[0].share_ids[:3]]
    held += [(MEMORY_RESOURCE, id_, (b, a), None) for id_ in devices[1].share_ids[:4]]
    held += [(MEMORY_RESOURCE, devices[1].share_ids[7], (), None)]
    held += [
        (NAME, devices[1].share_ids[8], (a,), None),
        (MEMORY_RESOURCE, devices[0].share_ids[9], (), "x/part"),
    ]
    found = node_memory(offer, held)
    assert [(device.index, device.used, device.total) for device in found.devices] == [(0, 4, 10), (1, 5, 20)]
    assert [(pod.name, pod.units) for pod in found.pods] == [
        ("", (0, 1)),
        ("a", (3, 0)),
        ("b", (0, 4)),
        ("claim part", (1, 0)),
    ]
    assert count_shared_gpus(offer) == 2


def test_the_annotation_is_read_back_and_stays_short():
    memory = NodeMemory((DeviceUnits(0, 10, 3, GIB), DeviceUnits(1, 20, 0, GIB)))
    many = tuple(PodMemory("namespace", f"pod-{n}", (1, 0)) for n in range(5000))
    text = memory_annotation(replace(memory, pods=many))
    assert len(text) <= LONGEST
    read = read_memory(text)
    assert read is not None
    assert len(read.pods) + read.more == 5000
    assert read_memory("") is None
    assert read_memory('{"cards": [], "pods": [{"namespace": "a", "name": "b", "units": [1]}]}') is None
    assert memory_annotation(NodeMemory(())) == ""


def test_a_pod_for_which_there_is_just_room_is_told():
    memory = NodeMemory((DeviceUnits(0, 10, 1, GIB),), (PodMemory("x", "", (1,)),))
    room = LONGEST - len(memory_annotation(memory))
    for length, pods in ((room, 1), (room + 1, 0)):
        read = read_memory(memory_annotation(replace(memory, pods=(PodMemory("x", "p" * length, (1,)),))))
        assert read is not None
        assert (len(read.pods), read.more) == (pods, 1 - pods)


def test_devices_are_never_left_out():
    memory = NodeMemory(tuple(DeviceUnits(index, 10, 0, GIB) for index in range(2000)))
    assert read_memory(memory_annotation(memory)) == memory


A, B = unit_row(0, 10), unit_row(1, 20)
WHOLE, OTHER_NAME = replace(unit_row(2, 1), by_memory=False), replace(unit_row(3, 10), resource=NAME)
OFFER: NodeOffer = {row.gpu: (row,) for row in (A, B, WHOLE, OTHER_NAME)}


def test_gpus_that_are_shared_by_amounts_in_gpushares_name_are_counted():
    assert count_shared_gpus(OFFER) == 2


def entry(row, number, pod="a", resource=MEMORY_RESOURCE):
    holders = (Holder("x", pod, "main"),) if pod else ()
    return LedgerEntry(resource, row.share_ids[number], Certainty.OBSERVED, holders, 0.0)


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([entry(A, 0), entry(A, 1)], {("x", "a"): "0 2 81"}),
        ([entry(A, 0), entry(B, 0, "b")], {("x", "a"): "0 1 81", ("x", "b"): "1 1 20"}),
        ([entry(A, 0), entry(B, 0)], {}),  # of two GPUs
        ([entry(A, 0, pod="")], {}),
        ([entry(A, 0, resource=NAME)], {}),
        ([entry(OTHER_NAME, 0)], {}),
        ([entry(OTHER_NAME, 0, resource=NAME)], {}),
        ([entry(WHOLE, 0)], {}),
        ([entry(unit_row(7, 10), 0)], {}),  # not offered any more
    ],
)
def test_a_pod_has_gpushares_annotations_for_its_units_of_one_gpu(entries, told):
    found = pod_annotations(OFFER, entries, {A.device: 80 * GIB + 1})
    assert {
        pod: " ".join(values[f"ALIYUN_COM_GPU_MEM_{key}"] for key in ("IDX", "POD", "DEV"))
        for pod, values in found.items()
    } == told
