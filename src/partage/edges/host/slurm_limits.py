"""Whether slurmd on this node sets the driver's memory limits of jobs: it loads our SPANK plugin, and has
cgroups of version 2; and whether it keeps jobs from GPUs that are not theirs, where no limit holds them.
Read as slurmd reads its files; ``Include`` of slurm.conf is not followed. Not in Slurm's room: every verb
that observes a node has to know it.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from pathlib import Path

from partage.edges.host.read_file import read_regular
from partage.model.driver_limit import LimitSetter, LimitWay

PLUGIN = "partage_limits.so"
CGROUPS = Path("/sys/fs/cgroup")

_LARGEST_BYTES = 16 * 2**20
_MOST_FILES = 100
_LINE = "required /usr/lib/partage/partage_limits.so"
_DEVICES = re.compile(r"^\s*ConstrainDevices\s*=\s*yes\b", re.IGNORECASE | re.MULTILINE)
_TASKS = re.compile(r"^\s*TaskPlugin\s*=[^#\n]*task/cgroup\b", re.IGNORECASE | re.MULTILINE)


def slurm_conf_of(etc: Path, run: Path) -> Path | None:
    """The slurm.conf of this node, configless or not; None: it is not one of Slurm's."""
    places = (etc / "slurm" / "slurm.conf", run / "slurm" / "conf" / "slurm.conf")
    return next((path for path in places if path.is_file()), None)


def limits_by_slurm(etc: Path, run: Path, cgroups: Path = CGROUPS) -> LimitSetter | None:
    """What sets the limits of jobs here; None: this is no node of Slurm's. Cheap: looked at each time."""
    slurm_conf = slurm_conf_of(etc, run)
    if slurm_conf is None:
        return None
    why = why_no_limits(slurm_conf, cgroups)
    if not why and not constrains_devices(slurm_conf):
        why = (
            "jobs can open every GPU of the node, and a limit holds a job only on its own: write "
            f"ConstrainDevices=yes to {slurm_conf.with_name('cgroup.conf')}, and TaskPlugin=task/cgroup to "
            f"{slurm_conf}"
        )
    return LimitSetter(None if why else LimitWay.SPANK, why)


def constrains_devices(slurm_conf: Path) -> bool:
    """Whether ``ConstrainDevices`` is set in the cgroup.conf beside it, and here the plugin without which
    that has no effect. False where a file cannot be read: nothing is promised then.
    """
    try:
        slurm, cgroup = _text(slurm_conf), _text(slurm_conf.with_name("cgroup.conf"))
    except OSError:
        return False
    return _DEVICES.search(cgroup) is not None and _TASKS.search(slurm) is not None


def why_no_limits(slurm_conf: Path, cgroups: Path = CGROUPS) -> str:
    """Why jobs get no limit, with what to change, a clause; empty: they get it. Where a file cannot be read
    nothing is promised.
    """
    try:
        slurm = _text(slurm_conf)
        plugged, path = _plugged(slurm_conf, _setting(slurm, "PlugStackConfig"))
        cgroup = _text(slurm_conf.with_name("cgroup.conf"))
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    if not plugged:
        return f"{path} does not have the line '{_LINE}'"
    demand, _, plugin = plugged.partition(" ")
    if demand != "required":
        return f"{path} says '{demand}', with which a job runs without its limit: write '{_LINE}'"
    if not Path(plugin).is_absolute() or not Path(plugin).is_file():
        return f"{path} names {plugin}, which is no file: run 'make slurm-limits' and copy what it builds"
    if not (cgroups / "cgroup.controllers").exists():
        return f"there is no cgroup v2 at {cgroups}: boot with systemd.unified_cgroup_hierarchy=1"
    if (kind := _setting(cgroup, "CgroupPlugin").lower()) not in ("", "autodetect", "cgroup/v2"):
        return f"cgroup.conf says CgroupPlugin={kind}: write cgroup/v2"
    if (tracked := _setting(slurm, "ProctrackType").lower()) not in ("", "proctrack/cgroup"):
        return f"slurm.conf says ProctrackType={tracked}: write proctrack/cgroup"
    return ""


def names_plugin(slurm_conf: Path) -> bool:
    """Whether slurmd is told to load it, in whatever way. False where a file cannot be read."""
    try:
        return bool(_plugged(slurm_conf, _setting(_text(slurm_conf), "PlugStackConfig"))[0])
    except OSError:
        return False


def _text(path: Path) -> str:
    return read_regular(path, _LARGEST_BYTES).decode(errors="replace")


def _setting(text: str, key: str) -> str:
    """The last value of a line of its own."""
    found = re.findall(rf"^\s*{key}\s*=\s*([^\s#]+)", text, re.IGNORECASE | re.MULTILINE)
    return found[-1] if found else ""


def _plugged(slurm_conf: Path, named: str) -> tuple[str, Path]:
    """``required /path/partage_limits.so`` as it is there; empty: nowhere. And the first file."""
    first = Path(named) if named else slurm_conf.with_name("plugstack.conf")
    try:
        found = next(_lines(first, [_MOST_FILES]), "")
    except FileNotFoundError:
        found = ""
    return found, first


def _lines(path: Path, left: list[int]) -> Iterator[str]:
    """The lines that name the plugin, also of included files. Raises OSError."""
    left[0] -= 1
    if left[0] < 0:
        return
    for line in _text(path).splitlines():
        words = line.partition("#")[0].split()
        if len(words) > 1 and words[0].lower() == "include":
            for inner in sorted(glob.glob(str(path.parent / words[1]))):  # noqa: PTH207 - may be absolute
                yield from _lines(Path(inner), left)
        elif len(words) > 1 and Path(words[1]).name == PLUGIN:
            yield f"{words[0].lower()} {words[1]}"
