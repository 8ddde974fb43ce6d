"""Writes what pods hold of a GPU's memory on the pods, as Alibaba's gpushare does, for its dashboards.

Afterwards, from the ledger; nothing reads it. It takes the right to patch pods: where the account does not
have it, that is said once, and nothing is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from partage.agent.status.status import AgentStatus
from partage.edges.kube.connection import Backoff
from partage.edges.kube.port import Cluster
from partage.errors import Absent, PartageError, Rejected
from partage.plan.cluster.gpu_memory import pod_annotations
from partage.plan.report import Report

log = logging.getLogger(__name__)

_Pod = tuple[str, str]


class PodNotes:
    """Follows the reports. A pod is written once for what it holds."""

    def __init__(self, cluster: Cluster, status: AgentStatus, backoff: Backoff | None = None) -> None:
        self._cluster, self._status = cluster, status
        self._retry = backoff or Backoff(5.0, 300.0)
        self._written: dict[_Pod, Mapping[str, str]] = {}

    async def run(self) -> None:
        """Until it is cancelled. Where the account may not do it, nothing is written."""
        last: Report | None = None
        while True:
            last = await self._status.until(lambda report: report is not last)  # noqa: B023 - asked at once
            wanted = pod_annotations(last.offer, last.entries, last.node.inventory.memory_of_devices)
            self._written = {pod: said for pod, said in self._written.items() if pod in wanted}
            try:
                await self._write(wanted)
            except Rejected as error:
                log.info("pods are not annotated", extra={"reason": error.problems[0].message})
                await asyncio.Event().wait()  # a task that returns is taken for one that has failed
            except PartageError:  # no answer: said by the others already
                last = None
                await asyncio.sleep(self._retry.pause_s())
            else:
                self._retry.reset()

    async def _write(self, wanted: Mapping[_Pod, Mapping[str, str]]) -> None:
        for pod, said in wanted.items():
            if self._written.get(pod) == said:
                continue
            try:
                await self._cluster.annotate_pod(*pod, said)
            except Absent:  # it has gone meanwhile
                continue
            self._written[pod] = said
