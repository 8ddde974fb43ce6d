"""ResourceQuotas that count a pod as it was written, and count nothing of it once it asks by claim.

Source: Kubernetes counts of claims the devices of a class, ``CLASS.deviceclass.resource.k8s.io/devices``, and
no amounts; of extended resources ``requests.NAME``. HAMi's own webhook reads ``limits.NAME``, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from partage.admission.decide.translate import ClaimOfPod, TranslatedPod
from partage.text import listed
from partage.values import Frozen

_SHOWN = 3


class NamespaceQuota(Frozen):
    """A ResourceQuota. limits: keys of ``spec.hard``."""

    name: str
    limits: frozenset[str]


def uncounted(pod: TranslatedPod, namespace: str, quotas: Iterable[NamespaceQuota]) -> tuple[str, str] | None:
    """What no longer counts the pod, a sentence, and what would, a hint; None: nothing is lost. quotas: of
    the namespace.
    """
    there = list(quotas)
    keys = {f"{part}{name}" for name in pod.names for part in ("requests.", "limits.", "")}
    lost = [(quota.name, *sorted(keys & quota.limits)) for quota in there if keys & quota.limits]
    classes = sorted({name for claim in pod.claims for name in _classes_of(claim)})
    counting = [f"{name}.deviceclass.resource.k8s.io/devices" for name in classes]
    limited = frozenset[str]().union(*(quota.limits for quota in there))
    missing = [key for key in counting if key not in limited]
    if not lost or not missing:
        return None
    name, *limits = lost[0]
    said = f"the ResourceQuota {name} of namespace {namespace} limits {listed(limits, _SHOWN)}"
    hint = f"a quota on {listed(missing, _SHOWN)} counts devices of claims, not memory"
    return f"{said}, and counts nothing of a claim", hint


def _classes_of(claim: ClaimOfPod) -> Iterator[str]:
    for request in claim.form.spec["devices"]["requests"]:
        for way in (request.get("exactly"), *request.get("firstAvailable", ())):
            if way is not None:
                yield str(way["deviceClassName"])
