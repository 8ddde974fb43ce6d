"""NVML's return codes as errors of ``partage.errors``. The numbers are those of nvml.h, nvmlReturn_t."""

from __future__ import annotations

from partage.errors import (
    DriverUnavailable,
    GpuInUse,
    GpuLost,
    HardwareError,
    HardwareTimeout,
    InsufficientResources,
    NotPermitted,
    Unsupported,
)
from partage.model.gpu import NoDriver

INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, TIMEOUT = 2, 3, 6, 10
LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, RESET_REQUIRED, VERSION_MISMATCH, IN_USE = 12, 13, 16, 18, 19

ERRORS: dict[int, tuple[type[HardwareError], str]] = {
    1: (DriverUnavailable, "NVML is not initialised"),
    INVALID_ARGUMENT: (HardwareError, "NVML does not accept the arguments"),
    NOT_SUPPORTED: (Unsupported, "this GPU or driver does not support it"),
    4: (NotPermitted, "no permission: root or a capability is needed"),
    5: (HardwareError, "NVML is initialised already"),
    NOT_FOUND: (HardwareError, "there is no such object"),
    7: (HardwareError, "the buffer is too small"),
    8: (GpuLost, "the GPU's power cables are not attached"),
    9: (DriverUnavailable, "the NVIDIA driver is not loaded"),
    TIMEOUT: (HardwareTimeout, "the driver did not answer in time"),
    11: (GpuLost, "the kernel sees a problem with the GPU's interrupts"),
    LIBRARY_NOT_FOUND: (DriverUnavailable, "libnvidia-ml.so.1 is not there"),
    FUNCTION_NOT_FOUND: (Unsupported, "the driver's library is too old for this"),
    14: (HardwareError, "the GPU's infoROM is corrupted"),
    15: (GpuLost, "the GPU has fallen off the bus or is inaccessible"),
    RESET_REQUIRED: (GpuLost, "the GPU needs a reset"),
    17: (NotPermitted, "the operating system denies access to the GPU (device cgroup)"),
    VERSION_MISMATCH: (DriverUnavailable, "library and kernel module are of different driver versions"),
    IN_USE: (GpuInUse, "the GPU is in use"),
    20: (HardwareError, "not enough memory"),
    21: (HardwareError, "there is no data"),
    22: (Unsupported, "not supported while vGPU ECC is on"),
    # One code for several causes: no free slices, that placement is taken, no engines left.
    23: (InsufficientResources, "not enough resources on the GPU"),
    24: (Unsupported, "this frequency is not supported"),
    25: (Unsupported, "the driver's library knows another version of the structure"),
    26: (Unsupported, "the driver no longer supports this"),
    27: (DriverUnavailable, "the driver is not ready yet"),
    28: (GpuLost, "the GPU is gone"),
    29: (HardwareError, "not possible in the present state"),
    30: (Unsupported, "this kind of reset is not supported"),
    999: (HardwareError, "the driver reports an unknown error"),
}
"""Every code in nvml.h except success; a test compares the two."""

ABSENT = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, 21, 22, 25, 26})
"""Codes that mean: this GPU or driver does not have it. Absence is a value, not an error."""


def translate(code: int, call: str) -> HardwareError:
    """The error for a return code; an unknown code is a plain HardwareError."""
    kind, meaning = ERRORS.get(code, (HardwareError, f"NVML answers with code {code}"))
    return kind(f"{meaning} ({call})")


_NO_DRIVER: dict[int, tuple[str, str]] = {
    4: ("no-permission", "run as root, or give access to /dev/nvidiactl and /dev/nvidia*"),
    9: ("driver-missing", "load the nvidia kernel module; dmesg says why it does not load"),
    LIBRARY_NOT_FOUND: (
        "library-missing",
        "install the NVIDIA driver, or set --driver-root to where it is",
    ),
    17: ("no-permission", "the device cgroup of this container or service lacks the NVIDIA devices"),
    VERSION_MISMATCH: (
        "version-mismatch",
        "the driver was upgraded under a running kernel module: reload the module or reboot the node",
    ),
}


def no_driver(code: int, detail: str = "") -> NoDriver:
    """Why NVML cannot be initialised. detail: what is known beyond the code."""
    kind, hint = _NO_DRIVER.get(code, ("failed", "nvidia-smi and dmesg may say more"))
    _, meaning = ERRORS.get(code, (HardwareError, f"NVML answers with code {code}"))
    return NoDriver(kind, f"{meaning}{detail}", hint)
