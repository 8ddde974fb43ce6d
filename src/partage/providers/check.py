"""``partage check --provider``: files to what a provider's rules judge, and its violations to problems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from partage.codec.yaml_tree import Value
from partage.edges.files.catalogue import load_catalogue
from partage.errors import Problem
from partage.kubernetes.manifests.node import CheckedProblem, Keys, LineOf, ManifestNode
from partage.kubernetes.manifests.pods import object_place, pod_specs_at
from partage.model.geometry import GpuModel
from partage.model.policy import Policy
from partage.plan.offer.policy_choice import variants
from partage.providers.decide.judge_groups import judge_groups
from partage.providers.decide.judge_pods import judge_pod
from partage.providers.decide.rules import (
    Group,
    LayoutTable,
    ManifestContainer,
    ManifestPod,
    Provider,
    RuleViolation,
    groups_of,
)
from partage.providers.files import find_provider, layout_tables
from partage.values import Frozen


class ProviderContext(Frozen):
    """groups: of all cluster files of this call; pods are judged against them."""

    provider: Provider
    tables: tuple[LayoutTable, ...]
    groups: tuple[Group, ...] = ()


def provider_context(name: str) -> ProviderContext:
    """The rules of the provider. Raises InputError."""
    provider = find_provider(name)
    return ProviderContext(provider, layout_tables(provider))


def judge_policy(policy: Policy, file: str, context: ProviderContext) -> Iterator[CheckedProblem]:
    """What the provider does not allow in a policy, in each of its variants by labels."""
    for _, there in variants(policy):
        for violation in judge_groups(
            groups_of(there, _model_of), context.provider, context.tables, one_node=True
        ):
            yield CheckedProblem(
                Problem(file, str(violation.at[0]), violation.severity, violation.message, violation.hint)
            )


def _model_of(name: str) -> GpuModel | None:
    """A model of the catalogue that the name of a policy means alone."""
    catalogue = load_catalogue()
    found = None if catalogue.variants(name) or "*" in name else catalogue.find(name)
    return found[0] if found else None


def judge_cluster(
    groups: Sequence[Group],
    document: Value,
    file: str,
    line_of: LineOf,
    context: ProviderContext,
) -> Iterator[CheckedProblem]:
    """What the provider does not allow in the worker groups of a cluster file."""
    top = ManifestNode(file, "", document, line_of)
    for violation in judge_groups(groups, context.provider, context.tables, one_node=False):
        yield _problem(violation, top)


def judge_manifest(
    document: Mapping[str, Any], file: str, path: str, line_of: LineOf, context: ProviderContext
) -> Iterator[CheckedProblem]:
    """What the provider does not allow in a pod, or in the pods of a Deployment, Job and the like."""
    top = object_place(document, file, path, line_of)
    for keys in pod_specs_at(document):
        for violation in judge_pod(_pod(top, keys), context.provider, context.groups):
            yield _problem(violation, top)


def _pod(top: ManifestNode, keys: Keys) -> ManifestPod:
    spec = top.at(*keys)
    selector = spec.at("nodeSelector").value
    containers = tuple(
        ManifestContainer((*keys, kind, n, "resources", "limits"), str(node.at("name").value), limits)
        for kind in ("initContainers", "containers")
        for n, node in enumerate(spec.at(kind).items)
        if isinstance(limits := node.at("resources", "limits").value, Mapping)
    )
    return ManifestPod(
        at=keys,
        who=top.owner,
        host_ipc=spec.at("hostIPC").value is True,
        selector={str(k): str(v) for k, v in selector.items()} if isinstance(selector, Mapping) else {},
        containers=containers,
    )


def _problem(violation: RuleViolation, top: ManifestNode) -> CheckedProblem:
    place = top.at(*violation.at)
    return (
        place.error(violation.message, violation.hint)
        if violation.severity == "error"
        else place.warning(violation.message, violation.hint)
    )
