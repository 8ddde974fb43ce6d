"""Where a control daemon's files are, ``<run-dir>/mps/<device>/{pipe,log,shm}``, and the driver's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from partage.errors import Unsupported
from partage.model.mps import SERVER
from partage.model.paths import LIBRARY_DIRECTORIES, check_socket_path

PROGRAM = "nvidia-cuda-mps-control"
SERVER_PROGRAM = "nvidia-cuda-mps-server"

_PROGRAM_DIRECTORIES = ("usr/bin", "bin", "usr/sbin", "usr/local/bin", "usr/local/nvidia/bin")
_LIBRARY_DIRECTORIES = (*LIBRARY_DIRECTORIES, "usr/local/nvidia/lib64")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LONGEST_SOCKET = f"{SERVER}/share00/control"
"""Longer than any of version 2 (``control_privileged``)."""


@dataclass(frozen=True, slots=True)
class DaemonPaths:
    """The files of one daemon. home: ``<run-dir>/mps/<device>``, under the device's UUID."""

    home: Path

    @classmethod
    def of(cls, run_dir: Path, device: str) -> DaemonPaths:
        """Those of a device. Raises InputError where the run directory is too deep for a socket in it."""
        paths = cls(run_dir / "mps" / device)
        check_socket_path(paths.pipe / _LONGEST_SOCKET, "choose a shorter --run-dir")
        return paths

    @property
    def device(self) -> str:
        return self.home.name

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
        """What it was asked to be, and which process it is."""
        return self.home / "daemon.json"

    @property
    def configuration(self) -> Path:
        """What a daemon with named servers reads when it starts."""
        return self.home / "mps.toml"

    @property
    def server_log(self) -> Path:
        """What our named server says."""
        return self.log / SERVER / "server.log"

    @property
    def lock(self) -> Path:
        """Held by whoever acts on this daemon. Beside its home, which comes and goes."""
        return self.home.with_name(f"{self.home.name}.lock")

    @property
    def pid_file(self) -> Path:
        """The daemon writes it itself."""
        return self.pipe / f"{PROGRAM}.pid"


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """The programs of a driver that is installed below ``root``."""

    root: Path = Path("/")

    def program(self) -> Path:
        """The control program. Raises Unsupported."""
        for directory in _PROGRAM_DIRECTORIES:
            path = self.root / directory / PROGRAM
            if os.access(path, os.X_OK):
                return path
        raise Unsupported(
            f"there is no {PROGRAM} below {self.root}",
            "it comes with the driver's compute utilities; --driver-root says where the driver is",
        )

    def environment(self, paths: DaemonPaths) -> dict[str, str]:
        """All that the program is told of the world; nothing of ours is inherited.

        Below a root that is not ``/`` neither programs nor libraries of the driver are where they are looked
        for; that they are found this way has not been seen on hardware.
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
