"""What ``simulate --trace`` says about pods that fit on no node or were refused, and what to do next."""

from __future__ import annotations

from partage.plan.placement.mix import WHOLE_MILLI
from partage.text import listed
from partage.units import format_bytes
from partage.whatif.decide.demand import Cause, Unmet
from partage.whatif.decide.pods import PodWants, TracePod


def never_sentence(unmet: Unmet, example: TracePod) -> str:
    """Why pods like this one fit on no node."""
    return f"{_said(unmet, example.wants)}; for example {example.name}"


HINTS = {
    Cause.MODEL: "add nodes with that GPU to the fleet, or allow other models (gpu_spec)",
    Cause.RESOURCE: "offer that resource in the policy, or ask for one that partage plan --policy shows",
    Cause.SHARE: "offer larger shares on some GPUs: fewer replicas, a larger MIG profile, or exclusive",
    Cause.GPUS: "offer more exclusive GPUs on one node (select: ..., exclusive: {}), or split the pod",
    Cause.CPU: "add larger nodes, or let the pod ask for less CPU",
    Cause.CLAIM: "give more GPUs to claims (via: claims), or ask for what partage plan says of claims",
    Cause.MEMORY: "add larger nodes, or let the pod ask for less memory",
    Cause.REFUSED: "let the pod ask for one share, or change the policy so that a container may have more",
}
"""What could be done about pods that fit on no node."""


def _said(unmet: Unmet, wants: PodWants) -> str:
    match unmet.cause:
        case Cause.MODEL:
            return f"no node has a GPU that they may use ({listed(sorted(wants.models), 4)})"
        case Cause.RESOURCE:
            return f"no node offers {unmet.text}"
        case Cause.SHARE:
            return f"they ask for {_size(wants)}, and {_largest(unmet, wants)}"
        case Cause.GPUS if wants.requests:
            return f"they ask for more shares than a node has ({unmet.most})"
        case Cause.GPUS:
            most = (
                f"one container can have at most {unmet.most} on a node" if unmet.most else "none is offered"
            )
            return f"they ask for {_each(wants)}, and {most}"
        case Cause.CPU:
            most_cpu = f"{unmet.most / 1000:g}"
            return f"they ask for {wants.cpu_milli / 1000:g} CPUs, and such a node has {most_cpu}"
        case Cause.MEMORY:
            has = format_bytes(unmet.most)
            return f"they ask for {format_bytes(wants.memory_bytes)} of memory, and such a node has {has}"
        case Cause.CLAIM:
            return f"no device has what their claims ask for: {unmet.text}"
        case Cause.REFUSED:
            return f"the agent refuses them even on an empty node: {unmet.text}"


def _largest(unmet: Unmet, wants: PodWants) -> str:
    if not unmet.most:
        return "no share is offered where they may run"
    size = format_bytes(unmet.most) if wants.gpu_memory_bytes else _part(unmet.most)
    return f"the largest that one container can have is {size}"


def _each(wants: PodWants) -> str:
    """``8 whole GPUs``, ``2 GPUs, 46 % of each``."""
    if wants.gpu_milli >= WHOLE_MILLI:
        return f"{wants.gpus} whole GPUs"
    size = format_bytes(wants.gpu_memory_bytes) if wants.gpu_memory_bytes else f"{wants.gpu_milli / 10:g} %"
    return f"{wants.gpus} GPUs, {size} of each"


def pods_of(count: int) -> str:
    """``1 pod``, ``8,152 pods``."""
    return f"{count:,} pod" + ("" if count == 1 else "s")


def _size(wants: PodWants) -> str:
    return format_bytes(wants.gpu_memory_bytes) if wants.gpu_memory_bytes else _part(wants.gpu_milli)


def _part(milli: int) -> str:
    """``46 % of a GPU``."""
    return "a whole GPU" if milli >= WHOLE_MILLI else f"{milli / 10:g} % of a GPU"


def refused_sentence(pods: int, refusals: int, example: str) -> str:
    """That nodes refused pods which the scheduler had sent there. example: ``NAME: what the agent says``."""
    times = "" if refusals == pods else f", {refusals:,} times in all"
    were = "was" if pods == 1 else "were"
    return (
        f"{pods_of(pods)} {were} refused by a node, after the scheduler had chosen it{times}: "
        f"for example {example}"
    )


NO_ROOM_HINT = (
    "the scheduler counts the free shares of a node, and not of which GPU they are; placement: binpack keeps "
    "more together, shares of fixed size (replicas, MIG) are never refused like this"
)
"""What could be done about pods that are refused because no GPU of the node has so much free."""
