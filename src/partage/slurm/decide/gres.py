"""What a policy means to Slurm: the GRES of a node, and those of a cluster. Pure.

The order of a node's devices is Slurm's: by type in the order of ``Gres=``, then by line. Small MIG devices
come first, shared GPUs last, so that a job that names no type (``gpu:1``) gets the smallest device that is
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from msgspec.structs import replace

from partage.model.geometry import MigProfile
from partage.model.gpu import Gpu, Inventory
from partage.model.ids import GpuUuid
from partage.model.share import DeviceOffer, NodeOffer
from partage.plan.offer.findings import Findings
from partage.slurm.decide import releases
from partage.slurm.decide.type_names import SHARED_SUFFIX, TypeNames, device_type, gpu_type
from partage.slurm.model import (
    GresName,
    GresRecord,
    NodeGres,
    SlurmConfig,
    SlurmDevice,
    SlurmNode,
    SlurmVersion,
)
from partage.units import format_bytes
from partage.values import Frozen

PERCENT = 100
"""Units of ``mps`` on every GPU and MIG device: one is one percent of it."""

Rank = tuple[bool, bool, int, int]
"""Shared, a whole GPU, slices and gigabytes of a MIG device."""

ModelOf = Callable[[Gpu], str]
"""The id of a GPU's model in the catalogue; empty if it is not there."""


class NodeToName(Frozen):
    """A node whose GRES are wanted: its name in Slurm, its GPUs, and what the policy offers of them.

    dev_root: where the device files are. settings: the rest of its line in slurm.conf.
    """

    name: str
    inventory: Inventory
    offer: NodeOffer
    dev_root: str = "/"
    settings: str = ""


def node_gres(
    node: NodeToName, version: SlurmVersion, names: TypeNames, model_of: ModelOf, findings: Findings
) -> NodeGres:
    """The GRES of one node. What is impossible is noted in ``findings``."""
    gpus = {gpu.uuid: gpu for gpu in node.inventory}
    types = {uuid: gpu_type(gpu, model_of(gpu), names) for uuid, gpu in gpus.items()}
    devices = [
        _device(rows, types[uuid], names, node.dev_root)
        for uuid, offered in node.offer.items()
        for rows in _by_device(offered)
        if _can_be_written(rows[0], gpus[uuid], version, node.name, findings)
    ]
    ordered = _in_order(_kept_apart(devices), _profiles(node.offer))
    if ordered:
        _check_mig_shares(ordered, node.name, findings)
        _check_mig_beside_mps(ordered, version, node.name, findings)
    return NodeGres(
        devices=ordered,
        records=tuple(_records(ordered, version)),
        counts=_counts(ordered),
        features=_features(types, ordered),
        absent=tuple(_absent(node.inventory, node.offer)),
    )


def cluster_config(
    nodes: Iterable[SlurmNode], version: SlurmVersion, control_nodes: Iterable[str], findings: Findings
) -> SlurmConfig:
    """The configuration of a cluster: one GresTypes for all of it. What is impossible is noted."""
    found = tuple(nodes)
    kinds = {name for node in found for name, _ in node.gres.counts}
    if old := releases.unusable(version):
        findings.add("impossible", "", old)
    for kind in sorted(kinds - {GresName.GPU}):
        if why := releases.no_sharing(version, kind):
            findings.add("impossible", "", why, "share these GPUs by MPS, or use a newer Slurm")
    _refuse_both(found, findings)
    shared = kinds - {GresName.GPU}
    if shared and version < releases.MIG_BESIDE_SHARES:
        _refuse_mig_beside_shares(found, version, sorted(shared), findings)
    if shared and (said := releases.double_booking(version)):
        findings.add("doubtful", "", *said)
    return SlurmConfig(
        version=version,
        nodes=found,
        gres_types=tuple(kind for kind in GresName if kind in kinds or kind is GresName.GPU),
        constrained_files=tuple(dict.fromkeys(control_nodes)) if version < releases.NO_ALLOWED_FILE else (),
    )


# --- devices --------------------------------------------------------------------------------


def _by_device(offered: Iterable[DeviceOffer]) -> Iterator[tuple[DeviceOffer, ...]]:
    """The rows of each device: several if its MPS clients are unequal."""
    for _, rows in groupby(offered, key=lambda row: row.device):
        yield tuple(rows)


def _device(
    rows: Sequence[DeviceOffer], gpu_named: str, names: TypeNames, dev_root: str
) -> tuple[DeviceOffer, SlurmDevice]:
    first = rows[0]
    shares = GresName(first.traits.gres) if first.traits.gres else None
    return first, SlurmDevice(
        index=0,
        name=first.index,
        uuid=first.device,
        type=device_type(first, gpu_named, names),
        files=tuple(dev_root.rstrip("/") + file for file in first.nodes),
        shares=shares,
        units=PERCENT if shares is GresName.MPS else first.replicas if shares else 0,
        replicas=first.replicas,
        ask="N, units of " + format_bytes(first.memory_bytes) if first.by_memory else "1",
    )


