"""Imports without optional parts of the standard library: 6 MiB and 15 ms less for agent and helper."""

from __future__ import annotations

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
