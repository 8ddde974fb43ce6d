"""Which devices a GPU presents: itself, the MIG devices that live on it, or those that a layout asks for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from partage.model.geometry import Geometry, ProfileSpec
from partage.model.gpu import Gpu, MigDevice
from partage.model.layout import DoesNotFit, LayoutItem, matches, place
from partage.model.placement import Placement
from partage.model.policy import GpuEntry, MigStrategy, MigWish
from partage.plan.findings import Findings


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """A MIG device that a layout asks for and that does not exist yet."""

    item: LayoutItem
    spec: ProfileSpec
    placement: Placement


@dataclass(frozen=True, slots=True)
class Presented:
    """What one GPU can be given out as. None among the devices: the whole GPU.

    mig: the GPU is a MIG GPU, even where it has no device. pending: what has still to be done, or empty.
    judged: False where the layout is impossible, and nothing more is to be said about the GPU.
    """

    devices: tuple[MigDevice | PlannedDevice | None, ...]
    mig: bool
    pending: str = ""
    judged: bool = True


_WHOLE = Presented((None,), mig=False)


def present(
    gpu: Gpu, entry: GpuEntry | None, strategy: MigStrategy, geometry: Geometry | None, findings: Findings
) -> Presented:
    """The devices of one GPU. Under MIG strategy ``none`` it is always the GPU itself."""
    if strategy is MigStrategy.NONE:
        return _WHOLE
    wish = entry.mig if entry is not None else None
    if entry is None or wish is None:
        return _as_found(gpu)
    if not wish.enabled:
        found = _as_found(gpu)
        waits = "MIG mode is on, and the policy wants it off: nothing is destroyed yet" if found.mig else ""
        return Presented(found.devices, found.mig, waits)
    return _wished(gpu, entry, wish, geometry, findings)


def _as_found(gpu: Gpu) -> Presented:
    return Presented(gpu.mig_devices, mig=True) if gpu.mig_enabled else _WHOLE


def _wished(
    gpu: Gpu, entry: GpuEntry, wish: MigWish, geometry: Geometry | None, findings: Findings
) -> Presented:
    impossible = Presented((), mig=True, judged=False)
    path = f"{entry.origin}.{'mig-devices' if entry.origin.startswith('mig-configs') else 'mig.layout'}"
    if gpu.mig_mode is None:
        hint = "MIG is on A30, A100, H100, H200, B200 and their kin"
        findings.add("impossible", path, f"{gpu.product} has no MIG", hint, [gpu.index])
        return impossible
    if gpu.mig_enabled and matches(gpu.mig_devices, wish.items):
        return Presented(gpu.mig_devices, mig=True)
    if not wish.items:
        return Presented((), mig=True, pending=_pending(gpu, wish))
    if geometry is None or not any(spec.starts for spec in geometry.profiles):
        message = f"not plannable offline: no MIG placements are known for {gpu.product}"
        findings.add("impossible", path, message, gpus=[gpu.index])
        return impossible
    try:
        placed = place(geometry, wish.items)
    except DoesNotFit as misfit:
        findings.add("impossible", path, str(misfit), gpus=[gpu.index])
        return impossible
    devices = sorted(
        (PlannedDevice(one.item, one.spec, one.placement) for one in placed),
        key=lambda device: device.placement,
    )
    return Presented(tuple(devices), mig=True, pending=_pending(gpu, wish))


def _pending(gpu: Gpu, wish: MigWish) -> str:
    counts = Counter(map(str, wish.items))
    wanted = " + ".join(f"{count} x {name}" for name, count in counts.items()) or "no MIG devices"
    mode = "" if gpu.mig_enabled else "MIG mode has to be turned on, and "
    return f"{mode}the layout has still to be made: {wanted}"
