"""What is remembered of GPUs and MIG devices while one NVML session lasts, to save calls of the driver.

Only what others cannot change meanwhile is used without a question: facts of a GPU, its MIG profiles, and
what belongs to the UUID of a MIG device, which is another one for every device that is made. Which MIG
devices there are is asked anew (``mig_devices``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from partage.model.geometry import Placement
from partage.model.gpu import Gpu
from partage.model.ids import GpuUuid, MigUuid
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.edges.hardware.gpu_queries import Handle
    from partage.edges.hardware.nvml_queries import GiProfile, MigAttributes


class MigInstance(Frozen):
    """The GPU instance of a MIG device. profile_id: as nvidia-smi prints it."""

    profile_id: int
    placement: Placement


class KnownMig(Frozen):
    """A MIG device as it was seen. index: NVML's. instance: None if only root may ask; ``name`` then ends
    with the name of the profile.
    """

    index: int
    handle: Handle
    attributes: MigAttributes
    instance: MigInstance | None
    name: str = ""


class SessionMemory:
    """All of it. GPUs without UUID here are known by the address of their handle.

    gpus: what stays on a GPU as long as its MIG mode does; the rest of these values is not read.
    names_instances: the process lists of GPUs in MIG mode were seen to name the instances of processes; else
    the MIG devices have to be asked for theirs.
    """

    def __init__(self) -> None:
        self.names_instances = False
        self.is_stale = False
        self.gpus: dict[GpuUuid, Gpu] = {}
        self.migs: dict[int, Mapping[MigUuid, KnownMig]] = {}
        self.profiles: dict[int, Mapping[int, GiProfile]] = {}
        self.places: dict[int, tuple[Placement, ...] | None] = {}

    def forget(self) -> None:
        """Forget all GPUs and MIG devices: something has changed them."""
        self.is_stale = False
        for kept in (self.gpus, self.migs, self.profiles, self.places):
            kept.clear()

    def forget_gpu(self, uuid: GpuUuid, address: int) -> None:
        """Forget one GPU and its MIG devices. address: of its handle."""
        self.gpus.pop(uuid, None)
        for kept in (self.migs, self.profiles, self.places):
            kept.pop(address, None)
