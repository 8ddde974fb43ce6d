"""What a story's machine cannot do: found when the story is read, and not in the middle of a play."""

from __future__ import annotations

from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.errors import InputError
from partage.lab.stories.model import Story
from partage.model.gpu import NoDriver
from partage.plan.offer.desired import resolve
from partage.sim.node.effects import apply_fault
from partage.sim.node.faults import Fault, Occupy, RaiseXid
from partage.sim.node.machine import Machine
from partage.sim.node.state import power_on


def check_policy(story: Story) -> None:
    """Raises InputError or Unsatisfiable if the policy that the story begins with is wrong, or cannot hold on
    its machine. Problems name the policy as the story does.
    """
    if story.policy is None or story.policy.files is not None or story.labels is not None:
        return  # labels choose while it is played, and what is wrong then is reported
    policy = parse_policy(story.policy.content, story.policy.name, story.config).policy
    if not isinstance(story.machine.inventory.driver, NoDriver):
        resolve(policy, story.machine.inventory, geometry_of)


def why_impossible(machine: Machine, fault: Fault) -> str:
    """Why the fault cannot happen on the machine at any time; empty if it can.

    MIG instances are not looked for: they may be made before the fault happens.
    """
    anywhere = replace(fault, gi=None, ci=None) if isinstance(fault, RaiseXid | Occupy) else fault
    try:
        apply_fault(power_on(machine), anywhere)
    except InputError as error:
        return error.problems[0].message
    return ""


def gpu_indexes(machine: Machine) -> frozenset[int]:
    """The indexes of the machine's GPUs, lost ones too."""
    inventory = machine.inventory
    return frozenset([*(gpu.index for gpu in inventory.gpus), *(gpu.index for gpu in inventory.lost)])
