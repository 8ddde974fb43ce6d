"""``partage check``: find what is wrong with policies, manifests and stories before they are used."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from partage.errors import InputError, Problem, Unsatisfiable
from partage.faces.cli import common, completion
from partage.faces.manifest import CheckedProblem
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.faces.input_files import ManifestInput
    from partage.faces.manifest import Resources
    from partage.model.gpu import Inventory
    from partage.model.node_labels import NodeLabels
    from partage.model.policy import Policy

FALSE, WRONG, IMPOSSIBLE = 1, InputError.exit_code, Unsatisfiable.exit_code


class CheckContext(Frozen):
    """What files are checked against. inventory, offered, labels: None where nothing was given."""

    config: str | None
    inventory: Inventory | None
    offered: Resources | None
    labels: NodeLabels | None = None


@click.command(name="check")
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
@common.config_option
@common.machine_option
@common.driver_root_option
@common.output_option("table", "json", "yaml")
def command(  # noqa: PLR0917 - click calls it by keyword
    files: tuple[str, ...],
    more_files: tuple[str, ...],
    strict: bool,
    policy: str | None,
    config: str | None,
    machine: str | None,
    output: str,
) -> int:
    """Check policies, manifests and stories for errors.

    FILE is a policy (Partage's own format, NVIDIA's device-plugin file, mig-parted's), a Kubernetes
    manifest, a ConfigMap with such policies, a machine or a story; - is standard input. With --machine the
    policies are also checked against that machine; of a file with several configurations at least one must
    fit it, or the one named by --config. So must one of the variants that 'when' makes of a policy, or the
    one that --node-labels chooses.

    Exit code 0: no errors; 1: warnings with --strict; 2: errors; 3: impossible on that machine.
    """
    files += more_files
    if not files:
        raise click.UsageError("missing argument 'FILE...'", click.get_current_context())
    context = _context(policy, config, machine)
    verdicts = [verdict for file in files for verdict in check_file(file, context)]
    problems = tuple(verdict.problem for verdict in verdicts)
    if output == "table":
        print_findings(files, problems)
    else:
        from partage.faces.documents.document import CheckDocument

        common.print_document(CheckDocument(files=files, problems=problems), output)
    return exit_code(verdicts, strict=strict)


def exit_code(verdicts: Sequence[CheckedProblem], *, strict: bool) -> int:
    """The worst of all verdicts."""
    errors = [verdict for verdict in verdicts if verdict.problem.severity == "error"]
    if any(not verdict.here for verdict in errors):
        return WRONG
    if errors:
        return IMPOSSIBLE
    return FALSE if verdicts and strict else 0


def _context(policy: str | None, config: str | None, machine: str | None) -> CheckContext:
    from partage.model.share import resources_of

    labels = common.node_labels()
    inventory = None
    if machine is not None or policy is not None:
        inventory = common.need_driver(common.observe(machine))
    if policy is None or inventory is None:
        return CheckContext(config, inventory, None, labels)
    from partage.edges.files.catalogue import geometry_of
    from partage.plan.offer.advertise import advertise
    from partage.plan.offer.assign import assign

    read = common.read_policy(policy, config).policy
    offer = advertise(assign(read, inventory, geometry_of), inventory, read)
    return CheckContext(None, inventory, resources_of(offer), labels)


# --- one file ----------------------------------------------------------------------------------


def check_file(file: str, context: CheckContext) -> Iterator[CheckedProblem]:
    """All problems of one file, whatever it is."""
    from partage.faces.input_files import (
        MachineInput,
        ManifestInput,
        PolicyInput,
        StoryInput,
        read_input_file,
    )

    try:
        paper = read_input_file(file)
    except InputError as error:
        yield from (CheckedProblem(problem) for problem in error.problems)
        return
    match paper:
        case ManifestInput():
            yield from _manifest(paper, context)
        case StoryInput():
            yield from _story(paper.file)
        case MachineInput():
            yield from _machine(paper.content, paper.file)
        case PolicyInput():
            yield from _policy(paper.content, file, context)


def _policy(content: bytes, file: str, context: CheckContext) -> Iterator[CheckedProblem]:
    """A policy; of a file with several configurations each, where none is named. Each problem once.

    A file of many configurations is for many kinds of nodes: configurations that do not fit the machine are
    no errors, as long as one fits.
    """
    from partage.edges.files.policy import configurations

    named = configurations(content, file) if context.config is None else []
    names: list[str | None] = list(named) if named else [context.config]
    judged = [one for name in names for one in _configuration(content, file, name, context)]
    one_fits = any(not errors_of(here) for _, _, here in judged)
    found: list[CheckedProblem] = []
    for name, said, here in judged:
        found += said
        found += [_elsewhere(file, name, errors)] if one_fits and (errors := errors_of(here)) else here
    yield from dict.fromkeys(found)


def errors_of(verdicts: Sequence[CheckedProblem]) -> list[Problem]:
    """The errors among them."""
    return [verdict.problem for verdict in verdicts if verdict.problem.severity == "error"]


def _elsewhere(file: str, what: str, errors: Sequence[Problem]) -> CheckedProblem:
    """The warning for something that is not for this machine."""
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    sentence = f"{what} is not for this machine: {first.message}{more}"
    return CheckedProblem(Problem(file, first.path, "warning", sentence, first.hint))


_Judged = tuple[str, list[CheckedProblem], list[CheckedProblem]]
"""What was judged, its problems, and those on the machine."""


def _configuration(content: bytes, file: str, config: str | None, context: CheckContext) -> list[_Judged]:
    """One configuration; its variants, where it depends on labels."""
    from partage.edges.files.policy import parse_policy
    from partage.plan.offer.conditions import for_node, variants

    what = f"configuration {config}"
    try:
        loaded = parse_policy(content, file, config, os.environ)
    except InputError as error:
        return [(what, [CheckedProblem(problem) for problem in error.problems], [])]
    said = [CheckedProblem(problem) for problem in loaded.warnings]
    inventory = context.inventory
    if inventory is None:
        return [(what, said, [])]
    if context.labels is not None:
        there = for_node(loaded.policy, context.labels)
        return [(what, said, list(_on_machine(there, file, inventory)))]
    found = variants(loaded.policy)
    if len(found) == 1:
        return [(what, said, list(_on_machine(loaded.policy, file, inventory)))]
    return [(_variant(labels), said, list(_on_machine(there, file, inventory))) for labels, there in found]


def _variant(labels: NodeLabels) -> str:
    shown = ", ".join(f"{key}={value}" for key, value in labels.items())
    return f"what the policy says for nodes {f'with {shown}' if shown else 'without such labels'}"


def _on_machine(policy: Policy, file: str, inventory: Inventory) -> Iterator[CheckedProblem]:
    from partage.edges.files.catalogue import geometry_of
    from partage.faces.input_files import named
    from partage.plan.offer.advertise import advertise
    from partage.plan.offer.assign import assign
    from partage.plan.offer.caveats import caveats

    try:
        assignment = assign(policy, inventory, geometry_of)
        yield from (CheckedProblem(named(problem, file)) for problem in assignment.warnings)
        offer = advertise(assignment, inventory, policy)
    except InputError as error:
        yield from (CheckedProblem(named(problem, file)) for problem in error.problems)
        return
    except Unsatisfiable as error:
        yield from (
            CheckedProblem(named(problem, file), here=problem.severity == "error")
            for problem in error.problems
        )
        return
    for caveat in caveats(policy, inventory, offer, ctk_found=common.ctk_found(policy, inventory)):
        if caveat.certain:
            yield CheckedProblem(Problem(file, "", "warning", caveat.sentence))


def _manifest(paper: ManifestInput, context: CheckContext) -> Iterator[CheckedProblem]:
    from partage.edges.files.policy import configurations
    from partage.faces.dialects import dialect_findings
    from partage.faces.input_files import objects
    from partage.faces.manifest import findings

    for path, document, line_of in objects(paper):
        yield from findings(document, paper.file, path, context.offered, line_of)
        yield from dialect_findings(document, paper.file, path, line_of)
    if configurations(paper.content, paper.file):
        yield from _policy(paper.content, paper.file, context)


def _story(file: str) -> Iterator[CheckedProblem]:
    from pathlib import Path

    from partage.lab.stories.possible import check_policy
    from partage.lab.stories.read import read_story

    try:
        check_policy(read_story(Path(file)))
    except (InputError, Unsatisfiable) as error:
        here = isinstance(error, Unsatisfiable)
        yield from (CheckedProblem(problem, here=here) for problem in error.problems)


def _machine(content: bytes, file: str) -> Iterator[CheckedProblem]:
    from partage.sim.node.files.machine_file import read_machine

    try:
        read_machine(content, file)
    except InputError as error:
        yield from (CheckedProblem(problem) for problem in error.problems)


def print_findings(files: Sequence[str], problems: Sequence[Problem]) -> None:
    """All problems, one below the other, and how many they are."""
    from rich.markup import escape

    from partage.text import count_of

    console = common.console()
    styles = {"error": "bold red", "warning": "yellow"}
    for problem in problems:
        where = ": ".join(part for part in (problem.file, problem.path) if part)
        style = styles[problem.severity]
        console.print(
            f"[{style}]{problem.severity}[/]: {escape(where)}: {escape(problem.message)}", soft_wrap=True
        )
        if problem.hint:
            console.print(f"  [dim]{escape(problem.hint)}[/]", soft_wrap=True)
    errors = sum(problem.severity == "error" for problem in problems)
    said = f"{count_of(errors, 'error')}, {count_of(len(problems) - errors, 'warning')}"
    console.print(f"{count_of(len(files), 'file')}: {said if problems else 'no problems'}")