def _kept_apart(
    devices: Sequence[tuple[DeviceOffer, SlurmDevice]],
) -> list[tuple[DeviceOffer, SlurmDevice]]:
    """A name in the policy may be that of GPUs that are not shared, too; their types differ all the same."""
    whole = {device.type for _, device in devices if device.shares is None}
    return [
        (
            row,
            replace(device, type=device.type + SHARED_SUFFIX)
            if device.shares and device.type in whole
            else device,
        )
        for row, device in devices
    ]


def _can_be_written(row: DeviceOffer, gpu: Gpu, version: SlurmVersion, node: str, findings: Findings) -> bool:
    if row.by_memory and row.traits.gres == GresName.MPS:
        message = "Slurm's mps is a part of the SMs, and this GPU is shared by amounts of memory"
        hint = "with time-slicing: {unit: 1Gi} each unit is a shard; or share it by mps: {replicas: 4}"
        findings.add("impossible", node, message, hint, [gpu.index])
        return False
    if row.profile is None:
        return True
    if version < releases.MULTIPLE_FILES:
        message = f"Slurm {version} has no MIG devices: they take {releases.MULTIPLE_FILES} or newer"
        findings.add("impossible", node, message, "", [gpu.index])
        return False
    if row.planned:
        message = "its MIG layout has still to be made, and only then its device files are known"
        findings.add("impossible", node, message, "run 'partage apply' with this policy first", [gpu.index])
        return False
    if len(row.nodes) < 3:
        message = f"the capability files of its MIG device {row.index} are not known"
        hint = "without them Slurm cannot keep MIG devices apart; is nvidia-caps mounted on this node?"
        findings.add("impossible", node, message, hint, [gpu.index])
        return False
    return True


def _profiles(offer: NodeOffer) -> dict[str, MigProfile]:
    return {
        row.device: MigProfile.parse(row.profile)
        for offered in offer.values()
        for row in offered
        if row.profile is not None
    }


def _in_order(
    devices: Iterable[tuple[DeviceOffer, SlurmDevice]], profiles: Mapping[str, MigProfile]
) -> tuple[SlurmDevice, ...]:
    def rank(pair: tuple[DeviceOffer, SlurmDevice]) -> Rank:
        profile = profiles.get(pair[0].device)
        if profile is None:
            return (pair[1].shares is not None, True, 0, 0)
        return (pair[1].shares is not None, False, profile.gpu_slices, profile.gigabytes)

    pairs = list(devices)
    first: dict[str, Rank] = {}
    for pair in pairs:
        kind = pair[1].type
        first[kind] = min(first.get(kind, rank(pair)), rank(pair))
    ordered = sorted(pairs, key=lambda pair: (first[pair[1].type], pair[1].type))
    return tuple(replace(device, index=at) for at, (_, device) in enumerate(ordered))


# --- lines ----------------------------------------------------------------------------------


def _records(devices: Sequence[SlurmDevice], version: SlurmVersion) -> Iterator[GresRecord]:
    flags = (releases.NVIDIA_ENV,) if version >= releases.ENV_FLAGS else ()
    for device in devices:
        yield GresRecord(
            GresName.GPU,
            type=device.type,
            files=device.files,
            multiple=len(device.files) > 1,
            flags=flags,
            remark=f"index {device.index}: GPU {device.name}, {device.uuid}",
        )
    shared = [device for device in devices if device.shares is not None]
    if any(len(device.files) > 1 for device in shared):
        yield from _evenly(shared)
        return
    several = len(shared) > 1 and version >= releases.SHARD
    if several and any(device.shares is GresName.MPS for device in shared):
        yield from _without_mps(devices)
    for device in shared:
        assert device.shares is not None
        spread = several and device.shares is GresName.MPS
        yield GresRecord(
            device.shares,
            count=device.units,
            files=device.files,
            flags=(releases.ALL_SHARING,) if spread else (),
            remark=_request(device),
        )


def _without_mps(devices: Sequence[SlurmDevice]) -> Iterator[GresRecord]:
    """The line of the whole GPUs beside several with mps. Where they have none, slurmd makes one for them
    without all_sharing, and that counts for the node. A MIG device can have no such line.
    """
    whole = [device for device in devices if device.shares is None and len(device.files) == 1]
    if whole:
        yield GresRecord(
            GresName.MPS,
            count=0,
            files=tuple(file for device in whole for file in device.files),
            flags=(releases.ALL_SHARING,),
            remark="GPUs without mps; without this line Slurm uses one GPU at a time for mps",
        )


