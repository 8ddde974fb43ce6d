"""Whether one device plugin can take the place of another under running pods. Pure.

The kubelet keeps which container holds which id of which resource. A plugin that offers the same ids under
the same names serves those containers, and nobody notices the change. An id that is missing afterwards is
lost for its pod: the kubelet does not start its containers again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import field

from partage.errors import Problem
from partage.model.ids import ResourceName, ShareId, is_share_id
from partage.model.share import CheckpointHolds, NodeOffer, plugin_resources
from partage.values import Answer, Frozen

Ids = Mapping[ResourceName, frozenset[ShareId]]
Plugin = Literal["NVIDIA's plugin", "Partage"]


class Exchange(Frozen):
    """A change from one plugin to another.

    to: which plugin comes. listed: ids that the kubelet has of the one that goes. held: of them and others,
    by pods. offered: ids that the next one will list. mps: resources whose shares need the MPS daemon of the
    plugin that goes.
    """

    to: Plugin
    listed: Ids
    held: CheckpointHolds
    offered: Ids
    mps: frozenset[ResourceName] = field(default_factory=frozenset)

    @property
    def resources(self) -> tuple[ResourceName, ...]:
        """All resources that are concerned."""
        held = (name for name, ids in self.held.items() if ids)
        concerned = {*self.offered, *(name for name, ids in self.listed.items() if ids), *held}
        ours = {name for name in concerned if name in self.offered or self._is_of_gpus(name)}
        return tuple(sorted(ours))

    def _is_of_gpus(self, name: ResourceName) -> bool:
        """Other vendors' resources have ids of other forms and other domains."""
        ids = (*self.listed.get(name, ()), *self.held.get(name, ()))
        return name.startswith("nvidia.com/") or any(map(is_share_id, ids))

    def row(self, name: ResourceName) -> ExchangeRow:
        """One resource."""
        listed, held = self.listed.get(name, frozenset()), frozenset(self.held.get(name, {}))
        offered = self.offered.get(name, frozenset())
        pods = {pod for holders in self.held.get(name, {}).values() for pod in holders}
        return ExchangeRow(
            resource=name,
            listed=len(listed),
            held=len(held),
            pods=len(pods),
            offered=len(offered),
            lost=tuple(sorted(held - offered)),
            fewer=len(listed - offered - held),
            more=len(offered - listed - held),
        )


class ExchangeRow(Answer):
    """One resource before and after. lost: held ids that are not offered afterwards. fewer, more: free ids
    that are not, or newly, offered. pods: that hold ids.
    """

    resource: ResourceName
    listed: int
    held: int
    pods: int
    offered: int
    lost: tuple[ShareId, ...]
    fewer: int
    more: int


def ids_of(offer: NodeOffer) -> Ids:
    """The ids of an offer; devices that have still to be made have none."""
    return {
        name: frozenset(
            share for offering in resource.offerings if not offering.planned for share in offering.share_ids
        )
        for name, resource in plugin_resources(offer).items()
    }


def mps_resources(offer: NodeOffer) -> frozenset[ResourceName]:
    """Resources with shares under MPS."""
    return frozenset(row.resource for rows in offer.values() for row in rows if row.traits.through_daemon)


def problems_of(exchange: Exchange) -> tuple[Problem, ...]:
    """What stands in the way (errors), and what changes for pods to come (warnings)."""
    return tuple(problem for name in exchange.resources for problem in _problems(exchange, name))


def _problems(exchange: Exchange, name: ResourceName) -> Iterator[Problem]:
    row = exchange.row(name)
    if name in exchange.mps and row.held:
        yield Problem(
            "",
            name,
            "error",
            f"{row.held} shares under MPS are held by {_pods(row.pods)}, whose processes are clients of a "
            "daemon that ends with its plugin: they would hang",
            "end these pods first (kubectl drain, or delete them), then try again",
        )
    if row.lost:
        ids = ", ".join(row.lost[:3]) + (", ..." if len(row.lost) > 3 else "")
        other = " of another form" if not all(map(is_share_id, row.lost)) else ""
        yield Problem(
            "",
            name,
            "error",
            f"{len(row.lost)} held ids{other} would not be offered by {exchange.to}: {ids}",
            "give Partage the file of NVIDIA's plugin as its policy, or end these pods first",
        )
    if row.fewer:
        yield Problem("", name, "warning", f"{row.fewer} free ids will no longer be offered by {exchange.to}")
    if row.more and (row.listed or row.held):
        yield Problem("", name, "warning", f"{row.more} more ids will be offered by {exchange.to}")


def _pods(count: int) -> str:
    return "1 pod" if count == 1 else f"{count} pods"
