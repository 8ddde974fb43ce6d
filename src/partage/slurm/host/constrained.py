"""Whether Slurm keeps jobs from GPUs that are not theirs: ``ConstrainDevices`` of cgroup.conf, and the
plugin of slurm.conf without which it has no effect."""

from __future__ import annotations

import re
from pathlib import Path

from partage.edges.host.read_file import read_regular

_LARGEST_BYTES = 16 * 2**20
_DEVICES = re.compile(r"^\s*ConstrainDevices\s*=\s*yes\b", re.IGNORECASE | re.MULTILINE)
_PLUGIN = re.compile(r"^\s*TaskPlugin\s*=[^#\n]*task/cgroup\b", re.IGNORECASE | re.MULTILINE)


def constrains_devices(slurm_conf: Path) -> bool:
    """Whether both are set, in this slurm.conf and the cgroup.conf beside it. ``Include`` is not followed.

    False where a file cannot be read: nothing is promised then.
    """
    try:
        slurm = read_regular(slurm_conf, _LARGEST_BYTES).decode(errors="replace")
        cgroup = read_regular(slurm_conf.with_name("cgroup.conf"), _LARGEST_BYTES).decode(errors="replace")
    except OSError:
        return False
    return _DEVICES.search(cgroup) is not None and _PLUGIN.search(slurm) is not None
