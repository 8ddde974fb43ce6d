"""What differs between releases of Slurm, as far as GPUs are concerned: one place for every number.

Sources: SchedMD's changelogs and documents; what was seen on 22.05.8 and 24.11.5 (docs/reference/slurm.md).
"""

from __future__ import annotations

from partage.model.slurm import GresName, SlurmVersion

OLDEST = SlurmVersion(19, 5)
"""The first release with select/cons_tres and ``mps``."""

MULTIPLE_FILES = SlurmVersion(21, 8)
"""``MultipleFiles``, without which a MIG device cannot be one GRES."""

ENV_FLAGS = SlurmVersion(21, 8)
"""``Flags=nvidia_gpu_env``: only NVIDIA's variables are set in a job."""

SHARD = SlurmVersion(22, 5)
"""``shard``, and ``Flags=all_sharing``."""

NO_ALLOWED_FILE = SlurmVersion(22, 5)
"""cgroup.conf has no ``AllowedDevicesFile`` any more."""

MIG_BESIDE_SHARES = SlurmVersion(23, 2, 7)
"""Before, ``MultipleFiles`` was split into one device per file once mps or shard was loaded."""

EXCLUSIVE_SHARES = SlurmVersion(23, 11, 5)
"""Before, a job with a whole GPU was started on a GPU that still had mps or shard jobs."""

FORGETS_ALLOCATIONS = SlurmVersion(25, 5, 0)
"""This release gave the same GRES to several jobs; 25.05.1 does not."""

NVIDIA_ENV = "nvidia_gpu_env"
ALL_SHARING = "all_sharing"


def unusable(version: SlurmVersion) -> str:
    """Why nothing can be written for this release; empty if it can."""
    if version < OLDEST:
        return f"Slurm {version} is too old: GPUs that are shared take {OLDEST} or newer (select/cons_tres)"
    return ""


def no_sharing(version: SlurmVersion, kind: GresName) -> str:
    """Why this release cannot share GPUs that way; empty if it can."""
    if kind is GresName.SHARD and version < SHARD:
        return f"Slurm {version} has no shard: it takes {SHARD} or newer"
    return ""


def double_booking(version: SlurmVersion) -> tuple[str, str] | None:
    """What this release itself gets wrong where GPUs are shared, and advice; None: nothing is known."""
    if version < EXCLUSIVE_SHARES:
        return (
            f"Slurm {version} may start a job with a whole GPU on a GPU that mps or shard jobs still use",
            f"fixed in {EXCLUSIVE_SHARES}; until then let jobs name the type of the GPU they want, as in "
            "gpu:h200:1: shared GPUs have a type of their own",
        )
    if version == FORGETS_ALLOCATIONS:
        return f"Slurm {version} may give the same GPU to several jobs", "fixed in 25.05.1"
    return None
