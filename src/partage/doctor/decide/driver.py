"""Checks of the driver: is it there, is it whole, do its device files exist? Pure."""

from __future__ import annotations

from partage.doctor.decide.finding import EVERYTHING, Check, Finding, error, warning
from partage.doctor.decide.observation import DeviceFile, DriverParts, Observation, PciGpu
from partage.model.gpu import PAUSED, Driver, NoDriver
from partage.model.nvml_functions import USES
from partage.text import count_of, listed

_SHOWN = 6
_NOUVEAU = "nouveau"
_PASSED_THROUGH = frozenset({
    "vfio-pci", "nvidia-vgpu-vfio", "nvgrace-gpu-vfio-pci", "pci-stub", "xen-pciback",
})  # fmt: skip
"""The kernel drivers of GPUs that virtual machines have; they are no fault of this node."""

OF_GPUS = frozenset({
    "gpu-lost", "gpu-without-driver", "gpu-needs-reset", "memory-rows-failed", "fabric-not-ready",
    "mig-file-missing", "persistence-off", "compute-mode-left", "device-file-missing", "cdi-broken",
    "cdi-conflict", "policy-refused", "gpus-differ", "mig-mode-pending", "labels-stale",
    "mig-without-devices",
    "slurm-gpus-differ", "slurm-devices-stale", "toolkit-refuses", "toolkit-open",
    "agent:library-missing", "agent:driver-missing", "agent:version-mismatch", "agent:no-permission",
    "agent:resetting", "agent:paused", "agent:failed", "agent:helper-down", "agent:not-registered",
    "agent:device-file-missing", "agent:persistence-off", "agent:gpu-unhealthy", "agent:cdi-incomplete",
    "agent:mps-daemon", "agent:policy-refused", "agent:processes-hidden", "sockets-left",
    "socket-path-long",
})  # fmt: skip
"""Codes of findings that mean nothing without a driver, or follow from that."""


def _no_gpu(now: Observation) -> Finding | None:
    if not isinstance(now.inventory.driver, NoDriver) or now.pci_gpus != () or _parts(now).module:
        return None
    parts = _parts(now)
    return error(
        "no-gpu",
        "There is no NVIDIA driver on this machine, and no NVIDIA GPU either",
        (
            "/sys/bus/pci/devices lists no display or compute device of NVIDIA",
            "/proc/driver/nvidia/version does not exist: the kernel module is not loaded",
            _library_sentence(parts),
        ),
        "If this machine should have a GPU: is it plugged in, or passed through to this virtual machine "
        "(lspci -d 10de:)? Otherwise run partage doctor on the node with the GPUs, or add --machine "
        "8xh100-sxm5-80gb to try it on a simulated one",
    )


def _nouveau(now: Observation) -> Finding | None:
    taken = [gpu for gpu in _pci_gpus(now) if gpu.driver == _NOUVEAU]
    if not taken or not isinstance(now.inventory.driver, NoDriver):
        return None
    return error(
        "nouveau",
        "The kernel driver nouveau has the GPUs, so NVIDIA's driver cannot have them",
        (f"nouveau is bound to {listed([gpu.address for gpu in taken])} (/sys/bus/pci/devices)",),
        "Put 'blacklist nouveau' and 'options nouveau modeset=0' into /etc/modprobe.d/nouveau.conf, "
        "run update-initramfs -u (or dracut --force), and reboot",
    )


def _module_missing(now: Observation) -> Finding | None:
    parts, driver = _parts(now), now.inventory.driver
    if not isinstance(driver, NoDriver) or parts.module or driver.kind == PAUSED:
        return None
    if now.driver is None:
        if driver.kind not in ("driver-missing", "library-missing"):
            return None
        return error(
            "driver-missing", "There is no NVIDIA driver on this node", driver.reason, _sentence(driver.hint)
        )
    addresses = [gpu.address for gpu in _pci_gpus(now)]
    seen = [f"the kernel sees {count_of(len(addresses), 'GPU')}: {listed(addresses)}"] if addresses else []
    install = "install the driver" if not parts.library else "load its kernel module: modprobe nvidia"
    return error(
        "driver-missing",
        "The kernel module of the NVIDIA driver is not loaded",
        (*seen, "/proc/driver/nvidia/version does not exist", _library_sentence(parts)),
        f"{install[0].upper()}{install[1:]}. If it does not load, dmesg says why; after an update of the "
        "kernel it may have to be built again (dkms status)",
    )


