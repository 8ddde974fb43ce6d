"""One look at a node whose driver is the stand-in."""

from __future__ import annotations

import pytest

from partage.edges.hardware.discover import Discovery, count_nvlinks
from partage.edges.hardware.gpu_queries import NvLinkPeer
from partage.edges.hardware.nvml_queries import Nvml
from partage.errors import DriverUnavailable
from partage.model.driver_limit import LimitObstacle, LimitSupport
from partage.model.geometry import Placement
from partage.model.gpu import (
    ComputeMode,
    Driver,
    Gpu,
    Inventory,
    Link,
    LinkPath,
    LostGpu,
    MigDevice,
    MigMode,
    RecoveryAction,
    ToolkitConfig,
)
from partage.model.health import GpuCondition
from partage.model.ids import MigUuid, PciBusId
from partage.units import MIB
from tests.edges.hardware.stub import H100_MEMORY_BYTES, StubNode


def look(node: StubNode) -> Inventory:
    nvml = Nvml(node.host)
    assert nvml.open() is None
    try:
        return Discovery(nvml, node.host).inventory()
    finally:
        nvml.close()


def test_everything_that_driver_and_files_say_of_a_gpu_is_in_the_inventory(node: StubNode) -> None:
    node.add_h100s(1)
    node.write(**{"gpu.0.mode": 3, "gpu.0.field.230": 1, "gpu.0.minor": 5, "gpu.0.mig": "0 1"})
    node.write(**{"gpu.0.serial": 1321, "gpu.0.part": "692-2G520-0200-000", "gpu.0.vbios": "96.00.74.00.1A"})
    node.write(**{"gpu.0.brand": 14, "gpu.0.addressing": 1})
    below = "devices/pci0000:18/0000:18:01.0/0000:19:00.0/0000:1a:00.0"
    node.file(f"sys/{below}/numa_node", "1\n")
    (node.root / "sys/bus/pci/devices").mkdir(parents=True)
    (node.root / "sys/bus/pci/devices/0000:1a:00.0").symlink_to(f"../../../{below}")
    node.file("dev/nvidiactl", "")
    node.file("proc/sys/kernel/random/boot_id", "5bd3d8a0-0000-4000-8000-000000000001\n")
    node.file("etc/nvidia-container-runtime/config.toml", "disable-require = false\n")
    assert look(node) == Inventory(
        driver=Driver("550.163.01", "12.4"),
        gpus=(
            Gpu(
                index=0,
                uuid=node.uuid(0),
                minor=5,
                product="NVIDIA H100 80GB HBM3",
                architecture="hopper",
                compute_capability=(9, 0),
                memory_bytes=H100_MEMORY_BYTES,
                pci_bus_id=PciBusId("00000000:1A:00.0"),
                pci_device_id="0x233010de",
                pci_subsystem_id="0x16c110de",
                numa_node=1,
                mig_mode=MigMode(current=False, pending=True),
                compute_mode=ComputeMode.EXCLUSIVE_PROCESS,
                recovery=RecoveryAction.GPU_RESET,
                serial="1321",
                board_part_number="692-2G520-0200-000",
                vbios_version="96.00.74.00.1A",
                brand="Nvidia",
                addressing_mode="HMM",
                pcie_root="pci0000:18",
                limits=LimitSupport(obstacle=LimitObstacle.CGROUP_V1),
            ),
        ),
        control_nodes=("/dev/nvidiactl",),
        boot_id="5bd3d8a0-0000-4000-8000-000000000001",
        open_to_env=True,
        toolkit=ToolkitConfig("/etc/nvidia-container-runtime/config.toml", True, False, False),
    )


def test_a_corrupt_inforom_costs_the_serial_number_and_not_the_gpu(node: StubNode) -> None:
    node.add_h100s(1).write(**{"fail.nvmlDeviceGetSerial": 14, "gpu.0.vbios": "96.00.74.00.1A"})
    (gpu,) = look(node).gpus
    assert (gpu.serial, gpu.vbios_version) == (None, "96.00.74.00.1A")


@pytest.mark.parametrize("number", [None, 999])
def test_a_brand_or_mode_that_nobody_knows_is_none(node: StubNode, number: int | None) -> None:
    node.add_h100s(1).write(**{"gpu.0.brand": number, "gpu.0.addressing": number})
    (gpu,) = look(node).gpus
    assert (gpu.brand, gpu.addressing_mode, gpu.pcie_root) == (None, None, None)


