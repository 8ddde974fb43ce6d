"""The file in the run directory that names pods whose processes are not waited for: a person has freed their
shares. Like the processes, it does not survive a reboot.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from partage.edges.files.cordon_file import read_names, write_names
from partage.errors import InputError
from partage.model.ids import PodUid

FREED = "freed-pods"
"""What ``partage free`` has written, a UID a line."""


def freed_pods(run_dir: Path) -> frozenset[PodUid]:
    """The pods; none where the file cannot be read: their processes are waited for then."""
    try:
        return frozenset(map(PodUid, read_names(run_dir / FREED).split()))
    except InputError:
        return frozenset()


def free_pods(run_dir: Path, pods: Iterable[PodUid]) -> None:
    """Add these pods. Raises InputError."""
    write_names(run_dir / FREED, freed_pods(run_dir) | frozenset(pods))