def _library_missing(now: Observation) -> Finding | None:
    driver, parts = now.inventory.driver, _parts(now)
    if not isinstance(driver, NoDriver) or driver.kind != "library-missing" or parts.library:
        return None
    return error(
        "library-missing",
        "The library of the NVIDIA driver, libnvidia-ml.so.1, is not there",
        (f"the kernel module {parts.module} is loaded", _library_sentence(parts)),
        "Install the driver's libraries of the same version, or name the root below which they are: "
        "--driver-root /run/nvidia/driver for a driver in a container",
    )


def _version_mismatch(now: Observation) -> Finding | None:
    driver, parts = now.inventory.driver, _parts(now)
    if not isinstance(driver, NoDriver):
        return None
    known = parts.module and parts.library_version and parts.module != parts.library_version
    if not known and driver.kind != "version-mismatch":
        return None
    evidence = [f"NVML says: {driver.reason}"]
    if known:
        evidence = [
            f"/proc/driver/nvidia/version: kernel module {parts.module}",
            f"{parts.library}: library {parts.library_version}",
        ]
    return error(
        "version-mismatch",
        "The NVIDIA driver was updated while its old kernel module is still loaded",
        evidence,
        "Reboot the node. Or, without a reboot: end everything that uses the GPUs, also nvidia-persistenced, "
        "then modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia and modprobe nvidia",
    )


def _driver_busy(now: Observation) -> Finding | None:
    driver = now.inventory.driver
    if not isinstance(driver, NoDriver) or driver.kind not in (PAUSED, "resetting"):
        return None
    if driver.kind == PAUSED:
        fix = (
            "Wait until the GPU Operator has exchanged the driver. If that has ended and no agent of Partage "
            "runs, remove the file driver-paused in its run directory"
        )
    else:
        fix = "Wait until the reset has ended; it takes up to eight minutes. dmesg may say more"
    return error("driver-busy", "The NVIDIA driver is left alone for now", driver.reason, fix)


def _no_permission(now: Observation) -> Finding | None:
    driver = now.inventory.driver
    if not isinstance(driver, NoDriver) or driver.kind != "no-permission":
        return None
    return error(
        "no-permission",
        "This process may not use the GPUs, so nothing can be said of them",
        driver.reason,
        "Run partage doctor as root on the node itself. In a container or a service: its device cgroup must "
        "allow /dev/nvidia*",
    )


def _driver_failed(now: Observation) -> Finding | None:
    """Every other reason why there is no driver."""
    driver, parts = now.inventory.driver, _parts(now)
    if not isinstance(driver, NoDriver) or any(named(now) is not None for named in _NAMED_CAUSES):
        return None
    module = (f"the kernel module {parts.module} is loaded",) if parts.module else ()
    return error(
        "driver-failed",
        "The NVIDIA driver is there and does not work",
        (driver.reason, *module),
        "Look at dmesg for lines with NVRM or Xid; nvidia-smi may say more. If a GPU hangs, reboot the node",
    )


_NAMED_CAUSES = (
    _no_gpu, _no_permission, _driver_busy, _nouveau, _module_missing, _library_missing, _version_mismatch,
)  # fmt: skip


def _device_files(now: Observation) -> Finding | None:
    assert isinstance(now.device_files, tuple)
    wrong = [(file, problem) for file in now.device_files if (problem := _file_problem(file))]
    if not wrong:
        return None
    only_uvm = all("nvidia-uvm" in file.path for file, _ in wrong)
    meaning = "CUDA does not start in any container" if only_uvm else "containers cannot open their GPUs"
    return error(
        "device-file-missing",
        f"Device files of the driver are missing or wrong: {meaning}",
        (f"{file.path} {problem}" for file, problem in wrong[:_SHOWN]),
        "Make them: nvidia-modprobe -c 0 -u, with one -c N for each GPU, or nvidia-smi as root. Remove what "
        "is no device file before. nvidia-persistenced keeps them after a reboot",
    )


