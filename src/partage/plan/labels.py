"""The labels of a node: what NVIDIA's GPU Feature Discovery writes, and a few of Partage's own. Pure.

Keys and values are those of GPU Feature Discovery v0.20. Where one value cannot be true for all GPUs of a
node, the label is left out, or is a lower bound (docs/adr/0070).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from partage.model.geometry import ENGINE_KINDS, MigProfile
from partage.model.gpu import Driver, Gpu, Inventory, MigDevice
from partage.model.ids import VENDOR
from partage.model.node_labels import DOMAIN
from partage.model.policy import MigStrategy, Options
from partage.model.share import DeviceOffer, Guarantee, NodeOffer, plugin_resources, weakest
from partage.plan.offer.resource_names import default_name, mig_resource
from partage.plan.offer.select import GeometryOf
from partage.units import MIB
from partage.values import Frozen

Labels = Mapping[str, str]
"""Full key, ``nvidia.com/gpu.count``, to value; ordered by key."""

LONGEST_VALUE = 63

_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9\-_. ]")
_EDGES = "-_. "
_PCI_MODES: dict[int | None, str] = {0x030000: "graphics", 0x030200: "compute"}


def node_labels(
    inventory: Inventory,
    offer: NodeOffer,
    options: Options,
    geometry_of: GeometryOf,
    started_s: float | None = None,
) -> Labels:
    """The labels of a node. offer: what its GPUs offer, or will offer.

    started_s: seconds since 1970, for ``gfd.timestamp``; None leaves it out.
    """
    labels = {} if started_s is None else {"gfd.timestamp": str(int(started_s))}
    labels |= dict(_vgpu(inventory))
    own: dict[str, str] = {}
    if inventory.gpus and isinstance(inventory.driver, Driver):
        labels |= dict(_driver(inventory.driver))
        labels |= dict(_gpus(_LabelledNode(inventory, offer, options, geometry_of)))
        own = dict(_own(inventory, offer))
    named = {f"{VENDOR}/{key}": value for key, value in labels.items()}
    return dict(sorted((named | {f"{DOMAIN}/{key}": value for key, value in own.items()}).items()))


def sanitised(text: str) -> str:
    """A text as NVIDIA writes it into a label: foreign characters dropped, words joined with ``-``.

    Kubernetes allows 63 characters that begin and end with a letter or digit; NVIDIA does not see to that.
    """
    joined = "-".join(_NOT_IN_LABELS.sub("", text).split())
    return joined.strip(_EDGES)[:LONGEST_VALUE].strip(_EDGES)


def _common(values: Iterable[str]) -> str | None:
    """The value that all have; None if they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


# --- driver and machine ------------------------------------------------------------------------


def _vgpu(inventory: Inventory) -> Iterator[tuple[str, str]]:
    yield "vgpu.present", "false" if inventory.vgpu is None else "true"
    if inventory.vgpu is not None and inventory.vgpu.version:
        yield "vgpu.host-driver-version", sanitised(inventory.vgpu.version)
        yield "vgpu.host-driver-branch", sanitised(inventory.vgpu.branch)


def _driver(driver: Driver) -> Iterator[tuple[str, str]]:
    major, minor, revision = (*driver.version.split(".", 2), "", "")[:3]
    yield "cuda.driver-version.full", sanitised(driver.version)
    for number, key, old in (
        (major, "major", "major"),
        (minor, "minor", "minor"),
        (revision, "revision", "rev"),
    ):
        yield f"cuda.driver-version.{key}", sanitised(number)
        yield f"cuda.driver.{old}", sanitised(number)
    cuda_major, _, cuda_minor = driver.cuda.partition(".")
    yield "cuda.runtime-version.full", sanitised(driver.cuda)
    for number, key in ((cuda_major, "major"), (cuda_minor, "minor")):
        yield f"cuda.runtime-version.{key}", sanitised(number)
        yield f"cuda.runtime.{key}", sanitised(number)


