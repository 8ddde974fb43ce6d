"""What the cluster has for pods of other systems, as watches tell of it: what is translated depends on it.

Told by the loop, asked by threads of requests.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from partage.admission.decide.homes import HomeNode, Homes, home_node
from partage.admission.decide.quotas import NamespaceQuota
from partage.admission.decide.settings import DialectSettings
from partage.admission.decide.template import sizes_of
from partage.admission.decide.translate import AdmissionTerms
from partage.agent.log import Seldom
from partage.claims.decide.book import devices_in
from partage.claims.manifests import device_class_of
from partage.claims.model.claim import DeviceClass
from partage.claims.model.slices import OLDEST, ServerVersion, SliceSpec
from partage.codec.values import CodecError, decode
from partage.edges.kube.connection import PAGE, Connection
from partage.edges.kube.objects import NodeJson, NodeList
from partage.edges.kube.port import ClusterNode
from partage.edges.kube.reading import NODES
from partage.edges.kube.scheduling import (
    DEVICE_CLASSES,
    RESOURCE_QUOTAS,
    ApiObject,
    Following,
    follow,
    slices_of_driver,
)
from partage.edges.kube.watch import Collection as WatchedCollection
from partage.model.ids import DRA_DRIVERS
from partage.values import Frozen

log = logging.getLogger(__name__)

KINDS = ("nodes", "slices", "classes", "quotas")


class AdmissionState:
    """Told of objects by watches, as ``SchedulingSeen``. schedulers: of other systems that are kept without a
    look into the cluster.
    """

    def __init__(
        self, settings: DialectSettings | None = None, schedulers: frozenset[str] = frozenset()
    ) -> None:
        self._lock = threading.RLock()
        self.settings = settings or DialectSettings()
        self._kept, self._there = schedulers, frozenset[str]()
        self._listed: dict[str, frozenset[str]] = {}
        self._specs: dict[str, SliceSpec] = {}
        self._of_node: defaultdict[str, dict[str, SliceSpec]] = defaultdict(dict)
        self._nodes: dict[str, HomeNode] = {}
        self._changed: set[str] = set()
        self._classes: dict[str, DeviceClass] = {}
        self._quotas: defaultdict[str, dict[str, NamespaceQuota]] = defaultdict(dict)
        self._watches = Following(KINDS, log)
        self.answered = self._watches.answered
        self._version: ServerVersion | None = None
        self._made: tuple[AdmissionTerms, Homes] | None = None
        self._unreadable = Seldom()

    # --- from watches -------------------------------------------------------------------------------

    def listed(self, kind: str, objects: Mapping[str, Any]) -> None:
        """These are all there are of a kind."""
        with self._lock:
            known: dict[str, Collection[str]] = {
                "nodes": self._listed,
                "slices": self._specs,
                "classes": self._classes,
                "quotas": [f"{space}/{name}" for space, those in self._quotas.items() for name in those],
            }
            for name in {*known[kind]} - {*objects}:
                self.changed(kind, name, None)
            for name, value in objects.items():
                self.changed(kind, name, value)
            self._watches.listed(kind)

    def changed(self, kind: str, name: str, value: Any) -> None:  # noqa: ANN401 - by kind
        """One is there, or is another; None: it is gone."""
        with self._lock:
            match kind:
                case "nodes":
                    self._node(name, value)
                case "slices":
                    self._slice(name, value)
                case "quotas":
                    self._quota(name, value)
                case _:
                    self._class(name, value)

    def runs(self, version: ServerVersion) -> None:
        """The version of the server."""
        with self._lock:
            self._version = version

    def has_schedulers(self, names: frozenset[str]) -> None:
        """Those of other systems that are there."""
        with self._lock:
            if names != self._there:
                log.info("schedulers of other systems", extra={"names": sorted(names)})
                self._there, self._made = names, None

    def _node(self, name: str, node: ClusterNode | None) -> None:
        before = self._listed.pop(name, frozenset())
        now = frozenset[str]()
        if node is not None:
            # A plugin that is away for a moment leaves its capacity; of one that was removed it is 0.
            amounts = (*node.capacity.items(), *node.allocatable.items())
            now = frozenset(resource for resource, amount in amounts if amount > 0)
            self._listed[name] = now
        if before != now:
            self._made = None

    def _slice(self, name: str, found: ApiObject | None) -> None:
        if (before := self._specs.pop(name, None)) is not None:
            self._of_node[before.node_name].pop(name)
            self._changed.add(before.node_name)
            self._made = None
        if found is None:
            return
        try:
            spec = decode(SliceSpec, found.spec, strict=False)
        except CodecError as error:
            self._say_unreadable("slice", name, error)
            return
        if spec.driver == DRA_DRIVERS[0]:
            self._specs[name] = self._of_node[spec.node_name][name] = spec
            self._changed.add(spec.node_name)
            self._made = None

    def _class(self, name: str, found: ApiObject | None) -> None:
        self._classes.pop(name, None)
        self._made = None
        if found is not None:
            try:
                self._classes[name] = device_class_of(name, found.spec)
            except CodecError as error:
                self._say_unreadable("class", name, error)

    def _quota(self, key: str, found: ApiObject | None) -> None:
        namespace, _, name = key.partition("/")
        if found is None:
            self._quotas[namespace].pop(name, None)
            if not self._quotas[namespace]:
                del self._quotas[namespace]
            return
        try:
            limits = decode(_QuotaSpec, found.spec, strict=False).hard or {}
        except CodecError as error:
            self._say_unreadable("quota", key, error)
            return
        self._quotas[namespace][name] = NamespaceQuota(name, frozenset(limits))

    def _say_unreadable(self, what: str, name: str, reason: Exception) -> None:
        event = "object cannot be read, and does not count"
        self._unreadable.warn(log, event, reason, what=what, object=name)

    # --- what it is -----------------------------------------------------------------------------------

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Why nothing can be said of a pod yet; (): it can."""
        return (
            *self._watches.waits_for,
            *(() if self._version else ("version: the API server has not said it yet",)),
        )

    @property
    def following(self) -> bool:
        """Whether the API server answers all watches."""
        return not self._watches.trouble

    @property
    def too_old(self) -> str:
        """Why this cluster has no claims, a sentence; empty: it has."""
        version = self._version
        if version is None or not version.too_old:
            return ""
        return f"claims need Kubernetes {OLDEST} or newer, and this is {version}"

    def quotas_of(self, namespace: str) -> tuple[NamespaceQuota, ...]:
        """Its ResourceQuotas, by name."""
        with self._lock:
            there = self._quotas.get(namespace, {})
            return tuple(there[name] for name in sorted(there))

    def now(self) -> tuple[AdmissionTerms, Homes]:
        """What pods are translated by, and where they could be."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _make(self) -> tuple[AdmissionTerms, Homes]:
        for node in self._changed:
            self._nodes.pop(node, None)
            specs = self._of_node[node]
            if not specs:
                del self._of_node[node]
            elif devices := devices_in(specs[name] for name in sorted(specs)):
                self._nodes[node] = home_node(devices)
        self._changed.clear()
        homes = Homes(self._nodes.values(), dict(self._classes))
        listed = frozenset().union(*self._listed.values())
        terms = AdmissionTerms(self.settings, sizes_of(homes.devices), listed)
        return replace(terms, schedulers=self._kept | self._there), homes


class _QuotaSpec(Frozen):
    hard: Mapping[str, Any] | None = None


async def follow_homes(connection: Connection, seen: AdmissionState) -> None:
    """Four watches, for ever."""
    collections: dict[str, WatchedCollection[Any]] = {
        "nodes": WatchedCollection(NODES, NodeList, NodeJson, page=PAGE),
        "slices": slices_of_driver(DRA_DRIVERS[0]),
        "classes": DEVICE_CLASSES,
        "quotas": RESOURCE_QUOTAS,
    }
    await follow(connection, collections, seen)
