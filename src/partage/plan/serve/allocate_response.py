"""What a container gets for its shares: environment, mounts, devices, CDI names.

Content and error texts are those of NVIDIA's device plugin v0.20.0, checked and added in its order:
validation, CDI, MPS, features, then environment, mounts and device files. ``PARTAGE_*`` variables are
added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid, ResourceName, ShareId
from partage.model.paths import CONTROL_NODES
from partage.model.policy import DeviceIdStrategy, DeviceListStrategy, Options
from partage.model.share import (
    AllocationRefused,
    ContainerAllocation,
    DeviceNode,
    DeviceOffer,
    Guarantee,
    Mount,
    Resource,
    driver_limits,
    weakest,
)
from partage.plan.serve.limit_edits import NO_LIMIT_TERMS, LimitTerms, limit_variables
from partage.plan.serve.unit_allocation import memory_in_units, scattered
from partage.text import one_or_each
from partage.units import MIB
from partage.values import Frozen, grouped

CDI_VENDOR = "k8s.device-plugin.nvidia.com"
GUARD_MOUNT = "/opt/partage/guard"
"""Path of the guard in a container; it is on PYTHONPATH."""

_MOST_NAMED = 512
"""Ids in PARTAGE_SHARES. One variable of a process can have 128 KiB, and a container thousands of units."""

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_DEVICE_MOUNTS = "/var/run/nvidia-container-devices"
_IMEX_CHANNELS = "/dev/nvidia-caps-imex-channels/channel"


class _Piece(Frozen):
    """What one device adds to an answer, prepared in advance. name: as deviceIDStrategy requires."""

    offering: DeviceOffer
    name: str
    nodes: tuple[DeviceNode, ...]


class AllocateResponder:
    """Answers Allocate for one resource. Built when the resource changes; called during admission.

    run_dir: host path of ``--run-dir``; MPS mounts are below ``<run_dir>/mps/<device>``.
    cdi_classes: classes besides ``gpu`` that have a CDI spec (``gds``, ``mofed``, ``gdrcopy``); a name
    without a spec would keep the container from starting.
    guard_dir: host path of the guard's files; empty if they do not exist, then no container gets the guard.
    read_only_pipe: containers cannot write to the directory of their MPS daemon's sockets (ADR 132). It is
    the one key of the one mount in which the answer differs from NVIDIA's then.
    limits: what sets the driver's memory limits on this node.
    """

    def __init__(
        self,
        resource: Resource,
        inventory: Inventory,
        options: Options,
        run_dir: str,
        cdi_classes: Sequence[str] = (),
        *,
        guard_dir: str = "",
        read_only_pipe: bool = False,
        limits: LimitTerms = NO_LIMIT_TERMS,
    ) -> None:
        self._name = resource.name
        self._limits = limits
        self._read_only_pipe = read_only_pipe
        self._guard_dir = guard_dir
        self._options = options
        self._run_dir = run_dir.rstrip("/")
        self._pieces = {
            id_: piece
            for offering in resource.offerings
            for piece in (_piece(_as_guarded(offering, guard_dir), options),)
            for id_ in offering.share_ids
        }
        self._memory_of = inventory.memory_of_devices
        existing = (node for node in CONTROL_NODES if node in inventory.control_nodes)
        self._control_nodes = tuple(_node(node, options) for node in existing)
        self._imex_nodes = tuple(_node(f"{_IMEX_CHANNELS}{n}", options) for n in options.imex_channels)
        self._features = _features(options)
        self._cdi_extras = (
            *(f"{CDI_VENDOR}/imex-channel={n}" for n in options.imex_channels),
            *(f"{CDI_VENDOR}/{name}=all" for name, on in _extras(options) if on and name in cdi_classes),
        )

    def answer(self, ids: Sequence[ShareId]) -> ContainerAllocation:
        """The answer for one container. Raises AllocationRefused with NVIDIA's texts (golden cases), and
        where nothing can set its memory limits.
        """
        pieces = self._validated(ids)
        names = tuple(dict.fromkeys(piece.name for piece in pieces))
        envs: dict[str, str] = {}
        mounts: list[Mount] = []
        if pieces[0].offering.traits.through_daemon:
            self._add_mps(ids, [piece.offering for piece in pieces], envs, mounts)
        envs.update(self._features)
        devices: tuple[DeviceNode, ...] = ()
        if not self._options.only_cdi:
            self._add_device_list(names, envs, mounts)
            devices = self._device_specs(pieces)
        held = [piece.offering for piece in pieces]
        envs.update(share_facts(self._name, ids, held))
        if held[0].by_memory:
            envs.update(_gpushare_facts(held, self._memory_of.get(held[0].device)))
        if any(offering.guard for offering in held):
            self._add_guard(held, envs, mounts)
        limits = driver_limits((offering.gpu, offering.limit_bytes) for offering in held)
        envs.update(limit_variables(limits, self._limits))
        cdi = self._cdi_names(names)
        return ContainerAllocation(
            envs=envs,
            mounts=tuple(mounts),
            devices=devices,
            annotations=self._annotations(ids, cdi),
            cdi_devices=cdi if DeviceListStrategy.CDI_CRI in self._options.device_list else (),
            limits=limits,
        )

    # --- validation ---------------------------------------------------------------------------

    def _validated(self, ids: Sequence[ShareId]) -> list[_Piece]:
        if not ids:
            raise self._refusal("no device requested")
        for id_ in ids:
            if id_ not in self._pieces:
                raise self._refusal(f"unknown device: {id_}")
        pieces = [self._pieces[id_] for id_ in ids]
        check_together(self._name, [piece.offering for piece in pieces])
        return pieces

    def _refusal(self, reason: str) -> AllocationRefused:
        return _refusal(self._name, reason)

    # --- parts of the answer ------------------------------------------------------------------

    def _cdi_names(self, names: Iterable[str]) -> tuple[str, ...]:
        if not self._options.uses_cdi:
            return ()
        return (*(f"{CDI_VENDOR}/gpu={name}" for name in names), *self._cdi_extras)

    def _annotations(self, ids: Sequence[ShareId], cdi: tuple[str, ...]) -> dict[str, str]:
        if DeviceListStrategy.CDI_ANNOTATIONS not in self._options.device_list:
            return {}
        key = f"{self._options.cdi_annotation_prefix}nvidia-device-plugin_{_uuid_of(self._name, ids)}"
        return {key: ",".join(cdi)}

    def _add_mps(
        self,
        ids: Sequence[ShareId],
        offerings: Sequence[DeviceOffer],
        envs: dict[str, str],
        mounts: list[Mount],
    ) -> None:
        """MPS variables and mounts: container paths as with NVIDIA's plugin, host paths of this GPU's daemon.

        Of a daemon with namespaces only the directory of the share's namespace is mounted, so the container
        cannot connect to other namespaces, the server's default one, or the daemon's socket. Several shares
        of a container have the limits of one: the shares of a resource are equal. Units of memory add up, and
        each number of them has its namespace; each claim has its own.
        """
        inside = f"/mps/{self._name}/pipe"
        host = f"{self._run_dir}/mps/{offerings[0].device}"
        below = offerings[0].pipe_of(ids)
        envs["CUDA_MPS_PIPE_DIRECTORY"] = inside
        pipe = f"{host}/pipe/{below}" if below else f"{host}/pipe"
        mounts.append(Mount(inside, pipe, read_only=self._read_only_pipe))
        mounts.append(Mount("/dev/shm", f"{host}/shm"))  # noqa: S108 - a path in the container
        if any(offering.limits_in_env for offering in offerings):
            threads = [offering.threads_percent for offering in offerings if offering.threads_percent]
            memory_mib = sum(offering.memory_bytes for offering in offerings) // MIB
            # By ordinal: the container sees only this GPU. An entry for another one would make all invalid.
            envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={memory_mib}M"
            if threads:
                envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(min(100, sum(threads)))

    def _add_guard(self, offerings: Sequence[DeviceOffer], envs: dict[str, str], mounts: list[Mount]) -> None:
        """PYTHONPATH replaces the image's, and a pod's own replaces this one: docs/explanation/guard.md."""
        mounts.append(Mount(GUARD_MOUNT, self._guard_dir, read_only=True))
        envs["PYTHONPATH"] = GUARD_MOUNT
        envs["PARTAGE_TOTAL_BYTES"] = one_or_each(self._totals(offerings))

    def _totals(self, offerings: Iterable[DeviceOffer]) -> list[int]:
        """Memory of the devices of these shares, one sum for each GPU in the order of PARTAGE_GPUS."""
        whole = {offering.device: offering for offering in offerings}
        by_gpu: dict[GpuUuid, int] = {}
        for device, offering in whole.items():
            memory = self._memory_of.get(device) or offering.memory_bytes * offering.replicas
            by_gpu[offering.gpu] = by_gpu.get(offering.gpu, 0) + memory
        return list(by_gpu.values())

    def _add_device_list(self, names: tuple[str, ...], envs: dict[str, str], mounts: list[Mount]) -> None:
        """If both are requested, volume-mounts overrides the value of envvar, as with NVIDIA's plugin."""
        channels = self._options.imex_channels
        if DeviceListStrategy.ENVVAR in self._options.device_list:
            envs[_VISIBLE] = ",".join(names)
            if channels:
                envs["NVIDIA_IMEX_CHANNELS"] = ",".join(map(str, channels))
        if DeviceListStrategy.VOLUME_MOUNTS in self._options.device_list:
            envs[_VISIBLE] = _DEVICE_MOUNTS
            below = (*names, *(f"imex/{channel}" for channel in channels))
            mounts.extend(Mount(f"{_DEVICE_MOUNTS}/{name}", "/dev/null") for name in below)

    def _device_specs(self, pieces: Iterable[_Piece]) -> tuple[DeviceNode, ...]:
        """A GPU's device files are repeated for each of its shares, as with NVIDIA's plugin; the kubelet
        accepts that.
        """
        if not self._options.device_specs:
            return ()
        own = (node for piece in pieces for node in piece.nodes)
        return (*self._control_nodes, *own, *self._imex_nodes)


