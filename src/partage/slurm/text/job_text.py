"""What ``scontrol show job -d`` and ``squeue`` say of a job.

In the text of scontrol the name of a job, its comment and its command may look like other fields: what is
said twice of a node, and differs, is not believed.
"""

from __future__ import annotations

import re

from partage.slurm.model.job import HeldDevices, JobId
from partage.slurm.text.answers import find_held, held_devices
from partage.slurm.text.hostlist import in_hostlist

_GROUP = re.compile(r"(?<!\w)Nodes=(\S+) CPU_IDs=\S* Mem=\S*(?: GRES=(\S*))?", re.ASCII)
_NAMED = re.compile(r"(\d{1,10})\|(\d{1,10}(?:_\d{1,10})?)(?:\+\d{1,10})?", re.ASCII)
NAMES_FORMAT = "%A|%i"
"""For ``squeue --format``: a job's number, and its name for commands. No user has a word in them."""


def held_on(text: str, node: str) -> HeldDevices | None:
    """What a job holds on a node; None: that is not said, or not clearly."""
    said = {gres for nodes, gres in _GROUP.findall(text) if in_hostlist(node, nodes)}
    return held_devices(find_held(said.pop())) if len(said) == 1 else None


def has_gpus_on(text: str, node: str) -> bool:
    """Whether a job has GPUs or shares of them on a node. Of the first component of a heterogeneous job
    scontrol shows all components. A job whose name says that it has some, has: the name is its owner's.
    """
    return any(find_held(gres) for nodes, gres in _GROUP.findall(text) if in_hostlist(node, nodes))


def parse_job_names(text: str) -> dict[JobId, str] | None:
    """By job, how a command names this job alone, from ``squeue`` with NAMES_FORMAT; None: it is something
    else.

    Of a job array one task has the array's number, which names the whole array in commands: ``7_3`` is the
    task. A heterogeneous job is named by its first component, and commands take it whole.
    """
    found = [_NAMED.fullmatch(word) for word in text.split()]
    if not all(found):
        return None
    return {JobId(int(one[1])): one[2] for one in found if one is not None}
