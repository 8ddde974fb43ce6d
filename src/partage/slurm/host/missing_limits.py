"""That jobs of this node get no memory limits, where somebody has wanted them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from partage.edges.host.slurm_limits import CGROUPS, names_plugin, why_no_limits
from partage.errors import InputError, Problem
from partage.slurm.host.devices_file import DEFAULT_PATH, read_devices


def missing_limits(
    files: Sequence[str], devices: Path = Path(DEFAULT_PATH), cgroups: Path = CGROUPS
) -> list[Problem]:
    """A warning for each slurm.conf among the files with which slurmd sets none, although it is told to load
    the plugin, or devices.json has devices with limits. Nothing is said where nobody wants them.
    """
    found = []
    for path in (Path(file) for file in files if Path(file).name == "slurm.conf"):
        why = why_no_limits(path, cgroups)
        if why and (names_plugin(path) or _wanted(devices)):
            text = f"jobs get no memory limits of the driver's, and 'memory: hard' guarantees nothing: {why}"
            found.append(Problem(str(path), "", "warning", text, "restart slurmd after the change"))
    return found


def _wanted(devices: Path) -> bool:
    try:
        return any(device.limited for device in read_devices(devices).devices)
    except InputError:
        return False
