"""Containers on a simulated node: which works on which GPU, and the kubelet's names for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from partage.model.ids import ContainerId, PodUid
from partage.plan.serve.ledger_entry import Holder
from partage.sim.node.faults import Occupy

TRAIN, NOTEBOOK, OTHER = (ContainerId(digits * 32) for digits in ("3f", "a0", "77"))
HOLDERS = {
    TRAIN: Holder("team", "train", "main"),
    NOTEBOOK: Holder("team", "notebook", "main"),
    OTHER: Holder("team", "other", "main"),
}
UIDS = {identity: PodUid(f"0b5a1e0c-6f1e-4d3c-9b42-{number:012d}") for number, identity in enumerate(HOLDERS)}


def works(
    pid: int, memory_bytes: int | None, container: ContainerId = TRAIN, gpu: int = 0, *, mps: bool
) -> Occupy:
    """A process of that container takes so much of the GPU's memory."""
    return Occupy(
        gpu,
        pid=pid,
        memory_bytes=memory_bytes,
        container=container,
        pod=UIDS.get(container, PodUid("")),
        mps=mps,
    )


def write_logs(directory: Path, holders: Mapping[ContainerId, Holder] = HOLDERS) -> Path:
    """The kubelet's log files of these containers, by id."""
    directory.mkdir(parents=True, exist_ok=True)
    for identity, holder in holders.items():
        name = f"{holder.pod}_{holder.namespace}_{holder.container}-{identity}.log"
        (directory / name).touch()
    return directory
