"""The answers of the webhook: a review comes in (``admission.k8s.io/v1``), and goes out with a patch, a
refusal, or nothing to say.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from http import HTTPStatus
from typing import Any

from msgspec import field
from msgspec.structs import replace

from partage.admission.decide.need import CannotMean
from partage.admission.decide.pod import PatchStep
from partage.admission.decide.quotas import uncounted
from partage.admission.decide.translate import RefusedPod, TranslatedPod, translate
from partage.admission.metrics import AdmissionCounts
from partage.admission.state import AdmissionState
from partage.admission.templates import PodTemplates
from partage.agent.log import Seldom
from partage.codec.values import CodecError, decode, encode
from partage.edges.host.own_task import bounded
from partage.errors import Absent, ClusterError, Rejected
from partage.serve_http.http import Answer, PageRequest, json_answer
from partage.text import printable
from partage.values import Frozen

_VERSION, _KIND = "admission.k8s.io/v1", "AdmissionReview"
_MOST_WARNINGS, _LONGEST_WARNING = 16, 240
"""The API server cuts what is longer: 256 characters each, 4096 together."""
_LONGEST_SENTENCE = 1500


class _ReviewedKind(Frozen):
    group: str = ""
    kind: str = ""


class _ReviewRequest(Frozen):
    uid: str
    kind: _ReviewedKind = field(default_factory=_ReviewedKind)
    sub_resource: str = ""
    operation: str = ""
    namespace: str = ""
    dry_run: bool | None = None
    object: Any = None


class _Review(Frozen):
    api_version: str = ""
    kind: str = ""
    request: _ReviewRequest | None = None


MAKERS = {
    _ReviewedKind("batch", "Job"),
    *(_ReviewedKind("apps", kind) for kind in ("Deployment", "ReplicaSet", "StatefulSet")),
}
"""Kinds that make pods: their annotations can say of the pods what no pod says."""


class PodReview(Frozen):
    """A pod that is about to be made, or what will make pods. pod: itself, or their template; None: it is
    neither, and nothing is said about it. dry_run: nothing may be written. maker: annotations of what will
    make the pods; None: it is a pod.
    """

    uid: str
    namespace: str
    pod: Mapping[str, Any] | None
    dry_run: bool
    maker: Mapping[str, str] | None = None


class ReviewRefusal(Frozen):
    """Why a pod is not let in. code: 403: it cannot be; 503: not now."""

    sentence: str
    code: HTTPStatus = HTTPStatus.FORBIDDEN


def read_review(body: bytes) -> PodReview:
    """Raises CodecError, with a sentence."""
    review = decode(_Review, body, strict=False)
    if review.kind != _KIND or review.api_version != _VERSION:
        raise CodecError(f"this is no {_KIND} of {_VERSION}")
    asked = review.request
    if asked is None or not asked.uid:
        raise CodecError("request.uid is missing")
    pod: Mapping[str, Any] | None = None
    maker = None
    if not asked.sub_resource and asked.operation == "CREATE":
        if asked.kind == _ReviewedKind("", "Pod"):
            pod = _mapping(asked.object, "Pod")
        elif asked.kind in MAKERS:
            made_by = _mapping(asked.object, asked.kind.kind)
            pod = _mapping(_mapping(made_by.get("spec"), "spec").get("template"), "pod template")
            marks = _mapping(made_by.get("metadata"), "metadata").get("annotations")
            maker = {
                str(key): text
                for key, text in _mapping(marks or {}, "mapping").items()
                if isinstance(text, str)
            }
    return PodReview(asked.uid, asked.namespace, pod, asked.dry_run is True, maker)


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CodecError(f"request.object is or has no {what}")
    return value


def write_allowed(uid: str, patch: Sequence[PatchStep] = (), warnings: Sequence[str] = ()) -> bytes:
    """The pod is let in, with these changes."""
    response: dict[str, object] = {"uid": uid, "allowed": True}
    if patch:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(encode(patch)).decode()}
    if warnings:
        response["warnings"] = [printable(text)[:_LONGEST_WARNING] for text in warnings[:_MOST_WARNINGS]]
    return _written(response)


def write_refused(uid: str, refusal: ReviewRefusal) -> bytes:
    """The pod is not let in, and who makes it reads the sentence."""
    reason = "Forbidden" if refusal.code is HTTPStatus.FORBIDDEN else "ServiceUnavailable"
    message = printable(refusal.sentence)[:_LONGEST_SENTENCE]
    status = {"status": "Failure", "code": int(refusal.code), "reason": reason, "message": message}
    return _written({"uid": uid, "allowed": False, "status": status})


def _written(response: Mapping[str, object]) -> bytes:
    return encode({"apiVersion": _VERSION, "kind": _KIND, "response": response})


log = logging.getLogger(__name__)

MUTATE = "/mutate"
WRITE_WITHIN_S = 4.0
"""For all templates of a pod: less than the API server waits for the webhook."""
_MOST_CONTAINERS = 500
"""Of a pod that is looked through: a tenant has written it."""
_MALFORMED, _NONE = "malformed", "none"


class _ReviewOutcome(Frozen):
    body: bytes
    dialect: str
    result: str


class Webhook:
    """Asked by threads; what is asked of the API server is asked by the loop that ``begin`` was called in."""

    def __init__(
        self, state: AdmissionState, templates: PodTemplates, *, refuses_uncounted: bool = True
    ) -> None:
        """refuses_uncounted: pods that a quota no longer counts; else they are let in with a warning."""
        self._state, self._templates = state, templates
        self._refuses_uncounted = refuses_uncounted
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failed = Seldom()
        self.counts = AdmissionCounts()

    def begin(self) -> None:
        """The loop of now is the one."""
        self._loop = asyncio.get_running_loop()

    def page(self, request: PageRequest) -> Answer:
        """``POST /mutate``. While too little is known, the API server is told to come again."""
        began_s = time.perf_counter()
        try:
            review = read_review(request.body)
        except CodecError as error:
            self.counts.ended(_NONE, _MALFORMED, time.perf_counter() - began_s)
            return json_answer({"error": f"this is no review of a pod: {error}"}, HTTPStatus.BAD_REQUEST)
        if waits := self._state.waits_for:
            self.counts.ended(_NONE, "failed", time.perf_counter() - began_s)
            return json_answer({"error": "not ready", "waitsFor": waits}, HTTPStatus.SERVICE_UNAVAILABLE)
        outcome = self._reviewed(review)
        self.counts.ended(outcome.dialect, outcome.result, time.perf_counter() - began_s)
        return HTTPStatus.OK, "application/json; charset=utf-8", outcome.body

    def _reviewed(self, review: PodReview) -> _ReviewOutcome:
        if review.pod is None:
            return _ReviewOutcome(write_allowed(review.uid), _NONE, "unchanged")
        if (found := _containers_in(review.pod)) > _MOST_CONTAINERS:
            said = (
                f"the pod has {found} containers, and {_MOST_CONTAINERS} are the most that are looked through"
            )
            return _refused(review, RefusedPod("another system", said))
        terms, homes = self._state.now()
        match translate(review.pod, terms, review.maker):
            case RefusedPod() as refused:
                return _refused(review, refused)
            case None:
                return _ReviewOutcome(write_allowed(review.uid), _NONE, "unchanged")
            case _ if review.maker is not None:  # its pods come by themselves
                return _ReviewOutcome(write_allowed(review.uid), _NONE, "unchanged")
            case TranslatedPod() as pod:
                if pod.claims and (why := self._state.too_old):
                    return _refused(review, RefusedPod(pod.system, why, "a newer cluster"))
                if (refusal := homes.refusal(pod)) is not None:
                    return _refused(review, refusal)
                lost = uncounted(pod, review.namespace, self._state.quotas_of(review.namespace))
                if lost is not None and self._refuses_uncounted:
                    return _refused(review, RefusedPod(pod.system, *lost))
                if lost is not None:
                    pod = replace(pod, warnings=(": ".join(lost), *pod.warnings))
                return self._translated(review, pod)

    def _translated(self, review: PodReview, pod: TranslatedPod) -> _ReviewOutcome:
        try:
            self._in_loop(lambda: self._ensure(review, pod))
        except CannotMean as why:
            return _refused(review, RefusedPod(pod.system, why.sentence, why.hint))
        except (Rejected, Absent) as error:  # a quota, or a namespace that ends
            return _refused(review, RefusedPod(pod.system, f"its template cannot be made: {error}"))
        except (ClusterError, TimeoutError, CancelledError) as error:
            reason = str(error) or "the API server did not answer"
            self._failed.warn(log, "template cannot be written", reason)
            said = f"written for {pod.system}, and its template could not be written now: {reason}: try again"
            refusal = ReviewRefusal(f"the pod is {said}", HTTPStatus.SERVICE_UNAVAILABLE)
            return _ReviewOutcome(write_refused(review.uid, refusal), pod.system, "failed")
        return _ReviewOutcome(write_allowed(review.uid, pod.patch, pod.warnings), pod.system, "translated")

    async def _ensure(self, review: PodReview, pod: TranslatedPod) -> None:
        forms = {claim.form.name: claim.form for claim in pod.claims}.values()
        written = (self._templates.ensure(review.namespace, form, dry_run=review.dry_run) for form in forms)
        await asyncio.gather(*written)

    def _in_loop(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Raises what the work raises, TimeoutError."""
        assert self._loop is not None, "the service runs"
        asked = asyncio.run_coroutine_threadsafe(bounded(work(), WRITE_WITHIN_S), self._loop)
        asked.result(WRITE_WITHIN_S + 1.0)


def _containers_in(pod: Mapping[str, Any]) -> int:
    spec = pod.get("spec")
    rows = (
        [spec.get(group) for group in ("containers", "initContainers")] if isinstance(spec, Mapping) else []
    )
    return sum(len(group) for group in rows if isinstance(group, list))


def _refused(review: PodReview, refused: RefusedPod) -> _ReviewOutcome:
    hint = f" ({refused.hint})" if refused.hint else ""
    who = "the pod is" if review.maker is None else "its pods are"
    sentence = f"{who} written for {refused.system}, and refused: {refused.sentence}{hint}"
    return _ReviewOutcome(write_refused(review.uid, ReviewRefusal(sentence)), refused.system, "refused")