def test_a_driver_that_cannot_tell_the_brand_costs_no_gpu(node: StubNode) -> None:
    """Not supported, a function that the library lacks, an unknown error."""
    for code in (3, 13, 999):
        node.add_h100s(1).write(**{"fail.nvmlDeviceGetBrand": code, "fail.nvmlDeviceGetAddressingMode": code})
        (gpu,) = look(node).gpus
        assert (gpu.brand, gpu.addressing_mode) == (None, None)


@pytest.mark.parametrize(
    ("kernel", "nodes", "answer"),
    [
        ("1", "0x1", 1),
        ("-1", "0x2", 1),
        ("-1", "0x1", 0),
        (None, "0x10", 4),
        ("-1", "0x3", None),
        ("-1", "0x0", None),
        ("-1", None, None),
    ],
)
def test_where_the_kernel_knows_no_numa_node_the_driver_is_asked(
    node: StubNode, kernel: str | None, nodes: str | None, answer: int | None
) -> None:
    """-1: the kernel's word for none. Several nodes are no answer."""
    node.add_h100s(1).write(**{"gpu.0.nodes": nodes})
    if kernel is not None:
        node.file("sys/bus/pci/devices/0000:1a:00.0/numa_node", kernel + "\n")
    assert look(node).gpus[0].numa_node == answer


@pytest.mark.parametrize(("arch", "count", "answer"), [(7, 2, True), (7, 1, None), (9, 2, None)])
def test_the_fabric_manager_is_looked_for_where_a_reset_depends_on_it(
    node: StubNode, arch: int, count: int, answer: bool | None
) -> None:
    node.add_h100s(count)
    node.write(**{f"gpu.{index}.arch": arch for index in range(count)})
    node.file("proc/2/comm", "kthreadd\n")
    node.file("proc/77/comm", "nv-fabricmanage\n")
    node.file("proc/cpuinfo", "flags : fpu hypervisor\n")
    inventory = look(node)
    assert (inventory.fabric_manager, inventory.virtual) == (answer, True)


def test_what_an_old_gpu_does_not_have_is_absent_and_no_error(node: StubNode) -> None:
    node.write(
        count=1,
        **{
            "gpu.0.uuid": "GPU-0",
            "gpu.0.bus": "00000000:01:00.0",
            "gpu.0.name": "Tesla P4",
            "gpu.0.cc": "6.1",
        },
    )
    (gpu,) = look(node).gpus
    assert (gpu.mig_mode, gpu.recovery, gpu.architecture, gpu.memory_bytes) == (None, None, "unknown", 0)
    assert (gpu.minor, gpu.compute_mode) == (0, ComputeMode.DEFAULT)


def test_a_recovery_action_of_the_future_is_not_guessed_at(node: StubNode) -> None:
    node.add_h100s(1).write(**{"gpu.0.field.230": 77})
    assert look(node).gpus[0].recovery is None


def test_a_node_without_gpus_is_a_node(node: StubNode) -> None:
    inventory = look(node)
    assert isinstance(inventory.driver, Driver)
    assert (inventory.gpus, inventory.lost) == ((), ())


@pytest.mark.parametrize("name", ["DGX Display", "NVIDIA DGX Display"])
def test_a_gpu_that_only_drives_a_monitor_is_no_gpu(node: StubNode, name: str) -> None:
    node.add_h100s(3).write(**{"gpu.1.name": name})
    inventory = look(node)
    assert [gpu.index for gpu in inventory.gpus] == [0, 2]
    assert not inventory.lost


# --- links -----------------------------------------------------------------------------------------


def test_gpus_on_nvswitches_are_joined_by_the_smaller_number_of_their_links(node: StubNode) -> None:
    node.add_h100s(3).write(**{f"gpu.2.link.{link}": None for link in range(12, 18)})
    assert look(node).links == (
        Link(node.uuid(0), node.uuid(1), LinkPath.SAME_CPU, 18),
        Link(node.uuid(0), node.uuid(2), LinkPath.SAME_CPU, 12),
        Link(node.uuid(1), node.uuid(2), LinkPath.SAME_CPU, 12),
    )


