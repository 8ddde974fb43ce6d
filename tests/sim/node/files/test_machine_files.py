"""Machines from files, and back."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.errors import InputError
from partage.model.geometry import Placement
from partage.model.gpu import (
    ComputeMode,
    Driver,
    EmptyInstance,
    Inventory,
    LinkPath,
    LostGpu,
    NoDriver,
    RecoveryAction,
    architecture_name,
)
from partage.model.layout import LayoutItem
from partage.model.mps import DaemonSpec, MpsNamespace
from partage.model.strategy import Interval
from partage.sim.node.faults import LoseGpu, RaiseXid, Reboot, TimedFault
from partage.sim.node.files.load import load_machine
from partage.sim.node.files.machine_file import read_machine
from partage.sim.node.files.machine_writer import machine_rows, machine_text
from partage.sim.node.machine import Machine
from partage.sim.node.machine_names import parse_machine
from partage.sim.node.mig import create_layout
from tests.examples import examples

GOLDEN = Path(__file__).parents[3] / "golden" / "device-plugin"


def read(document):
    return read_machine(yaml.safe_dump(document).encode(), "m.yaml")


def written(inventory: Inventory) -> bytes:
    return machine_text(Machine("", inventory, recorded="2025-11-21"), as_yaml=False).encode()


def problems(document):
    """Path to message of everything that is wrong."""
    with pytest.raises(InputError) as caught:
        read(document)
    assert all(problem.file == "m.yaml" for problem in caught.value.problems)
    found: dict[str, str] = {}
    for problem in caught.value.problems:
        found[problem.path] = f"{found.get(problem.path, '')}{problem.message}\n"
    return found


def mig(*rows, **gpu):
    """An A100 with these MIG devices: (gi, ci, profile, start)."""
    devices = [dict(zip(("gi", "ci", "profile", "start"), row, strict=True)) for row in rows]
    return {"gpus": [{"name": "a100-40gb", "mig-mode": [1, 1], "mig-devices": devices, **gpu}]}


# --- reading -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a100.json", "h100.json"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_recording_of_another_tool_is_a_machine_as_it_stands(name, whole, tmp_path):
    recording = json.loads((GOLDEN / name).read_text())
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(recording if whole else recording["machine"]))
    inventory = load_machine(str(file)).inventory
    assert [gpu.uuid for gpu in inventory] == [row["uuid"] for row in recording["machine"]["gpus"]]
    assert [gpu.product for gpu in inventory] == [row["name"] for row in recording["machine"]["gpus"]]
    assert [gpu.numa_node for gpu in inventory] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {gpu.architecture for gpu in inventory} == {"ampere" if name == "a100.json" else "hopper"}
    assert inventory.control_nodes == ()
    assert len(inventory.links) == 28
    assert inventory.driver == Driver("550.163.01", "12.4")
    assert geometry_of(inventory.gpus[0]) is not None


def test_what_a_file_leaves_out_follows_from_the_model():
    gpu = read({"gpus": [{"name": "NVIDIA L40S"}, {"name": "l4"}]}).inventory.gpus[1]
    assert (gpu.index, gpu.product, gpu.architecture) == (1, "NVIDIA L4", "ada")
    assert gpu.memory_bytes == 23034 * 2**20


def test_a_gpu_that_the_catalogue_lacks_needs_its_memory_and_no_more():
    gpu = read({"gpus": [{"name": "NVIDIA X1", "memory-bytes": 2**34}]}).inventory.gpus[0]
    assert (gpu.product, gpu.architecture, gpu.mig_mode) == ("NVIDIA X1", "unknown", None)


def test_a_file_says_everything_that_it_wants():
    row = {
        "name": "NVIDIA A30", "index": 3, "minor": 5, "uuid": "GPU-x", "compute-mode": 3, "recovery": 2,
        "numa-node": -1, "mig-mode": [0, 1], "pci-bus-id": "0000:0B:00.0", "architecture": "ampere",
    }  # fmt: skip
    gpu = read({"gpus": [row]}).inventory.gpus[0]
    assert (gpu.index, gpu.minor, gpu.uuid, gpu.numa_node) == (3, 5, "GPU-x", None)
    assert gpu.compute_mode is ComputeMode.EXCLUSIVE_PROCESS
    assert gpu.recovery is RecoveryAction.NODE_REBOOT
    assert gpu.mig_mode is not None
    assert (gpu.mig_mode.current, gpu.mig_mode.pending) == (False, True)


def test_links_of_the_file_take_the_place_of_the_model_s():
    machine = read(
        {
            "gpus": [{"name": "a100-40gb"}] * 3,
            "links": [{"a": 0, "b": 2, "path": "single-switch", "nvlinks": 4}],
        }
    )
    (link,) = machine.inventory.links
    assert (link.nvlinks, link.path.name) == (4, "SINGLE_SWITCH")
    assert link.b == machine.inventory.gpus[2].uuid


def test_a_file_may_bring_misfortune_with_it():
    machine = read(
        {
            "gpus": [{"name": "t4"}] * 3,
            "faults": [
                {"after-s": 5, "gpu": 2, "xid": 79},
                {"after-calls": 9, "gpu": 1, "lost": True},
                {"after-s": 0.5, "reboot": True},
            ],
        }
    )
    assert machine.faults == (
        TimedFault(RaiseXid(2, 79), after_s=5.0),
        TimedFault(LoseGpu(1), after_calls=9),
        TimedFault(Reboot(), after_s=0.5),
    )


# --- live MIG devices --------------------------------------------------------------------------


def test_live_mig_devices_are_completed_from_the_catalogue():
    device = read(mig((1, 0, "3g.20gb", 0), (5, 0, "2g.10gb", 4))).inventory.gpus[0].mig_devices[1]
    assert (device.index, device.gi_id, device.placement) == (1, 5, Placement(4, 2))
    assert device.memory_bytes == 9856 * 2**20
    assert device.uuid.startswith("MIG-")
    assert (device.gi_minor, device.ci_minor) == (3 + 5 * 9, 3 + 5 * 9 + 1)


def test_mig_mode_is_on_where_mig_devices_live_and_the_file_says_nothing():
    document = mig((1, 0, "3g.20gb", 0))
    del document["gpus"][0]["mig-mode"]
    assert read(document).inventory.gpus[0].mig_enabled


def test_compute_instances_share_their_gpu_instance():
    devices = read(mig((1, 0, "1c.3g.20gb", 0), (1, 1, "2c.3g.20gb", 0))).inventory.gpus[0].mig_devices
    assert [device.profile for device in devices] == ["1c.3g.20gb", "2c.3g.20gb"]


@pytest.mark.parametrize(
    ("rows", "gpu", "path", "words"),
    [
        ([(1, 0, "3g.40gb", 0)], {}, "[0]", "no profile 3g.40gb"),
        ([(1, 0, "3g.20gb", 1)], {}, "[0]", "0, 4 only"),
        ([(1, 0, "banana", 0)], {}, "[0].profile", "not a MIG profile"),
        ([(1, 0, "3g.20gb", 0), (2, 0, "2g.10gb", 2)], {}, "", "overlap"),
        ([(1, 0, "4g.20gb", 0), (5, 0, "2g.10gb", 4), (6, 0, "2g.10gb", 4)], {}, "", "8 compute slices"),
        ([(7, 0, "1g.5gb+me", 0), (8, 0, "1g.5gb+me", 1)], {}, "", "at most 1"),
        ([(1, 0, "3g.20gb", 0), (1, 1, "3g.20gb", 4)], {}, "", "several profiles or places"),
        ([(1, 0, "1c.3g.20gb", 0), (1, 0, "1c.3g.20gb", 0)], {}, "", "twice"),
        ([(1, 0, "2c.3g.20gb", 0), (1, 1, "2c.3g.20gb", 0)], {}, "", "it has 3"),
        ([(1, 0, "3g.20gb", 0)], {"mig-mode": [0, 0]}, "", "only while MIG mode is on"),
        ([(1, 0, "3g.20gb", 0)], {"mig-mode": None}, "", "only while MIG mode is on"),
    ],
)
def test_mig_devices_that_cannot_live_are_refused(rows, gpu, path, words):
    found = problems(mig(*rows, **gpu))
    assert words in found[f"gpus[0].mig-devices{path}"]


@pytest.mark.parametrize("mode", [[1, 1], [0, 1]])
def test_mig_mode_is_refused_on_a_product_that_has_no_mig(mode):
    found = problems({"gpus": [{"name": "l4", "mig-mode": mode}]})
    assert found == {"gpus[0].mig-mode": "line 2: NVIDIA L4 has no MIG\n"}
    assert read({"gpus": [{"name": "l4", "mig-mode": None}]}).inventory.gpus[0].mig_mode is None


def test_a_size_that_the_profile_does_not_have_is_refused():
    document = mig((1, 0, "3g.20gb", 0))
    document["gpus"][0]["mig-devices"][0]["size"] = 3
    assert "occupies 4" in problems(document)["gpus[0].mig-devices[0]"]


def test_mig_devices_of_a_model_without_placements_have_to_say_their_size_and_memory():
    device = {"gi": 1, "ci": 0, "profile": "1g.24gb", "start": 0}
    gpu = {"name": "NVIDIA RTX PRO 5000 Blackwell", "mig-devices": [device]}
    assert "size and memory-bytes" in problems({"gpus": [gpu]})["gpus[0].mig-devices[0]"]
    gpu["mig-devices"] = [device | {"size": 4, "memory-bytes": 2**34}]
    assert read({"gpus": [gpu]}).inventory.gpus[0].mig_devices[0].memory_bytes == 2**34


def empty(gi, profile, start, **more):
    return {"gi": gi, "profile": profile, "start": start, **more}


def test_an_empty_gpu_instance_turns_the_mode_on_and_has_the_size_of_its_profile():
    gpu = {"name": "a100-40gb", "empty-instances": [empty(5, "2g.10gb", 4), empty(1, "4g.20gb", 0)]}
    (found,) = read({"gpus": [gpu]}).inventory.gpus
    assert found.mig_enabled
    assert found.empty_instances == (
        EmptyInstance(1, "4g.20gb", Placement(0, 4)),
        EmptyInstance(5, "2g.10gb", Placement(4, 2)),
    )


@pytest.mark.parametrize(
    ("row", "more", "path", "words"),
    [
        (empty(1, "3g.20gb", 1), {}, "empty-instances[0]", "0, 4 only"),
        (empty(1, "3g.20gb", 0, size=3), {}, "empty-instances[0]", "occupies 4"),
        (empty(1, "1c.3g.20gb", 0), {}, "empty-instances[0].profile", "is a MIG device"),
        ({"gi": 1, "profile": "3g.20gb"}, {}, "empty-instances[0]", "'start' is missing"),
        (empty(1, "3g.20gb", 0), {"mig-mode": [0, 0]}, "empty-instances", "only while MIG mode is on"),
        (empty(1, "3g.20gb", 0), {"mig-devices": [(5, 0, "2g.10gb", 2)]}, "mig-devices", "overlap"),
        (empty(1, "3g.20gb", 0), {"mig-devices": [(1, 0, "3g.20gb", 4)]}, "mig-devices", "another one has"),
        (empty(1, "3g.20gb", 0, uuid="x"), {}, "empty-instances[0].uuid", "unknown key"),
    ],
)
def test_an_empty_gpu_instance_that_cannot_be_there_is_refused(row, more, path, words):
    devices = mig(*more.pop("mig-devices", []))["gpus"][0]["mig-devices"]
    gpu = {"name": "a100-40gb", "mig-devices": devices, "empty-instances": [row], **more}
    assert words in problems({"version": "partage/v1", "gpus": [gpu]})[f"gpus[0].{path}"]


@pytest.mark.parametrize(
    ("name", "fabric_manager"),
    [("8xa100-40gb", True), ("a100-40gb", False), ("a100-40gb+h100-sxm5-80gb", False), ("8xl40s", False)],
)
def test_the_fabric_manager_runs_where_switches_join_gpus_unless_the_file_says_otherwise(
    name, fabric_manager
):
    document = machine_rows(parse_machine(name))
    assert document["fabric-manager"] is fabric_manager
    assert document["virtual"] is False
    del document["fabric-manager"]
    assert read(document).inventory.fabric_manager is fabric_manager
    assert read({**document, "fabric-manager": None}).inventory.fabric_manager is None


# --- refusals ----------------------------------------------------------------------------------


def test_everything_that_is_wrong_is_said_at_once():
    found = problems(
        {
            "version": "partage/v1",
            "kind": "Machine",
            "colour": "red",
            "gpus": [
                {"name": "a100-40", "index": -1},
                {"name": "t4", "uuid": "", "numa-node": "left"},
                "t4",
                {"name": "l4", "mig_devises": []},
            ],
            "links": [{"a": 1, "b": 1}],
            "faults": [{"after-s": 1, "gpu": 7, "xid": 79}, {"xid": 79}],
        }
    )
    assert set(found) == {
        "colour", "gpus[0].name", "gpus[1].uuid", "gpus[1].numa-node", "gpus[2]", "gpus[3].mig_devises",
        "links[0]", "faults[0]", "faults[1]",
    }  # fmt: skip


def test_a_hundred_problems_are_listed_and_the_rest_counted():
    with pytest.raises(InputError) as caught:
        read({"gpus": [{"name": "t4"}], "device-nodes": [1] * 250})
    assert len(caught.value.problems) == 101
    assert "150 more" in str(caught.value)


@pytest.mark.parametrize("key", ["index", "uuid", "minor", "pci-bus-id"])
def test_two_gpus_share_no_name(key):
    value = {"index": 4, "uuid": "GPU-4", "minor": 4, "pci-bus-id": "0000:04:00.0"}[key]
    rows = [{"name": "t4", "index": 1, key: value}, {"name": "t4", "index": 2, key: value}]
    assert f"{key} {value}" in problems({"gpus": rows})["gpus"]


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"gpus": []}, "gpus"),
        ({}, ""),
        ({"gpus": [{"name": "t4"}] * 65}, "gpus"),
        ({"gpus": {"name": "t4"}}, "gpus"),
        ([1], ""),
        ({"machine": 3}, "machine"),
        ({"version": "partage/v9", "gpus": [{"name": "t4"}]}, "version"),
        ({"version": "partage/v1", "kind": "Story", "gpus": [{"name": "t4"}]}, "kind"),
        ({"gpus": [{}]}, "gpus[0]"),
        ({"gpus": [{"name": "t4", "memory-bytes": 12}]}, "gpus[0].memory-bytes"),
        ({"gpus": [{"name": "t4"}], "device-nodes": ["nvidiactl"]}, "device-nodes[0]"),
        ({"gpus": [{"name": "t4"}], "open-to-env": "yes"}, "open-to-env"),
        ({"gpus": [{"name": "t4"}], "fabric-manager": 1}, "fabric-manager"),
        ({"gpus": [{"name": "t4"}], "virtual": "kvm"}, "virtual"),
        ({"gpus": [{"name": "t4"}], "cuda-driver": 7}, "cuda-driver"),
    ],
)
def test_a_file_that_is_no_machine_says_where(document, path):
    assert path in problems(document)


def test_an_unknown_key_is_an_error_with_the_key_that_was_meant():
    document = {"gpus": [{"name": "l4", "count": 4, "memory-byte": 2**34}], "driver_version": "550"}
    with pytest.raises(InputError) as caught:
        read(document)
    found = {problem.path: problem.hint for problem in caught.value.problems}
    assert list(found) == ["driver_version", "gpus[0].count", "gpus[0].memory-byte"]
    assert found["gpus[0].memory-byte"] == "did you mean 'memory-bytes'?"
    assert "every GPU has a row of its own" in found["gpus[0].count"]


@pytest.mark.parametrize(
    "row",
    [
        {"memory-bytes": 2**34, "pci-bus-id": "0000:0B:00.0"},
        {"memoryBytes": 2**34, "pciBusId": "0000:0B:00.0"},
        {"memory_bytes": 2**34, "pci_bus_id": "0000:0B:00.0"},
    ],
)
def test_a_key_may_be_spelled_as_in_yaml_in_json_and_as_before(row):
    (gpu,) = read({"gpus": [{"name": "NVIDIA X1", **row}], "openToEnv": True}).inventory
    assert (gpu.memory_bytes, gpu.pci_bus_id) == (2**34, "0000:0B:00.0")


def test_a_key_in_two_spellings_is_an_error():
    found = problems({"gpus": [{"name": "NVIDIA X1", "memory-bytes": 2**34, "memory_bytes": 2**35}]})
    assert "twice, also as gpus[0].memory-bytes" in found["gpus[0].memory_bytes"]


def test_a_machine_is_written_in_the_spelling_of_its_format():
    machine = load_machine("examples/07-mixed-node/machine.json")
    as_yaml, as_json = machine_text(machine, as_yaml=True), machine_text(machine, as_yaml=False)
    assert "\n  memory-bytes: " in as_yaml
    assert '"memoryBytes": ' in as_json
    assert "_" not in "".join(set(_keys(yaml.safe_load(as_yaml))) | set(_keys(json.loads(as_json))))
    for text in (as_yaml, as_json):
        assert read_machine(text.encode(), "m").inventory == machine.inventory


def _keys(value):
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _keys(inner)


# --- what a driver said of MIG -----------------------------------------------------------------

X900: dict[str, Any] = {
    "name": "NVIDIA X900",
    "memory-bytes": 97887 * 2**20,
    "mig-geometry": {
        "most-instances": 4,
        "profiles": [
            {"profile": "1g.24gb", "size": 3, "starts": [0, 3, 6, 9]},
            {"profile": "2g.48gb", "size": 6, "starts": [6, 0], "memory-bytes": 48512 * 2**20},
            {"profile": "4g.96gb", "size": 12, "starts": [0], "engines": {"copy": 4, "ofa": 1}},
        ],
    },
}


def test_a_geometry_of_the_file_is_that_of_the_gpu_and_survives_a_recording():
    machine = read({"gpus": [X900]})
    (gpu,) = machine.inventory
    geometry = geometry_of(gpu)
    assert geometry is not None
    assert (geometry.model, geometry.compute_slices, geometry.memory_slices) == ("NVIDIA X900", 4, 12)
    assert geometry.profiles[1].starts == (0, 6)
    assert gpu.mig_mode is not None
    for as_yaml in (True, False):
        text = machine_text(machine, as_yaml=as_yaml)
        assert read_machine(text.encode(), "m").inventory == machine.inventory


DAEMONS: list[dict[str, object]] = [
    {"device": "GPU-1", "memory-bytes": 2**34, "threads-percent": 25},
    {"device": "GPU-2", "namespaces": [{"name": "big", "memory-bytes": 2**30}, {"name": "rest"}]},
]


def cards(*rows: object) -> dict[str, Any]:
    gpus = [{"name": "NVIDIA L4", "uuid": f"GPU-{n}"} for n in (1, 2)]
    return {"driver": "615.10.01", "cuda-driver": "13.3", "gpus": gpus, "mps-daemons": list(rows)}


@pytest.mark.parametrize("as_yaml", [True, False])
def test_daemons_and_time_slices_survive_a_recording(as_yaml: bool) -> None:
    document = cards(*DAEMONS)
    document["gpus"][0]["time-slice"], document["gpus"][1]["time-slice"] = "long", "not-supported"
    machine = read(document)
    assert [spec.device for spec in machine.daemons] == ["GPU-1", "GPU-2"]
    assert machine.daemons[0].limits.memory_bytes == 2**34
    again = read_machine(machine_text(machine, as_yaml=as_yaml).encode(), "m")
    assert (again.daemons, again.time_slices) == (machine.daemons, machine.time_slices)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({}, "device"),
        ({"device": "GPU-3"}, "has the UUID GPU-3"),
        (DAEMONS[0], "has a daemon already"),
        ({"device": "GPU-2", "memory-bytes": 5}, "not in whole MiB"),
        ({"device": "GPU-2", "threads-percent": 101}, "100"),
        ({"device": "GPU-2", "namespaces": [{"name": "default"}]}, "no valid or unique name"),
        ({"device": "GPU-2", "namespaces": [{}]}, "name"),
        ({"device": "GPU-2", "clients": []}, "clients"),
    ],
)
def test_a_daemon_that_cannot_be_is_a_problem(row: object, problem: str) -> None:
    found = problems(cards(DAEMONS[0], row))
    assert problem in str(found)


def test_a_daemon_needs_what_hardware_needs_for_it() -> None:
    found = problems({**cards(DAEMONS[1]), "driver": "580.95.05", "cuda-driver": "13.0"})
    assert list(found) == ["mps-daemons[0]"]


def test_what_the_driver_said_counts_before_the_catalogue():
    (gpu,) = read({"gpus": [{**X900, "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition"}]}).inventory
    geometry = geometry_of(gpu)
    assert geometry is not None
    assert [str(spec.profile) for spec in geometry.profiles] == ["1g.24gb", "2g.48gb", "4g.96gb"]


def test_instances_are_checked_against_the_geometry_of_the_file():
    device = {"gi": 1, "ci": 0, "profile": "2g.48gb", "start": 6}
    (gpu,) = read({"gpus": [{**X900, "mig-devices": [device]}]}).inventory
    assert gpu.mig_devices[0].memory_bytes == 48512 * 2**20
    found = problems({"gpus": [{**X900, "mig-devices": [{**device, "start": 3}]}]})
    assert "can start at memory slice 0, 6 only" in found["gpus[0].mig-devices[0]"]


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"profiles": []}, ".profiles", "at least one profile"),
        ({"profiles": None}, ".profiles", "has no value"),
        ({"profile": []}, "", "'profiles' is missing"),
        ({"profile": []}, ".profile", "unknown key"),
        (
            {"profiles": [{"profile": "1c.2g.48gb", "size": 1, "starts": [0]}]},
            ".profiles[0].profile",
            "GPU inst",
        ),
        (
            {"profiles": [{"profile": "1g.24gb", "size": 0, "starts": [0]}]},
            ".profiles[0].size",
            "from 1 to 64",
        ),
        (
            {"profiles": [{"profile": "1g.24gb", "size": 1, "starts": []}]},
            ".profiles[0].starts",
            "at least one",
        ),
        (
            {"profiles": [{"profile": "1g.24gb", "size": 1, "starts": ["a"]}]},
            ".profiles[0].starts[0]",
            "whole",
        ),
        ({"profiles": [{"profile": "1g.24gb", "starts": [0]}]}, ".profiles[0]", "'size' is missing"),
        ({"profiles": [{"profile": "1g.24gb", "size": 1, "starts": [0]}] * 2}, ".profiles", "occurs twice"),
        ({"most-instances": "4"}, ".most-instances", "whole number"),
    ],
)
def test_a_geometry_that_makes_no_sense_is_refused(change, path, message):
    geometry = {**X900["mig-geometry"], **change}
    if "profile" in change:
        del geometry["profiles"]
    assert message in problems({"gpus": [{**X900, "mig-geometry": geometry}]})[f"gpus[0].mig-geometry{path}"]


def test_a_gpu_without_mig_has_no_geometry():
    found = problems({"gpus": [{"name": "l4", "mig-geometry": X900["mig-geometry"]}]})
    assert "has no MIG" in found["gpus[0].mig-geometry"]


@pytest.mark.parametrize(("brand", "mode"), [("Tesla", "ATS"), (2, 2)])
def test_brand_addressing_mode_and_root_complex_are_read_and_written(brand: object, mode: object):
    row = {"name": "t4", "brand": brand, "addressing-mode": mode, "pcie-root": "pci0000:5d"}
    machine = read({"gpus": [row, {"name": "t4", "brand": None, "addressing-mode": None, "pcie-root": None}]})
    first, second = machine.inventory.gpus
    assert (first.brand, first.addressing_mode, first.pcie_root) == ("Tesla", "ATS", "pci0000:5d")
    assert (second.brand, second.addressing_mode, second.pcie_root) == (None, None, None)
    assert read_machine(written(machine.inventory), "m").inventory == machine.inventory
    wrong = problems(
        {"gpus": [{"name": "t4", "brand": "tesla", "addressing-mode": 3, "pcie-root": "0000:5d"}]}
    )
    assert wrong.keys() == {"gpus[0].brand", "gpus[0].addressing-mode", "gpus[0].pcie-root"}


@pytest.mark.parametrize("serial", ["1321020008373", 1321020008373])
def test_what_is_written_on_the_board_is_read_and_written(serial):
    row = {
        "name": "t4",
        "serial": serial,
        "board_part_number": "900-2G183",
        "vbios_version": "90.04.38.00.03",
    }
    machine = read({"gpus": [row]})
    (gpu,) = machine.inventory.gpus
    assert (gpu.serial, gpu.board_part_number, gpu.vbios_version) == (
        "1321020008373",
        "900-2G183",
        "90.04.38.00.03",
    )
    assert read_machine(written(machine.inventory), "m").inventory == machine.inventory
    assert "gpus[0].serial" in problems({"gpus": [{"name": "t4", "serial": True}]})


@pytest.mark.parametrize(
    ("words", "place", "message"),
    [
        ({"gpu": 0}, "", "what happens"),
        ({"gpu": 0, "xid": "x"}, ".xid", "has to be a whole number"),
        ({"gpu": 0, "lost": False}, ".lost", "has to be true or a reason"),
        ({"lost": True}, "", "'gpu' is missing"),
        ({"gpu": 2000, "lost": True}, ".gpu", "from 0 to 1023"),
        ({"gpu": 0, "reboot": True}, "", "does not go with"),
        ({"call": "observe", "fail": "sometimes"}, ".fail", "has to be driver-unavailable, timeout"),
        ({"call": "dance", "hang": True}, ".call", "has to be observe, conditions"),
        ({"call": "observe", "hang": -1}, ".hang", "seconds"),
        ({"gpu": 0, "mig": ["9g.9gb"]}, "", "no profile"),
        ({"gpu": 0, "mig": ["banana"]}, ".mig[0]", "not a MIG profile"),
        ({"gpu": 0, "mig": "3g.20gb"}, ".mig", "list of profiles"),
        ({"gpu": 0, "xid": 43, "gi": 9}, "", "no GPU instance 9"),
        ({"gpu": 0, "xid": 43, "after-calls": 1}, "", "one of after-s and after-calls"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(words, place, message):
    found = problems({"gpus": [{"name": "a100-40gb"}], "faults": [{"after-s": 1, **words}]})
    assert set(found) == {f"faults[0]{place}"}
    assert message in found[f"faults[0]{place}"]


def test_a_fault_has_the_keys_of_json_too_and_a_key_that_does_not_go_with_it_is_named_as_written():
    def rows(*faults: dict[str, Any]) -> dict[str, Any]:
        return {"gpus": [{"name": "l4"}], "faults": list(faults)}

    kebab = rows({"gpu": 0, "used-by": "train", "pid": 7, "after-s": 1}, {"xid": 43, "after-calls": 2})
    camel = rows({"gpu": 0, "usedBy": "train", "pid": 7, "afterS": 1}, {"xid": 43, "afterCalls": 2})
    assert read(camel).faults == read(kebab).faults
    assert "'usedBy' does not go with 'xid'" in problems(rows({"xid": 43, "usedBy": "a"}))["faults[0]"]


@pytest.mark.parametrize("data", [b"", b"\0\1\2", b"gpus: [", b"a: &a [*a]", b"[" * 10_000, b"x" * (2 << 20)])
def test_a_file_that_is_not_even_yaml_is_an_input_error(data, tmp_path):
    file = tmp_path / "machine.yaml"
    file.write_bytes(data)
    with pytest.raises(InputError):
        load_machine(str(file))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**40) | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=examples(150))
@given(st.data())
def test_a_value_of_any_type_at_any_key_never_ends_in_a_traceback(data):
    machine = parse_machine("2xa100-40gb").inventory
    geometry = geometry_of(machine.gpus[0])
    assert geometry is not None
    devices = create_layout(machine.gpus[0], geometry, [LayoutItem.parse("3g.20gb")], "t")
    gpus = (replace(machine.gpus[0], mig_devices=devices), machine.gpus[1])
    spec = DaemonSpec(gpus[1].uuid, gpus[1].uuid, 2**30, 10, True, (MpsNamespace("big", 2**30, 20),))
    slices: dict[int, Interval | None] = {0: None, 1: Interval.SHORT}
    document = machine_rows(Machine("", replace(machine, gpus=gpus), time_slices=slices, daemons=(spec,)))
    place = document
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(JSON_VALUES)
            break
        place = place[key]
    try:
        read_machine(json.dumps(document).encode(), "m.json")
    except InputError:
        return


# --- writing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["8xa100-40gb", "4xh200-141gb+4xl40s", "8xv100-sxm2-16gb", "16xt4", str(GOLDEN / "h100.json")]
)
def test_what_is_recorded_reads_back_the_same(name):
    inventory = load_machine(name).inventory
    machine = read_machine(written(inventory), "recorded")
    assert machine.inventory == inventory
    assert machine.recorded == "2025-11-21"


def test_lost_gpus_mig_devices_and_unknowns_read_back_the_same():
    inventory = parse_machine("3xa100-40gb").inventory
    first, second, third = inventory.gpus
    geometry = geometry_of(first)
    assert geometry is not None
    mode = replace(first.mig_mode, current=True)  # type: ignore[type-var]
    devices = create_layout(first, geometry, [LayoutItem.parse("1c.3g.20gb")] * 3, "t")
    devices = (replace(devices[0], gi_minor=None, ci_minor=None), *devices[1:])
    empty = (
        EmptyInstance(3, "2g.10gb", Placement(0, 2)),
        EmptyInstance(9, "1g.5gb", Placement(2, 1)),
    )
    changed = replace(
        inventory,
        gpus=(
            replace(first, mig_mode=mode, mig_devices=devices, empty_instances=empty),
            replace(second, mig_mode=None, numa_node=None),
        ),
        lost=(LostGpu(2, None, third.pci_bus_id, "fell off the bus"),),
        links=inventory.links[:1],
        control_nodes=("/dev/nvidiactl",),
        boot_id="",
        open_to_env=True,
        restricted_mps=True,
        fabric_manager=None,
        virtual=True,
    )
    assert read_machine(written(changed), "recorded").inventory == changed


@pytest.mark.parametrize("number", range(16))
def test_a_gpu_of_every_architecture_that_nvml_reports_reads_back_the_same(number):
    """What ``partage record`` writes for a GPU, ``--machine`` reads: a Rubin GPU (13), too."""
    inventory = parse_machine("t4").inventory
    gpu = replace(inventory.gpus[0], architecture=architecture_name(number))
    recorded = replace(inventory, gpus=(gpu,))
    assert read_machine(written(recorded), "recorded").inventory == recorded


@pytest.mark.parametrize("path", LinkPath)
def test_every_path_of_a_link_reads_back_the_same(path):
    inventory = parse_machine("2xt4").inventory
    recorded = replace(inventory, links=(replace(inventory.links[0], path=path),))
    assert read_machine(written(recorded), "recorded").inventory == recorded


def test_a_node_without_a_driver_reads_back_the_same():
    bare = Inventory(NoDriver("library-missing", "no libnvidia-ml.so.1", "install it"), simulated=True)
    assert read_machine(written(bare), "recorded").inventory == bare
