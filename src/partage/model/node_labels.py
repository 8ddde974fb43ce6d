"""Labels of a Kubernetes Node: those that Partage asks for, and how keys and values are written; its taints
and conditions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from partage.values import Frozen

NodeLabels = Mapping[str, str]
"""The labels of the own Node. ``NodeLabels | None``: None where they are not known (yet)."""

PARTAGE_POLICY = "partage.dev/policy"
NVIDIA_POLICY = "nvidia.com/device-plugin.config"
POLICY_LABELS = (PARTAGE_POLICY, NVIDIA_POLICY)
"""Name a policy of the policy directory; the first one that is set counts."""
MIG_CONFIG = "nvidia.com/mig.config"
"""Names a MIG layout."""
MIG_CONFIG_STATE = "nvidia.com/mig.config.state"
"""What became of it."""

FEATURE_DISCOVERY = "nvidia.com/gfd.timestamp"
"""Only NVIDIA's GPU Feature Discovery sets it on a Node."""

DOMAIN = "partage.dev"
"""Of labels that only Partage writes."""


class WrittenLabels(StrEnum):
    """Which labels the agent writes to its Node.

    own: without those of GPU Feature Discovery, which may run beside it. none: it takes all of its own away.
    """

    ALL = "all"
    OWN = "own"
    NONE = "none"

    def writes(self, key: str) -> bool:
        """Whether a label with this key is written."""
        own = key.startswith(f"{DOMAIN}/") or key == MIG_CONFIG_STATE
        return self is WrittenLabels.ALL or (self is WrittenLabels.OWN and own)


_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_DOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_LONGEST_DOMAIN = 253


def parse_label_key(text: str) -> str:
    """The key of a label, ``pool`` or ``example.com/pool``. Raises ValueError, as Kubernetes refuses it."""
    domain, slash, name = text.rpartition("/")
    good = not slash or (len(domain) <= _LONGEST_DOMAIN and _DOMAIN.fullmatch(domain))
    if not good or not _NAME.fullmatch(name):
        raise ValueError(f"{text[:60]!r} is not the key of a label such as pool or example.com/pool")
    return text


def parse_label_value(text: str) -> str:
    """The value of a label, which may be empty. Raises ValueError, as Kubernetes refuses it."""
    if text and not _NAME.fullmatch(text):
        raise ValueError(
            f"{text[:60]!r} is not the value of a label: letters, digits, '-', '_' and '.', 63 at most"
        )
    return text


def parse_labels(text: str) -> dict[str, str]:
    """``pool=inference,zone=a``; an empty text: no labels. Raises ValueError."""
    labels: dict[str, str] = {}
    for part in text.split(",") if text.strip() else ():
        key, sign, value = part.strip().partition("=")
        if not sign:
            raise ValueError(f"{part.strip()[:60]!r} is not KEY=VALUE")
        labels[parse_label_key(key)] = parse_label_value(value)
    return labels


ACK_SCHEDULE = "ack.node.gpu.schedule"
"""The label with which Alibaba's managed Kubernetes says how the GPUs of a node are shared."""

STOOD_FOR = {
    "cgpu": "a kernel module of Alibaba's that limits memory and compute",
    "core_mem": "a kernel module of Alibaba's that limits memory and compute, each by its own amount",
}
"""Its values for which there is nothing equal."""


class NodeTaint(StrEnum):
    """not-ready: the agent does not offer the GPUs. gpu-unhealthy: a GPU of the node has a fault."""

    NOT_READY = "not-ready"
    GPU_UNHEALTHY = "gpu-unhealthy"

    @property
    def key(self) -> str:
        """Of the taint: ``partage.dev/not-ready``. Nobody else uses such a key."""
        return f"partage.dev/{self.value}"


NO_SCHEDULE = "NoSchedule"
"""The only effect: pods that run are never ended by a taint."""


Truth = Literal["True", "False", "Unknown"]


class NodeCondition(Frozen):
    """A condition of a Node. reason: one word in CamelCase, for programs; message: for people.

    changed_at: when ``status`` changed last, RFC 3339; empty: now.
    """

    type: str
    status: Truth
    reason: str
    message: str
    changed_at: str = ""
