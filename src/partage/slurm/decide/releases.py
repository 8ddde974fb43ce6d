"""What differs between releases of Slurm, as far as GPUs are concerned: one place for every number.

Sources: SchedMD's changelogs and documents; what was seen on 22.05.8 and 24.11.5 (docs/reference/slurm.md).
"""

from __future__ import annotations

from partage.slurm.model import GresName, SlurmVersion

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

ALL_SHARING_EVERYWHERE = SlurmVersion(23, 2)
"""Beside a GPU or MIG device without ``mps`` Slurm uses one GPU of the node at a time for mps, unless the
flag is on every line of mps, and on a line of mps with ``Count=0`` of each GPU that has none (seen on
24.11.5, not on 22.05.8). Which release changed it is not known."""

EXCLUSIVE_SHARES = SlurmVersion(23, 11, 5)
"""Before, a job with a whole GPU was started on a GPU that still had mps or shard jobs."""

FORGETS_ALLOCATIONS = SlurmVersion(25, 5, 0)
"""This release gave the same GRES to several jobs; 25.05.1 does not."""

INCLUDE_FROM_FIRST = SlurmVersion(23, 2)
"""A name after ``Include`` that is no path is looked for beside the file that the daemon was given (seen on
24.11.5); before, beside the file with the line (seen on 22.05.8). Which release changed it is not known."""

RECONFIGURE_APPLIES = SlurmVersion(23, 11)
"""``scontrol reconfigure`` has every daemon read its files anew, GRES too. Before, slurmctld keeps the GRES
that it had (seen on 22.05.8), and it has to be restarted, slurmd too."""

FLAGS_TAKE_ENV, FLAGS_KEEP_ENV = SlurmVersion(23, 11), SlurmVersion(26, 5)
"""Between these, flags without one for the environment leave a job without ``CUDA_VISIBLE_DEVICES`` (seen on
24.11.5, not on 22.05.8 and 26.05.5). Which releases changed it is not known."""

CONS_TRES_BY_DEFAULT = SlurmVersion(23, 11)
"""``SelectType`` is select/cons_tres where slurm.conf does not say it."""

TYPE_MAY_BEGIN_WITH_DIGIT = SlurmVersion(23, 11)
"""``--gres=gpu:1g.10gb`` names a type. Before, it is read as a number."""

MULTIPLE_SHARING = SlurmVersion(23, 11)
"""``MULTIPLE_SHARING_GRES_PJ``, with which the shares of a job may come from several GPUs."""

CGROUP_KEY_SINCE = {
    "enablecontrollers": SlurmVersion(23, 2), "signalchildrenprocesses": SlurmVersion(23, 2),
    "systemdtimeout": SlurmVersion(23, 11), "enableextracontrollers": SlurmVersion(25, 5),
    "cgroupjobidpaths": SlurmVersion(26, 5, 2),
}  # fmt: skip
"""Keys of cgroup.conf that 22.05.8 does not know and 24.11.5 does, or neither; the release between is from
the documents, and of ``CgroupJobIdPaths`` from the sources."""

NO_RELEASE_AGENT = SlurmVersion(20, 11)
"""cgroup.conf has no ``CgroupReleaseAgentDir`` any more."""

NO_KMEM = SlurmVersion(23, 11)
"""cgroup.conf has no limits of kernel memory any more."""

NO_AUTOMOUNT = SlurmVersion(23, 11)
"""``CgroupAutomount`` in cgroup.conf has no effect any more."""

AUTODETECT_SINCE = {
    "off": OLDEST, "nvml": OLDEST, "rsmi": SlurmVersion(20, 11), "oneapi": SlurmVersion(22, 5),
    "nrt": SlurmVersion(23, 11), "nvidia": SlurmVersion(24, 11), "full": SlurmVersion(26, 5),
}  # fmt: skip
"""The values of ``AutoDetect`` in gres.conf."""

NVIDIA_ENV = "nvidia_gpu_env"
ALL_SHARING = "all_sharing"

MIG_BESIDE_MPS = "MIG devices beside several GPUs with mps: Slurm uses one GPU of the node at a time for mps"
MIG_BESIDE_MPS_HINT = (
    "no line of gres.conf helps here; use mps on one GPU of the node, shards (time-slicing), or other nodes "
    "for MIG devices"
)


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
