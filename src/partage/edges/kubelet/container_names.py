"""Which pod a container id belongs to, from the names of the kubelet's log files.

The kubelet links every container's log as ``/var/log/containers/<pod>_<namespace>_<container>-<id>.log``,
whatever the runtime. One listing of that directory, read-only, tells what else takes the runtime's socket
(as good as root) or the API server (a token). Names have no underscore and an id has 64 digits, so a file
name can be read in one way only. The kubelet cuts it at 255 bytes, the id with it: then it names nobody.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from partage.plan.serve.ledger import Holder

LOGS = Path("/var/log/containers")
_NAME = re.compile(r"([^_]+)_([^_]+)_([^_]+)-([0-9a-f]{64})\.log", re.ASCII)


def container_names(directory: Path = LOGS) -> Mapping[str, Holder]:
    """Container id to who it is; empty where the directory is not there. Blocks for one listing.

    Init containers and those that ended not long ago are among them. An id under two names is under none.
    """
    found: dict[str, Holder | None] = {}
    try:
        entries = sorted(entry.name for entry in directory.iterdir())
    except OSError:
        return {}
    for entry in entries:
        match = _NAME.fullmatch(entry)
        if match is not None:
            pod, namespace, container, identity = match.groups()
            found[identity] = None if identity in found else Holder(namespace, pod, container)
    return {identity: holder for identity, holder in found.items() if holder is not None}
