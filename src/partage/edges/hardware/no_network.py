"""Take the network away from this process, for good."""

from __future__ import annotations

import ctypes
import os

from partage.errors import NotPermitted

_CLONE_NEWNET = 0x40000000


def leave_network() -> None:
    """Move this process to a network namespace of its own, which has no device that is up.

    Unix sockets with a path still work. Processes that it starts later are in that namespace, too; its
    other threads are not, so this is called before there are any. Raises NotPermitted (it needs
    CAP_SYS_ADMIN).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        reason = os.strerror(ctypes.get_errno())
        raise NotPermitted(f"the network cannot be left: {reason}", "run it as root, or without --no-network")
