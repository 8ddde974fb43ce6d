"""The directories of containers in the node's tree of cgroup v2."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from partage.edges.host import procfs
from partage.model.cgroup import owner_of
from partage.model.ids import ContainerId

_DEEPEST = 16
"""Levels below the root. The kubelet makes four; a container may make some more, and is not followed."""


class ContainerCgroups:
    """Finds the cgroup of a container by its id. A directory is looked for once, and used while it is there.

    Only the outermost cgroup with an id counts: a container can make cgroups in its own with any name.
    """

    def __init__(self, root: Path) -> None:
        """root: where cgroup v2 is mounted."""
        self._root = root
        self._found: dict[ContainerId, Path] = {}

    def why_blind(self) -> str:
        """Why the node's tree cannot be seen here, a clause; empty if it can."""
        if not (self._root / "cgroup.controllers").exists():
            return f"{self._root} is no cgroup v2"
        if not procfs.is_root_cgroup(self._root, ""):
            return f"{self._root} is not the node's root cgroup: the helper needs the node's cgroup namespace"
        return ""

    def find(self, containers: Collection[ContainerId]) -> dict[ContainerId, Path]:
        """The directories of those containers that have one."""
        self._found = {container: path for container, path in self._found.items() if path.is_dir()}
        missing = {container for container in containers if container and container not in self._found}
        if missing:
            self._found |= {container: path for container, path in self._walked() if container in missing}
        return {container: self._found[container] for container in containers if container in self._found}

    def _walked(self) -> Iterator[tuple[ContainerId, Path]]:
        """Every container of the node, and its outermost directory."""
        open_ = [(self._root, "", ContainerId(""))]
        while open_:
            directory, path, inside = open_.pop()
            owner = owner_of(path)
            if owner.container and owner.container != inside:
                yield owner.container, directory
                if owner.pod:
                    continue  # what is below is the container's own
            if path.count("/") < _DEEPEST:
                open_ += [
                    (directory / name, f"{path}/{name}", owner.container)
                    for name in _subdirectories(directory)
                ]


def _subdirectories(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # it was removed meanwhile
        return []
