"""The composition root: makes the agent's parts (``parts``), starts all its tasks, and stops them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from partage.agent.cluster_part import NoCluster
from partage.agent.options import AgentOptions
from partage.agent.parts import Parts
from partage.agent.state_writer import StateWriter
from partage.agent.status.status import AgentStatus
from partage.edges.files.directory_lock import locked_run_directory
from partage.edges.files.state import SavedState, StateDir
from partage.edges.hardware.port import Hardware
from partage.edges.host.own_task import unending
from partage.model.ids import GpuUuid
from partage.plan.reconcile.node_plan import Phase
from partage.plan.reconcile.transition import answerable_offer
from partage.plan.turn import NodeState, after_restart

if TYPE_CHECKING:
    from partage.agent.cluster_part import ConnectCluster

log = logging.getLogger(__name__)

FIRST_ANSWER_S = 0.3
"""How long the start waits for the first answer of PodResources and the first check of the watchdog, in
seconds. It is better to know holders and usage before anything is offered; but a slow answer must not delay
the offer."""

FIRST_OBSERVATION_S = 5.0
"""How long the start waits for the first observation of the node: a policy that does not fit it ends the
agent. A helper that takes longer hangs; then the agent starts, reports it, and offers GPUs once it observes
them."""

Beside = Callable[[AgentStatus], Coroutine[Any, Any, None]]

WatchLabels = Callable[[Callable[[Mapping[str, str]], None]], Coroutine[Any, Any, None]]
"""A task that tells the labels of the node, at first and at every change, and never ends."""


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

    status: where reports are published. beside: a task of the caller that runs with the agent and ends with
    it. labels: tells the labels of the node, where a cluster knows them. connect: makes the part that
    speaks to the cluster of the options. The caller closes the hardware.

    Raises InputError or Unsatisfiable, with nothing registered, if the policy cannot be applied and there
    is no last good one; InputError for a socket path that is too long, if another agent has locked the
    state or the run directory, or if the helper refuses its options.
    """
    status = status or AgentStatus(time.monotonic)
    options.check_sockets()
    wait_s = options.intervals.other_ends_s
    # Two that are deleted by force one after the other wait for the same one: both saw that it was free.
    state_dir = await asyncio.to_thread(StateDir, options.state_dir, wait_s)
    state_writer = StateWriter(state_dir, options.report_file, status.clock)
    try:
        with locked_run_directory(options.run_dir, wait_s=wait_s):
            in_cluster = labels is not None or options.cluster is not None
            options = replace(options, awaits_labels=in_cluster)
            agent = _Agent(Parts(options, hardware, status, state_writer, connect), labels)
            await agent.run(stop, beside)
    finally:
        state_writer.directory.close()


class _Agent:
    """Starts the parts, runs their tasks, and stops them."""

    def __init__(self, parts: Parts, labels: WatchLabels | None) -> None:
        self._parts, self._labels = parts, labels
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, stop: asyncio.Event, beside: Beside | None) -> None:
        """Start, run, stop."""
        parts = self._parts
        parts.gate.check()
        loop = asyncio.get_running_loop()
        parts.status.usage = lambda: parts.usage.fresh(loop)
        observation = asyncio.create_task(parts.hardware.observe(), name="first observation")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            saved = self._restore()
            parts.policies.start()
            parts.cordon.start(in_cluster=parts.options.cluster is not None)
            await asyncio.wait(
                {observation, stopped}, timeout=FIRST_OBSERVATION_S, return_when=FIRST_COMPLETED
            )
            if observation.done():
                observation.result()
            parts.policies.resolve_on(parts.hardware.node)
            parts.policies.check_in_force()
            parts.other_plugins.look()
            parts.watchdog.update(parts.policies.desired, answerable_offer(saved.serving))
            async with self._running(beside):
                await stopped
            log.info("stopped")
        finally:
            observation.cancel()
            stopped.cancel()
            parts.kubelet.close()
            parts.changes.close()  # where it did not start
        await asyncio.to_thread(parts.state_writer.save)
        if parts.history is not None:
            await asyncio.to_thread(parts.history.save)

    def _restore(self) -> SavedState:
        """Load the state of the agent that ran before."""
        parts = self._parts
        saved = parts.state_writer.load()
        parts.policies.fallback = saved.policy
        parts.policies.served_before = bool(saved.serving)
        parts.originals.by_gpu = saved.original
        parts.served_before = {
            one.device for devices in answerable_offer(saved.serving).values() for one in devices
        }
        # Without the boot in which they were served (a report in place of the state), they may be of another
        # machine: those that do not answer are not waited for.
        absent = frozenset[GpuUuid]() if saved.boot_id else frozenset(saved.serving)
        parts.loop.state = after_restart(NodeState(saved.serving, saved.health, absent=absent))
        parts.loop.boot_id = saved.boot_id
        parts.reconciler.in_hand = dict.fromkeys(parts.unfinished.read(), Phase.VERIFYING)
        return saved

    @contextlib.asynccontextmanager
    async def _running(self, beside: Beside | None) -> AsyncIterator[None]:
        """Run all tasks during the block."""
        parts = self._parts
        tasks: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "pod resources": parts.pod_resources.run,
            "pulse": parts.loop.pulse,
            "observe": parts.hardware.observe_regularly,
            "conditions": parts.hardware.conditions_forever,
            "events": parts.hardware.watch_events,
            "policy": parts.policies.watch,
            "cordon": parts.cordon.watch,
            "other plugins": parts.other_plugins.watch,
            "reconciler": parts.reconciler.run,
            "driver": lambda: parts.gate.watch(parts.options.intervals.policy_s),
            "state": parts.state_writer.run,
            "cdi": parts.cdi.run,
            "watchdog": parts.watchdog.run,
            "pipe tenants": parts.pipe_tenants.run,
            "usage": parts.usage.run,
        }
        if parts.history is not None:
            tasks["history"] = parts.history.run
        if (labels := self._labels) is not None:
            tasks["labels"] = lambda: labels(parts.know_labels)
        if (file := parts.options.features_file) is not None:
            from partage.agent.node_labels import FeaturesFile

            tasks["features"] = FeaturesFile(file, parts.status, parts.options.labels).run
        if (cluster := parts.options.cluster) is not None:
            tasks["cluster"] = lambda: parts.cluster.run(cluster, FIRST_ANSWER_S)
        async with asyncio.TaskGroup() as group:
            parts.endpoints.group = group
            keep = parts.supervisor.keep
            self._tasks += [group.create_task(keep(name, work)) for name, work in tasks.items()]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_ANSWER_S):
                    await parts.pod_resources.asked_once.wait()
                    await parts.watchdog.first_check_done.wait()
            await parts.loop.turn()
            self._tasks.append(group.create_task(keep("turns", parts.loop.run)))
            if beside is not None:
                self._tasks.append(group.create_task(unending("beside", beside(parts.status))))
            try:
                yield
            finally:
                for task in self._tasks:
                    task.cancel()
                parts.endpoints.stop()
                parts.changes.close()
