"""A pod that was written for another system, as a pod with claims: what is changed in it, or why not.

The answer is a value: a webhook sends its patch, ``check`` and ``migrate`` apply it to files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import field

from partage.admission.decide import hami
from partage.admission.decide.ack import asked_of_ack
from partage.admission.decide.hami import asked_of_hami
from partage.admission.decide.kai import asked_of_kai
from partage.admission.decide.need import (
    MOST_OF_POD,
    CannotMean,
    ContainerNeed,
    ForeignPod,
    GpuNeed,
    PodGpuNeed,
    SizesUnknown,
    WholeGpu,
)
from partage.admission.decide.nos_gke import asked_of_gke, asked_of_nos
from partage.admission.decide.pod import TRANSLATED, AskingPod, PatchStep, asking_pod, pointer
from partage.admission.decide.refusals import (
    DEFAULT_SCHEDULER,
    NVIDIA,
    THEIR_SCHEDULERS,
    pod_warnings,
    refuse_what_cannot_be,
)
from partage.admission.decide.settings import DialectSettings
from partage.admission.decide.template import ClaimableSizes, ClaimForm, claim_form, home_of
from partage.admission.decide.volcano import RESOURCES, asked_of_volcano
from partage.values import Frozen

GUARANTEE = "partage.dev/guarantee"
FORMER_SCHEDULER = "partage.dev/former-scheduler"
FORMER_SELECTOR = "partage.dev/former-node-selector"
OPT_OUT = "partage.dev/admission"
"""Label of pods that are left alone; its value is ``ignore``."""
_LONGEST_ANNOTATION = 2000


class AdmissionTerms(Frozen):
    """What pods are translated by. sizes: None: not known. listed: names of resources that device plugins
    list, and that are left to them. schedulers: of these systems that run, so that pods stay with them; None:
    nobody has looked, and pods in nobody's words stay as they are.
    """

    settings: DialectSettings = field(default_factory=DialectSettings)
    sizes: ClaimableSizes | None = None
    listed: frozenset[str] = frozenset()
    schedulers: frozenset[str] | None = frozenset()


class ClaimOfPod(Frozen):
    """A claim that the pod gets. name: in the pod. containers: that have it. home: the line of a policy that
    would make a home for it.
    """

    name: str
    form: ClaimForm
    containers: tuple[ContainerNeed, ...]
    home: str


class TranslatedPod(ForeignPod, kw_only=True):
    """What becomes of a pod. moved: it keeps its resources, and only its scheduler changes."""

    claims: tuple[ClaimOfPod, ...]
    patch: tuple[PatchStep, ...]
    moved: bool = False


class RefusedPod(Frozen):
    """Why a pod cannot be translated. sentence: without a full stop. hint: may be empty. unknown: it could
    be, if the sizes of the GPUs were known.
    """

    system: str
    sentence: str
    hint: str = ""
    unknown: bool = False


def translate(
    pod: Mapping[str, Any], terms: AdmissionTerms, owner: Mapping[str, str] | None = None
) -> TranslatedPod | RefusedPod | None:
    """pod: as the API server has it, or the template of one. owner: annotations of the object that makes it.
    None: no pod of these systems, or one that wants to be left alone.
    """
    asking = asking_pod(pod)
    if asking.labels.get(OPT_OUT) == "ignore":
        return None
    found: list[PodGpuNeed] = []
    for system, ask in _SYSTEMS:
        try:
            asked = ask(asking, terms)
        except CannotMean as why:
            return RefusedPod(system, why.sentence, why.hint)
        if asked is not None:
            found.append(asked)
    if not found:
        return _moved(asking, pod, terms, owner or {})
    if len(found) > 1:
        systems = " and ".join(asked.system for asked in found)
        return RefusedPod(
            systems, f"the pod asks for GPUs in the words of {systems} at once", "keep one of them"
        )
    try:
        stays = asking.scheduler in THEIR_SCHEDULERS and not _leaves(asking, terms)
        refuse_what_cannot_be(asking, owner or {}, stays=stays)
        claims, warnings = _claims(found[0], asking, terms.sizes)
    except CannotMean as why:
        return RefusedPod(found[0].system, why.sentence, why.hint, isinstance(why, SizesUnknown))
    patch = (
        *_without_old(found[0], claims, pod),
        *_with_claims(claims, pod),
        *_scheduler(asking, terms),
        *_annotations(found[0], claims, asking, pod, terms),
    )
    said = (*found[0].warnings, *pod_warnings(asking, terms.schedulers or ()), *warnings)
    had = {name for container in asking.containers for name in container.amounts}
    names = frozenset(found[0].names & had)
    return TranslatedPod(found[0].system, found[0].rules, names, said, claims=claims, patch=patch)


def need_of(pod: Mapping[str, Any], settings: DialectSettings) -> PodGpuNeed | None:
    """What a pod asks for in the words of another system that runs it today; None: in nobody's words, or it
    was translated. pod: as for ``translate``. Raises CannotMean.
    """
    asking, terms = asking_pod(pod), AdmissionTerms(settings)
    found = [asked for _, ask in _SYSTEMS if (asked := ask(asking, terms)) is not None]
    if len(found) > 1:
        raise CannotMean("it asks in the words of several systems")
    return found[0] if found else None


_Ask = Callable[[AskingPod, AdmissionTerms], PodGpuNeed | None]
_SYSTEMS: tuple[tuple[str, _Ask], ...] = (
    ("HAMi", lambda pod, terms: asked_of_hami(pod, terms.settings, terms.listed, RESOURCES)),
    ("Volcano", lambda pod, terms: asked_of_volcano(pod, terms.listed)),
    ("KAI", lambda pod, _: asked_of_kai(pod)),
    ("ACK", lambda pod, terms: asked_of_ack(pod, terms.settings, terms.listed)),
    ("nos", lambda pod, terms: asked_of_nos(pod, terms.listed)),
    ("GKE", lambda pod, terms: asked_of_gke(pod, terms.listed)),
)


def _claims(
    asked: PodGpuNeed, pod: AskingPod, sizes: ClaimableSizes | None
) -> tuple[tuple[ClaimOfPod, ...], list[str]]:
    """One for each container, in the order of the spec. An ordinary init container has ended before the
    others begin, and a claim lasts as long as its pod: it uses the claim of a later container that asks for
    the same.
    """
    together = sum(container.need.count for container in asked.containers)
    if together > MOST_OF_POD:
        raise CannotMean(
            f"the containers of the pod ask for {together} GPUs or parts of them together, and "
            f"{MOST_OF_POD} are the most",
            "make several pods of it",
        )
    lasting = [container for container in asked.containers if container.kind != "init"]
    inits = [container for container in asked.containers if container.kind == "init"]
    shared: list[tuple[GpuNeed, list[ContainerNeed]]] = [(user.need, [user]) for user in lasting]
    warnings = []
    after = [number for number, (_, users) in enumerate(shared) if users[0].kind == "container"]
    for init in inits:
        same = [number for number in after if shared[number][0] == init.need]
        if same:
            shared[same[0]][1].append(init)
            continue
        after.append(len(shared))
        shared.append((init.need, [init]))
        if lasting:
            warnings.append(
                f"init container {init.name} asks for something else than the containers: what it has stays "
                "taken until the pod ends"
            )
    names = _free_names(pod.claims)
    claims = []
    for need, users in shared:
        form = claim_form(need, asked.rules, sizes)
        claims.append(ClaimOfPod(next(names), form, tuple(users), home_of(need, asked.rules)))
    return tuple(claims), warnings


def _free_names(taken: Collection[str]) -> Iterator[str]:
    number = 1
    while True:
        name = "partage-gpu" if number == 1 else f"partage-gpu-{number}"
        if name not in taken:
            yield name
        number += 1


# --- the patch ---------------------------------------------------------------------------------


def _without_old(
    asked: PodGpuNeed, claims: Sequence[ClaimOfPod], pod: Mapping[str, Any]
) -> Iterator[PatchStep]:
    """What becomes empty goes, too."""
    spec = pod.get("spec") or {}
    claiming = {(user.group, user.index) for claim in claims for user in claim.containers}
    for group in ("initContainers", "containers"):
        rows = spec.get(group)
        for index, container in enumerate(rows if isinstance(rows, list) else ()):
            resources = container.get("resources") if isinstance(container, Mapping) else None
            if isinstance(resources, Mapping):
                place = pointer("spec", group, index, "resources")
                gone = {part: _gone(resources.get(part), asked.names) for part in ("limits", "requests")}
                whole = {part for part, names in gone.items() if len(names) == _count(resources.get(part))}
                if any(gone.values()) and not {*resources} - whole and (group, index) not in claiming:
                    yield PatchStep("remove", place)
                else:
                    yield from _without(place, gone, whole)
    if asked.selectors and {*asked.selectors} == {*spec["nodeSelector"]}:
        yield PatchStep("remove", pointer("spec", "nodeSelector"))
    else:
        for key in asked.selectors:
            yield PatchStep("remove", pointer("spec", "nodeSelector", key))


def _gone(amounts: object, names: Collection[str]) -> set[str]:
    return {name for name in amounts if name in names} if isinstance(amounts, Mapping) else set()


def _count(amounts: object) -> int:
    """-1: of what is no mapping."""
    return len(amounts) if isinstance(amounts, Mapping) else -1


def _without(place: str, gone: Mapping[str, Collection[str]], whole: Collection[str]) -> Iterator[PatchStep]:
    for part, names in gone.items():
        if names and part in whole:
            yield PatchStep("remove", f"{place}/{part}")
        else:
            yield from (PatchStep("remove", f"{place}{pointer(part, name)}") for name in sorted(names))


def _with_claims(claims: Sequence[ClaimOfPod], pod: Mapping[str, Any]) -> Iterator[PatchStep]:
    spec = pod.get("spec") or {}
    if claims and not isinstance(spec.get("resourceClaims"), list):
        yield PatchStep("add", pointer("spec", "resourceClaims"), [])
    for claim in claims:
        value = {"name": claim.name, "resourceClaimTemplateName": claim.form.name}
        yield PatchStep("add", pointer("spec", "resourceClaims", "-"), value)
        for user in claim.containers:
            resources = spec[user.group][user.index].get("resources")
            there = pointer("spec", user.group, user.index, "resources")
            if not isinstance(resources, Mapping):
                yield PatchStep("add", there, {"claims": [{"name": claim.name}]})
            elif not isinstance(resources.get("claims"), list):
                yield PatchStep("add", f"{there}/claims", [{"name": claim.name}])
            else:
                yield PatchStep("add", f"{there}/claims/-", {"name": claim.name})


def _scheduler(pod: AskingPod, terms: AdmissionTerms) -> Iterator[PatchStep]:
    if _leaves(pod, terms):
        yield PatchStep("replace", pointer("spec", "schedulerName"), DEFAULT_SCHEDULER)


def _leaves(pod: AskingPod, terms: AdmissionTerms) -> bool:
    """Whether its scheduler is one of these systems, and is not there."""
    return pod.scheduler in THEIR_SCHEDULERS.keys() - (terms.schedulers or frozenset())


def _moved(
    pod: AskingPod, plain: Mapping[str, Any], terms: AdmissionTerms, owner: Mapping[str, str]
) -> TranslatedPod | RefusedPod | None:
    """A pod for whole GPUs or MIG devices of a device plugin, in nobody's words, whose scheduler is not
    there: it would stay Pending. None: it is left as it is.
    """
    asks = any(name.startswith(NVIDIA) for container in pod.containers for name in container.amounts)
    opted_out = pod.labels.get(hami.OPT_OUT[0]) == hami.OPT_OUT[1]
    if terms.schedulers is None or not asks or opted_out or pod.node or not _leaves(pod, terms):
        return None
    system = THEIR_SCHEDULERS[pod.scheduler]
    try:
        refuse_what_cannot_be(pod, owner)
    except CannotMean as why:
        return RefusedPod(system, why.sentence, why.hint)
    patch = (*_scheduler(pod, terms), *_annotated({FORMER_SCHEDULER: pod.scheduler}, plain))
    said = f"the scheduler {pod.scheduler} is not there: the default scheduler takes its place"
    warnings = said, *pod_warnings(pod, terms.schedulers or ())
    return TranslatedPod(system, warnings=warnings, claims=(), patch=patch, moved=True)


def _annotations(
    asked: PodGpuNeed,
    claims: Sequence[ClaimOfPod],
    pod: AskingPod,
    plain: Mapping[str, Any],
    terms: AdmissionTerms,
) -> Iterator[PatchStep]:
    said = {TRANSLATED: f"{asked.system}: {_was(asked, pod)}"}
    if claims:
        said[GUARANTEE] = "; ".join(_guarantee(claim) for claim in claims)
    if _leaves(pod, terms):
        said[FORMER_SCHEDULER] = pod.scheduler
    if asked.selectors:
        said[FORMER_SELECTOR] = ", ".join(f"{key}={pod.selector[key]}" for key in asked.selectors)
    yield from _annotated(said, plain)


def _annotated(said: Mapping[str, str], plain: Mapping[str, Any]) -> Iterator[PatchStep]:
    metadata = plain.get("metadata")
    if not isinstance(metadata, Mapping):
        yield PatchStep("add", pointer("metadata"), {})
        metadata = {}
    if not isinstance(metadata.get("annotations"), Mapping):
        yield PatchStep("add", pointer("metadata", "annotations"), {})
    for key, text in said.items():
        yield PatchStep("add", pointer("metadata", "annotations", key), text[:_LONGEST_ANNOTATION])


def _was(asked: PodGpuNeed, pod: AskingPod) -> str:
    """``main nvidia.com/gpu=1 nvidia.com/gpumem=3000``; annotations stay, and need no copy."""
    rows = []
    for container in pod.containers:
        had = [f"{name}={container.amounts[name]}" for name in sorted(asked.names & {*container.amounts})]
        if had:
            rows.append(" ".join((container.name, *had)))
    return "; ".join(rows) or "by annotation"


def _guarantee(claim: ClaimOfPod) -> str:
    users = ", ".join(user.name for user in claim.containers)
    need = claim.containers[0].need
    memory = (
        "all of the GPU, alone, as PARTAGE_GUARANTEE in the container says"
        if isinstance(need.memory, WholeGpu)
        else ("as PARTAGE_GUARANTEE in the container says")
    )
    cores = f", cores {need.cores}: a ceiling under MPS, none under time slicing" if need.cores else ""
    return f"{users}: memory {memory}{cores}"
