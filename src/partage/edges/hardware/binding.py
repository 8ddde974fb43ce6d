"""The only module that uses pynvml: finds and loads the library, opens a session, translates return codes.

pynvml keeps the loaded library in a module variable, so a process has one library. It is loaded when a
session opens, not before. No CUDA context is created, so a session uses no GPU memory.

The numbers of NVML's return codes are those of nvml.h, nvmlReturn_t.
"""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from partage.edges.hardware.host import Host
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
from partage.model.nvml_functions import USES
from partage.model.paths import LIBRARY_DIRECTORIES

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


LIBRARY = "libnvidia-ml.so.1"
_INIT_NO_GPUS = 1
"""NVML_INIT_FLAG_NO_GPUS: a node without GPUs is not an error."""


def find_library(driver_root: Path) -> Path | None:
    """The library below a driver root, with links resolved, so that another version is another path."""
    for directory in LIBRARY_DIRECTORIES:
        path = driver_root / directory / LIBRARY
        if path.exists():
            return path.resolve()
    return None


def _lacking(library: ctypes.CDLL) -> tuple[str, ...]:
    """The first function of each group of which the library has none."""
    return tuple(names[0] for names in USES if not any(hasattr(library, name) for name in names))


class Binding:
    """A session with the driver's library. Calls may come from any thread.

    ``call`` and ``optional`` take the name of a function of pynvml. They raise a HardwareError from
    ``translate.ERRORS``.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._pynvml: ModuleType | None = None
        self._library: ctypes.CDLL | None = None
        self._path = ""
        self._lacks: tuple[str, ...] = ()
        self._open = False

    @property
    def lacks(self) -> tuple[str, ...]:
        """Of the functions that Partage can do without, those that the library lacks."""
        return self._lacks

    @property
    def is_open(self) -> bool:
        """Whether a session is open, as far as this object knows."""
        return self._open

    def open(self) -> NoDriver | None:
        """Load the library and open a session. Returns None, or why that is not possible. Idempotent."""
        with self._lock:
            if self._open:
                return None
            missing = self._load() or self._initialise()
            self._open = missing is None
            return missing

    def close(self) -> None:
        """End the session. Idempotent. If the driver is gone, nothing has to be done."""
        with self._lock:
            if self._open:
                self._open = False
                with contextlib.suppress(HardwareError):
                    self.call("nvmlShutdown")

    def unload(self) -> None:
        """Unload the library, too: a file that is mapped keeps the driver's file system busy. Idempotent.

        No thread may be in a call.
        """
        self.close()
        with self._lock:
            library, self._library, self._path = self._library, None, ""
            pynvml: Any = self._pynvml
            if library is None or pynvml is None:
                return
            pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001
            pynvml.nvmlLib = self._pynvml = None
            _ctypes.dlclose(library._handle)  # noqa: SLF001 - ctypes has no other way

    def call(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - a foreign library's values
        """What the function of pynvml returns."""
        return self.optional(name, *arguments, absent=frozenset())

    def optional(self, name: str, *arguments: object, absent: frozenset[int] = ABSENT) -> Any | None:  # noqa: ANN401
        """What the function returns; None if its return code is one of ``absent``."""
        return self._asked(name, arguments, absent)[1]

    def fills(self, name: str, *arguments: object, absent: frozenset[int] = ABSENT) -> bool:
        """Whether a function of pynvml that returns nothing has filled its argument; False if its return code
        is one of ``absent``.
        """
        return self._asked(name, arguments, absent)[0]

    def _asked(self, name: str, arguments: Sequence[object], absent: frozenset[int]) -> tuple[bool, Any]:
        if self._pynvml is None:
            raise translate(1, name)
        try:
            return True, getattr(self._pynvml, name)(*arguments)
        except self._pynvml.NVMLError as error:
            if error.value in absent:
                return False, None
            raise translate(error.value, name) from error

    def structure(self, name: str) -> Any:  # noqa: ANN401
        """A new structure of pynvml with its version field set."""
        if self._pynvml is None:
            raise translate(1, name)
        return getattr(self._pynvml, name)()

    def _load(self) -> NoDriver | None:
        import pynvml as untyped

        pynvml: Any = untyped
        found = find_library(self._host.driver)
        path = str(found or LIBRARY)
        if self._library is None or path != self._path:
            try:
                self._library = ctypes.CDLL(path)
            except OSError as error:
                if found is None:
                    where = f", neither below {self._host.driver} nor in the loader's path"
                    return no_driver(LIBRARY_NOT_FOUND, where)
                return NoDriver("failed", f"{path} cannot be loaded: {error}", "reinstall the NVIDIA driver")
            self._path = path
            self._lacks = _lacking(self._library)
        if pynvml.nvmlLib is not self._library:
            # The cached function pointers lead into the library that was loaded before.
            pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001
            pynvml.nvmlLib = self._library
        self._pynvml = pynvml
        return None

    def _initialise(self) -> NoDriver | None:
        assert self._pynvml is not None
        try:
            self._pynvml.nvmlInitWithFlags(_INIT_NO_GPUS)
        except self._pynvml.NVMLError as error:
            return no_driver(error.value, self._versions() if error.value == VERSION_MISMATCH else "")
        return None

    def _versions(self) -> str:
        """The versions of library and kernel module. NVML's own version is CUDA's and the driver's:
        ``12.550.163.01``.
        """
        library = ""
        with contextlib.suppress(HardwareError):
            library = str(self.call("nvmlSystemGetNVMLVersion")).partition(".")[2]
        module = self._host.kernel_module_version()
        return f": library {library or 'unknown'}, kernel module {module or 'unknown'}"
