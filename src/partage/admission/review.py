"""What the API server says to an admission webhook, and what it is told (``admission.k8s.io/v1``)."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from msgspec import field

from partage.admission.decide.patch import PatchStep
from partage.codec.values import CodecError, decode, encode
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
