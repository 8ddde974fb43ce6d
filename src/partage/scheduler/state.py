"""The cluster as watches tell of it, node by node: what is left is counted again only where something
changed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from msgspec import Raw

from partage.agent.log import Seldom
from partage.claims.decide.book import devices_in
from partage.claims.decide.classes import chart_classes
from partage.claims.manifests import CLAIM, GROUP, VERSION, ClaimObjectReader, device_class_of
from partage.claims.model.claim import ClaimSpec, DeviceClass, parse_claim
from partage.claims.model.names import MEMORY, NAMES_OF_DRIVER, OWN_NAMES, SHARES
from partage.claims.model.slices import SliceSpec
from partage.codec.values import CodecError, decode, encode
from partage.edges.kube.scheduling import ApiObject
from partage.model.pod import ScheduledNode, ScheduledPod
from partage.scheduler.decide.asks import PodAsk
from partage.scheduler.decide.kinds import (
    KindDevice,
    KindNames,
    KindRoom,
    Taken,
    Used,
    is_gpu_resource,
    rooms_of,
)

log = logging.getLogger(__name__)

_NO_NEW = ("NoSchedule", "NoExecute")
_BY_NODES = frozenset({"DaemonSet", "Node"})
"""Controllers of pods that belong to one node: nobody chooses it."""

DevicePlace = tuple[str, str]
"""Pool and device."""


class _NodeState:
    """What is known of one node. It may be known by its pods or slices before it is listed."""

    def __init__(self) -> None:
        self.node: ScheduledNode | None = None
        self.cpu_milli = self.memory_mib = 0
        self.devices: Counter[str] = Counter()
        self.slices: dict[str, bytes] = {}
        self.given: tuple[KindDevice, ...] = ()

    def count(self, pod: ScheduledPod, sign: int) -> None:
        self.cpu_milli += sign * pod.cpu_milli
        self.memory_mib += sign * pod.memory_mib
        for name, amount in pod.devices:
            self.devices[name] += sign * amount


class ClusterState:
    """Takes objects as they come, in any order. put, drop: told of a node that is another, or gone.
    driver: whose devices count.

    Not safe for several threads: who uses it has a lock.
    """

    def __init__(
        self,
        put: Callable[[str, tuple[KindRoom, ...]], None],
        drop: Callable[[str], None],
        driver: str = OWN_NAMES.driver,
    ) -> None:
        self._put, self._drop, self._driver = put, drop, driver
        self._names = KindNames()
        self._nodes: dict[str, _NodeState] = {}
        self._pods: dict[str, ScheduledPod] = {}
        self._slices: dict[str, str] = {}
        self._pools: dict[str, str] = {}
        self._specs: dict[str, ClaimSpec | None] = {}
        self._takings: dict[str, dict[DevicePlace, Taken]] = {}
        self._taken: dict[DevicePlace, Taken] = {}
        self._classes: dict[str, DeviceClass] = {}
        self._dirty: set[str] = set()
        self._new: dict[str, ScheduledPod] = {}
        self._unreadable = Seldom()

    # --- what comes ---------------------------------------------------------------------------------

    def listed(self, kind: str, objects: Mapping[str, Any]) -> None:
        """These are all there are of a kind."""
        if kind == "classes":
            self._classes.clear()
        for name in self._of(kind) - objects.keys():
            self.changed(kind, name, None)
        for name, value in objects.items():
            self.changed(kind, name, value)

    def _of(self, kind: str) -> set[str]:
        known: Mapping[str, Iterable[str]] = {
            "nodes": [name for name, state in self._nodes.items() if state.node is not None],
            "pods": self._pods,
            "slices": self._slices,
            "claims": self._specs,
            "classes": (),
        }
        return set(known[kind])

    def changed(self, kind: str, name: str, value: Any) -> None:  # noqa: ANN401 - by kind
        """One object is so now; None: it is gone."""
        match kind:
            case "nodes":
                self._node(name, value)
            case "pods":
                self._pod(name, value)
            case "slices":
                self._slice(name, value)
            case "claims":
                self._claim(name, value)
            case _:
                self._class(name, value)

    def _node(self, name: str, node: ScheduledNode | None) -> None:
        state = self._nodes.setdefault(name, _NodeState())
        if state.node != node:
            state.node = node
            self._dirty.add(name)

    def _pod(self, key: str, pod: ScheduledPod | None) -> None:
        before = self._pods.pop(key, None)
        if before == pod:
            if pod is not None:
                self._pods[key] = pod
            return
        for one, sign in ((before, -1), (pod, 1)):
            if one is not None and one.node:
                self._nodes.setdefault(one.node, _NodeState()).count(one, sign)
                self._dirty.add(one.node)
        if pod is None:
            self._new.pop(key, None)
            return
        self._pods[key] = pod
        if (before is None or before.uid != pod.uid or key in self._new) and pod.owner not in _BY_NODES:
            self._new[key] = pod

    def _slice(self, name: str, found: ApiObject | None) -> None:
        if (before := self._slices.pop(name, None)) is not None:
            state = self._nodes[before]
            state.slices.pop(name, None)
            self._count_devices(before, state)
        if found is None:
            return
        try:
            spec = decode(SliceSpec, found.spec, strict=False)
        except CodecError as error:
            self._say_unreadable("slice", name, error)  # of all nodes, or of a selector: none of ours
            return
        self._slices[name] = spec.node_name
        self._pools[spec.pool.name] = spec.node_name
        state = self._nodes.setdefault(spec.node_name, _NodeState())
        state.slices[name] = found.spec
        self._count_devices(spec.node_name, state)

    def _count_devices(self, node: str, state: _NodeState) -> None:
        """The devices of the newest generations. Specs stay JSON: as values they would take more memory."""
        specs = [decode(SliceSpec, state.slices[name], strict=False) for name in sorted(state.slices)]
        given = []
        for device in devices_in(specs):
            if device.device.consumes_counters:
                continue  # what is left of it depends on other devices
            closed = any(taint.effect in _NO_NEW for taint in device.device.taints)
            try:
                kind = self._names.of_device(device)
            except (ValueError, KeyError) as error:
                self._say_unreadable("device", f"{device.pool}/{device.device.name}", error)
                continue
            given.append(KindDevice(device.pool, device.device.name, kind, closed))
        state.given = tuple(given)
        self._dirty.add(node)

    def _claim(self, key: str, found: ApiObject | None) -> None:
        for place, taken in self._takings.pop(key, {}).items():
            self._take(place, taken, -1)
        self._specs.pop(key, None)
        if found is None:
            return
        self._specs[key] = claim_spec(found.spec)
        try:
            takings = _takings_of(found, self._driver)
        except CodecError as error:
            self._say_unreadable("claim", key, error)
            return
        for place, taken in takings.items():
            self._take(place, taken, 1)
        if takings:
            self._takings[key] = takings

    def _take(self, place: DevicePlace, taken: Taken, sign: int) -> None:
        together = self._taken.get(place, Taken()).plus(taken, sign)
        if together == Taken():
            self._taken.pop(place, None)
        else:
            self._taken[place] = together
        if (node := self._pools.get(place[0])) is not None:
            self._dirty.add(node)

    def _class(self, name: str, found: ApiObject | None) -> None:
        if found is None:
            self._classes.pop(name, None)
            return
        self._classes[name] = device_class_of(name, found.spec)

    def _say_unreadable(self, what: str, name: str, reason: Exception) -> None:
        event = "object cannot be read, and does not count"
        self._unreadable.warn(log, event, reason, what=what, object=name)

    # --- what it is -----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Tell of all nodes that changed."""
        for name in self._dirty:
            state = self._nodes[name]
            if state.node is None:
                self._drop(name)
                if not state.slices and not state.cpu_milli and not state.devices:
                    del self._nodes[name]
                continue
            used = Used(state.cpu_milli, state.memory_mib, state.devices)
            self._put(name, rooms_of(state.node, state.given, self._taken, used, self._names))
        self._dirty.clear()

    @property
    def classes(self) -> dict[str, DeviceClass]:
        """Of the cluster; those of the chart while none is known."""
        return dict(self._classes) or chart_classes(NAMES_OF_DRIVER[self._driver])

    def ask_of(self, pod: ScheduledPod) -> PodAsk | None:
        """What it asks for; None: one of its claims is not known yet, or cannot be read."""
        specs = []
        for name in pod.claims:
            spec = None if name is None else self._specs.get(f"{pod.namespace}/{name}")
            if spec is None:
                return None
            specs.append(spec)
        served = {f"deviceclass.resource.kubernetes.io/{name}" for name in self._classes}
        served |= {one.extended for one in self._classes.values() if one.extended}
        devices = tuple(
            (name, amount) for name, amount in pod.devices if is_gpu_resource(name) or name in served
        )
        return PodAsk(pod.cpu_milli, pod.memory_mib, tuple(specs), devices)

    def take_new(self) -> list[tuple[PodAsk, bool]]:
        """What pods ask for that were not told yet, and whether each still waits for a node. One whose claim
        is not known comes later.
        """
        found = []
        for key, pod in list(self._new.items()):
            ask = self.ask_of(pod)
            if ask is not None:
                del self._new[key]
                found.append((ask, not pod.node))
        return found


def _takings_of(found: ApiObject, driver: str) -> dict[DevicePlace, Taken]:
    """What a claim has, by device. Raises CodecError."""
    namespace, _, name = found.name.rpartition("/")
    meta = {"name": name, "namespace": namespace, "uid": ""}
    content = encode({"metadata": meta, "status": Raw(found.status)})
    takings: dict[DevicePlace, Taken] = {}
    for result in parse_claim(content, driver).results:
        if result.driver == driver and not result.admin_access:
            place = result.pool, result.device
            taken = Taken(1, result.consumed.get(MEMORY, 0), result.consumed.get(SHARES, 0))
            takings[place] = takings.get(place, Taken()).plus(taken)
    return takings


@lru_cache(maxsize=4096)
def claim_spec(content: bytes) -> ClaimSpec | None:
    """What a claim asks for, from its JSON; None: it cannot be read. Claims of one template are one value."""
    try:
        spec = decode(dict[str, Any], content)
        document = {"apiVersion": f"{GROUP}/{VERSION}", "kind": CLAIM, "metadata": {}, "spec": spec}
        reader = ClaimObjectReader(document)
        found = reader.spec()
    except CodecError:
        return None
    return None if any(one.problem.severity == "error" for one in reader.problems) else found
