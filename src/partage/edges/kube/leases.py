"""A rollout in the cluster: its settings (a ConfigMap), its slots (Leases), and how other nodes stand.

Slots are taken and freed by the version of their Lease, so that of two who want one, one gets a Conflict.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from partage.edges.host.own_task import unending
from partage.edges.kube.cluster import ApiCluster
from partage.edges.kube.objects import (
    ConfigMapJson,
    ConfigMapList,
    Json,
    LeaseJson,
    LeaseList,
    NodeJson,
    NodeList,
    timestamp,
)
from partage.edges.kube.port import ClusterNode, Lease
from partage.edges.kube.watch import Collection, CollectionState, CollectionWatch
from partage.errors import ClusterError, Rejected
from partage.plan.cluster.rollout import LEASE_S, RolloutSettings, Slot, settings_of
from partage.values import Frozen

PART_OF = "partage.dev/rollout"
"""Label of the Leases; its value is the name of the ConfigMap."""

PAUSED = "partage.dev/rollout-paused"
"""Annotation of the ConfigMap with which a person pauses: an upgrade of the chart leaves it alone."""

_POLICY, _REVISION, _FAILURE = (f"partage.dev/{name}" for name in ("policy", "revision", "failure"))
_NODES = "/api/v1/nodes"
_MERGE = "application/merge-patch+json"


UNANSWERED = "the API server has not answered yet"


class RolloutPlace(Frozen):
    """The place of a rollout: the namespace and the name of its ConfigMap."""

    namespace: str
    name: str

    @property
    def config_maps(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/configmaps"

    @property
    def leases(self) -> Collection[Lease]:
        """Those of this rollout."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
        return Collection(path, LeaseList, LeaseJson, {"labelSelector": f"{PART_OF}={self.name}"})

    @property
    def settings(self) -> Collection[ConfigMapJson]:
        """The ConfigMap."""
        selection = {"fieldSelector": f"metadata.name={self.name}"}
        return Collection(self.config_maps, ConfigMapList, ConfigMapJson, selection)


class SeenRollout(Frozen):
    """What the cluster has. settings: None: not known, ``trouble`` says why. nodes: that were asked for."""

    settings: RolloutSettings | None = None
    paused_by_hand: bool = False
    leases: tuple[Lease, ...] = ()
    nodes: tuple[ClusterNode, ...] = ()
    trouble: str = UNANSWERED


class Rollout:
    """One rollout, as an agent or a person sees it. Calls raise what ``Cluster`` says."""

    def __init__(
        self, cluster: ApiCluster, place: RolloutPlace, *, wall: Callable[[], float] = time.time
    ) -> None:
        self._cluster, self._place, self._wall = cluster, place, wall
        self._connection = cluster.connection

    async def leases(self) -> tuple[Lease, ...]:
        """All of it, in the order of their numbers."""
        asked = self._place.leases
        lease_list = await self._connection.call(LeaseList, "GET", asked.path, parameters=asked.selection)
        return in_order(lease_json.value() for lease_json in lease_list.items or ())

    async def write(self, lease: Lease, slot: Slot) -> Lease:
        """Make the Lease say what the slot says, renewed now. Conflict if it has changed meanwhile."""
        return await self._cluster.write_lease(self._as(lease, slot))

    def _as(self, lease: Lease, slot: Slot) -> Lease:
        ours = {_POLICY: slot.policy, _REVISION: slot.revision, _FAILURE: slot.failure} if slot.holder else {}
        kept = {
            key: one for key, one in lease.annotations.items() if key not in (_POLICY, _REVISION, _FAILURE)
        }
        return replace(
            lease,
            holder=slot.holder,
            duration_seconds=slot.lasts_s,
            renewed_at=timestamp(self._wall()) if slot.holder else "",
            transitions=lease.transitions + (slot.holder not in ("", lease.holder)),
            annotations={**kept, **ours},
        )

    async def settings(self) -> SeenRollout:
        """The settings, and nothing else. Absent if there is no such ConfigMap."""
        path = f"{self._place.config_maps}/{self._place.name}"
        found = await self._connection.call(ConfigMapJson, "GET", path)
        return _with_settings(SeenRollout(trouble=""), {found.metadata.name: found}, self._place)

    async def pause(self, *, paused: bool) -> None:
        """Set or remove the annotation of the ConfigMap."""
        body: Json = {"metadata": {"annotations": {PAUSED: "true" if paused else None}}}
        path = f"{self._place.config_maps}/{self._place.name}"
        await self._connection.call(ConfigMapJson, "PATCH", path, body=body, media_type=_MERGE)

    async def nodes(self) -> tuple[ClusterNode, ...]:
        """All Nodes."""
        node_list = await self._connection.call(NodeList, "GET", _NODES)
        return tuple(node_json.value() for node_json in node_list.items or ())

    async def follow(self, seen: Callable[[SeenRollout], None], *, all_nodes: bool = False) -> None:
        """Settings and Leases, and the Nodes of canaries, or all: ``seen`` is called at every change. Never
        returns. Raises a group of TaskEnded if a watch ends.
        """
        await _Follower(self._cluster, self._place, seen, all_nodes=all_nodes).run()


