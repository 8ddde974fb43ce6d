"""What the pods of manifests are compared with, the offers of policies on a machine; what is not compared."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from partage.errors import InputError, Unsatisfiable
from partage.kubernetes.manifests.input_files import ManifestInput, Paper, PolicyInput, objects
from partage.kubernetes.manifests.pods import pod_specs_at
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.kubernetes.manifests.manifest import Resources
    from partage.model.gpu import Inventory
    from partage.model.node_labels import NodeLabels
    from partage.model.policy import Policy

_MACHINE = "name one with --machine NAME, or --this-node"


class PolicyOffer(Frozen):
    """What one policy offers on the machine. policy: which one it is. only_cdi: its devices reach containers
    by CDI only.
    """

    policy: str
    offered: Resources
    only_cdi: bool = False


def offer_of(name: str, policy: Policy, inventory: Inventory) -> PolicyOffer:
    """What the policy offers there. Raises InputError, Unsatisfiable."""
    from partage.edges.files.catalogue import geometry_of
    from partage.model.share import plugin_resources
    from partage.plan.offer.advertise import advertise
    from partage.plan.offer.assign import assign

    offer = advertise(assign(policy, inventory, geometry_of), inventory, policy)
    return PolicyOffer(name, plugin_resources(offer), policy.options.only_cdi)


def offers_in(
    papers: Sequence[Paper], config: str | None, labels: NodeLabels | None, inventory: Inventory
) -> Iterator[PolicyOffer]:
    """What each policy among the files offers on the machine: each configuration and each variant by labels.
    What is wrong with a policy is said where it is checked.
    """
    for paper in papers:
        with suppress(InputError, Unsatisfiable):
            for name, policy in _policies_in(paper, config, labels):
                with suppress(InputError, Unsatisfiable):
                    yield offer_of(name, policy, inventory)


def _policies_in(paper: Paper, config: str | None, labels: NodeLabels | None) -> Iterator[tuple[str, Policy]]:
    from partage.edges.files.policy import configurations, parse_policy
    from partage.plan.offer.conditions import for_node, variants

    if not isinstance(paper, PolicyInput | ManifestInput):
        return
    named = configurations(paper.content, paper.file) if config is None else []
    if isinstance(paper, ManifestInput) and not configurations(paper.content, paper.file):
        return
    chosen: list[str | None] = [*named] or [config]
    for one in chosen:
        policy = parse_policy(paper.content, paper.file, one, os.environ).policy
        name = f"{paper.file} ({one})" if named else paper.file
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
        elif isinstance(paper, ManifestInput) and not offers and _has_pods(paper):
            said.append(
                f"{paper.file}: not compared with a policy: {_what_lacks(machine=machine, policy=policy)}"
            )
    return said


def _what_lacks(*, machine: bool, policy: bool) -> str:
    if not policy:
        return "name one with --policy FILE" + ("" if machine else ", and a machine with --machine NAME")
    return "no policy here can be used on this machine" if machine else f"which GPUs? {_MACHINE}"


def _has_pods(paper: ManifestInput) -> bool:
    return any(True for _, document, _ in objects(paper) for _ in pod_specs_at(document))


def has_policy(papers: Sequence[Paper]) -> bool:
    """Whether one of the files is a policy, or a ConfigMap of policies."""
    from partage.edges.files.policy import configurations

    return any(
        isinstance(paper, PolicyInput)
        or (isinstance(paper, ManifestInput) and configurations(paper.content, paper.file))
        for paper in papers
    )
