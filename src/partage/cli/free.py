"""``partage free``: a share is given away although a process of its former pod still runs."""

from __future__ import annotations

from pathlib import Path

import click

from partage.answers import common_node, common_options, common_output
from partage.answers.verb import verb
from partage.errors import InputError


@verb("free")
@click.argument("shares", nargs=-1, required=True, metavar="SHARE...")
@common_options.machine_option
@common_options.run_dir_option
def command(*, shares: tuple[str, ...], machine: str | None, run_dir: str | None) -> None:
    """Free shares, named by id, although processes of their former pods still run.

    A pod that was deleted by force can leave a process that never ends, because it is stuck in the driver.
    Nobody gets its share, and its GPU does not change, until the process has ended, or until this verb says
    not to wait for it. The same holds while Partage cannot see whether there is such a process. Afterwards
    the next container shares the GPU and its memory with that process, whatever its share guarantees. The
    safe way is to reboot the node.
    """
    report = common_node.agent_report(machine, run_dir)
    if report is None:
        raise InputError(
            "no report of an agent is used here",
            "name its run directory: --run-dir, and for a simulated node its --machine",
        )
    from partage.edges.files.node_notes import LeftHolds

    waited = {str(entry.id): entry for entry in report.held if entry.left or entry.unseen}
    if unknown := [share for share in shares if share not in waited]:
        raise InputError(
            f"no process is waited for with {unknown[0][:80]}",
            f"the agent waits with {', '.join(sorted(waited))}"
            if waited
            else "the agent waits for none: partage show",
        )
    for share in dict.fromkeys(shares):
        names = ", ".join(map(str, waited[share].left)) or "a process that nobody has looked for"
        goes = "go" if len(waited[share].left) > 1 else "goes"
        common_output.say(f"warning: {names} {goes} on beside the next container that gets {share}", err=True)
    pods = {pod for share in shares for pod in waited[share].former_pods}
    pods |= {process.pod for share in shares for process in waited[share].left}  # of an older agent
    LeftHolds(Path(run_dir or common_options.DEFAULT_RUN_DIR)).free(pods)
    common_output.say(f"freed: {', '.join(sorted(set(shares)))}")
