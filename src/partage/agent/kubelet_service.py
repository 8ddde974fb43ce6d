"""The agent of a node that a kubelet gives away: its parts, made and connected, and run until it is told to
stop. ``loop`` makes the turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from partage.agent.driver_gate import DriverGate
from partage.agent.endpoints.cdi_specs import CdiSpecs
from partage.agent.endpoints.container_limits import ContainerLimits
from partage.agent.endpoints.guard_files import GuardFiles
from partage.agent.endpoints.plugin_set import PluginSet, ServedResources
from partage.agent.endpoints.resource_plugin import PluginHooks
from partage.agent.loop import Loop
from partage.agent.observers.containers import NodeContainers
from partage.agent.observers.cordon import CordonObserver
from partage.agent.observers.former_holders import FormerHolders
from partage.agent.observers.memory_limits import ContainerHolders, MemoryLimitsObserver
from partage.agent.observers.other_plugins import OtherPluginObserver
from partage.agent.observers.pipe_tenants import PipeTenantsObserver
from partage.agent.observers.pod_resources import NodeNames, PodResourcesPoller
from partage.agent.observers.usage import UsageObserver
from partage.agent.options import AgentOptions
from partage.agent.parts import NoClaims, NoCluster
from partage.agent.service import Beside, NodeService, Tasks, run_locked
from partage.agent.state_writer import StateWriter
from partage.agent.status.status import AgentStatus, MpsClientsSeen
from partage.agent.watchdog import Watchdog
from partage.edges.files.node_notes import LeftHolds
from partage.edges.files.state import SavedState
from partage.edges.hardware.port import Hardware
from partage.edges.kubelet.checkpoint import CheckpointFile
from partage.edges.kubelet.pod_resources import PodResourcesClient
from partage.edges.kubelet.sockets import may_exist, socket_identity
from partage.model.driver_limit import LimitSetter
from partage.model.gpu import Inventory, devices_of
from partage.model.ids import DEVICE_CLASSES, DeviceUuid, GpuUuid, ResourceName
from partage.plan.reconcile.node_plan import NodePlan
from partage.plan.reconcile.transition import answerable_offer
from partage.plan.serve.ledger import Ledger
from partage.plan.serve.unit_allocation import NoRoom, Refusals
from partage.plan.turn import NodeState, after_restart

if TYPE_CHECKING:
    from partage.agent.parts import ConnectClaims, ConnectCluster
    from partage.edges.kube.port import ClusterNode

log = logging.getLogger(__name__)


FIRST_ANSWER_S = 0.3
"""How long the start waits for the first answer of PodResources and the first check of the watchdog, in
seconds. It is better to know holders and usage before anything is offered; but a slow answer must not delay
the offer."""

WatchLabels = Callable[[Callable[[Mapping[str, str]], None]], Coroutine[Any, Any, None]]
"""A task that tells the labels of the node, at first and at every change, and never ends."""


class KubeletService(NodeService):
    """The frame of a node, and all that the kubelet and its pods need.

    served_before: devices that the agent of before offered. watch_labels: as ``labels`` of ``run``.
    """

    def __init__(
        self,
        options: AgentOptions,
        hardware: Hardware,
        status: AgentStatus,
        state_writer: StateWriter,
        *,
        connect: ConnectCluster,
        connect_claims: ConnectClaims,
        watch_labels: WatchLabels | None = None,
    ) -> None:
        super().__init__(options, hardware, status, state_writer)
        self.watch_labels = watch_labels
        self.served_before: set[DeviceUuid] = set()
        ask, clock, intervals = self.requests.ask, self.clock, options.intervals
        self.ledger, self.refusals = Ledger(), Refusals()
        self.kubelet = PodResourcesClient(options.pod_resources)
        self.endpoints = ServedResources(options, self.changes, clock, self.supervisor)
        self.gate = DriverGate(options.run_dir, options.validations, hardware, self.hardware.observe)
        self.pod_resources = self._poller_of(hardware)
        self.limits = ContainerLimits(options.state_dir, options.cdi_dir_of, lambda: self.cdi.nvidia_limits)
        self.plugins = PluginSet(self._hooks())
        self.cluster = connect(options, status, ask, self._know, self.policies.judge_again)
        if options.rollout:
            self.policies.may_change = self.cluster.may_change
        self.claims = connect_claims(options, self.ledger, clock, ask, hardware)
        self.cordon = CordonObserver(options.state_dir, self.changes, intervals, ask)
        self.other_plugins = OtherPluginObserver(
            directory=options.kubelet_dir,
            changes=self.changes,
            resources=self._resources,
            devices=lambda: self._names().devices,
            ours=self.endpoints.sockets,
            ask=ask,
            takeover=options.takeover,
        )
        self.cdi = CdiSpecs(options.cdi_dir_of, ask, clock)
        self.guard = GuardFiles(options.run_dir)
        containers = NodeContainers(
            hardware,
            self.ledger,
            options.container_logs,
            clock,
            ask,
            intervals,
            holders_known=self.pod_resources.knows_holders,
            counted=lambda: self.memory_limits.used,
        )
        self.limit_holders = ContainerHolders(containers)
        self.memory_limits = MemoryLimitsObserver(hardware, intervals, status.counts, self.limit_holders)
        self.watchdog = Watchdog(containers, status.counts)
        self.pipe_tenants = PipeTenantsObserver(
            containers, self.changes, observation=lambda: self.watchdog.observation
        )
        self.usage = UsageObserver(containers, offer=lambda: self.loop.view.offer)
        held = self.ledger.entries
        self.keep_history(options.node_name or socket.gethostname(), self.usage.look, lambda: bool(held()))
        self.loop = Loop(self)
        self._tell(status)

    def _tell(self, status: AgentStatus) -> None:
        """So that reports, pages and metrics find what the parts have seen."""
        status.watch_observation = lambda: self.watchdog.observation
        status.use_seen = lambda: self.usage.seen
        status.endpoints = self.endpoints.states
        status.mps_clients = MpsClientsSeen() if self.options.mps_pipe_read_only else None
        status.counts.asked = self.plugins.asked
        status.claims = self.claims.figures

    # --- see NodeService ---

    def plan(self) -> NodePlan:
        return self.loop.plan()

    def restore(self, saved: SavedState) -> None:
        self.gate.check()
        self.policies.served_before = bool(saved.serving)
        self.served_before = {
            device.device for devices in answerable_offer(saved.serving).values() for device in devices
        }
        # Without the boot in which they were served (a report in place of the state), they may be of another
        # machine: those that do not answer are not waited for.
        absent = frozenset[GpuUuid]() if saved.boot_id else frozenset(saved.serving)
        self.loop.state = after_restart(NodeState(saved.serving, saved.health, absent=absent))
        self.cordon.start(in_cluster=self.options.cluster is not None)

    def tasks(self) -> Tasks:
        options, tasks = (
            self.options,
            {
                "pod resources": self.pod_resources.run,
                "pulse": self.loop.pulse,
                "cordon": self.cordon.watch,
                "other plugins": self.other_plugins.watch,
                "reconciler": self.reconciler.run,
                "driver": lambda: self.gate.watch(self.options.intervals.policy_s),
                "cdi": self.cdi.run,
                "watchdog": self.watchdog.run,
                "pipe tenants": self.pipe_tenants.run,
                "memory limits": self.memory_limits.run,
                "usage": self.usage.run,
            },
        )
        if (watch := self.watch_labels) is not None:
            tasks["labels"] = lambda: watch(self.know_labels)
        if (file := options.features_file) is not None:
            from partage.agent.node_labels import FeaturesFile

            tasks["features"] = FeaturesFile(file, self.status, options.labels).run
        if (cluster := options.cluster) is not None:
            tasks["cluster"] = lambda: self.cluster.run(cluster, FIRST_ANSWER_S)
        if options.dra:
            tasks["claims"] = self.claims.run
        return tasks

    async def first_turn(self, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        self.status.usage = lambda: self.usage.fresh(loop)
        self.endpoints.group = group
        self.other_plugins.look()
        self.watchdog.update(self.policies.desired, answerable_offer(self.loop.state.serving))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ANSWER_S):
                await self.pod_resources.asked_once.wait()
                await self.watchdog.first_check_done.wait()
        await self.loop.turn()

    async def turns(self) -> None:
        await self.loop.run()

    def is_settled(self) -> bool:
        return self.loop.is_settled()

    async def until_usable(self, inventory: Inventory) -> None:
        await self.cdi.wait_until_written(inventory)

    def slices_asked(self) -> bool:
        return self.planner.slices_asked(self.ledger.entries())

    def look_for_others(self) -> None:
        self.other_plugins.look()

    def stop(self) -> None:
        self.endpoints.stop()
        self.kubelet.close()
        super().stop()

    def limits_by(self, inventory: Inventory) -> LimitSetter | None:
        return self.limits.setter(inventory)

    # --- what the parts ask each other ---

    def know_labels(self, labels: Mapping[str, str]) -> None:
        """The labels of the Node are these now."""
        self.gate.know_labels(labels)
        self.policies.know_labels(labels)

    def _hooks(self) -> PluginHooks:
        kubelet = self.pod_resources
        return PluginHooks(
            ledger=self.ledger,
            clock=self.clock,
            holders=kubelet.ask_holders,
            left=kubelet.left_at_once,
            allocated=self._allocated,
            registering=kubelet.now,
            refused=self._refused,
            limited=self.limits.limited,
        )

    def _poller_of(self, hardware: Hardware) -> PodResourcesPoller:
        options = self.options
        return PodResourcesPoller(
            pod_resources=self.kubelet,
            checkpoint=CheckpointFile(options.kubelet_dir),
            ledger=self.ledger,
            clock=self.clock,
            ask=self.requests.ask,
            intervals=options.intervals,
            names=self._names,
            kubelet=lambda: (socket_identity(options.pod_resources), socket_identity(options.kubelet_socket)),
            resend=self._resend,
            claims_seen=lambda: self.claims.seen(self.kubelet.claims),
            former=FormerHolders(
                ledger=self.ledger,
                clock=self.clock,
                ask=self.requests.ask,
                left=hardware.left_of,
                files=LeftHolds(options.run_dir),
            ),
            accepted=lambda: any(state.registered for state in self.endpoints.states()),
            may_know=lambda: bool(self.served_before) or may_exist(options.pod_resources),
        )

    def _know(self, node: ClusterNode) -> None:
        self.know_labels(node.labels)
        self.cordon.know_annotations(node.annotations)

    def _allocated(self) -> None:
        self.pod_resources.allocated()
        self.pipe_tenants.soon()
        if self.limit_holders.any:
            self.memory_limits.soon()

    def _refused(self, resource: ResourceName, refusal: NoRoom) -> None:
        now_s = self.clock()
        self.refusals.noted(resource, refusal.units, now_s, ignored=refusal.ignored)
        self.requests.ask()

    def _names(self) -> NodeNames:
        node = self.hardware.node
        gpus = node.known.values() if node else ()
        uuids = frozenset(gpu.uuid for gpu in gpus)
        devices = devices_of(gpus)
        served = self.loop.state.serving.keys()
        return NodeNames(self.plugins.by_name.keys(), uuids | served, devices | self.served_before)

    def _resources(self) -> set[ResourceName]:
        """What is offered, or is to be."""
        desired = self.policies.desired
        offers = desired.offer.values() if desired else ()
        names = {offering.resource for offer in offers for offering in offer} - DEVICE_CLASSES
        return {*self.plugins.by_name, *names}

    def _resend(self) -> bool:
        """Send the lists that the kubelet watches once more. False: it watches none."""
        watched = self.endpoints.watched()
        for resource in watched:
            self.plugins.by_name[resource].resend()
        return bool(watched)


async def run(
    options: AgentOptions,
    hardware: Hardware,
    *,
    stop: asyncio.Event,
    status: AgentStatus | None = None,
    beside: Beside | None = None,
    labels: WatchLabels | None = None,
    connect: ConnectCluster = NoCluster,
    connect_claims: ConnectClaims = NoClaims,
) -> None:
    """Run the node until ``stop`` is set; then sockets are removed, the state is written, and it returns.

    status: where reports are published. labels: tells the labels of the node, where a cluster knows them.
    connect: makes the part that speaks to the cluster of the options; connect_claims: the DRA driver. The
    caller closes the hardware.

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
            settled,
            hardware,
            now,
            state_writer,
            connect=connect,
            connect_claims=connect_claims,
            watch_labels=labels,
        ),
        stop=stop,
        beside=beside,
    )
    log.info("stopped")