def test_a_bridge_joins_its_two_gpus_and_no_others(node: StubNode) -> None:
    node.add_h100s(3)
    for gpu in range(3):
        for link in range(18):
            node.keys |= {f"gpu.{gpu}.link.{link}": None, f"gpu.{gpu}.link.{link}.type": None}
    for link in range(12):
        node.keys |= {f"gpu.0.link.{link}": node.bus(1), f"gpu.1.link.{link}": node.bus(0)}
    node.keys["gpu.1.link.11"] = None  # down on one side
    node.write(**{"path.0.1": 10, "path.0.2": 0, "path.1.2": None})
    assert look(node).links == (
        Link(node.uuid(0), node.uuid(1), LinkPath.SINGLE_SWITCH, 11),
        Link(node.uuid(0), node.uuid(2), LinkPath.SAME_BOARD, 0),
        Link(node.uuid(1), node.uuid(2), LinkPath.CROSS_CPU, 0),
    )


def test_what_is_no_gpu_of_the_node_is_a_switch_unless_the_driver_says_otherwise() -> None:
    gpu, other = PciBusId("gpu"), PciBusId("else")
    remotes = [
        NvLinkPeer(gpu, None),
        NvLinkPeer(gpu, False),
        NvLinkPeer(other, None),
        NvLinkPeer(other, True),
        NvLinkPeer(other, False),
    ]
    links = count_nvlinks(remotes, [gpu])
    assert (dict(links.peers), links.switches) == ({gpu: 2}, 2)


def test_topology_is_read_once_and_again_only_when_the_driver_or_the_gpus_change(node: StubNode) -> None:
    node.add_h100s(3)
    nvml = Nvml(node.host)
    nvml.open()
    discovery = Discovery(nvml, node.host)
    before = discovery.inventory()
    node.write(**{f"gpu.{gpu}.link.0": None for gpu in range(3)})
    assert discovery.inventory() == before
    node.lose(1)
    assert discovery.inventory().links == (before.links[1],)
    node.find_again(1)
    assert discovery.inventory() == before
    node.driver_loaded("560.35.03")
    assert {link.nvlinks for link in discovery.inventory().links} == {17}
    nvml.close()


# --- lost GPUs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [15, 16, 4, 17, 999])
def test_a_gpu_that_cannot_be_opened_is_lost_and_says_why(node: StubNode, code: int) -> None:
    node.add_h100s(3).lose(1, code)
    inventory = look(node)
    assert [gpu.index for gpu in inventory.gpus] == [0, 2]
    (lost,) = inventory.lost
    assert (lost.index, lost.uuid, lost.pci_bus_id) == (1, None, None)
    assert lost.reason


def test_a_gpu_that_dies_while_it_is_read_is_lost(node: StubNode) -> None:
    node.add_h100s(2).write(**{"fail.nvmlDeviceGetCudaComputeCapability": 15})
    inventory = look(node)
    assert inventory.gpus == ()
    assert [lost.uuid for lost in inventory.lost] == [node.uuid(0), node.uuid(1)]


def test_a_gpu_that_never_answered_is_known_by_its_place_among_the_kernels_gpus(node: StubNode) -> None:
    node.add_h100s(3).lose(1)
    for index in range(3):
        address = node.bus(index).lower().removeprefix("0000")
        node.file(f"proc/driver/nvidia/gpus/{address}/information", f"GPU UUID: \t {node.uuid(index)}\n")
    assert look(node).lost == (
        LostGpu(
            1,
            node.uuid(1),
            node.bus(1),
            "the GPU has fallen off the bus or is inaccessible (nvmlDeviceGetHandleByIndex)",
        ),
    )


def test_a_place_among_the_kernels_gpus_proves_nothing_where_the_two_lists_differ(node: StubNode) -> None:
    node.add_h100s(3).lose(1)
    for address in ("0000:01:00.0", "0000:2a:00.0", "0000:3a:00.0"):
        node.file(f"proc/driver/nvidia/gpus/{address}/information", "GPU UUID: GPU-00000000\n")
    (lost,) = look(node).lost
    assert (lost.uuid, lost.pci_bus_id) == (None, None)


def test_a_driver_that_fails_altogether_is_an_error(node: StubNode) -> None:
    node.add_h100s(2)
    nvml = Nvml(node.host)
    nvml.open()
    node.write(all=9)
    with pytest.raises(DriverUnavailable):
        Discovery(nvml, node.host).inventory()
    nvml.close()


