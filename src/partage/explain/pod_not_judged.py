"""What a pod asks for that ``explain`` does not judge: the scheduler may still refuse the pod for it.

Noun phrases. What no manifest shows (quotas of a namespace, priorities of other pods) is not here.
"""

from __future__ import annotations

from collections.abc import Iterator

from partage.kubernetes.manifests.node import ManifestNode
from partage.text import listed

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_SHOWN = 4


def not_judged(spec: ManifestNode) -> tuple[str, ...]:
    """Of a pod's spec. Preferences are left out: they keep no pod waiting."""
    return tuple(_not_judged(spec))


def other_pods(top: ManifestNode) -> str:
    """The other pods that the object makes; empty for one pod."""
    count = top.at("spec", "parallelism" if top.at("kind").value == "Job" else "replicas").value
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        return ""
    return f"the other {count - 1} pods that the object makes: one was tried"


def _not_judged(spec: ManifestNode) -> Iterator[str]:
    gates = [str(one.at("name").value) for one in spec.at("schedulingGates").items]
    if gates:
        yield f"scheduling gates ({listed(gates, _SHOWN)}): nothing places the pod before they are removed"
    if spec.at("affinity", "podAffinity", _REQUIRED).items:
        yield "required nearness to other pods (podAffinity)"
    if spec.at("affinity", "podAntiAffinity", _REQUIRED).items:
        yield "required distance from other pods (podAntiAffinity)"
    spread = spec.at("topologySpreadConstraints").items
    if any(one.at("whenUnsatisfiable").value != "ScheduleAnyway" for one in spread):
        yield "how its pods have to be spread (topologySpreadConstraints)"
    claimed = [one for one in spec.at("volumes").items if _is_claim(one)]
    if claimed:
        names = [str(one.at("name").value) for one in claimed]
        yield f"volumes that may be tied to some nodes ({listed(names, _SHOWN)})"
    yield from _of_containers(spec)
    if (runtime := spec.at("runtimeClassName").value) and not spec.at("overhead").keys:
        yield f"the nodes and the overhead of the runtime class {runtime}"
    if (scheduler := spec.at("schedulerName").value) not in (None, "", "default-scheduler"):
        yield f"the rules of the scheduler {scheduler}"


def _of_containers(spec: ManifestNode) -> Iterator[str]:
    containers = [one for key in ("initContainers", "containers") for one in spec.at(key).items]
    if spec.at("resourceClaims").items or any(one.at("resources", "claims").items for one in containers):
        yield "device claims (DRA)"
    if any(port.at("hostPort").value for one in containers for port in one.at("ports").items):
        yield "ports of the node (hostPort)"


def _is_claim(volume: ManifestNode) -> bool:
    return bool({"persistentVolumeClaim", "ephemeral"}.intersection(volume.keys))
