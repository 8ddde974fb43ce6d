"""The composition root: the agent of a node that a kubelet gives away, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from partage.agent.cluster_part import NoCluster
from partage.agent.kubelet_service import KubeletService, WatchLabels
from partage.agent.options import AgentOptions
from partage.agent.service import Beside, run_locked
from partage.agent.status.status import AgentStatus
from partage.edges.hardware.port import Hardware

if TYPE_CHECKING:
    from partage.agent.cluster_part import ConnectCluster

log = logging.getLogger(__name__)


async def run(
    options: AgentOptions,
    hardware: Hardware,
    *,
    stop: asyncio.Event,
    status: AgentStatus | None = None,
    beside: Beside | None = None,
    labels: WatchLabels | None = None,
    connect: ConnectCluster = NoCluster,
) -> None:
    """Run the node until ``stop`` is set; then sockets are removed, the state is written, and it returns.

    status: where reports are published. labels: tells the labels of the node, where a cluster knows them.
    connect: makes the part that speaks to the cluster of the options. The caller closes the hardware.

    Raises InputError or Unsatisfiable, with nothing registered, if the policy cannot be applied and there
    is no last good one; InputError for a socket path that is too long, if another agent has locked the
    state or the run directory, or if the helper refuses its options.
    """
    now = status or AgentStatus(time.monotonic)
    options.check_sockets()
    settled = replace(options, awaits_labels=labels is not None or options.cluster is not None)
    await run_locked(
        settled,
        now,
        lambda state_writer: KubeletService(
            settled, hardware, now, state_writer, connect=connect, watch_labels=labels
        ),
        stop=stop,
        beside=beside,
    )
    log.info("stopped")
