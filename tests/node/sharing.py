"""What policies ask of one GPU, and which ids that gives: worked out here by hand, not by the planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partage.model.gpu import Gpu

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
Share = tuple[str, str]
"""Resource name and id."""
Terms = tuple[str, str, int]
"""What a container was told: resource name, strategy, and into how many shares its device is split."""


def device_part(share_id: str) -> str:
    """The device in the id of a share or a unit of memory."""
    return share_id.partition("::")[0].partition("-_-")[0]


@dataclass(frozen=True, slots=True)
class Sharing:
    """One way to share a GPU.

    entry:     its text in a policy, without the selector.
    strategy:  as containers are told it; replicas: 1 for whole devices.
    resources: the name of each share, by its number.
    """

    name: str
    entry: str
    strategy: str
    resources: tuple[str, ...]

    def __repr__(self) -> str:
        return self.name

    @property
    def replicas(self) -> int:
        return len(self.resources)

    def shares(self, gpu: Gpu) -> dict[Share, Terms]:
        """All that the GPU offers when it is shared so."""
        if gpu.mig_mode is not None and gpu.mig_mode.current:
            return {
                share: terms for mig in gpu.mig_devices for share, terms in self._mig(mig.uuid, mig.profile)
            }
        return {
            (name, self._id(gpu.uuid, n)): (name, self.strategy, self.replicas)
            for n, name in enumerate(self.resources)
        }

    def _mig(self, uuid: str, profile: str) -> list[tuple[Share, Terms]]:
        name = f"nvidia.com/mig-{profile.replace('+', '.')}" + (".shared" if self.replicas > 1 else "")
        terms = (name, "mig", self.replicas)
        return [((name, self._id(uuid, n)), terms) for n in range(self.replicas)]

    def _id(self, device: str, number: int) -> str:
        return device if self.replicas == 1 else f"{device}::{number}"


EXCLUSIVE = Sharing("exclusive", "exclusive: {}", "exclusive", (GPU,))
HALVES = Sharing("halves", "time-slicing: {replicas: 2}", "time-slicing", (SHARED,) * 2)
THIRDS = Sharing("thirds", "time-slicing: {replicas: 3}", "time-slicing", (SHARED,) * 3)
MIG_SHARINGS = (EXCLUSIVE, HALVES, THIRDS)
"""Those that a GPU in MIG mode can have, too."""
SHARINGS = (
    *MIG_SHARINGS,
    Sharing(
        "named", "name: nvidia.com/gpu.notebooks, exclusive: {}", "exclusive", ("nvidia.com/gpu.notebooks",)
    ),
    Sharing(
        "guarded",
        "name: nvidia.com/gpu.guarded, guard: true, exclusive: {}",
        "exclusive",
        ("nvidia.com/gpu.guarded",),
    ),
    Sharing("mps halves", "mps: {replicas: 2}", "mps", (SHARED,) * 2),
    Sharing("mps guarded", "guard: true, mps: {replicas: 3}", "mps", (SHARED,) * 3),
    Sharing(
        "unequal",
        "mps: {clients: [{name: big, memory: 8Gi, threads: 40%}, {name: small, memory: 4Gi, threads: 10%}]}",
        "mps",
        ("nvidia.com/gpu.big", "nvidia.com/gpu.small"),
    ),
)


def policy_text(sharings: Sequence[Sharing], *, single: bool) -> str:
    """The policy that shares GPU 0 by the first, GPU 1 by the second, and so on."""
    entries = (f"  - {{select: {{index: [{n}]}}, {one.entry}}}\n" for n, one in enumerate(sharings))
    rule = f"resources: {{fail-requests-greater-than-one: {'true' if single else 'false'}}}\n"
    return f"version: partage/v1\ngpus:\n{''.join(entries)}{rule}"


WRONG_POLICIES = (
    "",
    "version: partage/v1\ngpus: 7\n",
    "version: partage/v1\ngpus:\n  - {select: {index: [99]}, exclusive: {}}\n",
    "version: partage/v1\ngpus:\n  - {select: all, time-slicing: {replicas: 1}}\n",
    "version: partage/v1\ngpus:\n  - {select: all, mps: {replicas: 1000}}\n",
    "version: partage/v1\ngpus:\n  - {select: all, exclusive: {}}\n  - {select: all, mps: {replicas: 2}}\n",
)
