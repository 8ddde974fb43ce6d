"""The version of the API server, and what slices it understands."""

from __future__ import annotations

import re

from partage.values import Frozen

_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?![0-9])", re.ASCII)


class ServerVersion(Frozen, order=True):
    """Version of a Kubernetes server, ``1.36.4``."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, git_version: str) -> ServerVersion:
        """Of ``gitVersion`` in the answer to ``/version``: ``v1.36.4``, ``v1.37.0-gke.12``. Raises
        ValueError.
        """
        match = _VERSION.match(git_version)
        if match is None:
            raise ValueError(f"{git_version[:40]!r} is not a version of Kubernetes such as v1.36.4")
        return cls(int(match[1]), int(match[2]), int(match[3]))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @property
    def too_old(self) -> str:
        """Why this server gets no slices, a sentence; empty if it gets them."""
        if self >= OLDEST:
            return ""
        return (
            f"Kubernetes {self} gets no ResourceSlices: its scheduler can give one device twice; "
            f"claims need {OLDEST} or newer"
        )


COUNTERS_SINCE = ServerVersion(1, 37, 0)
"""Before it, node-local counters make every scheduling cycle look at the pools of all nodes: with 200 nodes
it takes about 500 times as long (Kubernetes #138917)."""

OLDEST = ServerVersion(1, 36, 4)
"""Older ones forget counters, mix up the pools of two drivers, and pass CDI devices twice (Kubernetes
#139040, #140434)."""

NUMA_SINCE = ServerVersion(1, 37, 0)
"""First version in which ``resource.kubernetes.io/numaNode`` is a standard attribute."""