def check_together(resource: ResourceName, offerings: Sequence[DeviceOffer]) -> None:
    """Whether one container may hold these shares of a resource together. offerings: of each share.

    Raises AllocationRefused.
    """
    if len(offerings) < 2:
        return
    if any(offering.by_memory for offering in offerings):
        if len({offering.device for offering in offerings}) > 1:
            raise scattered(offerings)
        return
    if any(offering.single and offering.traits.in_shares for offering in offerings):
        raise _refusal(resource, f"maximum request size for shared resources is 1; found {len(offerings)}")
    under_mps = {offering.traits.through_daemon for offering in offerings}
    devices = {offering.device for offering in offerings}
    if True in under_mps and (len(devices) > 1 or False in under_mps):
        kind = "GPU" if all(offering.profile is None for offering in offerings) else "MIG device"
        found = f"found {len(devices)} {kind}s" if len(devices) > 1 else "found other shares"
        raise _refusal(resource, f"MPS shares of one container have to come from one {kind}, alone; {found}")


def _refusal(resource: ResourceName, reason: str) -> AllocationRefused:
    return AllocationRefused(f'invalid allocation request for "{resource}": invalid request: {reason}')


def _as_guarded(offering: DeviceOffer, guard_dir: str) -> DeviceOffer:
    """The offer without the guard and its guarantee if the guard's files could not be written."""
    if guard_dir or not offering.guard:
        return offering
    guarantee = offering.guarantee if offering.traits.limits_memory else Guarantee.NONE
    return replace(offering, guard=False, guarantee=guarantee)


