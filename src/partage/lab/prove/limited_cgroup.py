"""A cgroup with a memory limit of the driver's, as a container of a limited share has it.

The hook that sets limits of containers sets it, with the state of a process in place of a container's. It has
the name of a container, so that whatever asks for a container finds it.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from partage.edges.cdi.limit_files import SOURCE
from partage.lab.prove.stage import CannotTry
from partage.model.driver_limit import DriverLimit
from partage.plan.serve.limit_edits import HOOK_NAME

CGROUPS = Path("/sys/fs/cgroup")
COMPILED = SOURCE / HOOK_NAME
INSIDE = "inside"
"""A cgroup in it that an attack may make."""

_OURS = "partage-prove-"
"""How a cgroup's name begins; the id of the process that made it follows."""
_ENTER = 'echo $$ >>"$0/cgroup.procs" && exec "$@"'
_HOOK_S = 60.0
_TRIES, _PAUSE_S = 50, 0.1


def entering(cgroup: Path) -> tuple[str, ...]:
    """A program that goes into a cgroup and becomes the one that follows."""
    return ("/bin/sh", "-c", _ENTER, str(cgroup))


@asynccontextmanager
async def limited_cgroup(
    limit: DriverLimit, driver_root: Path, hook: Path = COMPILED, root: Path = CGROUPS
) -> AsyncIterator[Path]:
    """The cgroup, removed afterwards. root: of the node's cgroups. Raises CannotTry."""
    cgroup = _made(hook, root)
    try:
        await _set(limit, cgroup, hook, driver_root)
        yield cgroup
    finally:
        await _remove(cgroup)


def _made(hook: Path, root: Path) -> Path:
    """A new cgroup for this process's tenants. Raises CannotTry."""
    if os.geteuid() != 0:
        raise CannotTry("only root may set a memory limit of the driver's")
    if not hook.exists():
        raise CannotTry(f"the hook that sets memory limits is not compiled: {SOURCE / 'build'} {hook}")
    if not (root / "cgroup.controllers").exists():
        raise CannotTry(f"there is no cgroup v2 at {root}")
    _remove_of_ended(root)
    cgroup = root / f"{_OURS}{os.getpid()}" / secrets.token_hex(32)
    try:
        cgroup.mkdir(parents=True)
    except OSError as error:
        raise CannotTry(f"{cgroup} cannot be made: {error.strerror}") from error
    return cgroup


def _remove_of_ended(root: Path) -> None:
    """What an attacking process has left that was killed. A cgroup with processes in it stays."""
    for left in root.glob(f"{_OURS}*"):
        if not Path("/proc", left.name.removeprefix(_OURS)).exists():
            _try_to_remove(*left.glob(f"*/{INSIDE}"), *left.glob("*/"), left)


async def _set(limit: DriverLimit, cgroup: Path, hook: Path, driver_root: Path) -> None:
    pipe = asyncio.subprocess.PIPE
    sleeper = await asyncio.create_subprocess_exec(
        *entering(cgroup), "/bin/sh", "-c", "echo ready; exec cat", stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        assert sleeper.stdout is not None
        if await sleeper.stdout.readline() != b"ready\n":
            raise CannotTry(f"no process can go into {cgroup}")
        state = json.dumps({"id": cgroup.name, "pid": sleeper.pid}).encode()
        words = (str(hook), "set", f"--driver-root={driver_root}", str(limit))
        setting = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe)
        try:
            _, said = await asyncio.wait_for(setting.communicate(state), _HOOK_S)
        except TimeoutError as error:
            setting.kill()
            raise CannotTry(f"{hook.name} did not end within {_HOOK_S:g} s") from error
        if setting.returncode:
            raise CannotTry(said.decode(errors="replace").strip() or f"{hook.name} failed")
    finally:
        await sleeper.communicate(b"")


async def _remove(cgroup: Path) -> None:
    """What has just ended may be in it for a moment."""
    for _ in range(_TRIES):
        if _removed(cgroup):
            return
        await asyncio.sleep(_PAUSE_S)


def _removed(cgroup: Path) -> bool:
    _try_to_remove(cgroup / INSIDE, cgroup, cgroup.parent)
    return not cgroup.parent.exists()


def _try_to_remove(*cgroups: Path) -> None:
    for cgroup in cgroups:
        with suppress(OSError):
            cgroup.rmdir()
