"""What the node's files say about GPUs. The root directories are parameters, so that tests can use their
own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NewType

from partage.edges.host import procfs
from partage.model.gpu import ToolkitConfig, VgpuHost
from partage.model.ids import GpuUuid, PciBusId
from partage.model.paths import CONTROL_NODES
from partage.values import Frozen

_CAPABILITY = re.compile(r"gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)", re.ASCII)
_CAPABILITY_MAJOR = re.compile(r"^\s*(\d+) nvidia-caps$", re.MULTILINE | re.ASCII)
_CAPABILITY_KEY = re.compile(r"^(\w+): (\d+)$", re.MULTILINE | re.ASCII)
_PCIE_ROOT = re.compile(r"(?:^|/)(pci[0-9a-f]{4,8}:[0-9a-f]{2})/", re.ASCII)
_KERNEL_MODULE = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", re.ASCII)
_OPEN_TO_ENV = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_OPEN_TO_MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"
_TOOLKIT_FILES = (
    "etc/nvidia-container-runtime/config.toml",
    "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
)
"""The container toolkit's configuration: as a package, and in the toolkit container of the GPU
Operator, whose wrapper sets XDG_CONFIG_HOME."""

_PROCESSOR_FLAGS = re.compile(r"^flags\s*:(.*)$", re.MULTILINE)
_FIRST_PROCESSOR = 1 << 14
"""Bytes of /proc/cpuinfo that contain at least the first processor."""

_HYPERVISORS = ("QEMU", "KVM", "VMware", "Virtual Machine", "VirtualBox", "Xen", "Google Compute Engine")
"""Found in sys_vendor or product_name of a virtual machine's firmware, and not in that of physical
machines.
"""

_CAPABILITIES = 0x34
"""The byte of a PCI configuration space that says at which byte its list of capabilities begins."""

_VENDOR_CAPABILITY = 0x09

_KERNEL_THREAD = "kthreadd"
_FABRIC_MANAGER = "nv-fabricmanage"
"""nv-fabricmanager: the kernel keeps 15 characters of a command's name."""

SysfsAddress = NewType("SysfsAddress", str)
"""PCI address as the kernel writes it, ``0000:1a:00.0``: the domain has four digits or more."""

CapabilityMinors = Mapping[tuple[int, int, int | None], int]
"""(GPU minor, GI id, CI id or None) to the N of ``/dev/nvidia-caps/nvidia-capN``."""


