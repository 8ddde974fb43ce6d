"""The devices of a GPU: the GPU itself, its live MIG devices, or the MIG devices of the desired layout; and
one that a policy offers, before its shares are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from partage.model.geometry import Geometry, Placement, instance_memory
from partage.model.gpu import Gpu, MigDevice
from partage.model.ids import ResourceName
from partage.model.layout import DoesNotFit, LayoutItem, PlacedItem, matches, place, resolve_layout
from partage.model.policy import DesiredMig, GpuEntry, MigStrategy, Sharing, WatchAction
from partage.model.strategy import Strategy, Via
from partage.plan.offer.findings import Findings
from partage.text import counted
from partage.units import MIB
from partage.values import Frozen


class PlannedDevice(Frozen):
    """A MIG device that a layout asks for and that does not exist yet.

    placement, memory_bytes: of its GPU instance. siblings: MIG devices that the GPU instance will have, this
    one too.
    """

    item: LayoutItem
    placement: Placement
    memory_bytes: int
    siblings: int = 1

    @property
    def profile(self) -> str:
        """As that of a MIG device."""
        return str(self.item.profile)


class GpuDevices(Frozen):
    """The devices that one GPU can offer. None among them: the whole GPU.

    mig: the GPU is a MIG GPU, even where it has no device. pending: what has still to be done, or empty.
    judged: False where the layout is impossible, and nothing more is to be said about the GPU.
    existing: MIG devices that exist while something is pending; some of them may stay.
    """

    devices: tuple[MigDevice | PlannedDevice | None, ...]
    mig: bool
    pending: str = ""
    judged: bool = True
    existing: tuple[MigDevice, ...] = ()


class ShareableMemory(Frozen):
    """Memory of one device. alone: no other device lives in the same GPU instance."""

    memory_bytes: int
    alone: bool


def device_memory(gpu: Gpu, mig: MigDevice | PlannedDevice | None) -> ShareableMemory:
    """What a whole GPU or a MIG device has. mig: None for the whole GPU.

    Compute instances of one GPU instance have multiprocessors of their own and the memory in common: each is
    given an even part of it, in whole MiB, and the hardware does not hold it to that.
    """
    if mig is None:
        return ShareableMemory(gpu.memory_bytes, alone=True)
    if isinstance(mig, PlannedDevice):
        devices = mig.siblings
    else:
        devices = sum(device.gi_id == mig.gi_id for device in gpu.mig_devices)
    if devices <= 1:
        return ShareableMemory(mig.memory_bytes, alone=True)
    return ShareableMemory(mig.memory_bytes // devices // MIB * MIB, alone=False)


_WHOLE = GpuDevices((None,), mig=False)


def devices_of(
    gpu: Gpu,
    entry: GpuEntry | None,
    strategy: MigStrategy,
    geometry: Geometry | None,
    findings: Findings,
) -> GpuDevices:
    """The devices of one GPU. Under MIG strategy ``none`` it is always the GPU itself. For GPUs whose MIG
    devices are made on demand see ``on_demand_devices``.
    """
    if strategy is MigStrategy.NONE:
        return _WHOLE
    desired = entry.mig if entry is not None else None
    if entry is None or desired is None:
        return _as_found(gpu)
    if not desired.enabled:
        if not gpu.mig_enabled:
            return _WHOLE
        return replace(_WHOLE, pending="MIG mode has to be turned off", existing=gpu.mig_devices)
    return _desired_devices(gpu, entry, desired, geometry, findings)


def _as_found(gpu: Gpu) -> GpuDevices:
    return GpuDevices(gpu.mig_devices, mig=True) if gpu.mig_enabled else _WHOLE


def _desired_devices(
    gpu: Gpu, entry: GpuEntry, desired: DesiredMig, geometry: Geometry | None, findings: Findings
) -> GpuDevices:
    path = _layout_path(entry.origin)
    try:
        return _live_or_planned(gpu, _spelled_out(gpu, desired, geometry, path, findings), geometry)
    except _Impossible as reason:
        findings.add("impossible", path, str(reason), reason.hint, [gpu.index])
    except DoesNotFit as misfit:
        findings.add("impossible", path, str(misfit), gpus=[gpu.index])
    return GpuDevices((), mig=True, judged=False)


def can_divide(gpu: Gpu, entry: GpuEntry, geometry: Geometry | None, findings: Findings) -> Geometry | None:
    """What MIG allows on a GPU of which MIG devices are made on demand; None: it is not known, and said."""
    path = f"{entry.origin}.mig.on-demand"
    try:
        _check_mig(gpu)
        if geometry is None or not geometry.placed:
            raise _not_plannable(gpu)
    except _Impossible as reason:
        findings.add("impossible", path, str(reason), reason.hint, [gpu.index])
        return None
    return geometry


def _layout_path(origin: str) -> str:
    """The place of the layout: below an entry of Partage's or mig-parted's format, or in a label."""
    if origin.startswith("label "):
        return origin
    return f"{origin}.{'mig-devices' if 'mig-configs' in origin else 'mig.layout'}"


class _Impossible(Exception):
    """The desired layout cannot be checked or created on this GPU. The text is one sentence for the
    operator.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        self.hint = hint
        super().__init__(message)


