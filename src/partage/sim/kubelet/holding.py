"""What a container holds of each resource, and the status that follows from all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from partage.model.allocation import ContainerAllocation, DeviceNode, Mount
from partage.model.ids import ShareId
from partage.sim.kubelet.pod_status import ContainerStatus
from partage.values import Frozen


class Holding(Frozen):
    """What one container holds of one resource. The answer is kept for restarts."""

    ids: tuple[ShareId, ...]
    answer: ContainerAllocation


Holdings = dict[str, Holding]
"""Resource name to holding, of one container, in the order of its requests."""


def waiting_container(name: str, holdings: Holdings) -> ContainerStatus:
    """The status of a container that has its devices and waits for its start.

    Where two resources set the same thing, the first one counts: a kubelet keeps one and logs that.
    """
    answers = [holding.answer for holding in holdings.values()]
    return ContainerStatus(
        name,
        ids={resource: holding.ids for resource, holding in holdings.items()},
        env={key: value for answer in reversed(answers) for key, value in answer.envs.items()},
        mounts=_distinct(mount for answer in answers for mount in answer.mounts),
        devices=_distinct(node for answer in answers for node in answer.devices),
        annotations={key: value for answer in reversed(answers) for key, value in answer.annotations.items()},
        cdi_devices=tuple(dict.fromkeys(name for answer in answers for name in answer.cdi_devices)),
    )


_AtPath = TypeVar("_AtPath", Mount, DeviceNode)


def _distinct(things: Iterable[_AtPath]) -> tuple[_AtPath, ...]:
    """One thing for each path in the container, the first."""
    at: dict[str, _AtPath] = {}
    for thing in things:
        at.setdefault(thing.container_path, thing)
    return tuple(at.values())
