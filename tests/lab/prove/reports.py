"""A report with every kind of row, made by hand."""

from __future__ import annotations

from partage.lab.prove.model import (
    AttackedShare,
    DriverVersions,
    EvidenceKind,
    ProofReport,
    ProofRow,
    ProofVerdict,
    broken,
    kept,
    not_tried,
    weaker,
)
from partage.model.ids import GpuUuid, MigUuid
from partage.model.share import Guarantee
from partage.units import GIB

MPS = AttackedShare("nvidia.com/gpu.shared", 0, GpuUuid("GPU-1"), 4, 20 * GIB)
MIG = AttackedShare("nvidia.com/mig-3g.40gb", 1, MigUuid("MIG-1"), 1, 40 * GIB)


def full():
    """One row of each verdict and of each evidence."""
    return ProofReport(
        at="2026-11-21T20:00:00+00:00",
        command=("partage", "prove", "--faults"),
        versions={"partage": "0.1.0", "torch": "2.9"},
        driver=DriverVersions("595.1", "13.2"),
        machine="",
        gpus=("GPU 0: NVIDIA H100 80GB HBM3, 79.6 GiB, default mode, GPU-1",),
        rows=(
            _row("over", kept("it got 20 GiB | and <no> more"), MPS, Guarantee.GUARDED),
            _row("unseen", weaker("it got 25G"), MPS, Guarantee.GUARDED),
            _row("memory", broken("it got 60 GiB"), MIG, Guarantee.HARD),
            _row("off", not_tried("it takes a GPU"), None, Guarantee.ADVISORY, EvidenceKind.DOCUMENTED),
            _row("users", kept("both worked"), MPS, Guarantee.GUARDED, EvidenceKind.SIMULATED),
        ),
        remarks=("Held to the policy *policy.yaml*.",),
    )


def _row(name, outcome, share, guarantee, evidence=EvidenceKind.HARDWARE):
    tried = outcome.verdict is not ProofVerdict.NOT_TRIED
    seen, reason = (outcome.seen, "") if tried else ("", outcome.seen)
    return ProofRow(
        f"mps-{name}", "MPS", guarantee, f"Promised {name}.", f"Tried {name}.",
        outcome.verdict, seen, reason, evidence, share,
    )  # fmt: skip
