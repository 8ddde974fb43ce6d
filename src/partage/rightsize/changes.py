"""What ``rightsize`` changes: a policy into which workloads fit, and patches for what makes their pods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from partage.errors import Unsatisfiable
from partage.kubernetes.manifests.owners import PodOwner, owners_of
from partage.model.ids import MEMORY_RESOURCE, VENDOR
from partage.model.policy import MemoryUnits
from partage.plan.history.evidence import JOB
from partage.plan.offer.memory_units import MOST_UNITS, count_units
from partage.rightsize.decide import GpuSize, Recommendation, units_needed, whole_gib
from partage.text import count_of, printable
from partage.units import format_bytes
from partage.values import Frozen

SHARED = f"{VENDOR}/gpu.shared"
_MADE_ANEW = {
    "Job": "the pods of a Job cannot be changed: delete it and create it with this",
    "Pod": "a pod cannot be changed: delete it and create it with this",
}
"""Kinds that kubectl patch does not change."""


class Wanted(Frozen):
    """How the GPUs are to be shared. unit_bytes: by amounts of memory; None: by equal shares."""

    strategy: str
    gpu: GpuSize
    unit_bytes: int | None = None


class Patch(Frozen):
    """comment: lines for people. body: the patch; None: there is only something to say."""

    comment: str
    body: dict[str, Any] | None = None


def check_unit(unit_bytes: int | None, gpu: GpuSize) -> None:
    """Raises Unsatisfiable where no policy can have such a unit. None: there is none."""
    if unit_bytes is None:
        return
    count = count_units(MemoryUnits(unit_bytes), gpu.memory_bytes)
    if not 0 < count <= MOST_UNITS:
        raise Unsatisfiable(
            f"a {gpu.product} has {count:,} units of {format_bytes(unit_bytes)}; "
            f"a node has at most {MOST_UNITS:,}",
            "take --unit 1Gi",
        )


def policy(recommendations: Sequence[Recommendation], wanted: Wanted) -> dict[str, Any]:
    """A policy into which every workload fits: whole GPUs for those that need one each, and shares for the
    others. Raises Unsatisfiable where there is none.
    """
    alone, sharing = _groups(recommendations, wanted)
    if not sharing:
        _check_alone(max(alone, key=lambda recommendation: recommendation.need_bytes), wanted)
        return {"version": "partage/v1", "gpus": [{"select": "all", "exclusive": {}}]}
    entries: list[dict[str, Any]] = []
    if alone:
        entries.append({"select": {"index": list(range(len(alone)))}, "exclusive": {}})
    entries.append({"select": "rest" if alone else "all", **_shared_entry(sharing, wanted)})
    return {"version": "partage/v1", "gpus": entries}


def _check_alone(largest: Recommendation, wanted: Wanted) -> None:
    """Raises Unsatisfiable where nobody can share a GPU in the way that was asked for."""
    if wanted.strategy == "mig" and not largest.profile:
        raise Unsatisfiable(
            f"no MIG profile holds {largest.evidence.workload}", "take --strategy mps or time-slicing"
        )
    if wanted.strategy != "mig" and wanted.unit_bytes is not None:
        raise Unsatisfiable(
            f"{largest.evidence.workload} needs {whole_gib(largest.need_bytes)}, and a "
            f"{wanted.gpu.product} has fewer units",
            "give it a GPU of its own",
        )


def _groups(
    recommendations: Sequence[Recommendation], wanted: Wanted
) -> tuple[list[Recommendation], list[Recommendation]]:
    """Those that need a GPU of their own, and those that share one."""
    sure = _sure(recommendations)
    alone = [recommendation for recommendation in sure if _needs_a_gpu(recommendation, wanted)]
    return alone, [recommendation for recommendation in sure if recommendation not in alone]


def _needs_a_gpu(recommendation: Recommendation, wanted: Wanted) -> bool:
    if wanted.strategy == "mig":
        return recommendation.instances < 2
    if wanted.unit_bytes is not None:
        return units_needed(recommendation, wanted.unit_bytes, wanted.gpu) is None
    return _number(recommendation, wanted.strategy) < 2


def _shared_entry(sharing: Sequence[Recommendation], wanted: Wanted) -> dict[str, Any]:
    """How the GPUs of those are shared that share one."""
    if wanted.strategy == "mig":
        largest = max(sharing, key=lambda recommendation: recommendation.need_bytes)
        return {"mig": {"layout": [largest.profile] * largest.instances}}
    if wanted.unit_bytes is not None:
        return {wanted.strategy: {"unit": whole_gib(wanted.unit_bytes)}}
    return {
        wanted.strategy: {
            "replicas": min(_number(recommendation, wanted.strategy) for recommendation in sharing)
        }
    }


def policy_remarks(recommendations: Sequence[Recommendation], wanted: Wanted) -> Iterator[str]:
    """What is to be known of the policy: which workload decided, and which ones are not in it."""
    alone, sharing = _groups(recommendations, wanted)
    largest = max(sharing or alone, key=lambda one: one.need_bytes)
    which = "The largest workload that shares a GPU" if alone and sharing else "The largest workload"
    yield f"For {wanted.gpu.product}. {which}: {_needs(largest)}"
    for recommendation in alone:
        yield f"needs a GPU of its own: {_needs(recommendation)}"
    if alone and sharing:
        yield (
            f"the policy gives each of them one GPU ({count_of(len(alone), 'GPU')}): add indexes where more "
            "of their pods run at a time; the node needs more GPUs than that"
        )
    doubtful = [advised for advised in recommendations if advised.doubt is not None]
    for advised in doubtful:
        yield f"not counted, since its need is not known ({advised.doubt}): {advised.evidence.workload}"
    if doubtful:
        yield "those that are not counted have no GPU in this policy: add an entry for them before you use it"


def commented(text: str) -> str:
    """Lines of a comment in YAML."""
    return "".join(f"# {printable(line)}\n" for line in text.splitlines())


def _needs(recommendation: Recommendation) -> str:
    return f"{recommendation.evidence.workload}: needs {whole_gib(recommendation.need_bytes)}"


def _number(recommendation: Recommendation, strategy: str) -> int:
    return recommendation.mps if strategy == "mps" else recommendation.time_slicing


def patches(
    recommendations: Sequence[Recommendation], wanted: Wanted, owners: Sequence[PodOwner] = ()
) -> Iterator[Patch]:
    """For each workload that is sure: a patch of what makes its pods. owners: of the manifests. Raises
    Unsatisfiable as ``policy``, whose resources they ask for.
    """
    alone, sharing = _groups(recommendations, wanted)
    for recommendation in recommendations:
        if recommendation.doubt is None:
            asked = (
                {f"{VENDOR}/gpu": 1} if recommendation in alone else _asked(recommendation, wanted, sharing)
            )
            yield _patch(recommendation, asked, owners)


def _sure(recommendations: Sequence[Recommendation]) -> list[Recommendation]:
    sure = [recommendation for recommendation in recommendations if recommendation.doubt is None]
    if not sure:
        raise Unsatisfiable("nothing can be recommended", "partage rightsize without -o says why")
    return sure


def _asked(
    recommendation: Recommendation, wanted: Wanted, sharing: Sequence[Recommendation]
) -> dict[str, int]:
    """The limits of a workload that shares a GPU, as the policy offers them."""
    if wanted.strategy == "mig":
        return {f"{VENDOR}/mig-{max(sharing, key=lambda other: other.need_bytes).profile}": 1}
    if wanted.unit_bytes is not None:
        return {MEMORY_RESOURCE: units_needed(recommendation, wanted.unit_bytes, wanted.gpu) or 1}
    return {SHARED: 1}


def _patch(recommendation: Recommendation, asked: dict[str, int], owners: Sequence[PodOwner]) -> Patch:
    workload = recommendation.evidence.workload
    needs = _needs(recommendation)
    if workload.startswith(JOB):
        return Patch(f"{needs}\nits job asks for it itself: sbatch --gres, docs/how-to/slurm.md")
    namespace, name, container = (*workload.split("/", 2), "", "")[:3]
    matches = owners_of(workload, owners)
    if len(matches) == 1:
        return _of_owner(matches[0], needs, namespace, container, asked)
    if matches:
        why = "its pods may be of the " + " or the ".join(
            f"{match.kind} in {match.file}" for match in matches
        )
    else:
        why = "what makes its pods is not known" + (": no manifest has it" if owners else "")
    template = {"spec": {"containers": [_container(container, asked, frozenset())]}}
    return Patch(
        f"{needs}\n{why}; this is for a Deployment, StatefulSet or DaemonSet:\n"
        f"  kubectl patch KIND {name} --namespace {namespace} --patch-file FILE\n"
        "a CronJob has it below spec.jobTemplate.spec; a Job or a Pod has to be made anew\n"
        "a limit of another GPU resource in it has to go; --manifests knows both",
        {"spec": {"template": template}},
    )


def _of_owner(owner: PodOwner, needs: str, namespace: str, container: str, asked: dict[str, int]) -> Patch:
    names = owner.resources[container]
    body: Any = {"containers": [_container(container, asked, names)]}
    for key in reversed(owner.pod_spec_at):
        body = {key: body}
    how = _MADE_ANEW.get(owner.kind) or (
        f"kubectl patch {owner.kind.lower()} {owner.name} --namespace {namespace} --patch-file FILE"
    )
    metadata = {"name": owner.name, "namespace": namespace}
    head = {"apiVersion": owner.api_version, "kind": owner.kind, "metadata": metadata}
    return Patch(f"{needs}\n{owner.file}: {how}", {**head, **body})


def _container(name: str, asked: dict[str, int], before: frozenset[str]) -> dict[str, Any]:
    """A container's resources. What it asked for of GPUs before goes."""
    old = {resource: None for resource in sorted(before) if _is_gpu(resource) and resource not in asked}
    resources: dict[str, Any] = {"limits": {**old, **asked}}
    if gone := {resource: None for resource in before if _is_gpu(resource)}:
        resources["requests"] = gone  # a request is what the limit is, where it is not given
    return {"name": name, "resources": resources}


def _is_gpu(resource: str) -> bool:
    return resource.startswith(f"{VENDOR}/") or resource == MEMORY_RESOURCE
