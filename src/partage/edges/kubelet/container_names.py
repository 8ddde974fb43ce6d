"""The pod of a container id, from the names of the kubelet's log files.

For every container and every runtime the kubelet creates a link
``/var/log/containers/<pod>_<namespace>_<container>-<id>.log``. Reading that directory needs neither the
runtime's socket (as powerful as root) nor a token for the API server. Names contain no underscore and an id
has 64 digits, so a file name has one meaning only. The kubelet cuts it at 255 bytes, including the id: such
a name is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from partage.model.ids import ContainerId
from partage.plan.serve.ledger_entry import Holder

LOGS = Path("/var/log/containers")
_NAME = re.compile(r"([^_]+)_([^_]+)_([^_]+)-([0-9a-f]{64})\.log", re.ASCII)


def container_names(directory: Path = LOGS) -> Mapping[ContainerId, Holder]:
    """Container id to its pod and container; empty if the directory does not exist. Blocks for one listing.

    Includes init containers and containers that ended recently. An id with two names is left out.
    """
    found: dict[ContainerId, Holder | None] = {}
    try:
        entries = sorted(entry.name for entry in directory.iterdir())
    except OSError:
        return {}
    for entry in entries:
        match = _NAME.fullmatch(entry)
        if match is not None:
            pod, namespace, container = match.group(1, 2, 3)
            identity = ContainerId(match[4])
            found[identity] = None if identity in found else Holder(namespace, pod, container)
    return {identity: holder for identity, holder in found.items() if holder is not None}