def _piece(offering: DeviceOffer, options: Options) -> _Piece:
    name = offering.index if options.device_ids is DeviceIdStrategy.INDEX else offering.device
    return _Piece(offering, name, tuple(_node(path, options) for path in offering.nodes))


def _node(path: str, options: Options) -> DeviceNode:
    return DeviceNode(container_path=path, host_path=options.dev_root.rstrip("/") + path)


def _extras(options: Options) -> tuple[tuple[str, bool], ...]:
    return ("gdrcopy", options.gdrcopy), ("gds", options.gds), ("mofed", options.mofed)


def _features(options: Options) -> dict[str, str]:
    flags = {
        "NVIDIA_GDS": options.gds,
        "NVIDIA_MOFED": options.mofed,
        "NVIDIA_GDRCOPY": options.gdrcopy,
    }
    return {name: "enabled" for name, on in flags.items() if on}


def _uuid_of(resource: ResourceName, ids: Sequence[ShareId]) -> str:
    """A UUID for the annotation's key. NVIDIA's is random; this one is computed from the ids, so answers are
    repeatable.

    No two containers hold the same ids, so the keys differ.
    """
    from uuid import NAMESPACE_URL, uuid5

    return str(uuid5(NAMESPACE_URL, ",".join((resource, *ids))))


def share_facts(
    resource: ResourceName, ids: Sequence[ShareId], offerings: Sequence[DeviceOffer]
) -> dict[str, str]:
    """``PARTAGE_*``: what the container has, and what is guaranteed. offerings: of each id."""
    by_gpu = grouped((offering.gpu, offering) for offering in offerings)
    strategies = {offering.strategy.value for offering in offerings}
    replicas = [max(offering.replicas for offering in held) for held in by_gpu.values()]
    memory = [sum(offering.memory_bytes for offering in held) for held in by_gpu.values()]
    named = {"PARTAGE_SHARES": ",".join(ids)} if len(ids) <= _MOST_NAMED else {}
    return {
        "PARTAGE_RESOURCE": resource,
        **named,
        "PARTAGE_GPUS": ",".join(by_gpu),
        "PARTAGE_STRATEGY": strategies.pop() if len(strategies) == 1 else "mixed",
        "PARTAGE_REPLICAS": one_or_each(replicas),
        "PARTAGE_MEMORY_BYTES": one_or_each(memory),
        "PARTAGE_GUARANTEE": weakest(offering.guarantee for offering in offerings).value,
    }


def _gpushare_facts(units: Sequence[DeviceOffer], memory_bytes: int | None) -> dict[str, str]:
    """What programs for Alibaba's gpushare read: the GPU that is given, and amounts in units. memory_bytes:
    of the device.

    IDX is NVML's index, which is what ``partage inspect`` and nvidia-smi show (there: the minor number).
    POD: the kubelet allocates container by container, so it is the container's amount.
    """
    return {
        "ALIYUN_COM_GPU_MEM_IDX": str(units[0].gpu_index),
        "ALIYUN_COM_GPU_MEM_POD": str(len(units)),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(len(units)),
        "ALIYUN_COM_GPU_MEM_DEV": str(memory_in_units(units[0], memory_bytes)),
    }
