"""Pods and nodes as a scheduler counts them: containers, what they ask for, CPUs, memory, extended resources,
and the names of claims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

from msgspec import field

from partage.values import Frozen

ContainerKind = Literal["main", "init", "sidecar"]
"""``init``: it ends before the main containers begin. ``sidecar``: an init container that goes on
(``restartPolicy: Always``)."""


class Container(Frozen):
    """A container. requests: resource to amount; CPUs in thousandths, memory in bytes, others as they are."""

    name: str
    requests: Mapping[str, int] = field(default_factory=dict)
    kind: ContainerKind = "main"

    @property
    def words(self) -> str:
        """``container main``, ``init container load``."""
        return f"{'container' if self.kind == 'main' else 'init container'} {self.name}"


class Pod(Frozen):
    """A pod, or the template of one; then with the name of the object that makes it.

    containers: in the kubelet's order, init containers and sidecars first. overhead: of its runtime class.
    whole: what the pod asks for as a whole, in place of the sum of its containers (CPUs, memory).
    """

    namespace: str
    name: str
    containers: tuple[Container, ...]
    overhead: Mapping[str, int] = field(default_factory=dict)
    whole: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    def must_be_possible(self) -> None:
        """Raises ValueError without main containers or with twins, which the API server refuses."""
        names = [container.name for container in self.containers]
        if all(container.kind != "main" for container in self.containers) or len(set(names)) < len(names):
            raise ValueError(f"pod {self.key} needs containers with different names, not {names}")

    @property
    def lasting(self) -> tuple[Container, ...]:
        """The containers that run while the pod runs. PodResources names these alone."""
        return tuple(container for container in self.containers if container.kind != "init")

    @property
    def totals(self) -> dict[str, int]:
        """What the scheduler counts, resource to amount; nothing that is 0.

        Main containers and sidecars together, or, if that is more, an init container together with the
        sidecars before it.
        """
        running: Counter[str] = Counter()
        most: Counter[str] = Counter()
        for container in self.containers:
            if container.kind == "init":
                most |= running + Counter(container.requests)
            else:
                running.update(container.requests)
        return dict(Counter({**(most | running), **self.whole}) + Counter(self.overhead))


class HostAmounts(Frozen):
    """What a node has for pods, or a pod asks for, besides GPUs: thousandths of CPUs, and MiB of memory."""

    cpu_milli: int
    memory_mib: int


class ScheduledNode(HostAmounts, kw_only=True):
    """What pods can have of a node. devices: extended resources. product: of its GPUs, by its label; empty:
    not known.
    """

    name: str
    devices: Mapping[str, int] = field(default_factory=dict)
    product: str = ""


class ScheduledPod(HostAmounts, kw_only=True):
    """What a pod asks for. node: where it is; empty: it waits. devices: extended resources, by name. claims:
    names of its ResourceClaims, in its namespace; None for one that is not made yet. owner: kind of its
    controller.
    """

    namespace: str
    name: str
    uid: str
    node: str
    devices: tuple[tuple[str, int], ...] = ()
    claims: tuple[str | None, ...] = ()
    owner: str = ""
