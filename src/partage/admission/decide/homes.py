"""Whether some node could ever hold the claims of a pod, with nobody on it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from partage.admission.decide.template import ClaimForm
from partage.admission.decide.translate import RefusedPod, TranslatedPod
from partage.claims.decide.book import BookDevice, ClaimBook
from partage.claims.decide.nearest import nearest
from partage.claims.decide.scheduling import MOST_TRIES, PodClaim, Unplaced, place
from partage.claims.manifests import ClaimObjectReader
from partage.claims.model.claim import ClaimSpec, DeviceClass
from partage.codec.values import encode
from partage.values import Frozen

_OWN = ("uuid", "parentUUID", "index", "minor", "pciBusID", "resource.kubernetes.io/pciBusID")
"""Attributes by which a device differs from others of its kind."""
_MOST_KEPT = 4096
_MOST_LOOKS, _TRIES_EACH = 8_000, 2
"""At devices of all kinds of nodes together; tries for each device that is asked for. A tenant has written
what is asked for, and the API server waits.
"""
_NO_HOME = "no node has GPUs for claims"


class HomeNode(Frozen):
    """What a node publishes. alike: the same for nodes whose devices are of the same kinds. uuids: of GPUs
    and MIG devices, in lower case.
    """

    book: ClaimBook
    alike: bytes
    uuids: frozenset[str]


def home_node(devices: Iterable[BookDevice]) -> HomeNode:
    """Taints are left out: they come and go."""
    kept = [replace(device, device=replace(device.device, taints=())) for device in devices]
    kinds = hashlib.sha256()
    for found in kept:
        attributes = {name: value for name, value in found.device.attributes.items() if name not in _OWN}
        device = replace(found.device, name="", attributes=attributes)
        kinds.update(encode(device) + b"\n")
    uuids = {device.text(name).lower() for device in kept for name in ("uuid", "parentUUID")}
    return HomeNode(ClaimBook(tuple(kept)), kinds.digest(), frozenset(uuids - {""}))


class Homes:
    """The nodes of a moment. What was asked is not looked for again: tenants choose what is asked."""

    def __init__(self, nodes: Iterable[HomeNode], classes: Mapping[str, DeviceClass]) -> None:
        self.nodes, self._classes = tuple(nodes), classes
        self._kinds = {node.alike: node for node in self.nodes}
        self._known: dict[tuple[str, ...], str] = {}

    @property
    def devices(self) -> Iterable[BookDevice]:
        """Of one node of each kind."""
        return (device for node in self._kinds.values() for device in node.book.devices)

    def refusal(self, pod: TranslatedPod) -> RefusedPod | None:
        """None: some node could hold all its claims together."""
        if not pod.claims:
            return None
        key = tuple(claim.form.name for claim in pod.claims)
        if key not in self._known:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[key] = self._missing(pod)
        missing = self._known[key]
        if not missing:
            return None
        home = dict.fromkeys(claim.home for claim in pod.claims)
        words = " and ".join(dict.fromkeys(claim.form.words for claim in pod.claims))
        return RefusedPod(pod.system, f"no node could ever hold {words}: {missing}", "; ".join(home))

    def _missing(self, pod: TranslatedPod) -> str:
        """The nearest reason of the last kind of node; empty: there is a home."""
        claims = [PodClaim(claim.name, _spec(claim.form)) for claim in pod.claims]
        wanted = {*pod.rules.uuids}
        nodes: Sequence[HomeNode] = (*self._kinds.values(),)
        if wanted:
            nodes = [node for node in self.nodes if node.uuids & wanted]
            if not nodes:
                return "no node publishes a GPU with a UUID that the pod names"
        found: Unplaced | None = None
        asked = sum(user.need.count for claim in pod.claims for user in claim.containers)
        for node in nodes:
            looks = len(nodes) * max(len(node.book.devices), 1)
            tries = min(MOST_TRIES, _MOST_LOOKS // looks) + _TRIES_EACH * asked
            placed = place(claims, node.book, self._classes, tries)
            if not isinstance(placed, Unplaced):
                return ""
            found = placed
        if found is None:
            return _NO_HOME
        if found.classes:
            return f"the cluster has no DeviceClass {found.classes[0]}, which the chart makes"
        return nearest(found)


def _spec(form: ClaimForm) -> ClaimSpec:
    return ClaimObjectReader(form.manifest()).spec()
