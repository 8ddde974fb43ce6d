"""The answers of the webhook: a review comes in, and goes out with a patch, a refusal, or nothing to say."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError
from http import HTTPStatus
from typing import Any

from msgspec.structs import replace

from partage.admission.decide.need import CannotMean
from partage.admission.decide.quotas import uncounted
from partage.admission.decide.translate import RefusedPod, TranslatedPod, translate
from partage.admission.metrics import AdmissionCounts
from partage.admission.review import (
    PodReview,
    ReviewRefusal,
    read_review,
    write_allowed,
    write_refused,
)
from partage.admission.state import AdmissionState
from partage.admission.templates import PodTemplates
from partage.agent.log import Seldom
from partage.codec.values import CodecError
from partage.edges.host.own_task import bounded
from partage.errors import Absent, ClusterError, Rejected
from partage.serve_http.http import Answer, PageRequest, json_answer
from partage.values import Frozen

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
