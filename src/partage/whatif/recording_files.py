"""A recording as two files of CSV, with the columns that ``pod_trace`` and ``fleet`` read."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from partage.whatif.decide.gpu_amounts import GpuNode
from partage.whatif.decide.recording import TraceLine

POD_COLUMNS = (
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "creation_time",
    "scheduled_time",
    "deletion_time",
    "node",
)
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")


def pods_csv(lines: Iterable[TraceLine]) -> str:
    """``PODS.csv``."""
    return _csv(
        POD_COLUMNS,
        (
            (
                line.name,
                line.cpu_milli,
                line.memory_mib,
                line.gpus,
                line.milli,
                "|".join(line.models),
                line.created_s,
                line.bound_s,
                line.ended_s,
                line.node,
            )
            for line in lines
        ),
    )


def nodes_csv(nodes: Iterable[GpuNode]) -> str:
    """``NODES.csv``."""
    rows = ((node.name, node.cpu_milli, node.memory_mib, node.gpus, node.model) for node in nodes)
    return _csv(NODE_COLUMNS, rows)


def _csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return file.getvalue()
