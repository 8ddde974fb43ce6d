"""Paths of a control daemon, ``<run-dir>/mps/<device>/{pipe,log,shm}``, and of the driver's programs."""

from __future__ import annotations

import os
from pathlib import Path

from partage.errors import Unsupported
from partage.model.ids import DeviceUuid, device_uuid
from partage.model.mps import CONTROL_PROGRAM, SERVER
from partage.model.paths import LIBRARY_DIRECTORIES, check_socket_path
from partage.values import Frozen

_PROGRAM_DIRECTORIES = ("usr/bin", "bin", "usr/sbin", "usr/local/bin", "usr/local/nvidia/bin")
_LIBRARY_DIRECTORIES = (*LIBRARY_DIRECTORIES, "usr/local/nvidia/lib64")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LONGEST_SOCKET = f"{SERVER}/share00/control"
"""Longer than any socket name of version 2 (``control_privileged``)."""


class DaemonPaths(Frozen):
    """The files of one daemon. home: ``<run-dir>/mps/<device>``, named after the device's UUID."""

    home: Path

    @classmethod
    def of(cls, run_dir: Path, device: DeviceUuid) -> DaemonPaths:
        """The paths for a device. Raises InputError if the run directory's path is too long for a socket in
        it.
        """
        paths = cls(run_dir / "mps" / device)
        check_socket_path(paths.pipe / _LONGEST_SOCKET, "choose a shorter --run-dir")
        return paths

    @property
    def device(self) -> DeviceUuid:
        return device_uuid(self.home.name)

    @property
    def pipe(self) -> Path:
        """CUDA_MPS_PIPE_DIRECTORY, mounted into the containers of the shares."""
        return self.home / "pipe"

    @property
    def log(self) -> Path:
        """CUDA_MPS_LOG_DIRECTORY."""
        return self.home / "log"

    @property
    def shm(self) -> Path:
        """``/dev/shm`` of the daemon, its servers and the containers of the shares."""
        return self.home / "shm"

    @property
    def record(self) -> Path:
        """How it was started, and which process it is."""
        return self.home / "daemon.json"

    @property
    def configuration(self) -> Path:
        """The file that a daemon with named servers reads when it starts."""
        return self.home / "mps.toml"

    @property
    def server_log(self) -> Path:
        """The log of our named server."""
        return self.log / SERVER / "server.log"

    @property
    def lock(self) -> Path:
        """Locked during a step on this daemon. Not in ``home``, which is created and removed."""
        return self.home.with_name(f"{self.home.name}.lock")

    @property
    def pid_file(self) -> Path:
        """The daemon writes it itself."""
        return self.pipe / f"{CONTROL_PROGRAM}.pid"


class DriverFiles(Frozen):
    """The programs of a driver that is installed below ``root``."""

    root: Path = Path("/")

    def program(self) -> Path:
        """The control program. Raises Unsupported."""
        for directory in _PROGRAM_DIRECTORIES:
            path = self.root / directory / CONTROL_PROGRAM
            if os.access(path, os.X_OK):
                return path
        raise Unsupported(
            f"there is no {CONTROL_PROGRAM} below {self.root}",
            "it comes with the driver's compute utilities; --driver-root says where the driver is",
        )

    def environment(self, paths: DaemonPaths) -> dict[str, str]:
        """The whole environment of the program; nothing is inherited.

        Below another root than ``/`` the driver's programs and libraries are not in the usual directories.
        Finding them this way has not been tested on real hardware.
        """
        found = {
            "PATH": _SYSTEM_PATH,
            "CUDA_MPS_PIPE_DIRECTORY": str(paths.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(paths.log),
        }
        if self.root != Path("/"):
            found["PATH"] = ":".join([*self._below(_PROGRAM_DIRECTORIES), _SYSTEM_PATH])
            libraries = [
                path for path in self._below(_LIBRARY_DIRECTORIES) if Path(path, "libcuda.so.1").exists()
            ]
            if libraries:
                found["LD_LIBRARY_PATH"] = ":".join(libraries)
        return found

    def _below(self, directories: tuple[str, ...]) -> list[str]:
        return [str(path) for path in (self.root / directory for directory in directories) if path.is_dir()]
