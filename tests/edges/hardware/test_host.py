"""What the node's files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from partage.edges.hardware.host import Host, SysfsAddress, nvml_address, sysfs_address, vgpu_host
from partage.model.gpu import ToolkitConfig, VgpuHost
from partage.model.ids import PciBusId

BUS, ADDRESS = PciBusId("00000000:1A:00.0"), SysfsAddress("0000:1a:00.0")


def host(root: Path) -> Host:
    return Host(driver=root, proc=root / "proc", sys=root / "sys", dev=root / "dev")


def put(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("nvml", "kernel"),
    [
        ("00000000:1A:00.0", "0000:1a:00.0"),
        ("00010000:C1:00.0", "10000:c1:00.0"),
        ("00000008:01:00.0", "0008:01:00.0"),
    ],
)
def test_pci_addresses_are_written_in_two_ways(nvml: str, kernel: str) -> None:
    assert sysfs_address(PciBusId(nvml)) == kernel
    assert nvml_address(SysfsAddress(kernel)) == nvml


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("0\n", 0), ("-1\n", None), ("", None), ("x", None)])
def test_a_numa_node_is_a_number_that_is_not_negative(tmp_path: Path, text: str, node: int | None) -> None:
    put(tmp_path / "sys/bus/pci/devices/0000:1a:00.0/numa_node", text)
    assert host(tmp_path).numa_node(BUS) == node


@pytest.mark.parametrize(("text", "code"), [("0x030200\n", 0x030200), ("", None), ("x", None)])
def test_the_class_of_a_pci_device(tmp_path: Path, text: str, code: int | None) -> None:
    put(tmp_path / "sys/bus/pci/devices/0000:1a:00.0/class", text)
    assert host(tmp_path).pci_class(BUS) == code


def test_the_machines_name_is_the_firmwares(tmp_path: Path) -> None:
    assert host(tmp_path).machine_type() == ""
    put(tmp_path / "sys/class/dmi/id/product_name", "DGXH100 \n")
    assert host(tmp_path).machine_type() == "DGXH100"


def _configuration(*capabilities: bytes) -> bytes:
    """A PCI configuration space with these capabilities, each without its pointer to the next."""
    space = bytearray(256)
    at, space[0x34] = 0x40, 0x40
    for number, one in enumerate(capabilities):
        following = at + len(one) + 1 if number + 1 < len(capabilities) else 0
        space[at : at + len(one) + 1] = one[:1] + bytes([following]) + one[1:]
        at = following
    return bytes(space)


_POWER = bytes([0x01, 0x03, 0x00])
_OTHER_RECORD = bytes([7, 4, 1, 2])
_HOST_RECORD = bytes([0, 22]) + b"550.144.02" + b"r550_00\0\0\0"


def _vendor(letters: bytes, records: bytes) -> bytes:
    return bytes([0x09, 5 + len(records)]) + letters + records


@pytest.mark.parametrize(
    ("space", "found"),
    [
        (
            _configuration(_POWER, _vendor(b"VF", _OTHER_RECORD + _HOST_RECORD)),
            VgpuHost("550.144.02", "r550_00"),
        ),
        (_configuration(_vendor(b"VF", _HOST_RECORD)), VgpuHost("550.144.02", "r550_00")),
        (_configuration(_vendor(b"VF", _OTHER_RECORD)), VgpuHost("", "")),
        (_configuration(_vendor(b"XX", _HOST_RECORD)), None),
        (_configuration(_POWER), None),
        (_configuration(_vendor(b"VF", _HOST_RECORD))[:64], None),
        (b"", None),
        (bytes([0x40]) * 256, None),
        (bytes([0xFF]) * 256, None),
    ],
)
def test_a_vgpu_says_in_its_configuration_space_whose_it_is(
    tmp_path: Path, space: bytes, found: VgpuHost | None
) -> None:
    assert vgpu_host(space) == found
    assert host(tmp_path).vgpu(BUS) is None
    file = tmp_path / "sys/bus/pci/devices/0000:1a:00.0/config"
    put(file)
    file.write_bytes(space)
    assert host(tmp_path).vgpu(BUS) == found


def test_capability_minors_are_read_from_the_kernels_list(tmp_path: Path) -> None:
    put(
        tmp_path / "proc/driver/nvidia-caps/mig-minors",
        "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu11/gi3/ci2/access 1517\n",
    )
    assert host(tmp_path).capability_minors() == {(0, 1, None): 12, (0, 1, 0): 13, (11, 3, 2): 1517}


def test_only_control_nodes_that_exist_are_named_in_the_order_of_nvidias_plugin(tmp_path: Path) -> None:
    for name in ("nvidia-modeset", "nvidiactl", "nvidia-uvm"):
        put(tmp_path / "dev" / name)
    assert host(tmp_path).control_nodes() == ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (None, None),
        ('disable-require = false\n[nvidia-container-cli]\nroot = "/"\n', True),
        ("accept-nvidia-visible-devices-envvar-when-unprivileged = true\n", True),
        ("accept-nvidia-visible-devices-envvar-when-unprivileged = false\n", False),
        ('accept-nvidia-visible-devices-envvar-when-unprivileged = "no"\n', None),
        ("this is = not = toml", None),
    ],
)
def test_whether_pods_can_take_gpus_by_environment(
    tmp_path: Path, text: str | None, answer: bool | None
) -> None:
    if text is not None:
        put(tmp_path / "etc/nvidia-container-runtime/config.toml", text)
    found = host(tmp_path).toolkit()
    assert (None if found is None else found.accepts_env) is answer


def test_the_toolkit_is_looked_for_below_the_nodes_root_and_in_the_operators_place(tmp_path: Path) -> None:
    there = host(tmp_path)
    refuses = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
    mounts = "accept-nvidia-visible-devices-as-volume-mounts = true\n"
    operators = "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
    put(there.proc / "1/root" / operators, refuses + mounts)
    assert there.toolkit() == ToolkitConfig(
        f"/{operators}", accepts_env=False, stated=True, accepts_mounts=True
    )
    put(there.proc / "1/root/etc/nvidia-container-runtime/config.toml", "# nothing\n")
    found = there.toolkit()
    assert found is not None
    assert (found.path, found.accepts_env, found.stated) == (
        "/etc/nvidia-container-runtime/config.toml",
        True,
        False,
    ), "one of two that refuses proves nothing"


@pytest.mark.parametrize(
    ("commands", "answer"),
    [
        ({1: "systemd", 2: "kthreadd", 812: "nv-fabricmanage"}, True),
        ({1: "systemd", 2: "kthreadd", 812: "nvidia-persiste"}, False),
        ({1: "pause", 7: "nv-fabricmanage"}, None),
        ({}, None),
    ],
)
def test_the_fabric_manager_is_found_only_where_the_hosts_processes_are_seen(
    tmp_path: Path, commands: dict[int, str], answer: bool | None
) -> None:
    for pid, name in commands.items():
        put(tmp_path / f"proc/{pid}/comm", f"{name}\n")
    assert host(tmp_path).fabric_manager() is answer


@pytest.mark.parametrize(
    ("cpuinfo", "vendor", "product", "answer"),
    [
        ("processor : 0\nflags\t\t: fpu vme hypervisor lahf_lm\n", "QEMU", "Standard PC", True),
        ("processor : 0\nflags\t\t: fpu vme lahf_lm\n", "QEMU", "Standard PC", False),
        ("processor : 0\nvmx flags\t: hypervisor\nflags\t: fpu\n", "Supermicro", "SYS-821GE", False),
        ("processor : 0\nFeatures\t: fp asimd\n", "QEMU", "QEMU Virtual Machine", True),
        ("processor : 0\nFeatures\t: fp asimd\n", "NVIDIA", "GH200", None),
        ("", "", "", None),
    ],
)
def test_a_virtual_machine_is_told_by_its_processor_or_by_its_firmware(
    tmp_path: Path, cpuinfo: str, vendor: str, product: str, answer: bool | None
) -> None:
    put(tmp_path / "proc/cpuinfo", cpuinfo)
    put(tmp_path / "sys/class/dmi/id/sys_vendor", vendor)
    put(tmp_path / "sys/class/dmi/id/product_name", product)
    assert host(tmp_path).virtual() is answer


def test_a_node_without_any_of_these_files_says_nothing_and_fails_nowhere(tmp_path: Path) -> None:
    empty = host(tmp_path)
    assert (empty.numa_node(BUS), empty.capability_minors(), empty.control_nodes()) == (None, {}, ())
    assert (empty.boot_id(), empty.kernel_module_version(), empty.gpu_addresses()) == ("", None, ())
    assert (empty.gpu_uuid(ADDRESS), empty.toolkit()) == (None, None)
    assert (empty.fabric_manager(), empty.virtual()) == (None, None)


def test_the_kernel_module_knows_gpus_that_nvml_cannot_open(tmp_path: Path) -> None:
    gpus = tmp_path / "proc/driver/nvidia/gpus"
    put(gpus / "0000:2a:00.0/information", "Model: \t\t H100\nGPU UUID: \t GPU-????????-????-????\n")
    put(
        gpus / "0000:1a:00.0/information",
        "Model: \t\t H100\nGPU UUID: \t GPU-00ff0000-1111\nBus Type: PCIe\n",
    )
    assert host(tmp_path).gpu_addresses() == ("0000:1a:00.0", "0000:2a:00.0")
    assert host(tmp_path).gpu_uuid(ADDRESS) == "GPU-00ff0000-1111"
    assert host(tmp_path).gpu_uuid(SysfsAddress("0000:2a:00.0")) is None
