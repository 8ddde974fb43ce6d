"""``partage record --cluster``: the pods of a cluster as a trace, and its nodes as a fleet.

Two files of CSV, with the columns that ``pod_trace`` and ``fleet`` read.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from partage.admission.decide.settings import DialectSettings
from partage.answers import common_output
from partage.answers.cluster_options import ask_cluster
from partage.edges.kube.reading import ClusterReader
from partage.errors import Absent, InputError, Unsatisfiable
from partage.text import count_of
from partage.whatif.cluster_objects import ClusterObjects, read_cluster
from partage.whatif.decide.gpu_amounts import GpuNode
from partage.whatif.decide.recording import TraceLine, reason_words, recording_of

PODS_FILE, NODES_FILE = "PODS.csv", "NODES.csv"


def record_cluster(folder: str, kubeconfig: str | None, gpu_mem_bytes: int, *, keep_names: bool) -> None:
    """Write both files, and say what is in them and what is not. gpu_mem_bytes: 1 of aliyun.com/gpu-mem.
    Raises InputError, ClusterError, Unsatisfiable.
    """
    settings = DialectSettings(gpu_mem_bytes=gpu_mem_bytes)
    seen = read_cluster(ask_cluster(kubeconfig, _objects), settings)
    found = recording_of(seen.pods, seen.nodes, seen.classes, keep_names=keep_names)
    if not found.nodes:
        said = "; ".join(reason_words("node", seen.left_out)) or "it has no nodes"
        raise Unsatisfiable(
            f"no node of the cluster has GPUs that pods can get: {said}",
            "GPUs are seen by ResourceSlices, by nvidia.com/gpu, or by labels such as nvidia.com/gpu.count",
        )
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made: {error.strerror}", "name a folder with --to") from error
    common_output.write_file(str(target / PODS_FILE), pods_csv(found.lines))
    common_output.write_file(str(target / NODES_FILE), nodes_csv(found.nodes))
    gpus = count_of(sum(node.gpus for node in found.nodes), "GPU")
    _say(f"{target / NODES_FILE}: {count_of(len(found.nodes), 'node')} with {gpus}")
    waiting = sum(not line.node and line.ended_s is None for line in found.lines)
    ended = sum(line.ended_s is not None for line in found.lines)
    said = f"{count_of(len(found.lines), 'pod')}, {waiting} waiting and {ended} that ended"
    _say(f"{target / PODS_FILE}: {said}")
    for words in (*reason_words("node", seen.left_out), *reason_words("pod", found.left_out)):
        _say(f"left out: {words}")
    for words in reason_words("pod", found.notes):
        _say(f"not quite: {words}")


def _say(text: str) -> None:
    common_output.say(text, err=True)


async def _objects(reader: ClusterReader) -> ClusterObjects:
    """What a server without ``resource.k8s.io/v1`` does not know is not there."""
    nodes, pods = await reader.nodes(), await reader.pods(ended=True)
    try:
        claims = await reader.slices(), await reader.claims(), await reader.device_classes()
    except Absent:
        return ClusterObjects(nodes, pods)
    return ClusterObjects(nodes, pods, *claims)


_POD_COLUMNS = (
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
_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")


def pods_csv(lines: Iterable[TraceLine]) -> str:
    """``PODS.csv``."""
    return _csv(
        _POD_COLUMNS,
        (
            (
                line.name,
                line.asks.cpu_milli,
                line.asks.memory_mib,
                line.asks.gpus,
                line.asks.milli,
                "|".join(sorted(line.asks.models)),
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
    return _csv(_NODE_COLUMNS, rows)


def _csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return file.getvalue()
