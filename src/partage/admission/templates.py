"""Templates of pods: there before the pod is let in, and swept by the leader when no pod names them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable

from partage.admission.decide.need import CannotMean
from partage.admission.decide.template import (
    ASKED_AT,
    MADE_FOR,
    PODS,
    ClaimForm,
    TemplateMark,
    mark_of,
    may_go,
    needs_mark,
    same_content,
)
from partage.edges.kube.connection import Connection
from partage.edges.kube.objects import Meta, reference, timestamp
from partage.edges.kube.port import ObjectReference
from partage.edges.kube.resources import ClaimTemplates, TemplateJson
from partage.errors import Absent, ClusterError, Conflict

log = logging.getLogger(__name__)

MOST_NEW, NEW_WITHIN_S = 100, 600.0
"""Templates that are made in a namespace in so many seconds: a template is made before quotas count the pod,
and whoever makes pods chooses what they ask for."""
_MOST_NAMESPACES = 10_000
_AT_ONCE = 16
"""Requests to the API server."""


class PodTemplates:
    """owner: the webhook's configuration, with which all templates go; None: not known yet. wall: seconds
    since 1970.
    """

    def __init__(self, connection: Connection, *, wall: Callable[[], float] = time.time) -> None:
        self._api, self._wall = ClaimTemplates(connection), wall
        self.owner: ObjectReference | None = None
        self._running: dict[tuple[str, str, bool], asyncio.Task[None]] = {}
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._made: defaultdict[str, deque[float]] = defaultdict(deque)
        self.made = self.swept = 0

    async def ensure(self, namespace: str, form: ClaimForm, *, dry_run: bool) -> None:
        """The template is there, with this content. dry_run: nothing is written, only looked at. Requests for
        one template at the same time are one. Raises CannotMean, ClusterError.
        """
        key = namespace, form.name, dry_run
        if (task := self._running.get(key)) is None:
            task = asyncio.create_task(self._ensure(namespace, form, dry_run=dry_run))
            self._running[key] = task
            task.add_done_callback(lambda _: self._running.pop(key))
        await asyncio.shield(task)

    async def close(self) -> None:
        """End what is under way."""
        tasks = [*self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ensure(self, namespace: str, form: ClaimForm, *, dry_run: bool) -> None:
        async with self._free:
            for _ in range(3):
                try:
                    found = await self._api.get(namespace, form.name)
                except Absent:
                    if dry_run:
                        return
                    try:
                        await self._create(namespace, form)
                    except Conflict:
                        continue  # another replica was first
                    return
                if not same_content(form.spec, found.spec.spec):
                    raise CannotMean(
                        f"the ResourceClaimTemplate {form.name} of the namespace has another content "
                        "than its name says",
                        f"delete it: kubectl -n {namespace} delete resourceclaimtemplate {form.name}",
                    )
                owner = "" if self.owner is None else self.owner.uid
                if dry_run or not needs_mark(_mark(found), self._wall(), owner):
                    return
                try:
                    await self._api.mark(namespace, form.name, self._asked_now(), self.owner)
                except Absent:
                    continue  # it was swept just now
                return
        raise Conflict(f"the ResourceClaimTemplate {form.name} comes and goes")

    async def _create(self, namespace: str, form: ClaimForm) -> None:
        self._count(namespace)
        manifest = form.manifest(namespace)
        manifest["metadata"]["labels"] |= {MADE_FOR: PODS}
        manifest["metadata"]["annotations"] = self._asked_now()
        if self.owner is not None:
            manifest["metadata"]["ownerReferences"] = [reference(self.owner)]
        await self._api.create(namespace, manifest)
        self.made += 1

    def _asked_now(self) -> dict[str, str]:
        return {ASKED_AT: timestamp(self._wall())}

    def _count(self, namespace: str) -> None:
        now_s = self._wall()
        times = self._made[namespace]
        while times and now_s - times[0] >= NEW_WITHIN_S:
            times.popleft()
        if len(times) >= MOST_NEW:
            raise CannotMean(
                f"the pods of the namespace {namespace[:63]} asked for over {MOST_NEW} different amounts "
                f"in {NEW_WITHIN_S / 60:g} minutes",
                "ask for the same amounts, or wait",
            )
        times.append(now_s)
        if len(self._made) > _MOST_NAMESPACES:
            self._made.pop(next(iter(self._made)))

    # --- the leader's -------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Delete what no pod names. Raises ClusterError."""
        due: defaultdict[str, list[Meta]] = defaultdict(list)
        for row in await self._api.labelled(f"{MADE_FOR}={PODS}"):
            if may_go(_mark(row), self._wall()):
                due[row.metadata.namespace].append(row.metadata)
        for namespace, templates in due.items():
            # Read after the templates: see decide.template.
            named = await self._api.named_by_pods(namespace)
            for template in templates:
                if template.name not in named:
                    await self._delete(template)

    async def _delete(self, template: Meta) -> None:
        try:
            await self._api.delete(template.namespace, template.name, template.uid, template.resource_version)
        except (Absent, Conflict):
            return  # gone, or asked for meanwhile
        except ClusterError as error:
            extra = {"template": f"{template.namespace}/{template.name}", "reason": str(error)}
            log.warning("template cannot be deleted", extra=extra)
            return
        self.swept += 1


def _mark(found: TemplateJson) -> TemplateMark:
    meta = found.metadata
    owners = [owner.uid for owner in meta.owner_references or ()]
    owner = owners[0] if len(owners) == 1 else ""
    return mark_of(meta.labels or {}, meta.annotations or {}, meta.creation_timestamp, owner)