def test_a_clique_is_that_of_a_fabric_that_was_joined(node: StubNode) -> None:
    node.add_h100s(3).write(
        **{"gpu.0.clique": "1 7", "gpu.1.fabric": "2 0", "gpu.1.clique": "1 7", "gpu.2.fabric": "3 0"}
    )
    cluster = "00000000-0000-0000-0000-000000000001"
    assert [gpu.clique for gpu in look(node)] == [f"{cluster}.7", None, None]


# --- conditions ------------------------------------------------------------------------------------


def test_the_drivers_word_on_each_gpu(node: StubNode) -> None:
    node.add_h100s(4).write(
        **{
            "gpu.0.field.230": 2,
            "gpu.1.field.144": 1,
            "gpu.2.field.145": 1,
            "gpu.2.fabric": "2 0",
            "gpu.3.fabric": "0 0",
            "gpu.3.field.230": None,
        }
    )
    nvml = Nvml(node.host)
    nvml.open()
    assert Discovery(nvml, node.host).conditions() == (
        GpuCondition(node.uuid(0), recovery=RecoveryAction.NODE_REBOOT, fabric_ok=True),
        GpuCondition(node.uuid(1), recovery=RecoveryAction.NONE, rows_pending=True, fabric_ok=True),
        GpuCondition(node.uuid(2), recovery=RecoveryAction.NONE, rows_failed=True, fabric_ok=False),
        GpuCondition(node.uuid(3)),
    )
    node.write(**{"gpu.0.fabric": "3 999"})
    assert Discovery(nvml, node.host).conditions()[0].fabric_ok is False
    node.write(**{"gpu.0.fabric": "1 0"})
    assert Discovery(nvml, node.host).conditions()[0].fabric_ok is None
    node.write(**{"gpu.0.fabric": "3 0", "gpu.0.mig": "1 1"})
    (said, *_) = Discovery(nvml, node.host).conditions()
    assert (said.fabric_ok, said.mig_mode) == (False, True)
    nvml.close()


# --- MIG -------------------------------------------------------------------------------------------


def test_the_name_of_a_known_gpu_is_not_asked_for_with_its_health(node: StubNode) -> None:
    node.add_h100s(2).write()
    nvml = Nvml(node.host)
    assert nvml.open() is None
    discovery = Discovery(nvml, node.host)
    first = discovery.conditions()
    asked = node.calls("nvmlDeviceGetName")
    assert asked >= 2, "nothing is known yet"
    discovery.inventory()
    known = node.calls("nvmlDeviceGetName")
    assert discovery.conditions() == first
    assert node.calls("nvmlDeviceGetName") == known
    nvml.close()


def with_mig(node: StubNode) -> StubNode:
    """An H100 in MIG mode: 3g.40gb cut in 1c and 2c, a hole in the list, 1g.10gb+me."""
    node.add_h100s(1)
    node.write(
        **{
            "gpu.0.mig": "1 1",
            "gpu.0.minor": 4,
            # enum to nvidia-smi's id and slices, as an H100 answers
            "gpu.0.profile.0": "19 1",
            "gpu.0.profile.2": "9 3",
            "gpu.0.profile.7": "20 1",
            "gpu.0.profile.9": "15 1",
            "gpu.0.gi.2": "9 4 4",
            "gpu.0.gi.9": "20 1 1",
            "gpu.0.mig.0.uuid": "MIG-a",
            "gpu.0.mig.0.gi": 2,
            "gpu.0.mig.0.ci": 0,
            "gpu.0.mig.0.attributes": "1 40448",
            "gpu.0.mig.1.uuid": "MIG-b",
            "gpu.0.mig.1.gi": 2,
            "gpu.0.mig.1.ci": 1,
            "gpu.0.mig.1.attributes": "2 40448",
            "gpu.0.mig.3.uuid": "MIG-c",
            "gpu.0.mig.3.gi": 9,
            "gpu.0.mig.3.ci": 0,
            "gpu.0.mig.3.attributes": "1 9984",
        }
    )
    node.file(
        "proc/driver/nvidia-caps/mig-minors",
        "gpu4/gi2/access 561\ngpu4/gi2/ci0/access 562\ngpu4/gi2/ci1/access 563\ngpu0/gi9/access 84\n",
    )
    return node