def _file_problem(file: DeviceFile) -> str:
    if file.kind == "absent":
        return "does not exist"
    if file.kind == "other":
        return "is no device file"
    if file.major is not None and file.wanted_major not in (None, file.major):
        return (
            f"is of an earlier driver: its major number is {file.major}, the kernel has {file.wanted_major}"
        )
    return ""


def _without_driver(now: Observation) -> Finding | None:
    assert isinstance(now.pci_gpus, tuple)
    if not isinstance(now.inventory.driver, Driver):
        return None
    bare = [gpu for gpu in now.pci_gpus if gpu.driver not in {"nvidia", *_PASSED_THROUGH}]
    if not bare:
        return None
    return error(
        "gpu-without-driver",
        f"The NVIDIA driver does not have {count_of(len(bare), 'GPU')} that the kernel sees",
        (f"{gpu.address}: bound to {gpu.driver or 'no driver'} (/sys/bus/pci/devices)" for gpu in bare),
        "Look at dmesg for NVRM and this address: a GPU that the driver does not support, or that has no "
        "power, says so there. A GPU that another driver holds: unbind it there, then echo its address to "
        "/sys/bus/pci/drivers/nvidia/bind",
    )


def _pci_gpus(now: Observation) -> tuple[PciGpu, ...]:
    return now.pci_gpus if isinstance(now.pci_gpus, tuple) else ()


def _parts(now: Observation) -> DriverParts:
    return now.driver if isinstance(now.driver, DriverParts) else DriverParts()


def _library_sentence(parts: DriverParts) -> str:
    if parts.library:
        return f"{parts.library} is there"
    return f"libnvidia-ml.so.1 is not below {parts.searched}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if text else "Install or repair the NVIDIA driver"


def _old_library(now: Observation) -> Finding | None:
    driver = now.inventory.driver
    if not isinstance(driver, Driver) or not driver.lacks:
        return None
    meaning = {names[0]: text for names, text in USES.items()}
    return warning(
        "driver-lacks",
        f"The library of driver {driver.version} lacks functions that Partage can do without",
        (
            f"{name}: without it Partage does not know {meaning.get(name, 'what it says')}"
            for name in driver.lacks
        ),
        "Nothing has to be done if you do not need that; a driver of a newer branch has them",
    )


_DRIVER = "the NVIDIA driver"

CHECKS = (
    Check("no-gpu", _DRIVER, (), _no_gpu, frozenset({EVERYTHING})),
    Check("no-permission", _DRIVER, (), _no_permission, OF_GPUS),
    Check("driver-busy", _DRIVER, (), _driver_busy, OF_GPUS),
    Check("nouveau", _DRIVER, (), _nouveau, OF_GPUS | {"driver-missing", "library-missing"}),
    Check("driver-missing", _DRIVER, (), _module_missing, OF_GPUS | {"library-missing", "version-mismatch"}),
    Check("library-missing", _DRIVER, (), _library_missing, OF_GPUS | {"version-mismatch"}),
    Check("version-mismatch", _DRIVER, (), _version_mismatch, OF_GPUS),
    Check("driver-failed", _DRIVER, (), _driver_failed, OF_GPUS),
    Check("device-file-missing", "device files", ("device_files",), _device_files,
          frozenset({"agent:device-file-missing", "mig-file-missing", "cdi-broken"})),
    Check("driver-lacks", _DRIVER, (), _old_library),
    Check("gpu-without-driver", "GPUs on the PCI bus", ("pci_gpus",), _without_driver,
          frozenset({"labels-stale", "slurm-gpus-differ"})),
)  # fmt: skip
"""In this order: the first one is the cause."""