def _spelled_out(
    gpu: Gpu, desired: DesiredMig, geometry: Geometry | None, path: str, findings: Findings
) -> DesiredMig:
    """``desired`` as MIG devices: names are resolved, misprints of a provider corrected."""
    _check_mig(gpu)
    if geometry is None and desired.named is not None:
        raise _not_plannable(gpu)
    if geometry is None:
        return desired
    layout = resolve_layout(geometry, desired.items, desired.named)
    if layout.doubt:
        findings.add("doubtful", path, layout.doubt, gpus=[gpu.index])
    return DesiredMig(layout.items)


def _live_or_planned(gpu: Gpu, desired: DesiredMig, geometry: Geometry | None) -> GpuDevices:
    """The live devices if they match the layout, else the planned ones."""
    if gpu.mig_enabled and matches(gpu.mig_devices, desired.items):
        return GpuDevices(gpu.mig_devices, mig=True)
    existing = gpu.mig_devices if gpu.mig_enabled else ()
    if not desired.items:
        return GpuDevices((), mig=True, pending=_pending(gpu, desired), existing=existing)
    if geometry is None or not geometry.placed:
        raise _not_plannable(gpu)
    devices = _planned(place(geometry, desired.items), geometry, gpu.memory_bytes)
    return GpuDevices(devices, mig=True, pending=_pending(gpu, desired), existing=existing)


def _planned(placed: Sequence[PlacedItem], geometry: Geometry, total_bytes: int) -> tuple[PlannedDevice, ...]:
    """By placement."""
    siblings = Counter(item.instance for item in placed)
    devices = (
        PlannedDevice(
            item=item.item,
            placement=item.placement,
            memory_bytes=instance_memory(item.spec, geometry, total_bytes),
            siblings=siblings[item.instance],
        )
        for item in placed
    )
    return tuple(sorted(devices, key=lambda device: device.placement))


def _check_mig(gpu: Gpu) -> None:
    if gpu.mig_mode is None:
        raise _Impossible(
            f"{gpu.product} has no MIG", "MIG needs an A30, A100, H100, H200, B200 or a similar GPU"
        )


def _not_plannable(gpu: Gpu) -> _Impossible:
    return _Impossible(
        f"not plannable offline: no MIG placements are known for {gpu.product}; "
        "only its driver knows them, and partage record writes them into a machine file"
    )


def _pending(gpu: Gpu, desired: DesiredMig) -> str:
    wanted = counted(desired.items) or "no MIG devices"
    mode = "" if gpu.mig_enabled else "MIG mode has to be turned on, and "
    return f"{mode}the layout has still to be made: {wanted}"


class Target(Frozen):
    """One device that is offered. mig: None for a whole GPU.

    resource: the final name. strategy: of the GPU. single: at most one share per container.
    origin: path in the policy file; empty for the default. via: how pods ask for it.
    """

    gpu: Gpu
    mig: MigDevice | PlannedDevice | None
    sharing: Sharing
    strategy: Strategy
    resource: ResourceName
    single: bool = False
    guard: bool = False
    watch: WatchAction = WatchAction.WARN
    origin: str = ""
    via: Via = Via.DEVICE_PLUGIN
