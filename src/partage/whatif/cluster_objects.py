"""Nodes, pods and claims of a cluster, as the API server has them, to what a recording is made of.

How many GPUs a node has, of which model and how large, is said by its ResourceSlices, by the labels of GPU
Feature Discovery or Partage, by HAMi's annotation ``hami.io/node-nvidia-register``, by the labels of ACK, or
at least by the units of ``nvidia.com/gpu``, in this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from partage.admission.decide.need import CannotMean
from partage.admission.decide.settings import DialectSettings
from partage.admission.decide.translate import need_of
from partage.claims.decide.book import BookDevice, amount_of, devices_in
from partage.claims.decide.scheduling import PodClaim
from partage.claims.manifests import CLAIM, CLASS, GROUP, VERSION, ClaimObjectReader
from partage.claims.model.claim import ClaimSpec, DeviceClass
from partage.claims.model.names import MEMORY, NAMES_OF_DRIVER
from partage.claims.model.slices import slice_of_json
from partage.codec.values import CodecError, decode, from_plain
from partage.edges.files.catalogue import load_catalogue
from partage.edges.kube.objects import NodeJson
from partage.edges.kube.port import ClusterNode
from partage.edges.kube.scheduling import ScheduledNodeJson, ScheduledPodJson
from partage.kubernetes.decide.node_rules import NodeRules
from partage.kubernetes.manifests.node import ManifestNode
from partage.kubernetes.manifests.pods import affinity_of, tolerations_of
from partage.units import MIB, parse_quantity
from partage.values import Frozen
from partage.whatif.decide.gpu_amounts import ClaimedPart, GpuNode
from partage.whatif.decide.recording import PodRecord

Object = Mapping[str, Any]

_PRODUCT, _COUNT, _MEMORY = "nvidia.com/gpu.product", "nvidia.com/gpu.count", "nvidia.com/gpu.memory"
_HAMI = "hami.io/node-nvidia-register"
_ACK = "aliyun.accelerator/nvidia_"
_UNKNOWN = "GPU"
_STATE = ("node.kubernetes.io/",)
"""Taints that say how a node is, and not whom it is for."""


class ClusterObjects(Frozen):
    """As JSON. Without ``resource.k8s.io/v1`` there are no slices, claims and classes."""

    nodes: Sequence[Object]
    pods: Sequence[Object]
    slices: Sequence[Object] = ()
    claims: Sequence[Object] = ()
    classes: Sequence[Object] = ()


class ReadCluster(Frozen):
    """left_out: nodes, as pods in ``ClusterRecording``."""

    nodes: tuple[GpuNode, ...]
    pods: tuple[PodRecord, ...]
    classes: Mapping[str, DeviceClass]
    left_out: Mapping[str, int]


def read_cluster(found: ClusterObjects, settings: DialectSettings) -> ReadCluster:
    """settings: of the other systems. What cannot be read is not there: the API server has taken it."""
    devices = _devices_by_node(found.slices)
    left_out: Counter[str] = Counter()
    nodes = []
    for row in found.nodes:
        node = from_plain(NodeJson, row, strict=False).value()
        why = _not_usable(node)
        amounts = from_plain(ScheduledNodeJson, row, strict=False).value()
        read = _gpu_node(node, devices.get(node.name, ()))
        if read is None:
            left_out["without a GPU"] += 1
        elif why:
            left_out[why] += 1
        else:
            nodes.append(replace(read, cpu_milli=amounts.cpu_milli, memory_mib=amounts.memory_mib))
    classes = {one.name: one for one in map(_class, found.classes)}
    pods = _PodReader(found, devices, classes, settings).read()
    return ReadCluster(tuple(nodes), tuple(pods), classes, left_out)


def _not_usable(node: ClusterNode) -> str:
    """Why no pod can go there; empty: it can."""
    if node.unschedulable:
        return "cordoned"
    ready = next((one.status for one in node.conditions if one.type == "Ready"), "Unknown")
    return "" if ready == "True" else "not ready"


# --- GPUs of a node --------------------------------------------------------------------------------------


def _devices_by_node(slices: Iterable[Object]) -> dict[str, tuple[BookDevice, ...]]:
    specs: dict[str, list[Any]] = {}
    for row in slices:
        try:
            spec = slice_of_json(row.get("spec"))
        except CodecError:
            continue  # of no node, or in a shape that is not known here
        if spec.driver in NAMES_OF_DRIVER:
            specs.setdefault(spec.node_name, []).append(spec)
    return {name: devices_in(of_node) for name, of_node in specs.items()}


class _Gpus(Frozen):
    """GPUs of a node that something says. memory_bytes: of each; 0: not said."""

    count: int
    model: str
    memory_bytes: int = 0


def _gpu_node(node: ClusterNode, devices: tuple[BookDevice, ...]) -> GpuNode | None:
    """None: it has no GPU. Its CPUs and memory are not filled in."""
    said = [gpus for gpus in _said(node, devices) if gpus.count > 0]
    said = said or [_Gpus(node.allocatable.get("nvidia.com/gpu", 0), "")]
    count = max(gpus.count for gpus in said)
    if not count:
        return None
    model = next((gpus.model for gpus in said if gpus.model), _UNKNOWN)
    known = load_catalogue().by_product(model)
    memory_bytes = next((gpus.memory_bytes for gpus in said if gpus.memory_bytes), 0)
    return GpuNode(
        name=node.name,
        model=model,
        gpus=count,
        gpu_bytes=memory_bytes or (known[0].memory_bytes if known else 0),
        units=node.allocatable,
        devices=devices,
        split=_HAMI in node.annotations,
        labels=node.labels,
        taints=tuple(
            (taint.key, taint.value, taint.effect)
            for taint in node.taints
            if not taint.key.startswith(_STATE)
        ),
    )


def _said(node: ClusterNode, devices: Sequence[BookDevice]) -> Iterator[_Gpus]:
    """What is surest first. Some GPUs of a node may be served by claims, and others by a device plugin."""
    if devices:
        products = Counter(_name(device.text("productName")) for device in devices)
        whole = [device for device in devices if device.text("type") != "mig"]
        sizes = [amount_of(each.device, MEMORY) for each in whole if MEMORY in each.device.capacity]
        uuids = {device.gpu for device in devices if device.gpu}
        yield _Gpus(len(uuids), products.most_common(1)[0][0], int(min(sizes, default=Decimal(0))))
    labels = node.labels
    if count := _whole(labels.get(_COUNT, "")):
        model = labels.get(_PRODUCT, "").removesuffix("-SHARED")
        yield _Gpus(count, model, _whole(labels.get(_MEMORY, "")) * MIB)
    yield from _of_hami(node.annotations.get(_HAMI, ""))
    if count := _whole(labels.get(f"{_ACK}count", "")):
        memory = _whole(labels.get(f"{_ACK}mem", "").removesuffix("MiB"))
        yield _Gpus(count, _name(labels.get(f"{_ACK}name", "")), memory * MIB)


class _HamiGpu(Frozen):
    """A row of HAMi's annotation. devmem: MiB."""

    devmem: int = 0
    type: str = ""


