"""Names of resources with which a container asks for nothing: misspelt, unusual, or refused by Kubernetes.

Pure. Source of the rules: validation of the API server (``ValidateContainerResourceName``): a name without a
domain has to be one of Kubernetes' own, and after the domain comes a qualified name (``IsQualifiedName``).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator

from partage.codec.fields import nearest_word
from partage.kubernetes.manifests.node import CheckedProblem, ManifestNode
from partage.model.ids import VENDOR

_OWN = ("cpu", "memory", "ephemeral-storage")
_OWN_PREFIX = "hugepages-"
_QUALIFIED = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
"""What may follow the domain: 63 signs at most."""

_USUAL = {"gpu": "gpu", "gpus": "gpu", "gpushared": "gpu.shared", "gpusshared": "gpu.shared"}
"""By its letters alone, the usual name that was meant. Others are left alone: ``GA102GL_A10`` is a name of
KubeVirt's, and a policy may give any.
"""
_MIG = re.compile(r"mig[._-]?(\d+g)[._-]?(\d+gb)(.*)")
"""What follows stays: ``-me`` (no media engines) is another profile than ``+me``, which is ``.me``."""
_SEPARATORS = re.compile(r"[._-]")

_ALIKE = 0.75
"""So near to ``nvidia.com`` are ``nvdia.com`` and ``nvidia.con``; ``amd.com`` and ``intel.com`` are not."""


def name_findings(amounts: ManifestNode, offered: Collection[str] | None) -> Iterator[CheckedProblem]:
    """``gpu: 1`` and ``nvidia/gpu.shared: 1``. amounts: limits or requests. offered: None if not known."""
    for key in amounts.keys:
        if offered is not None and key in offered:
            continue
        hint = f"did you mean {_meant(key, offered)}?"
        if "/" not in key:
            if key not in _OWN and not key.startswith(_OWN_PREFIX):
                said = f"{key} is not a resource: Kubernetes refuses a name without a domain"
                yield amounts.at(key).error(said, hint)
        elif _misspelt(key.partition("/")[0]):
            yield amounts.at(key).error(f"nothing offers {key}: the domain is {VENDOR}", hint)
        elif not _QUALIFIED.fullmatch(key.partition("/")[2]):
            said = f"{key!r} is not the name of a resource: Kubernetes refuses it"
            yield amounts.at(key).error(said, "after the domain come letters, digits, '-', '_' and '.'")
        elif offered is None and (usual := _usual(key)) not in (None, key):
            said = f"{key} is not a usual name: only a policy that gives GPUs this name offers it"
            yield amounts.at(key).warning(said, f"did you mean {usual}?")


def meant_name(key: str, names: Collection[str]) -> str | None:
    """The one of these names of resources that was most likely meant, by what stands after the domain."""
    by_word = {name.rpartition("/")[2]: name for name in names}
    near = nearest_word(key.rpartition("/")[2], list(by_word))
    return None if near is None else by_word[near]


def _usual(key: str) -> str | None:
    """``nvidia.com/gpu`` for ``nvidia.com/GPU`` and ``nvidia.com/gpus``. None: like no usual name."""
    domain, _, name = key.partition("/")
    if domain != VENDOR:
        return None
    mig = _MIG.fullmatch(name.lower())
    if mig is not None:
        return f"{VENDOR}/mig-{mig[1]}.{mig[2]}{mig[3]}"
    letters = _SEPARATORS.sub("", name.lower())
    return f"{VENDOR}/{_USUAL[letters]}" if letters in _USUAL else None


def _misspelt(domain: str) -> bool:
    if domain == VENDOR:
        return False
    lower = domain.lower()
    name = VENDOR.partition(".")[0]
    return (
        name in (lower, lower.partition(".")[0])
        or difflib.SequenceMatcher(None, lower, VENDOR).ratio() >= _ALIKE
    )


def _meant(key: str, offered: Collection[str] | None) -> str:
    name = key.rpartition("/")[2].lower()
    meant = f"{VENDOR}/{name}"
    return meant_name(key, offered or ()) or meant
