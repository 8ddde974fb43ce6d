"""The webhook as a service: watches, certificates, leader, sweep, and the pages."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from partage.admission.decide.refusals import THEIR_SCHEDULERS
from partage.admission.decide.rotation import EVERY_S, SOON_S
from partage.admission.metrics import AdmissionNow
from partage.admission.state import AdmissionState, follow_homes
from partage.admission.templates import PodTemplates
from partage.admission.webhook import MUTATE, Webhook
from partage.agent.log import Seldom
from partage.claims.model.slices import ServerVersion
from partage.edges.host.own_task import unending
from partage.edges.host.read_file import read_regular
from partage.edges.kube.connection import Connection
from partage.edges.kube.election import Election
from partage.edges.kube.port import ObjectReference
from partage.edges.kube.webhooks import WebhookObjects
from partage.errors import Absent, ClusterError, Conflict
from partage.serve_http.http import Answer, Page, PageRequest, alive_answer, ready_answer
from partage.serve_http.metrics.exposition import Family, metrics_page
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.admission.certificates import CertificateKeeper  # cryptography is an extra

log = logging.getLogger(__name__)

SWEEP_S = 300.0
LOOK_S = 60.0
"""Between two looks for schedulers of other systems, and at the version of the server."""
_LARGEST_CA = 1 << 20
_OBJECTS = {
    "hami-scheduler": ("hami-scheduler",),
    "volcano": ("volcano", "volcano-scheduler", "vc-scheduler"),
    "kai-scheduler": ("kai-scheduler", "kai-scheduler-default"),
    "runai-scheduler": ("runai-scheduler", "runai-scheduler-default"),
    "nos-scheduler": ("nos-scheduler",),
}
"""By name of the scheduler: how its Deployment or Lease is called. docs/reference/other-systems.md has them.
Sources, of August 2026: HAMi charts/hami (Lease: schedulerName; Deployment: RELEASE-scheduler); Volcano
installer/helm, pkg/util GenerateComponentName (Lease: the scheduler's name); KAI
pkg/operator/operands/scheduler (Deployment: kai-scheduler-SHARD; Lease: kai-scheduler); nos helm-charts/nos
(Lease: nos-scheduler; Deployment: RELEASE-scheduler). Those of Run:ai, from which KAI comes, are not
published: called alike.
"""


class AdmissionParts(Frozen):
    """What the service works with. keeper: of its own certificate; None: it has files. ca: of those, which
    the API server is told to trust; None: somebody else tells it. looks: whether schedulers of other systems
    are looked for. refuses_uncounted: as for ``Webhook``.
    """

    connection: Connection
    objects: WebhookObjects
    name: str
    state: AdmissionState
    templates: PodTemplates
    election: Election
    keeper: CertificateKeeper | None = None
    ca: Path | None = None
    looks: bool = True
    refuses_uncounted: bool = True


class AdmissionService:
    """Runs until it is cancelled."""

    def __init__(self, parts: AdmissionParts, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._parts, self._clock = parts, clock
        self.webhook = Webhook(parts.state, parts.templates, refuses_uncounted=parts.refuses_uncounted)
        self._beat_s = clock()
        self._failed = defaultdict[str, Seldom](Seldom)

    def pages(self) -> Mapping[str, Page]:
        """What is served; a POST goes to ``MUTATE`` alone."""
        return {
            MUTATE: self.webhook.page,
            "/metrics": metrics_page(self.families),
            "/healthz": self._health,
            "/readyz": self._health,
            "/livez": self._life,
        }

    async def run(self) -> None:
        """Never returns. Raises what is a mistake of ours."""
        parts = self._parts
        self.webhook.begin()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(unending("watches", follow_homes(parts.connection, parts.state)))
                group.create_task(unending("look", self._look()))
                group.create_task(unending("owner", self._follow_owner()))
                group.create_task(unending("beat", self._beat()))
                if parts.keeper is not None:
                    group.create_task(unending("certificate", parts.keeper.follow()))
                group.create_task(unending("election", parts.election.run(self._lead)))
        finally:
            await parts.templates.close()

    # --- every replica ------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Which server it is, and which schedulers of other systems are there."""
        parts = self._parts
        while True:
            pause_s = LOOK_S
            try:
                version = ServerVersion.parse(await parts.objects.server_version())
                if parts.looks:
                    found = [
                        name
                        for name in sorted(THEIR_SCHEDULERS)
                        if await parts.objects.any_deployment_or_lease(_OBJECTS[name])
                    ]
                    parts.state.has_schedulers(frozenset(found))
                parts.state.runs(version)  # with it the service is ready: pods are moved to another scheduler
            except (ClusterError, ValueError) as error:
                self._failed["look"].warn(log, "cluster cannot be looked at", error)
                pause_s = SOON_S
            await asyncio.sleep(pause_s)

    async def _follow_owner(self) -> None:
        """Templates are the configuration's: they go with it when the webhook is uninstalled."""
        parts = self._parts
        while True:
            try:
                state = await parts.objects.configuration()
            except Absent:
                parts.templates.owner = None
            except ClusterError as error:
                self._failed["owner"].warn(log, "configuration cannot be read", error)
            else:
                parts.templates.owner = ObjectReference(
                    "MutatingWebhookConfiguration",
                    parts.name,
                    state.uid,
                    api_version="admissionregistration.k8s.io/v1",
                )
            await asyncio.sleep(EVERY_S if parts.templates.owner is not None else SOON_S)

    async def _beat(self) -> None:
        while True:
            self._beat_s = self._clock()
            await asyncio.sleep(_BEAT_S)

    # --- the leader ---------------------------------------------------------------------------------

    async def _lead(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(unending("sweep", self._sweep()))
            if self._parts.keeper is not None:
                group.create_task(unending("keep certificate", self._parts.keeper.lead()))
            elif self._parts.ca is not None:
                group.create_task(unending("trust", self._trust_file(self._parts.ca)))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self._parts.templates.sweep()
            except ClusterError as error:
                self._failed["sweep"].warn(log, "templates cannot be swept", error)

    async def _trust_file(self, ca: Path) -> None:
        while True:
            pause_s = EVERY_S
            try:
                content = read_regular(ca, _LARGEST_CA)
                state = await self._parts.objects.configuration()
                if any(found != content for found in state.bundles):
                    await self._parts.objects.trust(state, content)
            except (Conflict, Absent):
                pause_s = SOON_S
            except (ClusterError, OSError) as error:
                self._failed["trust"].warn(log, "the API server cannot be told whom to trust", error)
            await asyncio.sleep(pause_s)

    # --- pages --------------------------------------------------------------------------------------

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Why no pod can be let in yet; (): all can."""
        keeper = self._parts.keeper
        return (*self._parts.state.waits_for, *(keeper.waits_for if keeper else ()))

    def families(self) -> list[Family]:
        """Metrics."""
        parts = self._parts
        now = AdmissionNow(
            parts.election.leads,
            parts.state.following,
            parts.keeper.ends_s if parts.keeper else None,
            parts.templates.made,
            parts.templates.swept,
        )
        return self.webhook.counts.families(now)

    def _health(self, _: PageRequest) -> Answer:
        return ready_answer(self.waits_for)

    def _life(self, _: PageRequest) -> Answer:
        return alive_answer(alive=self._clock() - self._beat_s < _STALLED_S)


_BEAT_S, _STALLED_S = 5.0, 60.0
