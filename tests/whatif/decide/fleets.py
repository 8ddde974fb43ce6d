"""Small fleets and policies for the tests of ``plan.whatif``."""

from __future__ import annotations

from collections.abc import Sequence

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.plan.offer.desired import DesiredState, resolve
from partage.sim.node.machine_names import parse_machine
from partage.units import GIB
from partage.whatif.decide.pods import Fleet, NodeKind

POLICIES = {
    "exclusive": "gpus: [{select: all, exclusive: {}}]",
    "halves": "gpus: [{select: all, time-slicing: {replicas: 2}}]",
    "quarters of MPS": "gpus: [{select: all, mps: {replicas: 4}}]",
    "units": "gpus: [{select: all, time-slicing: {unit: 2Gi}}]",
    "spread units": "gpus: [{select: all, mps: {unit: 2Gi, placement: spread}}]",
    "mixed": "gpus: [{select: {index: [0]}, time-slicing: {replicas: 3}}, {select: rest, exclusive: {}}]",
}


def kind(machine: str, cpus: int | None = None, memory_gib: int | None = None) -> NodeKind:
    """Nodes of that machine; a trace calls their GPUs by the id of the model."""
    return NodeKind(
        machine,
        parse_machine(machine).inventory,
        frozenset({machine.partition("x")[2]}),
        None if cpus is None else cpus * 1000,
        None if memory_gib is None else memory_gib * GIB,
    )


def fleet(*kinds: NodeKind, each: int = 1) -> Fleet:
    """So many nodes of each kind."""
    of = tuple(place for place in range(len(kinds)) for _ in range(each))
    return Fleet(kinds, tuple(f"node-{number}" for number in range(len(of))), of)


def desired(policy: str, kinds: Sequence[NodeKind]) -> list[DesiredState]:
    """What the policy offers on each."""
    text = f"version: partage/v1\n{policy}\n".encode()
    loaded = parse_policy(text, "policy.yaml")
    return [resolve(loaded.policy, one.inventory, geometry_of) for one in kinds]