def _family(gpu: Gpu) -> str:
    major, minor = gpu.compute_capability
    match major:
        case 7:
            return "turing" if minor >= 5 else "volta"
        case 8:
            return "ada-lovelace" if minor >= 9 else "ampere"
        case _:
            names = {1: "tesla", 2: "fermi", 3: "kepler", 5: "maxwell", 6: "pascal", 9: "hopper", 13: "rubin"}
            return {**names, 10: "blackwell", 12: "blackwell"}.get(major, "undefined")


# --- GPUs --------------------------------------------------------------------------------------


class _LabelledNode(Frozen):
    """What labels are made of."""

    inventory: Inventory
    offer: NodeOffer
    options: Options
    geometry_of: GeometryOf

    @property
    def offers(self) -> list[DeviceOffer]:
        return [row for devices in self.offer.values() for row in devices]


class _Sharing(Frozen):
    """How devices of one kind are shared. None: not in one way."""

    replicas: str | None
    strategy: str | None
    suffix: str = ""


def _gpus(node: _LabelledNode) -> Iterator[tuple[str, str]]:
    gpus, options = node.inventory.gpus, node.options
    yield "gpu.machine", sanitised(node.inventory.machine_type) or "unknown"
    yield "mig.capable", _truth(any(gpu.mig_mode is not None for gpu in gpus))
    if options.mig_strategy is not MigStrategy.NONE:
        yield "mig.strategy", options.mig_strategy.value
    whole = [row for row in node.offers if row.profile is None and not _is_mig(gpus, row)]
    no_mig = not any(gpu.mig_enabled for gpu in gpus)
    mps = bool(whole) and all(row.traits.through_daemon for row in whole)
    yield "mps.capable", _truth(mps and no_mig)
    if clique := _common(gpu.clique for gpu in gpus if gpu.clique):
        yield "gpu.clique", clique
    yield from _architecture(gpus)
    if options.mig_strategy is MigStrategy.SINGLE and any(gpu.mig_enabled for gpu in gpus):
        yield from _single(node)
        return
    sharing = _sharing(whole, gpus, options) if whole else _Sharing("0", "none")
    yield from _named(
        "gpu",
        [sanitised(gpu.product) for gpu in gpus],
        sharing,
        len(gpus),
        min(gpu.memory_bytes for gpu in gpus),
    )
    if options.mig_strategy is MigStrategy.MIXED:
        for profile in sorted({device.profile for gpu in gpus for device in gpu.mig_devices}):
            yield from _profile(mig_resource(profile), profile, node)


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _is_mig(gpus: Sequence[Gpu], row: DeviceOffer) -> bool:
    """Under MIG strategy ``none`` a GPU in MIG mode is offered as a whole."""
    return any(gpu.uuid == row.gpu and gpu.mig_enabled for gpu in gpus)


def _architecture(gpus: Sequence[Gpu]) -> Iterator[tuple[str, str]]:
    """With several models: the capability that all have, and no family."""
    major, minor = min(gpu.compute_capability for gpu in gpus)
    if major:
        yield "gpu.compute.major", str(major)
        yield "gpu.compute.minor", str(minor)
        if family := _common(map(_family, gpus)):
            yield "gpu.family", family
    yield "gpu.mode", _common(_PCI_MODES.get(gpu.pci_class, "unknown") for gpu in gpus) or "unknown"


def _sharing(offers: Sequence[DeviceOffer], gpus: Sequence[Gpu], options: Options) -> _Sharing:
    """How these devices are shared; the suffix is NVIDIA's for shares without a name of their own."""
    products = {gpu.uuid: gpu.product for gpu in gpus}
    strategies = (row.shared.value if row.traits.in_shares else "none" for row in offers)
    plain = (row.resource == default_name(products[row.gpu], row.profile, options) for row in offers)
    replicas = _common(str(row.replicas) for row in offers)
    suffix = "-SHARED" if replicas not in (None, "1") and all(plain) else ""
    return _Sharing(replicas, _common(strategies), suffix)