class Host(Frozen):
    """The places of the node's files. run: Partage's directory, empty after a reboot."""

    driver: Path = Path("/")
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
    run: Path = Path("/run/partage")
    etc: Path = Path("/etc")

    def _pci(self, pci_bus_id: PciBusId) -> Path:
        return self.sys / "bus/pci/devices" / sysfs_address(pci_bus_id)

    def numa_node(self, pci_bus_id: PciBusId) -> int | None:
        """The NUMA node of a GPU; None if the machine has none or reports -1."""
        text = _read(self._pci(pci_bus_id) / "numa_node")
        try:
            node = int(text)
        except ValueError:
            return None
        return node if node >= 0 else None

    def pcie_root(self, pci_bus_id: PciBusId) -> str | None:
        """The root complex above a GPU, ``pci0000:00``; None if sysfs does not have the device."""
        link = self._pci(pci_bus_id)
        try:
            path = str(link.readlink())
        except OSError:
            return None
        found = _PCIE_ROOT.search(path)
        return found[1] if found else None

    def capability_minors(self) -> CapabilityMinors:
        """Minor numbers of the MIG capability files; empty on a node without MIG."""
        found = _CAPABILITY.findall(_read(self.proc / "driver/nvidia-caps/mig-minors"))
        return {(int(gpu), int(gi), int(ci) if ci else None): int(minor) for gpu, gi, ci, minor in found}

    def capability_major(self) -> int | None:
        """Major number of the MIG capability files; None if the kernel module has none."""
        match = _CAPABILITY_MAJOR.search(_read(self.proc / "devices"))
        return int(match[1]) if match else None

    def capability_rules(self, capability: str) -> Mapping[str, int]:
        """What the kernel module says of the file of a capability, ``gpu0/mig/gi1``: ``DeviceFileMinor``,
        ``DeviceFileMode``, ``DeviceFileModify``; empty if it says nothing.
        """
        text = _read(self.proc / "driver/nvidia/capabilities" / capability / "access")
        return {key: int(value) for key, value in _CAPABILITY_KEY.findall(text)}

    def control_nodes(self) -> tuple[str, ...]:
        """The control device files that exist, as paths in a container."""
        return tuple(path for path in CONTROL_NODES if (self.dev / Path(path).name).exists())

    def fabric_manager(self) -> bool | None:
        """Whether NVIDIA's fabric manager runs; None if the host's processes are not visible.

        On the host, process 2 is the kernel thread kthreadd; in a container with its own pids it is not.
        """
        if _read(self.proc / "2/comm").strip() != _KERNEL_THREAD:
            return None
        return any(_read(comm).strip() == _FABRIC_MANAGER for comm in self.proc.glob("[0-9]*/comm"))

    def unseen_holder(self) -> str:
        """What may hold a GPU without any process; empty if nothing is known to."""
        if not (self.sys / "module/nvidia_drm").exists():
            return ""
        return "the kernel module nvidia_drm may hold it for a display or console: modprobe -r nvidia_drm"

    def virtual(self) -> bool | None:
        """Whether the node is a virtual machine; None if neither processor nor firmware say.

        x86: a flag of the processor. Elsewhere: the firmware names a hypervisor; another name proves
        nothing.
        """
        flags = _PROCESSOR_FLAGS.search(_read(self.proc / "cpuinfo", _FIRST_PROCESSOR))
        if flags is not None:
            return "hypervisor" in flags[1].split()
        firmware = [_read(self.sys / "class/dmi/id" / name) for name in ("sys_vendor", "product_name")]
        return True if any(maker in text for text in firmware for maker in _HYPERVISORS) else None

    def machine_type(self) -> str:
        """The firmware's name of the machine; empty if there is none."""
        return _read(self.sys / "class/dmi/id/product_name", 256).strip()

    def pci_class(self, pci_bus_id: PciBusId) -> int | None:
        """The class code of a PCI device; None if the kernel does not list the device."""
        text = _read(self._pci(pci_bus_id) / "class", 32)
        try:
            return int(text, 16)
        except ValueError:
            return None

    def vgpu(self, pci_bus_id: PciBusId) -> VgpuHost | None:
        """The host of a vGPU; None for another GPU, and where only root may read its configuration space."""
        path = self._pci(pci_bus_id) / "config"
        try:
            return vgpu_host(path.read_bytes()[:256])
        except OSError:
            return None

    def boot_id(self) -> str:
        """Changes with every boot; empty if the kernel does not provide it."""
        return procfs.boot_id(self.proc)

    def kernel_module_version(self) -> str | None:
        """The version of the loaded nvidia module, ``550.163.01``."""
        match = _KERNEL_MODULE.search(_read(self.proc / "driver/nvidia/version"))
        return match[1] if match else None

    def gpu_addresses(self) -> tuple[SysfsAddress, ...]:
        """PCI addresses of all GPUs that are bound to the driver, lost ones too, ascending: NVML's order."""
        try:
            names = sorted(entry.name for entry in (self.proc / "driver/nvidia/gpus").iterdir())
            return tuple(map(SysfsAddress, names))
        except OSError:
            return ()

    def gpu_uuid(self, address: SysfsAddress) -> GpuUuid | None:
        """The driver's UUID for a PCI address; None if it prints question marks."""
        text = _read(self.proc / "driver/nvidia/gpus" / address / "information")
        match = re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", text, re.MULTILINE)
        return GpuUuid(match[1]) if match else None

    def toolkit(self) -> ToolkitConfig | None:
        """What the container toolkit accepts from unprivileged pods; None if there is no readable
        configuration.

        Looked for below the root of the driver and of the node: a driver in a container has its own. Which of
        two files the runtime uses is not seen: one that refuses counts only if the other refuses, too.
        """
        roots = (self.driver, self.proc / "1/root")
        found = [_toolkit(root, name) for root in roots for name in _TOOLKIT_FILES]
        there = [config for config in found if config is not None]
        return next((config for config in there if config.accepts_env), there[0] if there else None)


def _toolkit(root: Path, name: str) -> ToolkitConfig | None:
    text = _read(root / name)
    if not text:
        return None
    import tomllib

    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
    accepts_env = said.get(_OPEN_TO_ENV, True)
    if not isinstance(accepts_env, bool):
        return None
    return ToolkitConfig(f"/{name}", accepts_env, _OPEN_TO_ENV in said, said.get(_OPEN_TO_MOUNTS) is True)


def vgpu_host(config: bytes) -> VgpuHost | None:
    """What a vGPU's PCI configuration space says of its host; None if it is not that of a vGPU.

    A vGPU has a vendor capability with the letters VF. Records follow, each with an id and its length; record
    0 has the version and the branch of the host's driver in ten bytes each. Source: facts of NVIDIA's GPU
    Feature Discovery; not seen on a vGPU.
    """
    at = config[_CAPABILITIES] if len(config) == 256 else 0
    for _ in range(48):  # more capabilities do not fit, and a broken list may be a circle
        if not 64 <= at <= 251 or (config[at] == _VENDOR_CAPABILITY and config[at + 3 : at + 5] == b"VF"):
            break
        at = config[at + 1]
    if not 64 <= at <= 251 or config[at] != _VENDOR_CAPABILITY:
        return None
    end, record = min(at + config[at + 2], 256), at + 5
    while record + 1 < end and config[record] != 0 and config[record + 1] > 0:
        record += config[record + 1]
    if record + 22 > end or config[record] != 0:
        return VgpuHost("", "")
    texts = (config[record + 2 : record + 12], config[record + 12 : record + 22])
    version, branch = (text.split(b"\0")[0].decode("ascii", "replace").strip() for text in texts)
    return VgpuHost(version, branch)


def sysfs_address(pci_bus_id: PciBusId) -> SysfsAddress:
    """The same address as the kernel writes it."""
    domain, _, rest = pci_bus_id.lower().partition(":")
    return SysfsAddress(f"{domain.lstrip('0'):0>4}:{rest}")


def nvml_address(address: SysfsAddress) -> PciBusId:
    """Inverse of ``sysfs_address``."""
    domain, _, rest = address.upper().partition(":")
    return PciBusId(f"{domain:0>8}:{rest}")


def _read(path: Path, most: int = -1) -> str:
    """The file's text, or its first characters; empty if it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(most)
    except OSError:
        return ""
