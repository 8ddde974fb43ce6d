"""The only module that uses pynvml: finds and loads the library, opens a session, translates return codes.

pynvml keeps the loaded library in a module variable, so a process has one library. It is loaded when a
session opens, not before. No CUDA context is created, so a session uses no GPU memory.
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
from partage.edges.hardware.translate import ABSENT, LIBRARY_NOT_FOUND, VERSION_MISMATCH, no_driver, translate
from partage.errors import HardwareError
from partage.model.gpu import NoDriver
from partage.model.nvml_functions import USES
from partage.model.paths import LIBRARY_DIRECTORIES

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
