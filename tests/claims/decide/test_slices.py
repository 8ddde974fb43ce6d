"""What a node publishes: each kind of GPU by hand, and what the API server and the scheduler ask of any."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.claims.decide.devices import claim_devices
from partage.claims.decide.slices import semantic_version, slices_of
from partage.claims.model.names import NAMES_OF_DRIVER, NVIDIA_NAMES, OWN_NAMES, ClaimNames
from partage.claims.model.slices import ServerVersion, slice_of_json
from partage.edges.files.catalogue import geometry_of
from partage.model.geometry import Placement
from partage.model.gpu import ARCHITECTURES, UNKNOWN_ARCHITECTURE, Gpu, Inventory, NoDriver
from partage.model.ids import GpuUuid, MigUuid
from partage.model.share import DeviceOffer
from partage.model.strategy import Strategy, Via
from partage.plan.serve.claim_offer import Closed
from partage.units import GIB, MIB
from tests.claims.api_rules import faults, single_tenant
from tests.claims.offers import amounts, machine, mig, offers, replicas, whole

ILL = Closed("unhealthy", "is not healthy: XID 79", "79")
SERVER, OLD = ServerVersion(1, 37, 2), ServerVersion(1, 36, 3)


def published(*rows: DeviceOffer, inventory: Inventory | None = None, names: ClaimNames = OWN_NAMES, **more):
    """The devices of a node with these rows, as JSON."""
    inventory = inventory or machine(*rows)
    devices = claim_devices(offers(*rows), inventory, "node-a", geometry_of, names)
    found = slices_of(
        devices, inventory, more.pop("closed", {}), more.pop("server", SERVER), geometry_of, **more
    )
    return [json.loads(json.dumps(one.to_json())) for one in found]


def device(*rows: DeviceOffer, **more):
    ((one,),) = (spec["devices"] for spec in published(*rows, **more))
    return one


def attributes(*rows: DeviceOffer, **more):
    return {
        name: inner for name, value in device(*rows, **more)["attributes"].items() for inner in value.values()
    }


# --- kinds ---------------------------------------------------------------------------------------


def test_a_whole_gpu_is_a_plain_device() -> None:
    found = device(whole(1))
    assert found["name"] == "gpu-00000001"
    assert found["capacity"] == {"memory": {"value": "80Gi"}}
    assert "allowMultipleAllocations" not in found


def test_a_gpu_of_amounts_is_whole_where_nothing_is_named() -> None:
    found = device(amounts(0, 79))
    assert found["allowMultipleAllocations"] is True
    assert found["capacity"] == {
        "memory": {
            "value": "79Gi",
            "requestPolicy": {"default": "79Gi", "validRange": {"min": "1Gi", "max": "79Gi", "step": "1Gi"}},
        },
        "cores": {
            "value": "100",
            "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}},
        },
    }


def test_units_of_odd_sizes_and_a_single_one() -> None:
    policy = device(amounts(0, 3, 1536 * MIB))["capacity"]["memory"]
    assert policy["value"] == "4608Mi"
    assert policy["requestPolicy"]["validRange"] == {"min": "1536Mi", "max": "4608Mi", "step": "1536Mi"}
    alone = device(amounts(0, 1, 40 * GIB))["capacity"]["memory"]
    assert alone == {"value": "40Gi", "requestPolicy": {"default": "40Gi", "validValues": ["40Gi"]}}


def test_replicas_are_counted_and_their_memory_only_looked_at() -> None:
    assert device(replicas(0, 4))["capacity"] == {
        "shares": {
            "value": "4",
            "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "4", "step": "1"}},
        },
        "memory": {"value": "80Gi", "requestPolicy": {"default": "0", "validValues": ["0"]}},
    }


def test_a_thousand_shares_are_written_as_the_api_server_writes_them_back() -> None:
    assert device(replicas(0, 1000))["capacity"]["shares"]["value"] == "1k"


def test_a_mig_device_says_its_engines_as_far_as_they_are_known() -> None:
    found = device(mig(3, 2))
    assert found["name"] == "gpu-00000003-mig-1g10gb-19-2"
    assert found["capacity"] == {
        "memory": {"value": "10Gi"},
        "multiprocessors": {"value": "16"},
        "copyEngines": {"value": "1"},
        "decoders": {"value": "1"},
        "encoders": {"value": "0"},
        "jpegEngines": {"value": "1"},
        "ofaEngines": {"value": "0"},
    }


def test_all_attributes_of_a_whole_gpu() -> None:
    assert attributes(whole(1)) == {
        "type": "gpu",
        "mode": "whole",
        "strategy": "exclusive",
        "guarantee": "hard",
        "uuid": "GPU-00000001-0000-0000-0000-000000000000",
        "productName": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "hopper",
        "addressingMode": "HMM",
        "resource.kubernetes.io/pciBusID": "0000:01:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:00",
        "resource.kubernetes.io/numaNode": 0,
        "index": 1,
        "driverVersion": "550.163.1",
        "cudaDriverVersion": "12.4.0",
        "cudaComputeCapability": "9.0.0",
    }


# --- under the names of NVIDIA's driver ----------------------------------------------------------

OF_GPUS = {
    "architecture", "brand", "cudaComputeCapability", "cudaDriverVersion", "driverVersion", "productName",
    "type", "uuid", "addressingMode", "resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pcieRoot",
}  # fmt: skip
"""As its tests have them (tests/bats of its repository), and no others."""


@pytest.mark.parametrize("row", [whole(1), amounts(1), replicas(1)])
def test_a_gpu_has_the_attributes_and_the_name_that_nvidias_driver_gives_it(row: DeviceOffer) -> None:
    found = attributes(row, names=NVIDIA_NAMES)
    assert found.keys() == OF_GPUS
    assert (found["type"], found["architecture"], found["brand"]) == ("gpu", "Hopper", "Nvidia")
    (spec,) = published(row, names=NVIDIA_NAMES)
    assert (spec["driver"], spec["pool"]["name"]) == ("gpu.nvidia.com", "node-a")
    assert [one["name"] for one in spec["devices"]] == ["gpu-11"]  # its minor number


def test_a_mig_device_has_the_attributes_and_the_name_that_nvidias_driver_gives_it() -> None:
    found = attributes(mig(3, 2), names=NVIDIA_NAMES)
    assert found.keys() == OF_GPUS | {"profile", "parentUUID"}
    assert found["type"] == "mig"
    assert device(mig(3, 2), names=NVIDIA_NAMES)["name"] == "gpu-13-mig-1g10gb-19-2"


def test_claims_of_nvidias_even_shares_may_name_memory_up_to_what_one_has() -> None:
    found = device(replicas(0, 4), names=NVIDIA_NAMES)["capacity"]
    assert found["shares"]["requestPolicy"]["default"] == "1"
    assert found["memory"] == {
        "value": "80Gi",
        "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "20Gi", "step": "1Mi"}},
    }
    assert device(amounts(0), names=NVIDIA_NAMES)["capacity"] == device(amounts(0))["capacity"]


def test_a_share_of_less_than_a_mib_has_no_memory_to_ask_for() -> None:
    row = replace(replicas(0, 4), memory_bytes=MIB - 1)
    policy = device(row, names=NVIDIA_NAMES)["capacity"]["memory"]["requestPolicy"]
    assert policy == {"default": "0", "validValues": ["0"]}


@pytest.mark.parametrize(
    ("ours", "theirs"), [("ada", "Ada Lovelace"), ("rubin", "Rubin"), ("unknown", "Unknown")]
)
def test_architectures_have_the_words_of_nvidias_driver(ours: str, theirs: str) -> None:
    inventory = machine(whole(0))
    inventory = replace(inventory, gpus=(replace(inventory.gpus[0], architecture=ours),))
    assert attributes(whole(0), inventory=inventory, names=NVIDIA_NAMES)["architecture"] == theirs


def test_every_architecture_has_a_word_of_nvidias() -> None:
    assert NVIDIA_NAMES.architectures.keys() == {*ARCHITECTURES.values(), UNKNOWN_ARCHITECTURE}


def test_taints_have_the_domain_of_the_driver() -> None:
    (taint,) = device(whole(0), names=NVIDIA_NAMES, closed={whole(0).device: ILL})["taints"]
    assert taint["key"] == "gpu.nvidia.com/unhealthy"


def test_a_mig_device_names_its_gpu_and_profile() -> None:
    found = attributes(mig(3, 2))
    assert (found["type"], found["mode"], found["profile"]) == ("mig", "mig", "1g.10gb")
    assert found["parentUUID"] == "GPU-00000003-0000-0000-0000-000000000000"
    assert found["uuid"] == machine(mig(3, 2)).gpus[0].mig_devices[2].uuid


def test_modes_are_told_apart() -> None:
    assert [attributes(row)["mode"] for row in (amounts(0), replicas(0))] == ["amounts", "replicas"]


def test_what_is_not_known_is_left_out() -> None:
    inventory = machine(whole(0))
    unknown = replace(
        inventory.gpus[0],
        architecture="unknown",
        numa_node=None,
        brand=None,
        addressing_mode=None,
        pcie_root=None,
    )
    found = attributes(
        whole(0), inventory=replace(inventory, gpus=(unknown,), driver=NoDriver("failed", "no answer"))
    )
    assert not found.keys() & {
        "architecture", "brand", "addressingMode", "driverVersion", "cudaDriverVersion",
        "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot", "parentUUID", "profile",
    }  # fmt: skip


def test_numa_nodes_are_told_from_1_37_on() -> None:
    assert "resource.kubernetes.io/numaNode" not in attributes(whole(0), server=ServerVersion(1, 36, 4))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("555.42.06", "555.42.6"),
        ("550.163.01", "550.163.1"),
        ("12.4", "12.4.0"),
        ("615", "615.0.0"),
        ("00.00.00", "0.0.0"),
        ("", ""),
        ("12.4.0.1", ""),
        ("12.x", ""),
        ("1" * 10, ""),
        ("١٢.٤", ""),
        ("-1.2", ""),
    ],
)
def test_versions_have_three_numbers_and_nothing_invented(text: str, version: str) -> None:
    assert semantic_version(text) == version


def test_a_long_name_is_cut_to_what_the_api_takes() -> None:
    inventory = machine(whole(0))
    long = replace(inventory.gpus[0], product="NVIDIA " + "X" * 100)
    found = attributes(whole(0), inventory=replace(inventory, gpus=(long,)))
    assert found["productName"] == "NVIDIA " + "X" * 57


def shared_mig(index: int, number: int) -> DeviceOffer:
    row = mig(index, number)
    return replace(row, shared=Strategy.TIME_SLICING, replicas=2, count=2, memory_bytes=5 * GIB)


def test_engines_of_a_mig_device_that_is_shared_are_only_looked_at() -> None:
    found = device(shared_mig(0, 0))
    assert found["capacity"]["decoders"] == {
        "value": "1",
        "requestPolicy": {"default": "0", "validValues": ["0"]},
    }
    assert single_tenant(found) == []
    assert (attributes(shared_mig(0, 0))["type"], attributes(shared_mig(0, 0))["mode"]) == ("mig", "replicas")


# --- names ---------------------------------------------------------------------------------------


def _with_uuid(gpu: Gpu, uuid: str) -> Gpu:
    return replace(gpu, uuid=GpuUuid(uuid))


def test_gpus_that_begin_alike_have_longer_names_whoever_offers_them() -> None:
    """The second GPU belongs to the device plugin; its UUID counts all the same."""
    row, other = whole(0), replace(whole(1), via=Via.DEVICE_PLUGIN)
    inventory = machine(row, other)
    twin = GpuUuid("GPU-00000000-00ff-0000-0000-000000000000")
    inventory = replace(inventory, gpus=(inventory.gpus[0], _with_uuid(inventory.gpus[1], twin)))
    found = device(row, replace(other, gpu=twin, device=twin), inventory=inventory)
    assert found["name"] == "gpu-00000000000"


def test_compute_instances_of_one_gpu_instance_have_names_of_their_own() -> None:
    rows = [mig(0, 0), mig(0, 1)]
    inventory = machine(*rows)
    (gpu,) = inventory.gpus
    parts = tuple(
        replace(device, profile="1c.3g.40gb", gi_id=1, ci_id=number, placement=Placement(4, 4))
        for number, device in enumerate(gpu.mig_devices)
    )
    inventory = replace(inventory, gpus=(replace(gpu, mig_devices=parts),))
    (spec,) = published(*rows, inventory=inventory)
    names = [one["name"] for one in spec["devices"]]
    assert names == ["gpu-00000000-mig-1c3g40gb-9-4-0", "gpu-00000000-mig-1c3g40gb-9-4-1"]
    assert "decoders" not in spec["devices"][0]["capacity"]


def test_a_mig_device_whose_place_only_root_may_read_has_a_name() -> None:
    row = mig(0, 0)
    inventory = machine(row)
    (gpu,) = inventory.gpus
    hidden = replace(gpu.mig_devices[0], placement=None)
    inventory = replace(inventory, gpus=(replace(gpu, mig_devices=(hidden,)),))
    assert device(row, inventory=inventory)["name"] == "gpu-00000000-mig-1g10gb-19-x7"


def test_devices_that_are_gone_planned_or_of_the_device_plugin_are_left_out() -> None:
    gone = replace(mig(0, 0), device=MigUuid("MIG-gone"))
    unknown = whole(5)
    planned = replace(mig(0, 1), placement=Placement(0, 1))
    plugin = replace(whole(2), via=Via.DEVICE_PLUGIN)
    inventory = machine(mig(0, 1), whole(2))
    (spec,) = published(gone, unknown, planned, plugin, inventory=inventory)
    assert "devices" not in spec
    assert spec["pool"] == {"name": "node-a-partage", "generation": 0, "resourceSliceCount": 1}


def test_unequal_shares_of_one_gpu_are_devices_of_their_own() -> None:
    rows = [
        replace(replicas(0, 4), first=first, count=2, memory_bytes=size)
        for first, size in ((0, GIB), (2, MIB))
    ]
    (spec,) = published(*rows)
    assert [one["name"] for one in spec["devices"]] == ["gpu-00000000-from-0", "gpu-00000000-from-2"]


def test_a_large_node_has_several_slices_of_which_a_fault_changes_no_number() -> None:
    rows = [mig(index, number) for index in range(10) for number in range(7)]
    for closed in ({}, {rows[0].device: ILL}):
        specs = published(*rows, closed=closed)
        assert [len(spec["devices"]) for spec in specs] == [64, 6]
        assert [spec["pool"]["resourceSliceCount"] for spec in specs] == [2, 2]


# --- health --------------------------------------------------------------------------------------


def test_a_closed_device_is_tainted_and_another_is_not() -> None:
    rows = [mig(0, 0), mig(0, 1)]
    ill = {rows[1].device: Closed("unhealthy", "is not healthy: XID 95", "95")}
    (spec,) = published(*rows, closed=ill)
    found = [one.get("taints") for one in spec["devices"]]
    assert found == [None, [{"key": "gpu.partage.dev/unhealthy", "value": "95", "effect": "NoSchedule"}]]


def test_whole_gpus_come_last() -> None:
    """The scheduler takes the first that fits: an amount also fits into a whole GPU."""
    (spec,) = published(whole(0), amounts(1), whole(2), replicas(3))
    modes = [one["attributes"]["mode"]["string"] for one in spec["devices"]]
    assert modes == ["amounts", "replicas", "whole", "whole"]


# --- versions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("v1.36.3", True),
        ("v1.36.4", False),
        ("1.36.4+k3s1", False),
        ("v1.37.0-gke.12", False),
        ("v2.0.0", False),
        ("v1.4.99", True),
    ],
)
def test_a_server_that_is_too_old_gets_no_slices(text: str, *, old: bool) -> None:
    server = ServerVersion.parse(text)
    assert bool(published(whole(0), server=server)) is not old
    assert ("1.36.4 or newer" in server.too_old) is old


@pytest.mark.parametrize("text", ["", "1.36", "v1.36.x", "1" * 9 + ".1.1", "v1.36.44444"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a version of Kubernetes"):
        ServerVersion.parse(text)


# --- laws ----------------------------------------------------------------------------------------

KINDS = (whole, amounts, replicas, lambda index: amounts(index, 1), lambda index: replicas(index, 2))


@st.composite
def rows_of_a_node(draw: st.DrawFn) -> list[DeviceOffer]:
    rows: list[DeviceOffer] = []
    for index in range(draw(st.integers(0, 24))):
        kind = draw(st.integers(0, len(KINDS) + 1))
        if kind < len(KINDS):
            rows.append(KINDS[kind](index))
        else:
            of_mig = (mig, shared_mig)[kind - len(KINDS)]
            rows.extend(of_mig(index, number) for number in range(draw(st.integers(1, 7))))
    return rows


@given(
    rows_of_a_node(),
    st.randoms(use_true_random=False),
    st.sets(st.integers(0, 23)),
    st.sampled_from([*NAMES_OF_DRIVER.values()]),
)
def test_slices_are_a_function_of_their_inputs_and_the_api_server_takes_them(
    rows: list[DeviceOffer], chance: random.Random, ill: set[int], names: ClaimNames
) -> None:
    closed = {row.device: ILL for row in rows if row.gpu_index in ill}
    inventory = machine(*rows)
    specs = published(*rows, inventory=inventory, closed=closed, names=names)
    other_order = chance.sample(rows, len(rows))
    assert published(*other_order, inventory=inventory, closed=closed, names=names) == specs
    assert [fault for spec in specs for fault in faults(spec)] == []
    assert [name for spec in specs for one in spec.get("devices", []) for name in single_tenant(one)] == []
    devices = [one for spec in specs for one in spec.get("devices", [])]
    assert len({one["name"] for one in devices}) == len(devices) == len(rows)
    assert {spec["pool"]["resourceSliceCount"] for spec in specs} == {len(specs)}
    assert len(published(*rows, inventory=inventory)) == len(specs)  # health changes no number of slices


@given(rows_of_a_node())
def test_what_the_api_server_returns_is_compared_with_what_was_sent(rows: list[DeviceOffer]) -> None:
    """It adds fields, and times to taints."""
    inventory = machine(*rows)
    devices = claim_devices(offers(*rows), inventory, "node-a", geometry_of, OWN_NAMES)
    ill = {row.device: (ILL, Closed("cordoned", "is cordoned"))[row.gpu_index % 2] for row in rows[::2]}
    for spec in slices_of(devices, inventory, ill, SERVER, geometry_of):
        sent = replace(spec, pool=replace(spec.pool, generation=7))
        returned = json.loads(json.dumps(sent.to_json())) | {"perDeviceNodeSelection": None}
        for one in returned.get("devices", []):
            for taint in one.get("taints", []):
                assert taint.get("value") != ""  # which the API server leaves out
                taint["timeAdded"] = "2026-11-24T21:00:00Z"
        assert slice_of_json(returned) == sent
        assert sent.pool.generation == 7
        for one in returned.get("devices", []):
            one.pop("allowMultipleAllocations", None)
        if any(row.traits.in_shares for row in rows):
            assert slice_of_json(returned) != sent or not any(
                one.allow_multiple_allocations for one in sent.devices
            )
