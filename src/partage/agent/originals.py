"""Settings of GPUs before the agent changed them, kept on disk until they are restored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from msgspec import Struct, field

from partage.model.ids import GpuUuid
from partage.model.step import Step
from partage.plan.offer.desired import DesiredState
from partage.plan.reconcile.node_plan import Observed
from partage.plan.reconcile.settings_steps import OriginalSettings, needed_originals, note_originals


class Originals(Struct):
    """The original settings. by_gpu: by GPU UUID. save: writes them to disk."""

    save: Callable[[Mapping[GpuUuid, OriginalSettings]], Awaitable[None]]
    by_gpu: Mapping[GpuUuid, OriginalSettings] = field(default_factory=dict)

    def prune(self, desired: DesiredState, observed: Observed) -> None:
        """Drop settings that were restored, or changed by others since."""
        if not self.by_gpu:
            return
        answering = (gpu for gpu in observed.node.inventory if gpu.uuid not in observed.node.lost)
        modes = {gpu.uuid: gpu.compute_mode for gpu in answering}
        self.by_gpu = needed_originals(self.by_gpu, desired.settings, modes, observed.slices)

    async def note(self, steps: Iterable[Step]) -> None:
        """Save the settings that these steps are about to change."""
        known = note_originals(steps, self.by_gpu)
        if known != self.by_gpu:
            self.by_gpu = known
            await self.save(known)

    def forget(self) -> None:
        """The node has booted, which resets all settings."""
        self.by_gpu = {}