def _evenly(shared: Sequence[SlurmDevice]) -> Iterator[GresRecord]:
    """One line without files, which Slurm splits evenly: the only form that it reads for MIG devices."""
    first = shared[0]
    assert first.shares is not None
    flags = (releases.ALL_SHARING,) if first.shares is GresName.MPS and len(shared) > 1 else ()
    yield GresRecord(
        first.shares, count=sum(device.units for device in shared), flags=flags, remark=_request(first)
    )


def _request(device: SlurmDevice) -> str:
    """How a job asks for one of the shares of a device."""
    if device.shares is GresName.SHARD:
        return f"index {device.index}: a job asks for --gres=shard:{device.ask}"
    each = max(1, PERCENT // device.replicas)
    return f"index {device.index}: {device.replicas} shares; a job asks for --gres=mps:{each}"


def _counts(devices: Iterable[SlurmDevice]) -> dict[tuple[GresName, str], int]:
    counts: dict[tuple[GresName, str], int] = {}
    for device in devices:
        key = (GresName.GPU, device.type)
        counts[key] = counts.get(key, 0) + 1
    for device in devices:
        if device.shares is not None:
            counts[device.shares, ""] = counts.get((device.shares, ""), 0) + device.units
    return counts


def _features(types: Mapping[GpuUuid, str], devices: Iterable[SlurmDevice]) -> tuple[str, ...]:
    """What a job can ask for with ``--constraint``: a share cannot name the type of its GPU."""
    shares = sorted({device.shares.value for device in devices if device.shares is not None})
    return (*sorted(set(types.values())), *shares)


def _absent(inventory: Inventory, offer: NodeOffer) -> Iterator[str]:
    for lost in inventory.lost:
        yield f"GPU {lost.index} is left out: it does not answer ({lost.reason})"
    for gpu in inventory:
        if not offer.get(gpu.uuid):
            yield f"GPU {gpu.index} is left out: it is in MIG mode and has no MIG device"


# --- what Slurm cannot do ----------------------------------------------------------------------


def _check_mig_shares(devices: Sequence[SlurmDevice], node: str, findings: Findings) -> None:
    """Slurm splits the shares of MIG devices evenly over all GPUs and MIG devices of the node."""
    if not any(device.shares and len(device.files) > 1 for device in devices):
        return
    if len({(device.shares, device.units) for device in devices}) > 1:
        message = (
            "Slurm splits the shares of MIG devices evenly over all GPUs and MIG devices of a node, "
            "and here they are shared in different ways"
        )
        hint = "share every device of the node in the same way, or no MIG device"
        findings.add("impossible", node, message, hint)


def _check_mig_beside_mps(
    devices: Sequence[SlurmDevice], version: SlurmVersion, node: str, findings: Findings
) -> None:
    """A MIG device without mps has no line of mps, so slurmd makes one for it without all_sharing."""
    several = sum(device.shares is GresName.MPS for device in devices) > 1
    mig = any(device.shares is None and len(device.files) > 1 for device in devices)
    if several and mig and version >= releases.ALL_SHARING_EVERYWHERE:
        findings.add("doubtful", node, releases.MIG_BESIDE_MPS, releases.MIG_BESIDE_MPS_HINT)


def _refuse_both(nodes: Sequence[SlurmNode], findings: Findings) -> None:
    """GresTypes counts for the whole cluster, so one node of each kind is enough."""
    having = {
        kind: [node.name for node in nodes if any(name is kind for name, _ in node.gres.counts)]
        for kind in (GresName.MPS, GresName.SHARD)
    }
    if all(having.values()):
        where = "; ".join(f"{kind} on {_some(names)}" for kind, names in having.items())
        message = (
            f"mps and shard exclude each other in a cluster: {where}. With both in GresTypes every version "
            "of Slurm gives jobs a wrong percentage or no GPU"
        )
        findings.add("impossible", "", message, "share by MPS or by time slices, on every node the same")


def _refuse_mig_beside_shares(
    nodes: Sequence[SlurmNode], version: SlurmVersion, shared: Sequence[GresName], findings: Findings
) -> None:
    mig = [node.name for node in nodes if any(len(device.files) > 1 for device in node.gres.devices)]
    if mig:
        message = (
            f"Slurm {version} reads each file of a MIG device as one GPU as soon as {' or '.join(shared)} is "
            f"in GresTypes, which counts for the whole cluster: MIG devices on {_some(mig)}"
        )
        hint = (
            f"fixed in {releases.MIG_BESIDE_SHARES}; before, use MIG devices or shares in a cluster, not both"
        )
        findings.add("impossible", "", message, hint)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