def _named(
    kind: str, products: Sequence[str], sharing: _Sharing, count: int, memory_bytes: int
) -> Iterator[tuple[str, str]]:
    yield f"{kind}.count", str(count)
    if product := _common(products):
        yield f"{kind}.product", _with_suffix(product, sharing.suffix)
    if sharing.replicas is not None:
        yield f"{kind}.replicas", sharing.replicas
    if sharing.strategy is not None:
        yield f"{kind}.sharing-strategy", sharing.strategy
    if memory_bytes:
        yield f"{kind}.memory", str(memory_bytes // MIB)


def _with_suffix(product: str, suffix: str) -> str:
    """The value within the length that Kubernetes allows; the suffix stays."""
    return f"{product[: LONGEST_VALUE - len(suffix)].rstrip(_EDGES)}{suffix}"


# --- MIG devices -------------------------------------------------------------------------------


def _single(node: _LabelledNode) -> Iterator[tuple[str, str]]:
    """MIG strategy ``single``: the labels of GPUs are those of the MIG devices, if all are of one kind."""
    gpus = node.inventory.gpus
    profiles = {device.profile for gpu in gpus for device in gpu.mig_devices}
    if len(profiles) == 1 and all(gpu.mig_devices for gpu in gpus):
        yield from _profile("gpu", profiles.pop(), node)
        return
    yield "gpu.count", "0"
    yield "gpu.replicas", "0"
    yield "gpu.sharing-strategy", ""
    yield "gpu.memory", "0"
    if product := _common(sanitised(gpu.product) for gpu in gpus):
        yield "gpu.product", _with_suffix(product, "-MIG-INVALID")


def _profile(kind: str, profile: str, node: _LabelledNode) -> Iterator[tuple[str, str]]:
    """The labels of the MIG devices of one profile. kind: what their keys begin with."""
    gpus = node.inventory.gpus
    found = [(gpu, device) for gpu in gpus for device in gpu.mig_devices if device.profile == profile]
    offers = [row for row in node.offers if row.profile == profile]
    sharing = _sharing(offers, gpus, node.options) if offers else _Sharing("0", "none")
    products = [sanitised(f"{gpu.product}-MIG-{profile}") for gpu, _ in found]
    memory_bytes = min(device.memory_bytes for _, device in found)
    yield from _named(kind, products, sharing, len(found), memory_bytes)
    details = [_details(gpu, device, node.geometry_of) for gpu, device in found]
    for key in details[0]:
        if value := _common(detail.get(key, "") for detail in details):
            yield f"{kind}.{key}", value


def _details(gpu: Gpu, device: MigDevice, geometry_of: GeometryOf) -> dict[str, str]:
    """What a MIG device has. Its engines are those of its GPU instance."""
    profile = MigProfile.parse(device.profile)
    details = {"slices.gi": str(profile.gpu_slices), "slices.ci": str(profile.compute_slices)}
    if device.multiprocessors is not None:
        details["multiprocessors"] = str(device.multiprocessors)
    geometry = geometry_of(gpu)
    spec = geometry.spec(profile) if geometry else None
    if spec is not None and spec.engines is not None:
        engines = ((kind, getattr(spec.engines, kind)) for kind in ENGINE_KINDS)
        details |= {f"engines.{kind}": str(count) for kind, count in engines if count is not None}
    return details


# --- Partage's own -----------------------------------------------------------------------------


def _own(inventory: Inventory, offer: NodeOffer) -> Iterator[tuple[str, str]]:
    """How many GPUs of each model there are, and what the shares of each resource guarantee at least: of all
    resources that differ in their domain only.
    """
    for product, count in Counter(sanitised(gpu.product) for gpu in inventory).items():
        yield _with_suffix(f"gpu.{product}", ""), str(count)
    guarantees: dict[str, list[Guarantee]] = {}
    for name, resource in plugin_resources(offer).items():
        of_name = guarantees.setdefault(f"{name.partition('/')[2]}.guarantee", [])
        of_name += (offering.guarantee for offering in resource.offerings)
    for key, found in guarantees.items():
        if len(key) <= LONGEST_VALUE:
            yield key, weakest(iter(found)).value
