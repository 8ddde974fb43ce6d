"""What ``scontrol show job -d`` says of a job's shares."""

from __future__ import annotations

import re
from collections.abc import Mapping

from partage.codec.hostlist import expand_hostlist

_GROUP = re.compile(r"(?<!\w)Nodes=(\S+) CPU_IDs=\S* Mem=\S*(?: GRES=(\S*))?", re.ASCII)
_OLD = re.compile(r"shard(?::[^:(),]+)?:(\d{1,6})\(IDX:([\d,-]*)\)", re.ASCII)
_NEW = re.compile(r"shard(?::[^:(),]+)?:\d{1,6}\(([\d,/]+)\)", re.ASCII)


def held_shards(text: str, node: str) -> Mapping[int, int] | None:
    """The shards that a job has on a node, by the index of their GPU; empty: it has none.

    22.05 has ``shard:2(IDX:2)``, 24.11 ``shard:2(0/0,0/0,2/4)``: what it holds of what there is, GPU by GPU.
    None: nothing is said of this node, or not in one of these forms.
    """
    for nodes, gres in _GROUP.findall(text):
        try:
            if node not in expand_hostlist(nodes):
                continue
        except ValueError:
            continue
        return _shards(gres)
    return None


def _shards(gres: str) -> Mapping[int, int] | None:
    if "shard:" not in gres:
        return {}
    if match := _NEW.search(gres):
        rows = [part.split("/") for part in match[1].split(",")]
        if all(len(row) == 2 and row[0] for row in rows):
            return {at: int(row[0]) for at, row in enumerate(rows) if int(row[0])}
    if (match := _OLD.search(gres)) and match[2].isdecimal():
        return {int(match[2]): int(match[1])}
    return None