def test_mig_devices_have_names_placements_and_device_files(node: StubNode) -> None:
    (gpu,) = look(with_mig(node)).gpus
    assert gpu.mig_enabled
    assert gpu.mig_devices == (
        MigDevice(MigUuid("MIG-a"), 0, 2, 0, "1c.3g.40gb", Placement(4, 4), 40448 * MIB, 561, 562),
        MigDevice(MigUuid("MIG-b"), 1, 2, 1, "2c.3g.40gb", Placement(4, 4), 40448 * MIB, 561, 563),
        MigDevice(MigUuid("MIG-c"), 3, 9, 0, "1g.10gb+me", Placement(1, 1), 9984 * MIB),
    )


def test_without_root_mig_devices_are_listed_and_their_places_are_not_known(node: StubNode) -> None:
    names = {0: "1c.3g.40gb", 1: "2c.3g.40gb", 3: "1g.10gb+me"}
    product = "NVIDIA H100 80GB HBM3 MIG"
    with_mig(node).write(
        unprivileged=1, **{f"gpu.0.mig.{at}.name": f"{product} {name}" for at, name in names.items()}
    )
    inventory = look(node)
    (gpu,) = inventory.gpus
    assert (gpu.mig_enabled, gpu.mig_hidden, gpu.mig_unplaced, inventory.lost) == (True, True, True, ())
    assert gpu.mig_devices == (
        MigDevice(MigUuid("MIG-a"), 0, 2, 0, "1c.3g.40gb", None, 40448 * MIB, 561, 562),
        MigDevice(MigUuid("MIG-b"), 1, 2, 1, "2c.3g.40gb", None, 40448 * MIB, 561, 563),
        MigDevice(MigUuid("MIG-c"), 3, 9, 0, "1g.10gb+me", None, 9984 * MIB),
    )


def test_without_root_and_names_a_gpu_keeps_its_place_and_its_mig_devices_are_hidden(node: StubNode) -> None:
    with_mig(node).write(unprivileged=1)
    inventory = look(node)
    (gpu,) = inventory.gpus
    assert (gpu.mig_enabled, gpu.mig_devices, gpu.mig_hidden, inventory.lost) == (True, (), True, ())


def test_profiles_are_asked_for_until_the_library_knows_no_more(node: StubNode) -> None:
    """A constant that is newer than this version: its attribute is in the name that the driver says."""
    with_mig(node).write(**{"profiles": 23, "gpu.0.profile.7": None, "gpu.0.profile.21": "20 1"})
    assert "is not known" in look(node).lost[0].reason
    node.write(**{"gpu.0.profile.21.name": "MIG 1g.10gb+new"})
    assert look(node).gpus[0].mig_devices[2].profile == "1g.10gb+new"


def test_instances_that_vanish_while_they_are_read_cost_a_second_look_at_most(node: StubNode) -> None:
    with_mig(node).write(**{"gpu.0.gi.9": None})
    inventory = look(node)
    assert inventory.gpus == ()
    assert "no such object" in inventory.lost[0].reason
    node.write(**{"gpu.0.mig.3.uuid": None})
    assert len(look(node).gpus[0].mig_devices) == 2


def test_a_mig_device_that_cannot_be_named_loses_its_gpu_and_not_the_node(node: StubNode) -> None:
    node.add_h100s(1)
    with_mig(node).write(**{"gpu.0.mig.0.attributes": "9 40448"})
    assert "cannot be named" in look(node).lost[0].reason
    node.write(**{"gpu.0.mig.0.attributes": "1 40448", "gpu.0.profile.2": None})
    assert "is not known" in look(node).lost[0].reason
    node.write(**{"gpu.0.profile.2": "9 3", "gpu.0.gi.2": "9 4 0"})
    assert "not a placement" in look(node).lost[0].reason


def test_a_link_to_a_lost_gpu_is_not_taken_for_a_switch(node: StubNode) -> None:
    node.add_h100s(3)
    for gpu in range(3):
        for link in range(18):
            node.keys[f"gpu.{gpu}.link.{link}.type"] = None
            node.keys[f"gpu.{gpu}.link.{link}"] = node.bus((gpu + 1) % 3 if link < 9 else (gpu + 2) % 3)
    node.write()
    nvml = Nvml(node.host)
    nvml.open()
    discovery = Discovery(nvml, node.host)
    discovery.conditions()
    for index in range(3):
        address = node.bus(index).lower().removeprefix("0000")
        node.file(f"proc/driver/nvidia/gpus/{address}/information", "")
    node.lose(2)
    assert [link.nvlinks for link in discovery.inventory().links] == [9]
    nvml.close()
