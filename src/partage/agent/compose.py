"""The composition root: connects the agent's parts and starts all its tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from partage.agent.driver_gate import DriverGate
from partage.agent.endpoints.cdi_specs import CdiSpecs
from partage.agent.endpoints.guard_files import GuardFiles
from partage.agent.endpoints.plugin_set import PluginSet
from partage.agent.endpoints.resource_plugin import PluginHooks, ResourcePlugin
from partage.agent.loop import Loop, LoopParts, TurnRequests
from partage.agent.observers.hardware import HardwareObserver, XidLog
from partage.agent.observers.pod_resources import NodeNames, PodResourcesPoller
from partage.agent.observers.policy import PolicyObserver
from partage.agent.observers.settings import SettingsObserver
from partage.agent.options import AgentOptions
from partage.agent.originals import Originals
from partage.agent.reconciler.node_port import NodePort
from partage.agent.reconciler.reconciler import Reconciler
from partage.agent.reconciler.unfinished import UnfinishedChange
from partage.agent.state_writer import StateWriter
from partage.agent.status.status import AgentStatus
from partage.agent.watchdog import Watchdog
from partage.edges.directory_changes import DirectoryChanges
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.directory_lock import RUN_LOCK, take_lock
from partage.edges.files.state import SavedState, StateDir
from partage.edges.hardware.port import Hardware
from partage.edges.kubelet.checkpoint import CheckpointFile
from partage.edges.kubelet.endpoint import ResourceEndpoint
from partage.edges.kubelet.pod_resources import PodResourcesClient
from partage.edges.kubelet.sockets import socket_identity
from partage.errors import InputError
from partage.model.gpu import Inventory
from partage.model.ids import DeviceUuid, ResourceName
from partage.model.paths import check_socket_path
from partage.model.xid import XidRules
from partage.plan.reconcile.node_plan import NodePlan, Phase
from partage.plan.reconcile.planner import Planner
from partage.plan.reconcile.transition import answerable_offer
from partage.plan.serve.ledger import Ledger
from partage.plan.turn import NodeState, after_restart

if TYPE_CHECKING:
    from partage.agent.cluster.node_labels import NodeLabels
    from partage.edges.kube.config import ClusterConfig

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
    _check_paths(options)
    state_writer = StateWriter(StateDir(options.state_dir), status.clock)
    try:
        with _locked(options.run_dir):
            in_cluster = labels is not None or options.cluster is not None
            options = replace(options, awaits_labels=in_cluster)
            agent = _Agent(options, hardware, status, state_writer, labels)
            await agent.run(stop, beside)
    finally:
        state_writer.directory.close()


@contextlib.contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """Hold the run directory. Raises InputError where another agent has it; one that cannot be locked at all
    is reported by what cannot be written there.
    """
    lock = None
    with contextlib.suppress(OSError):
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = take_lock(run_dir, RUN_LOCK)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _check_paths(options: AgentOptions) -> None:
    sockets = {"--kubelet-dir": options.kubelet_socket, "--pod-resources": options.pod_resources}
    for option, path in sockets.items():
        check_socket_path(path, f"choose a shorter {option}")


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
        self._endpoints: dict[ResourceName, tuple[ResourceEndpoint, asyncio.Task[None]]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._labels = labels
        self._served_before: set[DeviceUuid] = set()
        self._node_labels: NodeLabels | None = None
        ask, clock, intervals = self._requests.ask, status.clock, options.intervals
        self._hardware = HardwareObserver(hardware, ask, intervals, XidLog(clock))
        self._gate = DriverGate(options.run_dir, options.validations, hardware, self._hardware.observe)
        self._settings = SettingsObserver(hardware, clock, intervals.observe_s)
        self._pod_resources = PodResourcesPoller(
            pod_resources=self._kubelet,
            checkpoint=CheckpointFile(options.kubelet_dir),
            ledger=self._ledger,
            clock=clock,
            ask=ask,
            intervals=intervals,
            names=self._names,
            kubelet=lambda: (socket_identity(options.pod_resources), socket_identity(options.kubelet_socket)),
            resend=self._resend,
        )
        hooks = PluginHooks(self._ledger, clock, self._pod_resources.ask_holders, self._pod_resources.soon)
        self._plugins = PluginSet(hooks)
        self._policies = PolicyObserver(options, geometry_of, ask, changes=self._changes)
        self._cdi = CdiSpecs(self._cdi_dir, ask, clock)
        self._originals = Originals(state_writer.write_originals)
        self._unfinished = UnfinishedChange(options.state_dir)
        port = NodePort(
            hardware=self._hardware,
            settings=self._settings,
            policies=self._policies,
            originals=self._originals,
            unfinished=self._unfinished,
            geometry_of=geometry_of,
            intervals=intervals,
            planned=self._plan,
            until_usable=self._cdi.wait_until_written,
            ask=ask,
        )
        self._reconciler = Reconciler(port, clock, ask, intervals.retry_s)
        self._watchdog = Watchdog(
            hardware=hardware,
            ledger=self._ledger,
            holders_known=lambda: bool(self._pod_resources.known) and not self._pod_resources.trouble,
            directory=options.container_logs,
            clock=clock,
            ask=ask,
            intervals=intervals,
            counts=status.counts,
        )
        self._loop = self._loop_of()
        status.watch_observation = lambda: self._watchdog.observation
        status.endpoints = lambda: [one.state for one, _ in list(self._endpoints.values())]
        status.counts.asked = self._plugins.asked
        status.counts.xids = self._hardware.xid_counts
        status.counts.changes = self._reconciler.endings

    async def run(self, stop: asyncio.Event, beside: Beside | None) -> None:
        """Start, run, stop."""
        self._gate.check()
        observation = asyncio.create_task(self._hardware.observe(), name="first observation")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            saved = self._restore()
            self._policies.start()
            await asyncio.wait(
                {observation, stopped}, timeout=FIRST_OBSERVATION_S, return_when=FIRST_COMPLETED
            )
            if observation.done():
                observation.result()
            self._policies.resolve_on(self._hardware.node)
            self._policies.check_in_force()
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

    def _restore(self) -> SavedState:
        """Load the state of the agent that ran before."""
        saved = self._state_writer.load()
        self._policies.fallback = saved.policy
        self._originals.by_gpu = saved.original
        self._served_before = {
            one.device for devices in answerable_offer(saved.serving).values() for one in devices
        }
        self._loop.state = after_restart(NodeState(saved.serving, saved.health))
        self._loop.boot_id = saved.boot_id
        self._reconciler.in_hand = dict.fromkeys(self._unfinished.read(), Phase.VERIFYING)
        return saved

    def _loop_of(self) -> Loop:
        environ = self._options.environ
        disabled, enabled = (environ.get(f"DP_{word}_HEALTHCHECKS", "") for word in ("DISABLE", "ENABLE"))
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
            originals=self._originals,
            planner=Planner(geometry_of, self._options.intervals.withdraw_s),
            reconciler=self._reconciler,
            plugins=self._plugins,
            state_writer=self._state_writer,
            cdi=self._cdi,
            guard=GuardFiles(self._options.run_dir),
            watchdog=self._watchdog,
            serve=self._serve,
            retire=self._retire,
            rules=XidRules.parse(disabled, enabled),
            cluster_trouble=self._cluster_trouble,
        )
        return Loop(parts)

    @contextlib.asynccontextmanager
    async def _running(self, beside: Beside | None) -> AsyncIterator[None]:
        """Run all tasks during the block. A task that fails has a bug, and ends the agent."""
        tasks: dict[str, Coroutine[Any, Any, None]] = {
            "pod resources": self._pod_resources.run(),
            "pulse": self._loop.pulse(),
            "observe": self._hardware.observe_regularly(),
            "conditions": self._hardware.conditions_forever(),
            "events": self._hardware.watch_events(),
            "policy": self._policies.watch(),
            "reconciler": self._reconciler.run(),
            "driver": self._gate.watch(self._options.intervals.policy_s),
            "state": self._state_writer.run(),
            "cdi": self._cdi.run(),
            "watchdog": self._watchdog.run(),
        }
        if self._labels is not None:
            tasks["labels"] = self._labels(self._know_labels)
        if self._options.cluster is not None:
            tasks["cluster"] = self._in_cluster(self._options.cluster)
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._tasks += [group.create_task(task, name=name) for name, task in tasks.items()]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_ANSWER_S):
                    await self._pod_resources.asked_once.wait()
                    await self._watchdog.first_check_done.wait()
            await self._loop.turn()
            self._tasks.append(group.create_task(self._loop.run(), name="turns"))
            if beside is not None:
                self._tasks.append(group.create_task(beside(self._status), name="beside"))
            try:
                yield
            finally:
                for task in (*self._tasks, *(task for _, task in self._endpoints.values())):
                    task.cancel()

    async def _in_cluster(self, config: ClusterConfig) -> None:
        """Keep the own Node up to date, after the first registration, which must not wait for it."""
        await self._status.until(lambda report: bool(report.made.number))
        await asyncio.sleep(FIRST_ANSWER_S)
        labels = self._node_labels = await asyncio.to_thread(self._new_node_labels, config)
        await labels.run()

    def _know_labels(self, labels: Mapping[str, str]) -> None:
        self._gate.know_labels(labels)
        self._policies.know_labels(labels)

    def _cluster_trouble(self) -> str:
        return self._node_labels.trouble if self._node_labels else ""

    def _new_node_labels(self, config: ClusterConfig) -> NodeLabels:
        """Importing the client takes a tenth of a second: pods are served meanwhile."""
        from partage.agent.cluster.node_labels import NodeLabels
        from partage.edges.kube.cluster import ApiCluster

        name = self._options.node_name
        cluster, know = ApiCluster(config, name), self._know_labels
        return NodeLabels(cluster, name, self._status, self._requests.ask, know=know)

    def _plan(self) -> NodePlan:
        return self._loop.plan()

    def _serve(self, plugin: ResourcePlugin) -> None:
        """Serve and register one more resource."""
        assert self._group is not None
        try:
            endpoint = ResourceEndpoint(
                plugin,
                self._options.kubelet_dir,
                changes=self._changes,
                clock=self._status.clock,
                takeover=self._options.takeover,
            )
        except InputError as error:
            # Only a name from an earlier policy or another plugin; names of this policy were checked before.
            log.warning(
                "resource cannot be served", extra={"resource": plugin.resource, "reason": str(error)}
            )
            return
        task = self._group.create_task(endpoint.run(), name=f"serve {plugin.resource}")
        self._endpoints[plugin.resource] = endpoint, task

    def _retire(self, resource: ResourceName) -> None:
        """Serve a resource no longer: the kubelet forgets it some minutes after its socket has gone."""
        if resource in self._endpoints:
            _, task = self._endpoints.pop(resource)
            task.cancel()
            log.info("resource dropped", extra={"resource": resource})

    def _names(self) -> NodeNames:
        node = self._hardware.node
        gpus = node.known.values() if node else ()
        uuids = frozenset(gpu.uuid for gpu in gpus)
        devices = uuids | {mig.uuid for gpu in gpus for mig in gpu.mig_devices}
        served = self._loop.state.serving.keys()
        return NodeNames(self._plugins.by_name.keys(), uuids | served, devices | self._served_before)

    def _resend(self) -> bool:
        """Send the lists that the kubelet watches once more. False: it watches none."""
        watched = [name for name, (endpoint, _) in self._endpoints.items() if endpoint.state.watching]
        for resource in watched:
            self._plugins.by_name[resource].resend()
        return bool(watched)

    def _cdi_dir(self, inventory: Inventory) -> Path:
        """Specs of a simulated node must not reach a real container runtime."""
        return self._options.run_dir / "cdi" if inventory.simulated else self._options.cdi_dir
