"""``partage export``: the live node as a policy."""

from __future__ import annotations

from pathlib import Path

from partage.answers import common_node, common_options, common_output
from partage.answers.verb import verb
from partage.errors import Problem


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
    from partage.cli.live_policy import left_out, policy_of

    inventory = common_node.need_driver(common_node.observe(machine, hardware_socket))
    common_output.print_problems(
        Problem("", "", "warning", f"not in the policy: {text}") for text in left_out(inventory)
    )
    common_output.print_document(policy_of(inventory), output)
    return 0
