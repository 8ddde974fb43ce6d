"""``partage export``: the live node as a policy in Partage's format.

Its layouts have explicit starts, so that applying it changes nothing, or restores the present layout later.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from partage.answers import common_node, common_options, common_output
from partage.answers.verb import verb
from partage.answers.wording import lost_sentences
from partage.errors import Problem
from partage.model.gpu import Gpu, Inventory
from partage.model.layout import DISABLED, ENABLED
from partage.plan.reconcile.mig_plan import live_layout


def policy_of(inventory: Inventory) -> dict[str, Any]:
    """The policy, GPUs that are alike in one entry."""
    groups: dict[str, tuple[dict[str, Any], list[int]]] = {}
    for gpu in inventory:
        strategy = _strategy(gpu)
        groups.setdefault(repr(strategy), (strategy, []))[1].append(gpu.index)
    entries = [{"select": {"index": indexes}, **strategy} for strategy, indexes in groups.values()]
    return {"version": "partage/v1", "gpus": entries}


def left_out(inventory: Inventory) -> list[str]:
    """What a policy cannot contain, in sentences."""
    said = lost_sentences(inventory)
    for gpu in inventory:
        if gpu.mig_unplaced:
            said.append(f"GPU {gpu.index}: where its MIG devices are, which only root may read")
        said += [
            f"GPU {gpu.index}: the GPU instance {instance.profile} at {instance.placement} has no MIG device "
            "in it"
            for instance in gpu.empty_instances
        ]
        if gpu.mig_mode is not None and gpu.mig_pending:
            word = "on" if gpu.mig_mode.pending else "off"
            said.append(f"GPU {gpu.index}: its MIG mode is to be {word} after the next reset")
    return said


def _strategy(gpu: Gpu) -> dict[str, Any]:
    if gpu.mig_mode is None:
        return {"exclusive": {}}
    mig = live_layout(gpu)
    if not mig.enabled:
        return {"mig": {"layout": DISABLED}}
    return {"mig": {"layout": [str(item) for item in mig.items] or ENABLED}}


@verb("export")
@common_options.machine_option
@common_options.driver_root_option
@common_options.hardware_socket_option
@common_options.output_option("yaml", "json")
def command(machine: str | None, hardware_socket: Path | None, output: str) -> int:
    """Write the live node as a policy, every MIG device with its start: 3g.40gb@4.

    Applied to the same node it changes nothing; applied later, it restores the present layout. Sharing by
    MPS or time slices cannot be read from the GPUs, so it is not included.
    """
    inventory = common_node.need_driver(common_node.observe(machine, hardware_socket))
    common_output.print_problems(
        Problem("", "", "warning", f"not in the policy: {text}") for text in left_out(inventory)
    )
    common_output.print_document(policy_of(inventory), output)
    return 0
