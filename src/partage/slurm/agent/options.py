"""How the agent keeps Slurm true on a compute node."""

from __future__ import annotations

from pathlib import Path

from msgspec import field

from partage.slurm.decide.node_files import Writes
from partage.slurm.decide.type_names import TypeNames
from partage.slurm.host.control import DEADLINE_S
from partage.slurm.host.devices_file import DEFAULT_PATH
from partage.slurm.model import SlurmVersion
from partage.values import Frozen

CONF_DIR = Path("/etc/slurm")
DEVICES = Path(DEFAULT_PATH)
RESTART = ("systemctl", "restart", "slurmd")


class Pace(Frozen):
    """How often the agent looks, in seconds.

    idle_s: while all is as it should be: one request to slurmctld; changes of GPUs and of the policy are
    noticed at once. busy_s: at first while something is due; each look that finds the same doubles it, up to
    longest_s. retry_s: after files could not be written. asked_s: how long slurmd may take to read its files
    before it is asked again; each request that brought nothing doubles it, up to 64 times so long. answer_s:
    how long Slurm may take for an answer. spread_s: nodes with shared files wait a random time, at most so
    long, before they ask for a reconfigure: that of one node serves all that have written before it. first_s:
    how long slurmd is kept waiting for the layout at the start, while nothing is done. turn_s, step_s: a
    look, and a step of a layout, that take longer count as stopped.
    """

    idle_s: float = 60.0
    busy_s: float = 1.0
    longest_s: float = 15.0
    retry_s: float = 30.0
    asked_s: float = 20.0
    answer_s: float = DEADLINE_S
    spread_s: float = 5.0
    first_s: float = 60.0
    turn_s: float = 180.0
    step_s: float = 900.0


class SlurmOptions(Frozen):
    """node: the node's name in Slurm. directory: of the files that ``writes`` names. devices: devices.json.

    settings: the rest of the node's line, for shared files. programs: where scontrol is, None: in the fixed
    PATH. restart: the command that restarts slurmd.
    """

    node: str
    version: SlurmVersion
    directory: Path = CONF_DIR
    devices: Path = DEVICES
    writes: Writes = Writes.OWN
    settings: str = ""
    types: TypeNames = TypeNames.SHORT
    programs: Path | None = None
    restart: tuple[str, ...] = RESTART
    pace: Pace = field(default_factory=Pace)
