"""``partage slurm check``: what is wrong with Slurm's files, and what becomes of a job's request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from partage.errors import InputError, Problem, Unsatisfiable
from partage.faces.cli import common
from partage.faces.cli.slurm_version import slurm_version_option, version_of

if TYPE_CHECKING:
    from partage.codec.slurm_conf import ConfFile
    from partage.plan.slurm.request import Verdict

FALSE, WRONG, IMPOSSIBLE = 1, InputError.exit_code, Unsatisfiable.exit_code


@click.command(name="check")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--request",
    "requests",
    multiple=True,
    metavar="GRES",
    help="What a job would ask for, as in sbatch --gres: mps:60, gpu:h100_1g.10gb:2. Repeatable.",
)
@slurm_version_option
@common.machine_option
@click.option("--here", is_flag=True, help="Compare with the GPUs of this node.")
@click.option("--node", metavar="NAME", help="Which node --machine or --here is. Default: every node.")
@click.option("--strict", is_flag=True, help="Exit with code 1 also for warnings.")
@common.output_option("table", "json", "yaml")
def check_command(
    *,
    files: tuple[str, ...],
    requests: tuple[str, ...],
    slurm_version: str | None,
    machine: str | None,
    here: bool,
    node: str | None,
    strict: bool,
    output: str,
) -> int:
    """Check gres.conf, slurm.conf and cgroup.conf, together and against the GPUs of a node.

    FILE is one of the three, or lines of slurm.conf to include; - is standard input. They are read as slurmd
    reads them, without a Slurm; slurmd itself is silent about most mistakes. With --request: whether a job is
    accepted, refused, or would wait for ever, and why.

    Exit code 0: no errors; 1: warnings with --strict; 2: errors; 3: another node, or a request that does not
    run here.
    """
    from partage.plan.slurm.check import check_files
    from partage.plan.slurm.request import Outcome, judge_request

    if here and machine is not None:
        raise click.UsageError("--here and --machine exclude each other")
    version = version_of(slurm_version)
    inventory = common.need_driver(common.observe(machine)) if here or machine is not None else None
    checked = check_files([_read(file) for file in files], version, inventory, node)
    verdicts = [
        judge_request(request, checked.nodes, checked.types, version, spread=checked.spread)
        for request in requests
    ]
    if output == "table":
        _print(files, (*checked.problems, *checked.differences), verdicts)
    else:
        from partage.faces.documents.slurm import slurm_check_document

        common.print_document(slurm_check_document(files, checked, verdicts), output)
    if _errors(checked.problems):
        return WRONG
    if _errors(checked.differences) or any(one.outcome is not Outcome.ACCEPTED for one in verdicts):
        return IMPOSSIBLE
    return FALSE if strict and (checked.problems or checked.differences) else 0


def _errors(problems: Sequence[Problem]) -> bool:
    return any(problem.severity == "error" for problem in problems)


def _read(file: str) -> ConfFile:
    """Raises InputError for a file that cannot be read, or is none of Slurm's."""
    from partage.codec.slurm_conf import parse_conf
    from partage.edges.files.input_file import read_input

    found = parse_conf(read_input(file).decode("utf-8", "replace"), file)
    if found is None:
        hint = "the file's name says what it is: gres.conf, slurm.conf, cgroup.conf"
        raise InputError([Problem(file, "", "error", "is no gres.conf, slurm.conf or cgroup.conf", hint)])
    return found


def _print(files: Sequence[str], problems: Sequence[Problem], verdicts: Sequence[Verdict]) -> None:
    from rich.markup import escape

    from partage.faces.cli.check import print_findings
    from partage.plan.slurm.request import Outcome

    print_findings(files, problems)
    console = common.console()
    for verdict in verdicts:
        style = "green" if verdict.outcome is Outcome.ACCEPTED else "bold red"
        said = f"--gres={verdict.request}"
        console.print(f"{escape(said)}: [{style}]{verdict.outcome}[/]: {escape(verdict.why)}", soft_wrap=True)
        lines = [verdict.hint] if verdict.hint else []
        lines += [f"Slurm says: {verdict.slurm_says}"] if verdict.slurm_says else []
        for line in (*lines, *verdict.doubts):
            console.print(f"  [dim]{escape(line)}[/]", soft_wrap=True)
