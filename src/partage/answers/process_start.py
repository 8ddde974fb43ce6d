"""How a process of Partage starts: without optional parts of the standard library (6 MiB and 15 ms less for
agent and helper), and with a umask of its own, whatever it was started with.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_OPTIONAL = ("ssl", "_hashlib", "bz2", "lzma", "typing_extensions")
"""asyncio and grpclib use TLS if it can be imported, shutil uses compression; hashlib has
functions of its own in place of OpenSSL's, and typing has what msgspec takes from typing_extensions. Agent
and helper speak to unix sockets, and plain HTTP; only where there is a cluster, the agent needs TLS."""


@contextmanager
def lean_imports(*, tls: bool = False) -> Iterator[None]:
    """What is imported in this block does without them. Afterwards they can be imported again.

    tls: asyncio is to be able to use TLS.
    """
    absent = [name for name in _OPTIONAL if name not in sys.modules and not (tls and name == "ssl")]
    for name in absent:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


_NOBODY_ELSE_WRITES = 0o022
"""What only Partage may read (state, journal, history, locks) is made with mode 0600. Everybody may read the
rest: the report, CDI specs, the guard, what MPS daemons have in common with their clients. And nobody else
may write any of it: with a umask of 0, every user of the node could say in ``daemon.json`` which process is
the daemon."""


def umask_of_a_service() -> None:
    """For the agent and the helper: a tighter one would hide the report from those who may read it."""
    os.umask(_NOBODY_ELSE_WRITES)


def umask_of_a_command() -> None:
    """For all other verbs: a person's own umask, if it is as tight."""
    os.umask(os.umask(_NOBODY_ELSE_WRITES) | _NOBODY_ELSE_WRITES)
