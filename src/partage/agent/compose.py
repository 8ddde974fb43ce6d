"""The composition root: connects the agent's parts and starts all its tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from partage.agent.cluster.connection import ClusterConnection
from partage.agent.driver_gate import DriverGate
from partage.agent.endpoints.cdi_specs import CdiSpecs
from partage.agent.endpoints.guard_files import GuardFiles
from partage.agent.endpoints.plugin_set import PluginSet
from partage.agent.endpoints.resource_plugin import PluginHooks
from partage.agent.endpoints.served import ServedResources
from partage.agent.loop import Loop, LoopParts, TurnRequests
from partage.agent.observers.cordon import CordonObserver
from partage.agent.observers.hardware import HardwareObserver, XidLog
from partage.agent.observers.history import HistoryObserver
from partage.agent.observers.other_plugins import OtherPluginObserver
from partage.agent.observers.pipe_tenants import PipeTenantsObserver
from partage.agent.observers.pod_resources import NodeNames, PodResourcesPoller
from partage.agent.observers.policy import PolicyObserver
from partage.agent.observers.settings import SettingsObserver
from partage.agent.observers.usage import UsageObserver
from partage.agent.options import AgentOptions
from partage.agent.originals import Originals
from partage.agent.reconciler.node_port import NodePort
from partage.agent.reconciler.reconciler import Reconciler
from partage.agent.reconciler.unfinished import UnfinishedChange
from partage.agent.state_writer import StateWriter
from partage.agent.status.mps_clients import MpsClientsSeen
from partage.agent.status.status import AgentStatus
from partage.agent.supervision import Supervisor, unending
from partage.agent.watchdog import Watchdog
from partage.edges.directory_changes import DirectoryChanges
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.directory_lock import locked_run_directory
from partage.edges.files.left_holds import LeftHolds
from partage.edges.files.state import SavedState, StateDir
from partage.edges.files.usage_days import UsageDays
from partage.edges.hardware.port import Hardware
from partage.edges.kubelet.checkpoint import CheckpointFile
from partage.edges.kubelet.pod_resources import PodResourcesClient
from partage.edges.kubelet.sockets import may_exist, socket_identity
from partage.model.gpu import devices_of
from partage.model.ids import DeviceUuid, GpuUuid, ResourceName
from partage.model.share import resources_of
from partage.model.xid import XidRules
from partage.plan.reconcile.node_plan import NodePlan, Phase
from partage.plan.reconcile.planner import Planner
from partage.plan.reconcile.transition import answerable_offer
from partage.plan.serve.fragmentation import Refusals
from partage.plan.serve.ledger import Ledger
from partage.plan.serve.unit_allocation import NoRoom
from partage.plan.turn import NodeState, after_restart

if TYPE_CHECKING:
    from partage.edges.kube.port import ClusterNode

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
) -> None:
    """Run the node until ``stop`` is set; then sockets are removed, the state is written, and it returns.

    status: where reports are published. beside: a task of the caller that runs with the agent and ends with
    it. labels: tells the labels of the node, where a cluster knows them. The caller closes the hardware.

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
            agent = _Agent(options, hardware, status, state_writer, labels)
            await agent.run(stop, beside)
    finally:
        state_writer.directory.close()