def _of_hami(text: str) -> Iterator[_Gpus]:
    """JSON, or the older form: nine comma fields of each GPU, which ends with a colon."""
    try:
        rows = decode(tuple[_HamiGpu, ...], text.encode(), strict=False)
    except CodecError:
        fields = [row.split(",") for row in text.split(":") if row.count(",") >= 4]
        rows = tuple(_HamiGpu(_whole(row[2]), row[4]) for row in fields)
    if rows:
        # Some versions write the maker before the product's own name.
        model = _name(rows[0].type).replace("NVIDIA-NVIDIA-", "NVIDIA-")
        yield _Gpus(len(rows), model, min(row.devmem for row in rows) * MIB)


def _name(product: str) -> str:
    """As a label has it, so that one model has one name."""
    return "-".join(product.split()).replace("|", "-")


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


# --- pods --------------------------------------------------------------------------------------------------


def _class(row: Object) -> DeviceClass:
    return ClaimObjectReader({"apiVersion": f"{GROUP}/{VERSION}", **row, "kind": CLASS}).device_class()


class _SeenClaim(Frozen):
    """parts: the devices for GPUs that it has."""

    spec: ClaimSpec
    parts: tuple[ClaimedPart, ...]
    allocated: bool


class _PodReader:
    def __init__(
        self,
        found: ClusterObjects,
        devices: Mapping[str, tuple[BookDevice, ...]],
        classes: Mapping[str, DeviceClass],
        settings: DialectSettings,
    ) -> None:
        self._settings = settings
        self._devices = {device.key: device for of_node in devices.values() for device in of_node}
        self._for_gpus = {
            name
            for name, one in classes.items()
            if any(driver in text for text in one.selectors for driver in NAMES_OF_DRIVER)
        }
        self._claims = {
            (str(row["metadata"].get("namespace", "")), str(row["metadata"]["name"])): self._claim(row)
            for row in found.claims
        }
        self._rows = found.pods
        self._had: set[tuple[str, str]] = set()

    def read(self) -> Iterator[PodRecord]:
        """The oldest first: it has a claim that several use."""
        for row in sorted(self._rows, key=lambda row: str(row["metadata"].get("creationTimestamp") or "")):
            yield self._pod(row)

    def _claim(self, row: Object) -> _SeenClaim:
        plain = {"apiVersion": f"{GROUP}/{VERSION}", **row, "kind": CLAIM}
        results = ((row.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results") or ()
        parts = []
        for result in results:
            key = tuple(str(result.get(word)) for word in ("driver", "pool", "device"))
            device = self._devices.get((key[0], key[1], key[2]))
            if device is not None and result.get("adminAccess") is not True:
                parts.append(ClaimedPart(device, _amounts(result.get("consumedCapacity") or {})))
        return _SeenClaim(ClaimObjectReader(plain).spec(), tuple(parts), bool(results))

    def _pod(self, row: Object) -> PodRecord:
        pod = from_plain(ScheduledPodJson, row, strict=False).value()
        need, wrong = None, ""
        try:
            need = need_of(row, self._settings)
        except CannotMean as error:
            wrong = error.sentence
        names = [(pod.namespace, name) for name in pod.claims if name is not None]
        seen = [(name, self._claims[name]) for name in names if name in self._claims]
        mine = [(name, claim) for name, claim in seen if self._is_for_gpus(claim)]
        own = [(name, claim) for name, claim in mine if name not in self._had]
        self._had.update(name for name, _ in own)
        complete = all(claim.allocated for _, claim in own)
        status = row.get("status") or {}
        ended = status.get("phase") in ("Succeeded", "Failed")
        return PodRecord(
            pod,
            need,
            wrong,
            tuple(PodClaim(name[1], claim.spec, pod.namespace) for name, claim in own),
            tuple(part for _, claim in own for part in claim.parts) if complete else (),
            not ended and (len(names) < len(pod.claims) or len(seen) < len(names)),
            len(own) < len(mine),
            _rules(row),
            _seconds(row["metadata"].get("creationTimestamp")) or 0.0,
            _bound_s(status),
            _ended_s(status) if ended else None,
            ended,
        )

    def _is_for_gpus(self, claim: _SeenClaim) -> bool:
        if claim.allocated:
            return bool(claim.parts)
        return any(
            way.device_class in self._for_gpus for request in claim.spec.requests for way in request.ways
        )


def _amounts(consumed: Mapping[str, object]) -> dict[str, Decimal]:
    found = {}
    for name, text in consumed.items():
        try:
            found[str(name)] = parse_quantity(str(text))
        except ValueError:
            continue
    return found


def _rules(row: Object) -> NodeRules:
    spec = ManifestNode("", "", row, None).at("spec")
    selector = spec.at("nodeSelector").value
    pairs = {str(key): str(value) for key, value in selector.items()} if isinstance(selector, dict) else {}
    return NodeRules(tuple(sorted(pairs.items())), affinity_of(spec, _text), tolerations_of(spec, _text))


def _text(place: ManifestNode) -> str:
    return place.value if isinstance(place.value, str) else ""


def _seconds(text: object) -> float | None:
    """Since 1970; None: there is no such moment."""
    try:
        return datetime.fromisoformat(str(text or "")).timestamp()
    except ValueError:
        return None


def _bound_s(status: Object) -> float | None:
    """When it got its node."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            return _seconds(condition.get("lastTransitionTime"))
    return None


def _ended_s(status: Object) -> float | None:
    """When its last container ended."""
    moments = [
        _seconds(((row.get("state") or {}).get("terminated") or {}).get("finishedAt"))
        for row in status.get("containerStatuses") or ()
    ]
    return max((moment for moment in moments if moment is not None), default=None)
