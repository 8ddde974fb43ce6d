"""The small program that becomes a control daemon: join cgroups, mount another /dev/shm, then exec.

It is run by path with the standard library only, so it starts quickly. The new mount namespace is for the
daemon only, so it is created in this process and not in the helper.
"""

from __future__ import annotations

import ctypes
import os
import sys

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_NOSYMFOLLOW, MS_BIND, MS_REC, MS_SLAVE, MS_RELATIME = (
    2,
    4,
    8,
    256,
    4096,
    16384,
    1 << 19,
    1 << 21,
)
_MNT_DETACH = 2
_CLONE_NEWNS = 0x00020000
_CLONE_NEWCGROUP = 0x02000000

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where glibc's shm_open looks
FAILED = 126
"""Exit code if the daemon could not be run."""


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """The system call mount. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    data = options.encode() or None
    if libc.mount(
        os.fsencode(source), os.fsencode(target), kind.encode() if kind else None, ctypes.c_ulong(flags), data
    ):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def unmount(target: str) -> None:
    """Detach a mount at once; processes with open files keep them. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(target), _MNT_DETACH):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def _own_shared_memory(directory: str) -> None:
    """Mount ``directory`` as /dev/shm in a new mount namespace; later mounts of the node still appear in
    it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    mount("none", "/", None, MS_REC | MS_SLAVE)
    mount(directory, SHARED_MEMORY, None, MS_BIND)


def _join(namespace: str, cgroups: list[str]) -> None:
    """Join these cgroups as far as possible: who started the daemon looks where it is (``home.bound_to``)."""
    if namespace:
        try:
            handle = os.open(namespace, os.O_RDONLY)
            if ctypes.CDLL(None, use_errno=True).setns(handle, _CLONE_NEWCGROUP):
                sys.stderr.write(f"{namespace}: {os.strerror(ctypes.get_errno())}\n")
            os.close(handle)
        except OSError as error:
            sys.stderr.write(f"{error}\n")
    for cgroup in cgroups:
        try:
            procs = os.open(f"{cgroup}/cgroup.procs", os.O_WRONLY)
            try:
                os.write(procs, b"0")
            finally:
                os.close(procs)
        except OSError as error:
            sys.stderr.write(f"{cgroup} cannot be joined: {error}\n")


def main(arguments: list[str]) -> int:
    """``launch.py NAMESPACE CGROUPS SHM PROGRAM ...``; empty: none. NAMESPACE: of the cgroups. CGROUPS: with
    colons between them.
    """
    namespace, cgroups, shm, *command = arguments
    try:
        _join(namespace, [cgroup for cgroup in cgroups.split(os.pathsep) if cgroup])
        if shm:
            _own_shared_memory(shm)
        os.umask(0o022)  # clients of other users open what the daemon makes
        os.execv(command[0], command)  # noqa: S606 - the command comes from the keeper
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be run: {error}\n")
    return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