class _Agent:
    """The connected parts."""

    def __init__(
        self,
        options: AgentOptions,
        hardware: Hardware,
        status: AgentStatus,
        state_writer: StateWriter,
        labels: WatchLabels | None,
    ) -> None:
        self._options = options
        self._status = status
        self._state_writer = state_writer
        self._requests = TurnRequests()
        self._ledger = Ledger()
        self._kubelet = PodResourcesClient(options.pod_resources)
        self._changes = DirectoryChanges()
        self._supervisor = Supervisor(status.clock)
        self._endpoints = ServedResources(options, self._changes, status.clock, self._supervisor)
        self._tasks: list[asyncio.Task[None]] = []
        self._labels = labels
        self._served_before: set[DeviceUuid] = set()
        ask, clock, intervals = self._requests.ask, status.clock, options.intervals
        self._hardware = HardwareObserver(
            hardware, ask, intervals, XidLog(clock), restricted_mps=options.restricted_mps
        )
        self._gate = DriverGate(options.run_dir, options.validations, hardware, self._hardware.observe)
        self._settings = SettingsObserver(hardware, clock, intervals.observe_s)
        self._pod_resources, self._refusals = self._poller_of(hardware), Refusals()
        kubelet = self._pod_resources
        hooks = PluginHooks(
            ledger=self._ledger,
            clock=clock,
            holders=kubelet.ask_holders,
            left=kubelet.left_at_once,
            allocated=self._allocated,
            registering=kubelet.now,
            refused=self._refused,
        )
        self._plugins = PluginSet(hooks)
        self._policies = PolicyObserver(options, geometry_of, ask, changes=self._changes)
        self._cluster = ClusterConnection(options, status, ask, self._know, self._policies.judge_again)
        if options.rollout:
            self._policies.may_change = self._cluster.may_change
        self._cordon = CordonObserver(options.state_dir, intervals.policy_s, ask)
        self._other_plugins = OtherPluginObserver(
            directory=options.kubelet_dir,
            changes=self._changes,
            resources=self._resources,
            devices=lambda: self._names().devices,
            ours=self._endpoints.sockets,
            ask=ask,
            takeover=options.takeover,
        )
        self._cdi = CdiSpecs(options.cdi_dir_of, ask, clock)
        self._originals = Originals(state_writer.write_originals)
        self._unfinished = UnfinishedChange(options.state_dir)
        self._reconciler = self._reconciler_of()
        self._watchdog = self._watchdog_of(hardware)
        self._pipe_tenants = PipeTenantsObserver(
            hardware=hardware,
            ledger=self._ledger,
            directory=options.container_logs,
            changes=self._changes,
            clock=clock,
            ask=ask,
            intervals=intervals,
            observation=lambda: self._watchdog.observation,
        )
        self._usage = UsageObserver(
            hardware=hardware,
            ledger=self._ledger,
            holders_known=self._pod_resources.knows_holders,
            directory=options.container_logs,
            offer=lambda: self._loop.view.offer,
            clock=clock,
            intervals=intervals,
        )
        self._history = self._history_of() if options.history_days else None
        self._loop = self._loop_of()
        status.watch_observation = lambda: self._watchdog.observation
        status.mps_clients = MpsClientsSeen() if options.mps_pipe_read_only else None
        status.endpoints = self._endpoints.states
        status.ended_tasks = lambda: self._supervisor.trouble
        status.counts.asked = self._plugins.asked
        status.counts.xids = self._hardware.xid_counts
        status.counts.last_xids = self._hardware.last_xids
        status.counts.changes = self._reconciler.endings

    async def run(self, stop: asyncio.Event, beside: Beside | None) -> None:
        """Start, run, stop."""
        self._gate.check()
        loop = asyncio.get_running_loop()
        self._status.usage = lambda: self._usage.fresh(loop)
        observation = asyncio.create_task(self._hardware.observe(), name="first observation")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            saved = self._restore()
            self._policies.start()
            self._cordon.start(in_cluster=self._options.cluster is not None)
            await asyncio.wait(
                {observation, stopped}, timeout=FIRST_OBSERVATION_S, return_when=FIRST_COMPLETED
            )
            if observation.done():
                observation.result()
            self._policies.resolve_on(self._hardware.node)
            self._policies.check_in_force()
            self._other_plugins.look()
            self._watchdog.update(self._policies.desired, answerable_offer(saved.serving))
            async with self._running(beside):
                await stopped
            log.info("stopped")
        finally:
            observation.cancel()
            stopped.cancel()
            self._kubelet.close()
            self._changes.close()
        await asyncio.to_thread(self._state_writer.save)
        if self._history is not None:
            await asyncio.to_thread(self._history.save)

    def _restore(self) -> SavedState:
        """Load the state of the agent that ran before."""
        saved = self._state_writer.load()
        self._policies.fallback = saved.policy
        self._policies.served_before = bool(saved.serving)
        self._originals.by_gpu = saved.original
        self._served_before = {
            one.device for devices in answerable_offer(saved.serving).values() for one in devices
        }
        # Without the boot in which they were served (a report in place of the state), they may be of another
        # machine: those that do not answer are not waited for.
        absent = frozenset[GpuUuid]() if saved.boot_id else frozenset(saved.serving)
        self._loop.state = after_restart(NodeState(saved.serving, saved.health, absent=absent))
        self._loop.boot_id = saved.boot_id
        self._reconciler.in_hand = dict.fromkeys(self._unfinished.read(), Phase.VERIFYING)
        return saved

    def _poller_of(self, hardware: Hardware) -> PodResourcesPoller:
        options = self._options
        return PodResourcesPoller(
            pod_resources=self._kubelet,
            checkpoint=CheckpointFile(options.kubelet_dir),
            ledger=self._ledger,
            clock=self._status.clock,
            ask=self._requests.ask,
            intervals=options.intervals,
            names=self._names,
            kubelet=lambda: (socket_identity(options.pod_resources), socket_identity(options.kubelet_socket)),
            resend=self._resend,
            left=hardware.left_of,
            left_holds=LeftHolds(options.run_dir),
            accepted=lambda: any(state.registered for state in self._endpoints.states()),
            may_know=lambda: bool(self._served_before) or may_exist(options.pod_resources),
        )

    def _reconciler_of(self) -> Reconciler:
        port = NodePort(
            hardware=self._hardware,
            settings=self._settings,
            policies=self._policies,
            originals=self._originals,
            unfinished=self._unfinished,
            geometry_of=geometry_of,
            intervals=self._options.intervals,
            planned=self._plan,
            until_usable=self._cdi.wait_until_written,
            ask=self._requests.ask,
            look=self._other_plugins.look,
        )
        return Reconciler(port, self._status.clock, self._requests.ask, self._options.intervals.retry_s)

    def _watchdog_of(self, hardware: Hardware) -> Watchdog:
        return Watchdog(
            hardware=hardware,
            ledger=self._ledger,
            holders_known=self._pod_resources.knows_holders,
            directory=self._options.container_logs,
            clock=self._status.clock,
            ask=self._requests.ask,
            intervals=self._options.intervals,
            counts=self._status.counts,
        )

    def _history_of(self) -> HistoryObserver:
        options = self._options
        files = UsageDays(options.state_dir, options.history_days)
        self._status.history = files.texts
        return HistoryObserver(
            files=files,
            node=options.node_name or socket.gethostname(),
            look=self._usage.look,
            wanted=lambda: bool(self._ledger.entries()),
            gpus=self._hardware.models,
            intervals=options.intervals,
            ask=self._requests.ask,
        )

    def _loop_of(self) -> Loop:
        parts = LoopParts(
            options=self._options,
            clock=self._status.clock,
            status=self._status,
            requests=self._requests,
            ledger=self._ledger,
            hardware=self._hardware,
            settings=self._settings,
            pod_resources=self._pod_resources,
            policies=self._policies,
            cordon=self._cordon,
            originals=self._originals,
            planner=Planner(geometry_of, self._options.intervals.withdraw_s),
            reconciler=self._reconciler,
            plugins=self._plugins,
            state_writer=self._state_writer,
            cdi=self._cdi,
            guard=GuardFiles(self._options.run_dir),
            watchdog=self._watchdog,
            pipe_tenants=self._pipe_tenants,
            serve=self._endpoints.serve,
            retire=self._endpoints.retire,
            rules=XidRules.of_environment(self._options.environ),
            refusals=self._refusals,
            cluster_trouble=lambda: self._cluster.trouble,
            history_trouble=lambda: self._history.trouble if self._history else "",
            gave_up=lambda: self._cluster.gave_up,
            spared=lambda: self._cluster.spared,
            other_plugin=lambda: self._other_plugins.sentence,
            other_labels=lambda: self._cluster.other_writer,
        )
        return Loop(parts)

    @contextlib.asynccontextmanager
    async def _running(self, beside: Beside | None) -> AsyncIterator[None]:
        """Run all tasks during the block."""
        tasks: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "pod resources": self._pod_resources.run,
            "pulse": self._loop.pulse,
            "observe": self._hardware.observe_regularly,
            "conditions": self._hardware.conditions_forever,
            "events": self._hardware.watch_events,
            "policy": self._policies.watch,
            "cordon": self._cordon.watch,
            "other plugins": self._other_plugins.watch,
            "reconciler": self._reconciler.run,
            "driver": lambda: self._gate.watch(self._options.intervals.policy_s),
            "state": self._state_writer.run,
            "cdi": self._cdi.run,
            "watchdog": self._watchdog.run,
            "pipe tenants": self._pipe_tenants.run,
            "usage": self._usage.run,
        }
        if self._history is not None:
            tasks["history"] = self._history.run
        if (labels := self._labels) is not None:
            tasks["labels"] = lambda: labels(self._know_labels)
        if (file := self._options.features_file) is not None:
            from partage.agent.node_labels import FeaturesFile

            tasks["features"] = FeaturesFile(file, self._status, self._options.labels).run
        if (cluster := self._options.cluster) is not None:
            tasks["cluster"] = lambda: self._cluster.run(cluster, FIRST_ANSWER_S)
        async with asyncio.TaskGroup() as group:
            self._endpoints.group = group
            keep = self._supervisor.keep
            self._tasks += [group.create_task(keep(name, work)) for name, work in tasks.items()]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_ANSWER_S):
                    await self._pod_resources.asked_once.wait()
                    await self._watchdog.first_check_done.wait()
            await self._loop.turn()
            self._tasks.append(group.create_task(keep("turns", self._loop.run)))
            if beside is not None:
                self._tasks.append(group.create_task(unending("beside", beside(self._status))))
            try:
                yield
            finally:
                for task in self._tasks:
                    task.cancel()
                self._endpoints.stop()

    def _know_labels(self, labels: Mapping[str, str]) -> None:
        self._gate.know_labels(labels)
        self._policies.know_labels(labels)

    def _know(self, node: ClusterNode) -> None:
        self._know_labels(node.labels)
        self._cordon.know_annotations(node.annotations)

    def _plan(self) -> NodePlan:
        return self._loop.plan()

    def _allocated(self) -> None:
        self._pod_resources.soon()
        self._pipe_tenants.soon()

    def _refused(self, resource: ResourceName, refusal: NoRoom) -> None:
        now_s = self._status.clock()
        self._refusals.noted(resource, refusal.units, now_s, ignored=refusal.ignored)
        self._requests.ask()

    def _names(self) -> NodeNames:
        node = self._hardware.node
        gpus = node.known.values() if node else ()
        uuids = frozenset(gpu.uuid for gpu in gpus)
        devices = devices_of(gpus)
        served = self._loop.state.serving.keys()
        return NodeNames(self._plugins.by_name.keys(), uuids | served, devices | self._served_before)

    def _resources(self) -> set[ResourceName]:
        """What is offered, or is to be."""
        desired = self._policies.desired
        return {*self._plugins.by_name, *(resources_of(desired.offer) if desired else ())}

    def _resend(self) -> bool:
        """Send the lists that the kubelet watches once more. False: it watches none."""
        watched = self._endpoints.watched()
        for resource in watched:
            self._plugins.by_name[resource].resend()
        return bool(watched)
