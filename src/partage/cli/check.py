"""``partage check``: find what is wrong with policies, manifests and stories before they are used."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from partage.answers import common_node, common_options, common_output, completion
from partage.answers.verb import verb
from partage.cli.checked_files import CheckContext, check_file, policy_on_machine
from partage.errors import InputError, Unsatisfiable
from partage.kubernetes.manifests.input_files import ManifestInput, Paper, PolicyInput, objects
from partage.kubernetes.manifests.node import CheckedProblem
from partage.kubernetes.manifests.pods import pod_specs_at
from partage.model.policy import ALL_EXCLUSIVE
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.admission.decide.quotas import NamespaceQuota
    from partage.admission.decide.settings import DialectSettings
    from partage.claims.decide.book import ClaimBook
    from partage.claims.model.claim import DeviceClass
    from partage.claims.model.names import ClaimNames
    from partage.kubernetes.manifests.manifest import Resources
    from partage.model.claim import Demands
    from partage.model.gpu import Inventory
    from partage.model.node_labels import NodeLabels
    from partage.model.policy import Policy
    from partage.model.share import NodeOffer
    from partage.providers.decide.rules import Group


FALSE, WRONG, IMPOSSIBLE = 1, InputError.exit_code, Unsatisfiable.exit_code


@verb("check")
@click.argument("files", nargs=-1, metavar="FILE...", shell_complete=completion.files)
@common_options.strict_option
@common_options.policy_option(
    "Pods are compared with what it offers. Default: with the policies among the files."
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
    manifest (of pods, ResourceClaims, DeviceClasses), a ConfigMap with such policies, a machine, a story or a
    cluster's worker groups; - is standard input. A directory stands for the files in it (*.yaml, *.yml,
    *.json).

    With --machine or --this-node the policies are also checked against that machine: warnings say what
    weakens their guarantees there, and pods are compared with what the policies offer. The last lines say
    what could not be compared. Of a file with several configurations, one has to fit the machine, or the one
    that --config names. Where entries depend on labels ('when'), what holds for one kind of node has to fit,
    or what --node-labels chooses.

    Exit code 0: no errors; 1: warnings with --strict; 2: errors; 3: impossible on that machine.
    """
    if not files and not this_node:
        raise click.UsageError("missing argument 'FILE...'", click.get_current_context())
    if this_node and machine is not None:
        raise click.UsageError("--this-node and --machine exclude each other")
    files, papers, verdicts = _read(files)
    names = _names(papers)
    context = _context(papers, policy, config, machine, names, this_node=this_node)
    if provider is not None:
        context = _with_provider(context, provider, papers)
    context = replace(context, classes=_classes(papers, names), names=names, settings=_settings(papers))
    context = replace(context, quotas=_quotas(papers))
    verdicts += [verdict for paper in papers for verdict in check_file(paper, context)]
    if not files and context.inventory is not None:
        verdicts += policy_on_machine(ALL_EXCLUSIVE, "this node", context.inventory)
    problems = tuple(verdict.problem for verdict in verdicts)
    left_out = not_compared(
        papers,
        context.offers,
        machine=context.inventory is not None,
        policy=policy is not None or has_policy(papers),
    )
    if output == "table":
        common_output.print_findings(files, problems)
        for line in left_out:
            common_output.console().print(line, style="yellow", markup=False)
    else:
        from partage.answers.documents.document import CheckDocument

        document = CheckDocument(files=files, problems=problems, not_compared=tuple(left_out))
        common_output.print_document(document, output)
    return exit_code(verdicts, strict=strict)


def _read(named: Sequence[str]) -> tuple[tuple[str, ...], list[Paper], list[CheckedProblem]]:
    """The files that are meant, what can be read of them, and why the others cannot."""
    from partage.edges.files.policy_directory import files_of
    from partage.kubernetes.manifests.input_files import read_input_file

    files: list[str] = []
    papers: list[Paper] = []
    problems: list[CheckedProblem] = []
    for name in named:
        try:
            meant = files_of(name)
        except InputError as error:
            files.append(name)
            problems += (CheckedProblem(problem) for problem in error.problems)
            continue
        files += meant
        for file in meant:
            try:
                papers.append(read_input_file(file))
            except InputError as error:
                problems += (CheckedProblem(problem) for problem in error.problems)
    return tuple(files), papers, problems


