"""What kube-scheduler says to an extender, and what it is told: a whole number from 0 to 10 for each node.

Source: k8s.io/kube-scheduler/extender/v1/types.go: the Go types have no JSON names, so the outer keys begin
with capitals. Either ``Nodes`` or ``NodeNames`` is there, the other is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

import msgspec

from partage.codec.values import CodecError, decode
from partage.edges.kube.objects import Meta
from partage.edges.kube.scheduling import ScheduledPodJson
from partage.model.pod import ScheduledPod
from partage.plan.placement.room import NO
from partage.values import Frozen

MOST_NODES = 20_000
"""Four times what Kubernetes supports."""


class _NamedNode(Frozen):
    metadata: Meta


class _NamedNodes(Frozen):
    items: tuple[_NamedNode, ...] | None = None


class _Arguments(msgspec.Struct, frozen=True, rename="pascal"):
    pod: ScheduledPodJson | None = None
    nodes: _NamedNodes | None = None
    node_names: tuple[str, ...] | None = None


class PrioritizeRequest(Frozen):
    """A pod, and the nodes on which it could go, each once."""

    pod: ScheduledPod
    nodes: tuple[str, ...]


def read_arguments(body: bytes) -> PrioritizeRequest:
    """Raises CodecError, with a sentence."""
    given = decode(_Arguments, body, strict=False)
    if given.pod is None:
        raise CodecError("Pod is missing")
    if given.node_names is not None:
        names = given.node_names
    elif given.nodes is not None:
        names = tuple(node.metadata.name for node in given.nodes.items or ())
    else:
        raise CodecError("both Nodes and NodeNames are missing")
    if len(names) > MOST_NODES:
        raise CodecError(f"{len(names)} nodes: at most {MOST_NODES} are scored")
    return PrioritizeRequest(given.pod.value(), tuple(dict.fromkeys(names)))


def write_priorities(nodes: Sequence[str], scores: Sequence[int]) -> bytes:
    """A HostPriorityList: of the nodes that were named, and of no other. Never null.

    Written as bytes, which takes a quarter of the time that values take. In JSON a quote inside of a name is
    behind a backslash, so that ``","`` stands between two names and nowhere else.
    """
    if not nodes:
        return b"[]"
    names = msgspec.json.encode(nodes)[2:-2].split(b'","')
    parts = chain.from_iterable(zip(names, map(_SCORES.__getitem__, scores), strict=True))
    return b'[{"Host":"' + b"".join(parts)[: -len(_NEXT)] + b"]"


_NEXT = b',{"Host":"'
_SCORES = [b'","Score":%d}' % score + _NEXT for score in range(11)]


BEST = 10


def ranked(scores: Sequence[float]) -> list[int]:
    """10 for the best score, the others over 0 to 9 in their order, equal ones alike. 0 for NO, and where all
    are equal.

    kube-scheduler adds scores of its own, so the best has a number for itself.
    """
    distinct = sorted(set(scores), reverse=True)
    if len(distinct) < 2:
        return [0] * len(scores)  # equal
    none = distinct[-1] == NO
    rank_of = dict(zip(distinct, _ranks(len(distinct) - none) + (0,) * none, strict=True))
    return list(map(rank_of.__getitem__, scores))


@lru_cache(maxsize=64)
def _ranks(count: int) -> tuple[int, ...]:
    """Of different scores, the best first."""
    others = count - 1
    return BEST, *(9 - place * 10 // others for place in range(others))
