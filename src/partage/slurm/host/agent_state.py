"""What the agent of a Slurm node has to remember: ``<state-dir>/slurm.json``, replaced whole."""

from __future__ import annotations

from pathlib import Path

from partage.codec.values import CodecError, decode, encode
from partage.edges.host.read_file import read_regular
from partage.edges.host.replace_file import replace_file
from partage.values import Frozen

_FILE = "slurm.json"
_LARGEST_BYTES = 2**16


class SlurmAgentState(Frozen):
    """digest: of the node's files, since at_s (seconds since 1970). loaded: slurmd has read them.

    resumed: the ``stamp`` of the node when it was resumed last. told: slurmctld has read these files, or they
    are not its own; true for files that were found. reconfigured: this agent has asked for a reconfigure
    since they are there.
    """

    digest: str = ""
    at_s: float = 0.0
    loaded: bool = False
    resumed: str = ""
    told: bool = True
    reconfigured: bool = False


def read_agent_state(state_dir: Path) -> SlurmAgentState:
    """What is remembered; nothing where that cannot be read."""
    try:
        return decode(SlurmAgentState, read_regular(state_dir / _FILE, _LARGEST_BYTES))
    except (OSError, CodecError):
        return SlurmAgentState()


def write_agent_state(state_dir: Path, state: SlurmAgentState) -> None:
    """Raises OSError; then the old one is still there."""
    path = state_dir / _FILE
    state_dir.mkdir(parents=True, exist_ok=True)
    replace_file(path, encode(state))
