"""The judgement of ``check`` on one file, whatever it is: policy, manifest, machine, story, worker groups."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import field

from partage.answers.common_node import ctk_found
from partage.claims.model.names import OWN_NAMES
from partage.errors import InputError, Problem, Unsatisfiable
from partage.kubernetes.manifests.node import CheckedProblem
from partage.model.ids import MEMORY_RESOURCE, VENDOR
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.admission.decide.quotas import NamespaceQuota
    from partage.admission.decide.settings import DialectSettings
    from partage.admission.decide.translate import AdmissionTerms
    from partage.claims.model.claim import DeviceClass
    from partage.claims.model.names import ClaimNames
    from partage.cli.check import PolicyOffer
    from partage.kubernetes.manifests.input_files import GroupsInput, ManifestInput, ManifestObject, Paper
    from partage.model.gpu import Inventory
    from partage.model.node_labels import NodeLabels
    from partage.model.policy import Policy
    from partage.providers.check import ProviderContext


WHOLE_GPU = f"{VENDOR}/gpu"


class CheckContext(Frozen):
    """What files are checked against. inventory, labels, provider: None where nothing was given. offers: what
    policies offer there, for the pods of manifests; a pod is for the one that has what it asks for. classes:
    the DeviceClasses that claims can name. names: of the driver that claims mean. settings: names that other
    systems use. quotas: among the files, with their namespace.
    """

    config: str | None
    inventory: Inventory | None
    offers: tuple[PolicyOffer, ...] = ()
    labels: NodeLabels | None = None
    classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    names: ClaimNames = OWN_NAMES
    provider: ProviderContext | None = None
    settings: DialectSettings | None = None
    quotas: tuple[tuple[str, NamespaceQuota], ...] = ()


def check_file(paper: Paper, context: CheckContext) -> Iterator[CheckedProblem]:
    """All problems of one file, whatever it is."""
    from partage.kubernetes.manifests.input_files import (
        GroupsInput,
        MachineInput,
        ManifestInput,
        PolicyInput,
        StoryInput,
    )

    match paper:
        case ManifestInput():
            yield from _manifest(paper, context)
        case StoryInput():
            yield from _story(paper.file)
        case MachineInput():
            yield from _machine(paper.content, paper.file)
        case PolicyInput():
            yield from _policy(paper.content, paper.file, context)
        case GroupsInput():
            yield from _worker_groups(paper, context)


def _worker_groups(paper: GroupsInput, context: CheckContext) -> Iterator[CheckedProblem]:
    from partage.providers.check import judge_cluster
    from partage.providers.files import read_worker_groups

    try:
        groups, warnings = read_worker_groups(paper.document, paper.file)
    except InputError as error:
        yield from (CheckedProblem(problem) for problem in error.problems)
        return
    yield from (CheckedProblem(problem) for problem in warnings)
    if context.provider is not None:
        document = paper.document
        yield from judge_cluster(groups, document.value, paper.file, document.line, context.provider)


def _policy(content: bytes, file: str, context: CheckContext) -> Iterator[CheckedProblem]:
    """A policy; of a file with several configurations each, where none is named. Each problem once.

    A file of many configurations is for many kinds of nodes: configurations that do not fit the machine are
    no errors, as long as one fits.
    """
    from partage.edges.files.policy import configurations

    named = configurations(content, file) if context.config is None else []
    names: list[str | None] = list(named) if named else [context.config]
    judged = [
        configuration for name in names for configuration in _configuration(content, file, name, context)
    ]
    one_fits = any(not errors_of(here) for _, _, here in judged)
    found: list[CheckedProblem] = []
    for name, problems, here in judged:
        found += problems
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
    from partage.plan.offer.caveats import DRAIN_NEEDS_CLUSTER, ON_DEMAND_COSTS, draining, on_demand
    from partage.plan.offer.policy_choice import for_node, variants

    what = f"configuration {config}"
    try:
        loaded = parse_policy(content, file, config, os.environ)
    except InputError as error:
        return [(what, [CheckedProblem(problem) for problem in error.problems], [])]
    problems = [CheckedProblem(problem) for problem in loaded.warnings]
    problems += [
        CheckedProblem(Problem(file, f"{origin}.change", "warning", DRAIN_NEEDS_CLUSTER))
        for origin in draining(loaded.policy)
    ]
    problems += [
        CheckedProblem(Problem(file, f"{origin}.mig.on-demand", "warning", ON_DEMAND_COSTS))
        for origin in on_demand(loaded.policy)
    ]
    if context.provider is not None:
        from partage.providers.check import judge_policy

        problems += judge_policy(loaded.policy, file, context.provider)
    inventory = context.inventory
    if inventory is None:
        return [(what, problems, [])]
    if context.labels is not None:
        there = for_node(loaded.policy, context.labels)
        return [(what, problems, list(policy_on_machine(there, file, inventory)))]
    found = variants(loaded.policy)
    if len(found) == 1:
        return [(what, problems, list(policy_on_machine(loaded.policy, file, inventory)))]
    return [
        (_variant(labels), problems, list(policy_on_machine(there, file, inventory)))
        for labels, there in found
    ]


def _variant(labels: NodeLabels) -> str:
    shown = ", ".join(f"{key}={value}" for key, value in labels.items())
    return f"what the policy says for nodes {f'with {shown}' if shown else 'without such labels'}"


def policy_on_machine(policy: Policy, file: str, inventory: Inventory) -> Iterator[CheckedProblem]:
    """What is wrong or impossible with a policy on a machine, and what weakens its guarantees there."""
    from partage.edges.files.catalogue import geometry_of
    from partage.plan.offer.advertise import advertise
    from partage.plan.offer.assign import assign
    from partage.plan.offer.caveats import caveats
    from partage.plan.offer.guarantees import with_current_guarantees

    try:
        assignment = assign(policy, inventory, geometry_of)
        yield from (CheckedProblem(problem.in_file(file)) for problem in assignment.warnings)
        offer = with_current_guarantees(advertise(assignment, inventory, policy), (), inventory)
    except InputError as error:
        yield from (CheckedProblem(problem.in_file(file)) for problem in error.problems)
        return
    except Unsatisfiable as error:
        yield from (
            CheckedProblem(problem.in_file(file), here=problem.severity == "error")
            for problem in error.problems
        )
        return
    for caveat in caveats(policy, inventory, offer, ctk_found=ctk_found(policy, inventory)):
        if caveat.certain:
            yield CheckedProblem(Problem(file, "", "warning", caveat.sentence))


def _manifest(paper: ManifestInput, context: CheckContext) -> Iterator[CheckedProblem]:
    """Each object. Under several policies a pod is for the one that has what it asks for, and the others are
    named.
    """
    from partage.edges.files.policy import configurations
    from partage.kubernetes.manifests.input_files import objects

    for manifest in objects(paper):
        if not context.offers:
            yield from _object(paper, manifest, context, None)
            continue
        judged = [(offer, list(_object(paper, manifest, context, offer))) for offer in context.offers]
        _, best = min(judged, key=lambda row: len(errors_of(row[1])))
        yield from best
        for offer, problems in judged:
            if len(errors := errors_of(problems)) > len(errors_of(best)):
                sentence = f"not for {offer.policy}: {errors[0].message}"
                yield CheckedProblem(Problem(paper.file, errors[0].path, "warning", sentence, errors[0].hint))
    if configurations(paper.content, paper.file):
        yield from _policy(paper.content, paper.file, context)


def _object(
    paper: ManifestInput, manifest_object: ManifestObject, context: CheckContext, offer: PolicyOffer | None
) -> Iterator[CheckedProblem]:
    from partage.admission.manifests import TranslationTerms, translated_object
    from partage.claims.check import ClaimTerms, claim_findings
    from partage.claims.decide.book import ClaimBook
    from partage.cli.manifest_amounts import amount_findings
    from partage.cli.other_systems import other_system_findings
    from partage.kubernetes.manifests.manifest import findings
    from partage.providers.check import judge_manifest

    path, original, line_of = manifest_object
    offered = None if offer is None else offer.offered
    book = None if offer is None else offer.book or ClaimBook()
    terms = ClaimTerms(context.classes, models_with, book, tuple(map(str, offered or ())), context.names)
    hint = "partage migrate FILE writes it so"
    how = TranslationTerms(_admission(context, offer), terms, hint, context.quotas)
    written = translated_object(original, paper.file, path, line_of, how)
    yield from written.findings
    if written.refused:
        return  # its resources are another system's words, which no device plugin lists
    document = written.document
    yield from findings(
        document,
        paper.file,
        path,
        offered,
        line_of,
        only_cdi=offer is not None and offer.only_cdi,
        models_of=models_with,
        models_here=_models_of(context.inventory),
    )
    yield from amount_findings(document, paper.file, path, offered, line_of)
    yield from claim_findings(document, paper.file, path, line_of, terms)
    if context.provider is None:
        yield from other_system_findings(document, paper.file, path, line_of)
    else:
        yield from judge_manifest(document, paper.file, path, line_of, context.provider)


def _admission(context: CheckContext, offer: PolicyOffer | None) -> AdmissionTerms:
    """If nobody knows what a device plugin lists, it may list what Partage's own does, and a provider's
    GPUs.
    """
    from partage.admission.decide.settings import DialectSettings
    from partage.admission.decide.template import sizes_of
    from partage.admission.decide.translate import AdmissionTerms

    settings = context.settings or DialectSettings()
    if offer is None:
        return AdmissionTerms(settings, None, frozenset({MEMORY_RESOURCE, WHOLE_GPU}))
    listed = {*map(str, offer.offered), *((WHOLE_GPU,) if context.provider is not None else ())}
    return AdmissionTerms(settings, sizes_of(offer.book.devices if offer.book else ()), frozenset(listed))


def _models_of(inventory: Inventory | None) -> frozenset[str]:
    """Ids of the catalogue of the MIG models of a machine."""
    from partage.edges.files.catalogue import geometry_of

    found = map(geometry_of, () if inventory is None else inventory.gpus)
    return frozenset(geometry.model for geometry in found if geometry is not None)


def models_with(profile: str) -> tuple[str, ...]:
    """The models of the catalogue with this MIG profile."""
    from partage.edges.files.catalogue import load_catalogue

    models = load_catalogue().models
    return tuple(
        model.id
        for model in models
        if model.geometry and any(str(spec.profile) == profile for spec in model.geometry.profiles)
    )


def _story(file: str) -> Iterator[CheckedProblem]:
    from pathlib import Path

    from partage.lab.stories.read import check_policy, read_story

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