def exit_code(verdicts: Sequence[CheckedProblem], *, strict: bool) -> int:
    """The worst of all verdicts."""
    errors = [verdict for verdict in verdicts if verdict.problem.severity == "error"]
    if any(not verdict.here for verdict in errors):
        return WRONG
    if errors:
        return IMPOSSIBLE
    return FALSE if verdicts and strict else 0


def _context(
    papers: Sequence[Paper],
    policy: str | None,
    config: str | None,
    machine: str | None,
    names: ClaimNames,
    *,
    this_node: bool,
) -> CheckContext:
    from partage.kubernetes.manifests.input_files import ManifestInput

    labels = common_options.node_labels()
    asked = machine is not None or this_node
    if not asked and (policy is None or not any(isinstance(paper, ManifestInput) for paper in papers)):
        return CheckContext(config, None, (), labels)
    inventory = common_node.need_driver(common_node.observe(machine))
    if policy is None:
        offers = tuple(offers_in(papers, config, labels, inventory, names))
        return CheckContext(config, inventory, offers, labels)
    read = common_node.read_policy(policy, config).policy
    return CheckContext(None, inventory, (offer_of(policy, read, inventory, names),), labels)


def _with_provider(context: CheckContext, name: str, papers: Sequence[Paper]) -> CheckContext:
    """With the provider's rules, and the worker groups of all cluster files that can be read."""
    from partage.kubernetes.manifests.input_files import GroupsInput
    from partage.providers.check import provider_context
    from partage.providers.files import read_worker_groups

    found = provider_context(name)
    groups: list[Group] = []
    for paper in papers:
        if isinstance(paper, GroupsInput):
            with suppress(InputError):  # said when the file itself is checked
                groups += read_worker_groups(paper.document, paper.file)[0]
    return replace(context, provider=replace(found, groups=tuple(groups)))


def _settings(papers: Sequence[Paper]) -> DialectSettings:
    from partage.admission.decide.settings import DialectSettings
    from partage.admission.manifests import settings_of

    return settings_of(papers, DialectSettings())


def _quotas(papers: Sequence[Paper]) -> tuple[tuple[str, NamespaceQuota], ...]:
    from partage.admission.manifests import quotas_in

    return quotas_in(papers)


def _names(papers: Sequence[Paper]) -> ClaimNames:
    """Of the driver that the claims and classes of the files mean."""
    from partage.claims.manifests import names_in

    return names_in(
        document for paper in papers if isinstance(paper, ManifestInput) for _, document, _ in objects(paper)
    )


def _classes(papers: Sequence[Paper], names: ClaimNames) -> Mapping[str, DeviceClass]:
    """The DeviceClasses of the chart, and of the files."""
    from partage.claims.check import class_of_object
    from partage.claims.decide.classes import chart_classes

    found = chart_classes(names)
    for paper in papers:
        if isinstance(paper, ManifestInput):
            for _, document, _ in objects(paper):
                if (device_class := class_of_object(document)) is not None:
                    found[device_class.name] = device_class
    return found


_MACHINE = "name one with --machine NAME, or --this-node"


class PolicyOffer(Frozen):
    """What one policy offers on the machine. policy: which one it is. only_cdi: its devices reach containers
    by CDI only. book: what claims can get.
    """

    policy: str
    offered: Resources
    only_cdi: bool = False
    book: ClaimBook | None = None


