"""An extender that is told of objects without an API server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from partage.claims.model.names import OWN_NAMES
from partage.codec.values import decode
from partage.edges.kube.scheduling import KINDS, ApiObject, ScheduledNodeJson, ScheduledPodJson
from partage.plan.placement.ssp import Ssp
from partage.scheduler.decide.node_scores import ExtenderPolicy
from partage.scheduler.extender import Extender
from partage.scheduler.protocol import PrioritizeRequest
from partage.scheduler.trial import Tried
from partage.serve_http.http import PageRequest
from tests.scheduler.objects import Json, classes


class TrialHere:
    """Of this process. ended: a test says when."""

    def __init__(self, tried: Tried) -> None:
        self.tried, self.ended, self.stopped, self.trouble = tried, True, False, ""

    def scores(self) -> Ssp | None:
        if self.trouble:
            raise ChildProcessError(self.trouble)
        return self.tried.scores() if self.ended else None

    def stop(self) -> None:
        self.stopped = True


class Fed:
    """clock: stands still unless a test moves it."""

    def __init__(self, policy: ExtenderPolicy = ExtenderPolicy.SSP, driver: str = OWN_NAMES.driver) -> None:
        self.now_s = 1000.0
        self.trials: list[TrialHere] = []
        self.extender = Extender(policy, driver, clock=lambda: self.now_s, begin=self._begin)

    def _begin(self, tried: Tried) -> TrialHere:
        self.trials.append(TrialHere(tried))
        return self.trials[-1]

    def start(self, **objects: Iterable[Json]) -> None:
        """List all kinds, and take the first turn."""
        objects.setdefault("classes", classes())
        for kind in KINDS:
            listed = dict(value_of(kind, one) for one in objects.get(kind, ()))
            self.extender.listed(kind, listed)
            self.extender.answered(kind, "")
        self.extender.turn()

    def put(self, kind: str, *objects: Json) -> None:
        for one in objects:
            self.extender.changed(kind, *value_of(kind, one))

    def remove(self, kind: str, name: str) -> None:
        self.extender.changed(kind, name, None)

    def post(self, body: Any) -> tuple[int, Any]:
        """Status and answer. body: JSON, or bytes."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, _, answer = self.extender.page(PageRequest("/prioritize", body=content))
        return status, json.loads(answer)

    def ranks(self, pod: Json, nodes: Sequence[str]) -> dict[str, int]:
        status, answer = self.post({"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        assert status == 200
        assert [row["Host"] for row in answer] == list(nodes)
        return {row["Host"]: row["Score"] for row in answer}

    def scores(self, pod: Json, nodes: Sequence[str]) -> list[float]:
        found = self.extender.scores(
            PrioritizeRequest(
                decode(ScheduledPodJson, json.dumps(pod).encode(), strict=False).value(), tuple(nodes)
            )
        )
        assert found is not None
        return found


def value_of(kind: str, found: Json) -> tuple[str, Any]:
    """Name and value, as the watch of the kind tells them."""
    content = json.dumps(found).encode()
    meta = found["metadata"]
    name = f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else meta["name"]
    if kind == "nodes":
        return name, decode(ScheduledNodeJson, content, strict=False).value()
    if kind == "pods":
        return name, decode(ScheduledPodJson, content, strict=False).value()
    spec, status = (json.dumps(found.get(part, {})).encode() for part in ("spec", "status"))
    return name, ApiObject(name, spec, status)
