"""The node's systemd, by its own programs: systemd-run and systemctl; and the one template from which every
MPS daemon's unit is made. Only the device's UUID varies.

In a container the programs are run in the mount namespace of process 1. So they are those of the manager that
they talk to, the image needs none, and no socket of systemd is mounted into it (ADR 61). Limits reach the
daemon by a file at a fixed place, so that no word of a request is in the call to systemd. The unit's
properties are those that systemd 236 and newer take from systemd-run.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from partage.edges.host.own_task import end_group
from partage.edges.host.unix_sockets import is_listening
from partage.edges.mps import enter_node
from partage.edges.mps.launch import SHARED_MEMORY
from partage.edges.mps.paths import DaemonPaths, NodeProgram
from partage.errors import DaemonError, InputError, Unsupported
from partage.model.ids import DeviceUuid
from partage.model.mps import is_device_uuid
from partage.values import Frozen

_RUN, _CONTROL = "systemd-run", "systemctl"
_SOCKETS = ("systemd/private", "dbus/system_bus_socket")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/current-system/sw/bin"
"""The last one is NixOS's."""

_NOT_LOADED = 5
"""Exit code of systemctl for a unit that there is not."""


class HostSystemd(Frozen):
    """The node's systemd.

    run: the node's ``/run``. path: where its programs are looked for; None: as usual. through: the directory
    of process 1 in /proc, if this process is in a container. unreachable: why that is not the node's.
    """

    run: Path
    path: str | None
    through: Path | None
    unreachable: str = ""

    def absent(self, shared: Iterable[tuple[Path, Path]] = ()) -> str:
        """Why it cannot start a daemon, a clause; empty: it can. shared: paths here and on the node that have
        to be the same. Blocking.
        """
        if os.geteuid() != 0:
            return "only root may ask systemd"
        if self.unreachable:
            return self.unreachable
        run = self._seen(self.run)
        if not os.path.isdir(run / "systemd/system"):  # noqa: PTH112 - Path.is_dir raises where it may not look
            return "no systemd runs on this node"
        if not any(is_listening(run / socket) for socket in _SOCKETS):
            return "systemd takes no calls"
        if self.through is None and shutil.which(_RUN, path=self.path) is None:
            return f"there is no {_RUN}"
        differing = (
            f"{here} is not {there} of the node" for here, there in shared if not self._same(here, there)
        )
        return next(differing, "")

    def _same(self, here: Path, there: Path) -> bool:
        try:
            return self.through is None or self._seen(there).samefile(here)
        except OSError:
            return False

    async def run_unit(self, arguments: Sequence[str], deadline_s: float) -> None:
        """systemd-run; done when the unit has started. Raises DaemonError, Unsupported."""
        code, text = await self._ask(_RUN, arguments, deadline_s)
        if code:
            raise DaemonError(f"systemd did not start the MPS control daemon ({code}): {_first(text)}")

    async def stop(self, unit: str, deadline_s: float) -> None:
        """End all processes of a unit, if there is one. Raises DaemonError, Unsupported."""
        code, text = await self._ask(_CONTROL, ("stop", unit), deadline_s)
        if code not in (0, _NOT_LOADED):
            raise DaemonError(f"systemd did not stop {unit} ({code}): {_first(text)}")

    async def main_pid(self, unit: str, deadline_s: float) -> int | None:
        """The main process of a unit that is active; None if it is not. Raises DaemonError, Unsupported."""
        asked = ("show", "--property=ActiveState,MainPID", unit)
        code, text = await self._ask(_CONTROL, asked, deadline_s)
        said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        if code or said.get("ActiveState") != "active" or not said.get("MainPID", "").isdecimal():
            return None
        return int(said["MainPID"])

    def _seen(self, path: Path) -> Path:
        """A path of the node as this process reaches it."""
        return path if self.through is None else self.through / "root" / path.relative_to("/")

    async def _ask(self, program: str, arguments: Sequence[str], deadline_s: float) -> tuple[int, str]:
        """Exit code and output of one of its programs. Raises DaemonError, Unsupported."""
        if self.through is None:
            found = shutil.which(program, path=self.path)
            if found is None:
                raise Unsupported(f"there is no {program}")
            argv = [found]
        else:
            namespace = str(self.through / "ns/mnt")
            argv = [sys.executable, "-I", "-S", str(enter_node.__file__), namespace, program]
        process = await asyncio.create_subprocess_exec(
            *argv,
            *arguments,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            env={"PATH": _PATH, "LC_ALL": "C"},
            cwd="/",
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(deadline_s):
                output, _ = await process.communicate()
        except TimeoutError as error:
            raise DaemonError(f"systemd did not answer {program} within {deadline_s:g} s") from error
        finally:
            await end_group(process)
        text = output.decode(errors="replace")
        if process.returncode == enter_node.FAILED:
            raise Unsupported(f"{program} cannot be run on the node: {_first(text)}")
        return process.returncode or 0, text


def _first(text: str) -> str:
    return next((line.strip()[:400] for line in text.splitlines() if line.strip()), "no reason given")


_FIXED = (
    "--quiet",
    "--collect",  # the unit disappears when the daemon ends, also after a failure
    "--service-type=forking",
    "--property=UMask=0022",  # clients of other users open what the daemon makes
    "--property=LimitNOFILE=1048576",
    "--property=LimitMEMLOCK=infinity",
    "--property=LimitCORE=0",  # a core file would have the memory of tenants
)
_OF_THE_NODE = ("/proc", "/dev", "/sys")


def unit_name(device: DeviceUuid) -> str:
    """The daemon's unit. Raises InputError for anything but a UUID."""
    if not is_device_uuid(device):
        raise InputError(f"{device[:80]!r} is not the UUID of a GPU or MIG device")
    return f"partage-mps-{device}.service"


def unit_command(
    node: NodeProgram, options: Sequence[str], paths: DaemonPaths, *, own_shm: bool
) -> list[str]:
    """Arguments of systemd-run. options: of the control program, constants of Partage."""
    changed = node.root.name != ""
    binds = [f"{path}:{_below(node, path)}" for path in (*_OF_THE_NODE, str(paths.home)) if changed]
    if own_shm:
        binds.append(f"{paths.shm}:{_below(node, SHARED_MEMORY)}")
    variables = {**node.environment, "CUDA_VISIBLE_DEVICES": paths.device}
    chroot = ["chroot", str(node.root)] if changed else []
    return [
        *_FIXED,
        f"--unit={unit_name(paths.device)}",
        f"--description=MPS control daemon of {paths.device}",
        f"--property=EnvironmentFile={paths.unit_limits}",
        f"--property=StandardOutput=file:{paths.start_log}",
        "--property=StandardError=inherit",
        *(f"--property=BindPaths={bind}" for bind in binds),
        *(f"--setenv={name}={value}" for name, value in variables.items()),
        "--",
        *chroot,
        str(node.program),
        "-d",
        *options,
    ]


def write_limits(paths: DaemonPaths, limits: Mapping[str, str]) -> None:
    """Write the variables that the unit reads, and empty its log. Raises OSError."""
    paths.start_log.write_bytes(b"")
    text = "".join(f"{name}={value}\n" for name, value in limits.items())
    paths.unit_limits.write_text(text, encoding="ascii")


def _below(node: NodeProgram, path: str) -> str:
    return str(node.root / path.lstrip("/"))
