"""What ``scontrol show job -d`` says of a job's GPUs.

In this text the name of a job, its comment and its command may look like other fields: what is said twice of
a node, and differs, is not believed.
"""

from __future__ import annotations

import re

from partage.codec.hostlist import in_hostlist
from partage.codec.slurm_answers import find_held, held_devices
from partage.model.slurm_job import HeldDevices

_GROUP = re.compile(r"(?<!\w)Nodes=(\S+) CPU_IDs=\S* Mem=\S*(?: GRES=(\S*))?", re.ASCII)


def held_on(text: str, node: str) -> HeldDevices | None:
    """What a job holds on a node; None: that is not said, or not clearly."""
    said = {gres for nodes, gres in _GROUP.findall(text) if in_hostlist(node, nodes)}
    return held_devices(find_held(said.pop())) if len(said) == 1 else None
