"""The answer of ``plan --demand`` as a policy in Partage's format, which ``apply`` takes."""

from __future__ import annotations

from typing import Any

from partage.errors import InputError
from partage.packing.decide.pack import Packing


def policy_of_packing(packing: Packing) -> dict[str, Any]:
    """The policy: the layout of each GPU that serves the demand, GPUs with equal layouts in one entry.

    Other GPUs are not in it: their MIG devices stay as they are. Raises InputError if several machines serve
    the demand: a policy is for one node.
    """
    machines = dict.fromkeys(str(one.candidate.machine) for one in packing.assignments)
    if len(machines) > 1:
        raise InputError(
            f"the demand takes {len(machines)} machines, and a policy is for one",
            "ask for one machine at a time, or take the layouts of each machine from -o json",
        )
    groups: dict[tuple[str, ...], list[int]] = {}
    for one in packing.assignments:
        groups.setdefault(tuple(map(str, one.layout)), []).append(one.candidate.gpu.index)
    entries = [
        {"select": {"index": indexes}, "mig": {"layout": list(layout)}} for layout, indexes in groups.items()
    ]
    return {"version": "partage/v1", "gpus": entries}
