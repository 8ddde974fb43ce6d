"""The node as a prolog or an epilog finds it."""

from __future__ import annotations

from pathlib import Path

from partage.slurm.host.programs import SlurmPrograms
from partage.values import Frozen

LOCK_S = 60.0
"""An epilog holds the records while it stops a daemon."""


class JobNode(Frozen):
    """devices: the file. slurm_conf: None if slurmd does not say it. long_s: a prolog that takes longer
    asks in the end whether its job still lives.
    """

    run_dir: Path
    devices: Path
    slurm: SlurmPrograms
    driver_root: Path = Path("/")
    slurm_conf: Path | None = None
    long_s: float = 10.0


class NodeBroken(Exception):
    """This node cannot run jobs with GPUs until somebody repairs it; the text says what is wrong."""
