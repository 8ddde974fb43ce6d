"""The labels that a report stands for, and a file that has them for node-feature-discovery."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from partage.agent.status.status import AgentStatus
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.node_labels import write_features
from partage.model.gpu import NoDriver
from partage.model.node_labels import MIG_CONFIG_STATE, WrittenLabels
from partage.plan.labels import Labels, node_labels
from partage.plan.report import Report

log = logging.getLogger(__name__)

RETRY_S = 10.0
"""After a file could not be written."""


def labels_of(report: Report) -> Labels | None:
    """The labels of what is offered now; None if that is not known: then labels stay as they are."""
    inventory, policy = report.node.inventory, report.policy_in_force
    if policy is None or isinstance(inventory.driver, NoDriver):
        return None
    labels = node_labels(inventory, report.offer, policy.options, geometry_of)
    layout = report.mig_config
    if layout is None:
        return labels
    return None if layout.state is None else {**labels, MIG_CONFIG_STATE: layout.state.value}


class FeaturesFile:
    """Keeps the file. It stays when the agent stops, as labels of a Node do. writes: which labels."""

    def __init__(
        self, path: Path, status: AgentStatus, writes: WrittenLabels, retry_s: float = RETRY_S
    ) -> None:
        self._path, self._status, self._writes, self._retry_s = path, status, writes, retry_s

    async def run(self) -> None:
        """Until it is cancelled."""
        last: Report | None = None
        written: Labels | None = None
        trouble = ""
        while True:
            last = await self._status.until(lambda report: report is not last)  # noqa: B023 - asked at once
            found = labels_of(last)
            if found is None:
                continue
            labels = {key: value for key, value in found.items() if self._writes.writes(key)}
            if labels == written and self._path.exists():
                continue
            try:
                await asyncio.to_thread(write_features, self._path, labels)
            except OSError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("labels are not written to the file", extra={"reason": trouble})
                last = None
                await asyncio.sleep(self._retry_s)
            else:
                written, trouble = labels, ""
                log.info("labels written", extra={"file": str(self._path), "labels": len(labels)})
