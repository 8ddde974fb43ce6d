"""``partage slurm check``: what is wrong with Slurm's files, and what becomes of a job's request."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from partage.answers import common_node, common_options, common_output
from partage.answers.verb import verb
from partage.errors import ClusterError, InputError, Problem, Unsatisfiable
from partage.slurm.version import slurm_bin_option, slurm_version_option, version_of

if TYPE_CHECKING:
    from partage.slurm.decide.against_live import LiveCluster
    from partage.slurm.decide.request import RequestVerdict

FALSE, WRONG, IMPOSSIBLE = 1, InputError.exit_code, Unsatisfiable.exit_code


@verb("check", short_help="Check Slurm's files, and whether a job would run.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--request",
    "requests",
    multiple=True,
    metavar="GRES",
    help="What a job would ask for, as in sbatch --gres: mps:60, gpu:h100_1g.10gb:2. Repeatable.",
)
@slurm_version_option()
@common_options.machine_option
@click.option("--here", is_flag=True, help="Compare with the GPUs of this node.")
@click.option("--node", metavar="NAME", help="Which node --machine or --here is. Default: every node.")
@click.option(
    "--live/--no-live",
    default=None,
    help="Compare with the running Slurm. Default: if the files are in the directory of its slurm.conf.",
)
@slurm_bin_option()
@common_options.strict_option
@common_options.output_option("table", "json", "yaml")
def check_command(
    *,
    files: tuple[str, ...],
    requests: tuple[str, ...],
    slurm_version: str | None,
    machine: str | None,
    here: bool,
    node: str | None,
    live: bool | None,
    slurm_bin: Path | None,
    strict: bool,
    output: str,
) -> int:
    """Check gres.conf, slurm.conf and cgroup.conf, together and against the GPUs of a node.

    FILE is one of the three, or lines of slurm.conf to include; - is standard input. They are read as slurmd
    reads them, with the files that they include. No Slurm has to be here. slurmd itself is silent about most
    mistakes.

    With --request: whether a job is accepted, refused, or would wait for ever, and why. With --live: also
    whether slurmctld has read the same, and the state of its nodes.

    Exit code 0: no errors; 1: warnings with --strict; 2: errors; 3: another node, a Slurm that has read
    something else, or a request that does not run here; 5: --live, and slurmctld does not answer.
    """
    from partage.slurm.decide.check import check_files
    from partage.slurm.decide.request import Outcome, judge_request
    from partage.slurm.host.conf_files import read_conf_files

    if here and machine is not None:
        raise click.UsageError("--here and --machine exclude each other")
    running = _running(files, node, slurm_bin, live=live)
    version = running.settings.version if running and slurm_version is None else version_of(slurm_version)
    inventory = common_node.need_driver(common_node.observe(machine)) if here or machine is not None else None
    read = read_conf_files(files, version)
    checked = check_files(read, version, inventory, node)
    if running is not None:
        from partage.slurm.decide.against_live import check_live

        differs = check_live(read, running, version, node)
        checked = replace(checked, differences=(*checked.differences, *differs))
    if here:
        from partage.slurm.host.missing_limits import missing_limits

        checked = replace(checked, differences=(*checked.differences, *missing_limits(files)))
    verdicts = [
        judge_request(request, checked.nodes, checked.types, version, spread=checked.spread)
        for request in requests
    ]
    if output == "table":
        _print(files, (*checked.problems, *checked.differences), verdicts)
    else:
        from partage.slurm.document import slurm_check_document

        common_output.print_document(slurm_check_document(files, checked, verdicts), output)
    if _errors(checked.problems):
        return WRONG
    if _errors(checked.differences) or any(verdict.outcome is not Outcome.ACCEPTED for verdict in verdicts):
        return IMPOSSIBLE
    return FALSE if strict and (checked.problems or checked.differences) else 0


def _running(
    files: Sequence[str], node: str | None, programs: Path | None, *, live: bool | None
) -> LiveCluster | None:
    """What the running Slurm knows; None: it is not to be compared. Raises ClusterError, Unsatisfiable."""
    if live is False or (live is None and not any(_is_of_this_slurm(file) for file in files)):
        return None
    import socket

    from partage.slurm.decide.against_live import LiveCluster
    from partage.slurm.host.control import SlurmControl

    control = SlurmControl(programs)
    try:
        settings, nodes = control.settings(), control.nodes()
    except (ClusterError, Unsatisfiable):
        if live:
            raise
        return None
    written = [Path(file).stat().st_mtime for file in files if "gres" in Path(file).name]
    own = node or socket.gethostname().partition(".")[0]
    return LiveCluster(settings, nodes, (own, max(written)) if written else None)


def _is_of_this_slurm(file: str) -> bool:
    """Whether it is beside the slurm.conf that programs read here."""
    named = os.environ.get("SLURM_CONF")
    places = [Path(named).parent] if named else [Path("/etc/slurm"), Path("/etc/slurm-llnl")]
    return file != "-" and Path(file).resolve().parent in [place.resolve() for place in places]


def _errors(problems: Sequence[Problem]) -> bool:
    return any(problem.severity == "error" for problem in problems)


def _print(files: Sequence[str], problems: Sequence[Problem], verdicts: Sequence[RequestVerdict]) -> None:
    from rich.text import Text

    from partage.slurm.decide.request import Outcome

    common_output.print_findings(files, problems)
    console = common_output.console()
    for verdict in verdicts:
        style = "green" if verdict.outcome is Outcome.ACCEPTED else "bold red"
        text = f"--gres={verdict.request}"
        said_of = Text.assemble(f"{text}: ", (verdict.outcome, style), f": {verdict.why}")
        console.print(said_of, soft_wrap=True)
        lines = [verdict.hint] if verdict.hint else []
        lines += [f"Slurm says: {verdict.slurm_says}"] if verdict.slurm_says else []
        for line in (*lines, *verdict.doubts):
            console.print(Text.assemble("  ", (line, "dim")), soft_wrap=True)
