"""``partage assert``: check whether the node is as the policy wants it."""

from __future__ import annotations

from pathlib import Path

from partage.answers import common_node, common_options, common_output
from partage.answers.verb import verb
from partage.errors import InputError

_FALSE = 1


@verb("assert")
@common_options.policy_option("Needed.")
@common_options.config_option
@common_options.machine_option
@common_options.driver_root_option
@common_options.hardware_socket_option
@common_options.run_dir_option
@common_options.state_dir_option
@common_options.output_option("table", "json", "yaml")
def command(
    *,
    policy: str | None,
    config: str | None,
    machine: str | None,
    hardware_socket: Path | None,
    run_dir: str | None,
    state_dir: Path | None,
    output: str,
) -> int:
    """Compare the node with the policy: MIG layouts, MPS daemons, compute modes, time slices.

    Nothing is changed.

    Exit code 0: all GPUs are as the policy wants them; 1: some are not, and what differs is printed; 2: the
    policy is wrong; 3: impossible on this node; 4: no usable driver.
    """
    if policy is None:
        raise InputError("assert needs --policy", "name the policy with which the node is compared")
    loaded = common_node.read_policy(policy, config)
    found = common_node.plan_input(
        machine, loaded.policy, hardware_socket, run_dir=run_dir, state_dir=state_dir
    )

    from partage.answers.documents.assertion import (
        AssertionDocument,
        compared_row,
        compared_sentence,
        difference_rows,
    )
    from partage.edges.files.catalogue import geometry_of
    from partage.plan.reconcile.planner import plan_node

    common_output.print_problems([*loaded.warnings, *found.desired.warnings])
    rows = difference_rows(found, plan_node(found.desired, found.now, geometry_of))
    if output == "table":
        for row in rows:
            common_output.say(f"GPU {row.index}: {row.detail}")
        if not rows:
            common_output.say(compared_sentence(found.desired))
    else:
        problems = (*loaded.warnings, *found.desired.warnings)
        common_output.print_document(
            AssertionDocument(
                as_wanted=not rows,
                compared=compared_row(found.desired),
                differences=rows,
                problems=problems,
            ),
            output,
        )
    return _FALSE if rows else 0
