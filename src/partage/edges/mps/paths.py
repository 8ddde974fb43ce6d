"""Paths of a control daemon, ``<run-dir>/mps/<device>/{pipe,log,shm}``, and of the driver's programs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from partage.errors import Unsupported
from partage.model.ids import DeviceUuid, device_uuid
from partage.model.mps import CONTROL_PROGRAM, SERVER, is_device_uuid
from partage.model.paths import LIBRARY_DIRECTORIES, check_socket_path
from partage.values import Frozen

_PROGRAM_DIRECTORIES = ("usr/bin", "bin", "usr/sbin", "usr/local/bin", "usr/local/nvidia/bin")
_LIBRARY_DIRECTORIES = (*LIBRARY_DIRECTORIES, "usr/local/nvidia/lib64")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LOADERS = ("lib64/ld-linux-x86-64.so.2", "lib/ld-linux-aarch64.so.1")
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
    def start_log(self) -> Path:
        """What the control program printed when it was started."""
        return self.home / "start.log"

    @property
    def unit_limits(self) -> Path:
        """Variables with the limits, for a daemon that is a unit of systemd."""
        return self.home / "limits.env"

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


class NodeProgram(Frozen):
    """The control program as the node itself finds it.

    root: what to change the root to before; ``/``: nothing. program: its path from there.
    """

    root: Path
    program: Path
    environment: Mapping[str, str]


def homes_below(run_dir: Path) -> list[DaemonPaths]:
    """The paths of all devices that have or had a daemon. Blocking."""
    try:
        names = sorted(entry.name for entry in (run_dir / "mps").iterdir() if entry.is_dir())
    except OSError:
        return []
    return [DaemonPaths.of(run_dir, name) for name in names if is_device_uuid(name)]


class DriverFiles(Frozen):
    """The programs of a driver that is installed below ``root``.

    on_node: where that is in the node's own file system, if this process is in a container.
    """

    root: Path = Path("/")
    on_node: Path | None = None

    @property
    def places(self) -> tuple[Path, Path]:
        """The driver's root here, and on the node."""
        return self.root, self.on_node or self.root

    def files_of(self, name: str) -> list[Path]:
        """All places below the root that have a program of this name."""
        places = (self.root / directory / name for directory in _PROGRAM_DIRECTORIES)
        return [path for path in places if os.access(path, os.X_OK)]

    def program(self) -> Path:
        """The control program. Raises Unsupported."""
        for path in self.files_of(CONTROL_PROGRAM):
            return path
        raise Unsupported(
            f"there is no {CONTROL_PROGRAM} below {self.root}",
            "it comes with the driver's compute utilities; --driver-root says where the driver is",
        )

    def for_node(self, paths: DaemonPaths) -> NodeProgram:
        """The control program and its environment for a start by the node itself. Raises Unsupported.

        A driver container's root is a whole one, with a loader; the programs are run in it, as they find
        their libraries there. Otherwise (GKE's ``/home/kubernetes/bin/nvidia``) the node's loader is used.
        """
        below = self.program().relative_to(self.root)
        _, root = self.places
        if root == Path("/") or any(os.path.lexists(self.root / loader) for loader in _LOADERS):
            return NodeProgram(root, Path("/") / below, DriverFiles().environment(paths))
        return NodeProgram(Path("/"), root / below, self.environment(paths, seen=root))

    def environment(self, paths: DaemonPaths, *, seen: Path | None = None) -> dict[str, str]:
        """The whole environment of the program; nothing is inherited.

        seen: the driver's root as the program sees it; None: as this process does. Below another root than
        ``/`` the driver's programs and libraries are not in the usual directories. Finding them this way has
        not been tested on real hardware.
        """
        shown = seen or self.root
        found = {
            "PATH": _SYSTEM_PATH,
            "CUDA_MPS_PIPE_DIRECTORY": str(paths.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(paths.log),
        }
        if self.root != Path("/"):
            found["PATH"] = ":".join(
                [*(str(shown / directory) for directory in self._below(_PROGRAM_DIRECTORIES)), _SYSTEM_PATH]
            )
            libraries = [
                str(shown / directory)
                for directory in self._below(_LIBRARY_DIRECTORIES)
                if (self.root / directory / "libcuda.so.1").exists()
            ]
            if libraries:
                found["LD_LIBRARY_PATH"] = ":".join(libraries)
        return found

    def _below(self, directories: tuple[str, ...]) -> list[str]:
        return [directory for directory in directories if (self.root / directory).is_dir()]
