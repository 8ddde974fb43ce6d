"""Slurm's configuration of simulated nodes, without files."""

from __future__ import annotations

from collections.abc import Sequence

from partage.edges.files.policy import parse_policy
from partage.sim.node.files.load import load_machine
from partage.slurm.cluster import NodeSource, make_config
from partage.slurm.decide.type_names import TypeNames
from partage.slurm.model import SlurmConfig, SlurmVersion
from partage.slurm.text.conf_writer import config_files

WHOLE = "version: partage/v1\n"
MPS = "version: partage/v1\ngpus: [{select: {index: [0, 1]}, mps: {replicas: 4}}]\n"
SHARDS = "version: partage/v1\ngpus: [{select: {index: [0, 1]}, time-slicing: {replicas: 4}}]\n"
MIG = "version: partage/v1\ngpus: [{select: {index: [1]}, mig: {layout: [3g.40gb, 1g.10gb, 1g.10gb]}}]\n"
MIG_MPS = """\
version: partage/v1
gpus:
  - {select: {index: [0, 2]}, mps: {replicas: 4}}
  - {select: {index: [1]}, mig: {layout: [3g.40gb, 1g.10gb, 1g.10gb]}}
"""
MIG_SHARDS = MIG_MPS.replace("mps:", "time-slicing:")
SHARED_MIG = """\
version: partage/v1
gpus: [{select: all, mig: {layout: [3g.40gb, 1g.10gb], time-slicing: {replicas: 4}}}]
"""
MPS_ON_MIG = SHARED_MIG.replace("time-slicing", "mps")
BOTH = """\
version: partage/v1
gpus:
  - {select: {index: [0]}, mps: {replicas: 4}}
  - {select: {index: [1]}, time-slicing: {replicas: 4}}
"""


def source(policy: str, machine: str = "4xh100-sxm5-80gb", names: Sequence[str] = ("g1",)) -> NodeSource:
    """A node with this policy."""
    return NodeSource(
        tuple(names), load_machine(machine).inventory, parse_policy(policy, "policy.yaml").policy
    )


def config(policy: str, version: str, machine: str = "4xh100-sxm5-80gb", types: str = "short") -> SlurmConfig:
    """The configuration of one node, ``g1``. Raises Unsatisfiable."""
    return make_config((source(policy, machine),), SlurmVersion.parse(version), TypeNames(types)).config


def files(
    policy: str, version: str, machine: str = "4xh100-sxm5-80gb", types: str = "short"
) -> dict[str, str]:
    """Its files."""
    return config_files(config(policy, version, machine, types))