class _Follower:
    """Three watches. That of the Nodes runs only where the settings name canaries, or all are asked for."""

    def __init__(
        self,
        cluster: ApiCluster,
        place: RolloutPlace,
        seen: Callable[[SeenRollout], None],
        *,
        all_nodes: bool,
    ) -> None:
        self._cluster, self._place, self._told, self._all_nodes = cluster, place, seen, all_nodes
        self._state = SeenRollout()
        self._troubles = {"settings": UNANSWERED, "leases": UNANSWERED, "nodes": ""}
        self._selector: str | None = None
        self._changed = asyncio.Event()

    async def run(self) -> None:
        connection = self._cluster.connection
        async with asyncio.TaskGroup() as group:
            settings = CollectionWatch(connection, self._place.settings, self._settings).run()
            leases = CollectionWatch(connection, self._place.leases, self._leases).run()
            group.create_task(unending("watch settings", settings))
            group.create_task(unending("watch leases", leases))
            group.create_task(unending("follow nodes", self._follow_nodes(group)))

    async def _follow_nodes(self, group: asyncio.TaskGroup) -> None:
        watch: asyncio.Task[None] | None = None
        followed: str | None = None
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._selector == followed:
                continue
            followed = self._selector
            if watch is not None:
                watch.cancel()
            if followed is None:
                self._tell(replace(self._state, nodes=()), "nodes", "")
                continue
            nodes = Collection[ClusterNode](
                _NODES, NodeList, NodeJson, {"labelSelector": followed} if followed else {}
            )
            following = CollectionWatch(self._cluster.connection, nodes, self._nodes).run()
            watch = group.create_task(unending("watch nodes", following))

    def _settings(self, now: CollectionState[ConfigMapJson]) -> None:
        state = replace(self._state, settings=None)
        trouble = now.trouble
        if not trouble:
            try:
                state = _with_settings(state, now.objects, self._place)
            except ClusterError as error:
                trouble = error.problems[0].message
        settings = state.settings
        if settings is not None:
            selector = "" if self._all_nodes else settings.canary_text or None
            if selector != self._selector:
                self._selector = selector
                self._changed.set()
                if selector is not None:  # not before they are known
                    self._troubles["nodes"] = UNANSWERED
        self._tell(state, "settings", trouble)

    def _leases(self, now: CollectionState[Lease]) -> None:
        self._tell(replace(self._state, leases=in_order(now.objects.values())), "leases", now.trouble)

    def _nodes(self, now: CollectionState[ClusterNode]) -> None:
        self._tell(replace(self._state, nodes=tuple(now.objects.values())), "nodes", now.trouble)

    def _tell(self, state: SeenRollout, what: str, trouble: str) -> None:
        self._troubles[what] = trouble
        self._state = replace(state, trouble=next(filter(None, self._troubles.values()), ""))
        self._told(self._state)


def _with_settings(
    state: SeenRollout, found: Mapping[str, ConfigMapJson], place: RolloutPlace
) -> SeenRollout:
    where = f"ConfigMap {place.namespace}/{place.name}"
    config_map = found.get(place.name)
    if config_map is None:
        raise Rejected(f"there is no {where}, which has the settings of the rollout", "the chart makes it")
    by_hand = (config_map.metadata.annotations or {}).get(PAUSED, "")
    try:
        settings = settings_of(config_map.data or {}, by_hand)
    except ValueError as error:
        raise Rejected(f"{where}: {error}") from error
    return replace(state, settings=settings, paused_by_hand=by_hand == "true")


def in_order(leases: Iterable[Lease]) -> tuple[Lease, ...]:
    """By the number at the end of the name."""
    return tuple(sorted(leases, key=_number))


def _number(lease: Lease) -> tuple[int, str]:
    number = lease.name.rpartition("-")[2]
    return (int(number) if number.isascii() and number.isdigit() else 0), lease.name


def slot_of(lease: Lease) -> Slot:
    """What a Lease says."""
    said = lease.annotations
    return Slot(
        lease.name,
        lease.holder,
        said.get(_POLICY, ""),
        said.get(_REVISION, ""),
        said.get(_FAILURE, ""),
        lease.version,
        lease.duration_seconds or LEASE_S,
    )
