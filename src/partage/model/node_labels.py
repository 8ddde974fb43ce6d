"""Labels of a Kubernetes Node: those that Partage asks for, and how keys and values are written."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
