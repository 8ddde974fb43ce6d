"""``partage check``: find what is wrong with policies, manifests and stories before they are used."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from partage.errors import InputError, Problem, Unsatisfiable
from partage.faces.checked_files import CheckContext, check_file, policy_on_machine
from partage.faces.cli import common_node, common_options, common_output, completion
from partage.faces.cli.verb import verb
from partage.faces.manifest_node import CheckedProblem
from partage.model.policy import ALL_EXCLUSIVE

if TYPE_CHECKING:
    from partage.plan.providers.subjects import Group

FALSE, WRONG, IMPOSSIBLE = 1, InputError.exit_code, Unsatisfiable.exit_code


@verb("check")
@click.argument("files", nargs=-1, metavar="FILE...", shell_complete=completion.files)
@click.option(
    "-f",
    "--file",
    "more_files",
    multiple=True,
    metavar="FILE",
    shell_complete=completion.files,
    help="The same as FILE without the option.",
)
@click.option("--strict", is_flag=True, help="Exit with code 1 also for warnings.")
@click.option(
    "--policy",
    metavar="FILE",
    shell_complete=completion.files,
    help="Check the manifests against what this policy offers.",
)
@click.option(
    "--provider",
    metavar="NAME",
    help="Also check the rules of a provider, such as fpt, gke or nvidia; or a YAML file with rules.",
)
@common_options.config_option
@click.option(
    "--this-node",
    is_flag=True,
    help="Check the policies against this node; without FILE, what it guarantees with every GPU exclusive.",
)
@common_options.machine_option
@common_options.driver_root_option
@common_options.output_option("table", "json", "yaml")
def command(  # noqa: PLR0917 - click calls it by keyword
    files: tuple[str, ...],
    more_files: tuple[str, ...],
    strict: bool,
    policy: str | None,
    provider: str | None,
    config: str | None,
    this_node: bool,
    machine: str | None,
    output: str,
) -> int:
    """Check policies, manifests and stories for errors.

    FILE is a policy (Partage's own format, NVIDIA's device-plugin file, mig-parted's), a Kubernetes
    manifest, a ConfigMap with such policies, a machine, a story or a cluster's worker groups; - is standard
    input.

    With --machine or --this-node the policies are also checked against that machine, and warnings say what
    weakens their guarantees there. Of a file with several configurations one has to fit, or the one that
    --config names; of the variants that 'when' makes of a policy one, or the one that --node-labels chooses.

    Exit code 0: no errors; 1: warnings with --strict; 2: errors; 3: impossible on that machine.
    """
    files += more_files
    if not files and not this_node:
        raise click.UsageError("missing argument 'FILE...'", click.get_current_context())
    context = _context(policy, config, machine, this_node=this_node)
    if provider is not None:
        context = _with_provider(context, provider, files)
    verdicts = [verdict for file in files for verdict in check_file(file, context)]
    if not files and context.inventory is not None:
        verdicts += policy_on_machine(ALL_EXCLUSIVE, "this node", context.inventory)
    problems = tuple(verdict.problem for verdict in verdicts)
    if output == "table":
        print_findings(files, problems)
    else:
        from partage.faces.documents.document import CheckDocument

        common_output.print_document(CheckDocument(files=files, problems=problems), output)
    return exit_code(verdicts, strict=strict)


def exit_code(verdicts: Sequence[CheckedProblem], *, strict: bool) -> int:
    """The worst of all verdicts."""
    errors = [verdict for verdict in verdicts if verdict.problem.severity == "error"]
    if any(not verdict.here for verdict in errors):
        return WRONG
    if errors:
        return IMPOSSIBLE
    return FALSE if verdicts and strict else 0


def _context(policy: str | None, config: str | None, machine: str | None, *, this_node: bool) -> CheckContext:
    from partage.model.share import resources_of

    labels = common_options.node_labels()
    inventory = None
    if machine is not None or policy is not None or this_node:
        inventory = common_node.need_driver(common_node.observe(machine))
    if policy is None or inventory is None:
        return CheckContext(config, inventory, None, labels)
    from partage.edges.files.catalogue import geometry_of
    from partage.plan.offer.advertise import advertise
    from partage.plan.offer.assign import assign

    read = common_node.read_policy(policy, config).policy
    offer = advertise(assign(read, inventory, geometry_of), inventory, read)
    resources = resources_of(offer)
    return CheckContext(None, inventory, resources, labels, only_cdi=read.options.only_cdi)


def _with_provider(context: CheckContext, name: str, files: Sequence[str]) -> CheckContext:
    """With the provider's rules, and the worker groups of all cluster files that can be read."""
    from partage.edges.files.input_file import STDIN
    from partage.edges.files.worker_groups import read_worker_groups
    from partage.faces.input_files import GroupsInput, read_input_file
    from partage.faces.provider_check import provider_context

    found = provider_context(name)
    groups: list[Group] = []
    for file in files:
        with suppress(InputError):  # said when the file itself is checked
            if file != STDIN and isinstance(paper := read_input_file(file), GroupsInput):
                groups += read_worker_groups(paper.document, file)[0]
    return replace(context, provider=replace(found, groups=tuple(groups)))


def print_findings(files: Sequence[str], problems: Sequence[Problem]) -> None:
    """All problems, one below the other, and how many they are."""
    from rich.text import Text

    from partage.text import count_of

    console = common_output.console()
    styles = {"error": "bold red", "warning": "yellow"}
    for problem in problems:
        where = ": ".join(part for part in (problem.file, problem.path) if part)
        severity = (problem.severity, styles[problem.severity])
        console.print(Text.assemble(severity, f": {where}: {problem.message}"), soft_wrap=True)
        if problem.hint:
            console.print(Text.assemble("  ", (problem.hint, "dim")), soft_wrap=True)
    errors = sum(problem.severity == "error" for problem in problems)
    said = f"{count_of(errors, 'error')}, {count_of(len(problems) - errors, 'warning')}"
    console.print(f"{count_of(len(files), 'file')}: {said if problems else 'no problems'}")