def offer_of(name: str, policy: Policy, inventory: Inventory, names: ClaimNames) -> PolicyOffer:
    """What the policy offers there. names: of the driver of claims. Raises InputError, Unsatisfiable."""
    from partage.edges.files.catalogue import geometry_of
    from partage.model.share import plugin_resources
    from partage.plan.offer.advertise import advertise
    from partage.plan.offer.assign import assign

    assigned = assign(policy, inventory, geometry_of)
    offer = advertise(assigned, inventory, policy)
    book = _book(policy, inventory, offer, names, assigned.on_demand)
    return PolicyOffer(name, plugin_resources(offer), policy.options.only_cdi, book)


def _book(
    policy: Policy, inventory: Inventory, offer: NodeOffer, names: ClaimNames, demands: Demands
) -> ClaimBook | None:
    """What claims can get, once MIG devices are made; None: nothing is for claims."""
    from partage.answers.node_plan import with_made_devices
    from partage.claims.decide.book import book_of_offer
    from partage.edges.files.catalogue import geometry_of
    from partage.model.strategy import Via

    if not any(row.via is Via.CLAIMS for rows in offer.values() for row in rows):
        return None
    made, there = with_made_devices(policy, inventory, offer)
    return book_of_offer(made, there, "node", geometry_of, names=names, demands=demands)


def offers_in(
    papers: Sequence[Paper],
    config: str | None,
    labels: NodeLabels | None,
    inventory: Inventory,
    names: ClaimNames,
) -> Iterator[PolicyOffer]:
    """What each policy among the files offers on the machine: each configuration and each variant by labels.
    What is wrong with a policy is said where it is checked.
    """
    for paper in papers:
        with suppress(InputError, Unsatisfiable):
            for name, policy in _policies_in(paper, config, labels):
                with suppress(InputError, Unsatisfiable):
                    yield offer_of(name, policy, inventory, names)


def _policies_in(paper: Paper, config: str | None, labels: NodeLabels | None) -> Iterator[tuple[str, Policy]]:
    from partage.edges.files.policy import configurations, parse_policy
    from partage.plan.offer.policy_choice import for_node, variants

    if not isinstance(paper, PolicyInput | ManifestInput):
        return
    named = configurations(paper.content, paper.file) if config is None else []
    if isinstance(paper, ManifestInput) and not configurations(paper.content, paper.file):
        return
    chosen: list[str | None] = [*named] or [config]
    for chosen_name in chosen:
        policy = parse_policy(paper.content, paper.file, chosen_name, os.environ).policy
        name = f"{paper.file} ({chosen_name})" if named else paper.file
        there = [for_node(policy, labels)] if labels is not None else [had for _, had in variants(policy)]
        yield from ((name, variant) for variant in there)


def not_compared(
    papers: Sequence[Paper], offers: Sequence[PolicyOffer], *, machine: bool, policy: bool
) -> list[str]:
    """Which files were not compared with what they are for, and how they would be. machine, policy: one was
    given.
    """
    said = []
    for paper in papers:
        if isinstance(paper, PolicyInput) and not machine:
            said.append(f"{paper.file}: not compared with the GPUs of a machine: {_MACHINE}")
        elif isinstance(paper, ManifestInput) and not offers and _is_compared(paper):
            said.append(
                f"{paper.file}: not compared with a policy: {_what_lacks(machine=machine, policy=policy)}"
            )
    return said


def _what_lacks(*, machine: bool, policy: bool) -> str:
    if not policy:
        return "name one with --policy FILE" + ("" if machine else ", and a machine with --machine NAME")
    return "no policy here can be used on this machine" if machine else f"which GPUs? {_MACHINE}"


def _is_compared(paper: ManifestInput) -> bool:
    """Whether it has pods or claims."""
    from partage.claims.manifests import is_claim_object

    found = [document for _, document, _ in objects(paper)]
    return any(pod_specs_at(document) or is_claim_object(document) for document in found)


def has_policy(papers: Sequence[Paper]) -> bool:
    """Whether one of the files is a policy, or a ConfigMap of policies."""
    from partage.edges.files.policy import configurations

    return any(
        isinstance(paper, PolicyInput)
        or (isinstance(paper, ManifestInput) and configurations(paper.content, paper.file))
        for paper in papers
    )
