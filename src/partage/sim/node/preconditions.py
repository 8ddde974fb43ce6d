"""What every step asks of a simulated GPU first, and the errors that several kinds of steps raise."""

from __future__ import annotations

from collections.abc import Iterable

from partage.errors import GpuInUse, GpuLost, NotFound, Unsupported
from partage.model.gpu import Gpu, MigMode
from partage.model.gpu_use import GpuUse
from partage.model.ids import GpuUuid
from partage.sim.node.state import SimulatedNode


def answering_gpu(state: SimulatedNode, uuid: GpuUuid) -> Gpu:
    """The GPU of that UUID. Raises GpuLost, NotFound."""
    for index, lost in state.lost.items():
        if uuid == lost.uuid or (index in state.gpus and uuid == state.gpus[index].uuid):
            raise GpuLost(f"GPU {index}: {lost.reason}")
    found = next((gpu for gpu in state.gpus.values() if gpu.uuid == uuid), None)
    if found is None:
        raise NotFound(f"this node has no GPU {uuid}")
    return found


def gpu_in_mig_mode(state: SimulatedNode, uuid: GpuUuid, *, may_leave: bool = False) -> Gpu:
    """The GPU of that UUID, if it is in MIG mode. may_leave: also while the mode is to end at the next reset.

    Raises GpuLost, NotFound, Unsupported.
    """
    gpu = answering_gpu(state, uuid)
    if not gpu.mig_enabled:
        raise Unsupported(f"GPU {gpu.index} is not in MIG mode")
    if not may_leave and gpu.mig_mode != MigMode(current=True, pending=True):
        raise Unsupported(f"GPU {gpu.index} leaves MIG mode at its next reset")
    return gpu


def in_use_error(message: str, uses: Iterable[GpuUse]) -> GpuInUse:
    """The error that names who uses it."""
    names = tuple(str(use) for use in uses)
    return GpuInUse(f"{message}: {', '.join(names)}", uses=names)
