"""The JSON answer of ``slurm check``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from partage.answers.documents.document import Document
from partage.errors import Problem
from partage.slurm.decide.check import Checked
from partage.slurm.decide.node_view import SlurmNodeView
from partage.slurm.decide.request import RequestVerdict
from partage.values import Frozen


class SlurmGpuRow(Frozen):
    """A GPU as Slurm knows it. index: as in SLURM_JOB_GPUS. shares: units of mps or shard, by name."""

    index: int
    type: str
    files: tuple[str, ...]
    shares: dict[str, int]


class SlurmNodeRow(Frozen):
    """A node as Slurm knows it."""

    name: str
    gpus: tuple[SlurmGpuRow, ...]


class SlurmCheckDocument(Document, kw_only=True):
    """The answer of ``slurm check``."""

    kind: Literal["SlurmCheck"] = "SlurmCheck"
    files: tuple[str, ...]
    problems: tuple[Problem, ...]
    nodes: tuple[SlurmNodeRow, ...]
    requests: tuple[RequestVerdict, ...]


def slurm_check_document(
    files: tuple[str, ...], checked: Checked, verdicts: Sequence[RequestVerdict]
) -> SlurmCheckDocument:
    """The answer as a document."""
    return SlurmCheckDocument(
        files=files,
        problems=(*checked.problems, *checked.differences),
        nodes=tuple(_node(node) for node in checked.nodes),
        requests=tuple(verdicts),
    )


def _node(node: SlurmNodeView) -> SlurmNodeRow:
    return SlurmNodeRow(
        node.name,
        tuple(
            SlurmGpuRow(at, gpu.type, gpu.files, {kind: units[at] for kind, units in node.shares.items()})
            for at, gpu in enumerate(node.gpus)
        ),
    )
