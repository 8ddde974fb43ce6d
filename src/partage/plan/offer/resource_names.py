"""The names of resources: NVIDIA's, unless the policy has patterns of its own."""

from __future__ import annotations

from collections.abc import Sequence

from partage.model.gpu import Gpu, MigDevice
from partage.model.ids import VENDOR, ResourceName
from partage.model.policy import MigStrategy, NamePattern, Options
from partage.plan.offer.gpu_devices import PlannedDevice
from partage.plan.offer.select import glob_matches

GPU_RESOURCE = ResourceName(f"{VENDOR}/gpu")


def default_name(product: str, profile: str | None, options: Options) -> ResourceName:
    """The name of a device that is not shared: from the operator's patterns, else from the MIG strategy.

    profile: of a MIG device; None for a whole GPU.
    """
    if profile is None:
        return _by_pattern(product, options.gpu_names) or GPU_RESOURCE
    named = _by_pattern(profile, options.mig_names)
    if named is not None:
        return named
    if options.mig_strategy is MigStrategy.SINGLE:
        return GPU_RESOURCE
    return ResourceName(f"{VENDOR}/{mig_resource(profile)}")


def mig_resource(profile: str) -> str:
    """The part of a resource's name after the slash, for a MIG profile: ``mig-1g.10gb.me``."""
    return f"mig-{profile.replace('+', '.').replace(',', '.')}"


def device_name(gpu: Gpu, mig: MigDevice | PlannedDevice | None, options: Options) -> ResourceName:
    """The name of this GPU, or of its MIG device, while it is not shared."""
    return default_name(gpu.product, None if mig is None else mig.profile, options)


def _by_pattern(text: str, patterns: Sequence[NamePattern]) -> ResourceName | None:
    return next((pattern.name for pattern in patterns if glob_matches(pattern.pattern, text)), None)
