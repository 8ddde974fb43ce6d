"""All parts of the agent, made and connected: who asks whom. ``compose`` runs them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from partage.agent.driver_gate import DriverGate
from partage.agent.endpoints.cdi_specs import CdiSpecs
from partage.agent.endpoints.guard_files import GuardFiles
from partage.agent.endpoints.plugin_set import PluginSet
from partage.agent.endpoints.resource_plugin import PluginHooks
from partage.agent.endpoints.served import ServedResources
from partage.agent.loop import Loop, LoopParts, TurnRequests
from partage.agent.observers.cordon import CordonObserver
from partage.agent.observers.former_holders import FormerHolders
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
from partage.agent.supervision import Supervisor
from partage.agent.watchdog import Watchdog
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.left_holds import LeftHolds
from partage.edges.files.usage_days import UsageDays
from partage.edges.hardware.port import Hardware
from partage.edges.host.directory_changes import DirectoryChanges
from partage.edges.kubelet.checkpoint import CheckpointFile
from partage.edges.kubelet.pod_resources import PodResourcesClient
from partage.edges.kubelet.sockets import may_exist, socket_identity
from partage.model.gpu import devices_of
from partage.model.ids import DeviceUuid, ResourceName
from partage.model.share import plugin_resources
from partage.model.xid import XidRules
from partage.plan.reconcile.node_plan import NodePlan
from partage.plan.reconcile.planner import Planner
from partage.plan.serve.fragmentation import Refusals
from partage.plan.serve.ledger import Ledger
from partage.plan.serve.unit_allocation import NoRoom

if TYPE_CHECKING:
    from partage.agent.cluster_part import ConnectCluster
    from partage.edges.kube.port import ClusterNode


class Parts:
    """The connected parts. Nothing of them runs yet.

    served_before: devices that the agent of before offered.
    """

    def __init__(
        self,
        options: AgentOptions,
        hardware: Hardware,
        status: AgentStatus,
        state_writer: StateWriter,
        connect: ConnectCluster,
    ) -> None:
        self.options = options
        self.status = status
        self.state_writer = state_writer
        self.requests = TurnRequests()
        self.ledger = Ledger()
        self.kubelet = PodResourcesClient(options.pod_resources)
        self.changes = DirectoryChanges()
        self.supervisor = Supervisor(status.clock)
        self.endpoints = ServedResources(options, self.changes, status.clock, self.supervisor)
        self.served_before: set[DeviceUuid] = set()
        ask, clock, intervals = self.requests.ask, status.clock, options.intervals
        self.hardware = HardwareObserver(
            hardware,
            ask,
            intervals,
            XidLog(clock),
            restricted_mps=options.restricted_mps,
            settled=self._is_settled,
        )
        self.gate = DriverGate(options.run_dir, options.validations, hardware, self.hardware.observe)
        self.settings = SettingsObserver(hardware, clock, intervals.observe_s)
        self.pod_resources, self.refusals = self._poller_of(hardware), Refusals()
        kubelet = self.pod_resources
        hooks = PluginHooks(
            ledger=self.ledger,
            clock=clock,
            holders=kubelet.ask_holders,
            left=kubelet.left_at_once,
            allocated=self._allocated,
            registering=kubelet.now,
            refused=self._refused,
        )
        self.plugins = PluginSet(hooks)
        self.policies = PolicyObserver(options, geometry_of, ask, changes=self.changes)
        self.cluster = connect(options, status, ask, self._know, self.policies.judge_again)
        if options.rollout:
            self.policies.may_change = self.cluster.may_change
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
        self.originals = Originals(state_writer.write_originals)
        self.unfinished = UnfinishedChange(options.state_dir)
        self.reconciler = self._reconciler_of()
        self.watchdog = self._watchdog_of(hardware)
        self.pipe_tenants = PipeTenantsObserver(
            hardware=hardware,
            ledger=self.ledger,
            directory=options.container_logs,
            changes=self.changes,
            clock=clock,
            ask=ask,
            intervals=intervals,
            observation=lambda: self.watchdog.observation,
        )
        self.usage = UsageObserver(
            hardware=hardware,
            ledger=self.ledger,
            holders_known=self.pod_resources.knows_holders,
            directory=options.container_logs,
            offer=lambda: self.loop.view.offer,
            clock=clock,
            intervals=intervals,
        )
        self.history = self._history_of() if options.history_days else None
        self.loop = self._loop_of()
        status.watch_observation = lambda: self.watchdog.observation
        status.use_seen = lambda: self.usage.seen
        status.endpoints = self.endpoints.states
        status.mps_clients = MpsClientsSeen() if self.options.mps_pipe_read_only else None
        status.ended_tasks = lambda: self.supervisor.trouble
        status.counts.asked = self.plugins.asked
        status.counts.xids = self.hardware.xid_counts
        status.counts.last_xids = self.hardware.last_xids
        status.counts.changes = self.reconciler.endings

    def know_labels(self, labels: Mapping[str, str]) -> None:
        """The labels of the Node are these now."""
        self.gate.know_labels(labels)
        self.policies.know_labels(labels)

    def _poller_of(self, hardware: Hardware) -> PodResourcesPoller:
        options = self.options
        return PodResourcesPoller(
            pod_resources=self.kubelet,
            checkpoint=CheckpointFile(options.kubelet_dir),
            ledger=self.ledger,
            clock=self.status.clock,
            ask=self.requests.ask,
            intervals=options.intervals,
            names=self._names,
            kubelet=lambda: (socket_identity(options.pod_resources), socket_identity(options.kubelet_socket)),
            resend=self._resend,
            former=FormerHolders(
                ledger=self.ledger,
                clock=self.status.clock,
                ask=self.requests.ask,
                left=hardware.left_of,
                files=LeftHolds(options.run_dir),
            ),
            accepted=lambda: any(state.registered for state in self.endpoints.states()),
            may_know=lambda: bool(self.served_before) or may_exist(options.pod_resources),
        )

    def _reconciler_of(self) -> Reconciler:
        port = NodePort(
            hardware=self.hardware,
            settings=self.settings,
            policies=self.policies,
            originals=self.originals,
            unfinished=self.unfinished,
            geometry_of=geometry_of,
            intervals=self.options.intervals,
            planned=self._plan,
            until_usable=self.cdi.wait_until_written,
            ask=self.requests.ask,
            look=self.other_plugins.look,
        )
        return Reconciler(port, self.status.clock, self.requests.ask, self.options.intervals.retry_s)

    def _watchdog_of(self, hardware: Hardware) -> Watchdog:
        return Watchdog(
            hardware=hardware,
            ledger=self.ledger,
            holders_known=self.pod_resources.knows_holders,
            directory=self.options.container_logs,
            clock=self.status.clock,
            ask=self.requests.ask,
            intervals=self.options.intervals,
            counts=self.status.counts,
        )

    def _history_of(self) -> HistoryObserver:
        options = self.options
        files = UsageDays(options.state_dir, options.history_days)
        self.status.history = files.texts
        return HistoryObserver(
            files=files,
            node=options.node_name or socket.gethostname(),
            look=self.usage.look,
            wanted=lambda: bool(self.ledger.entries()),
            gpus=self.hardware.models,
            intervals=options.intervals,
            ask=self.requests.ask,
        )

    def _loop_of(self) -> Loop:
        parts = LoopParts(
            options=self.options,
            clock=self.status.clock,
            status=self.status,
            requests=self.requests,
            ledger=self.ledger,
            hardware=self.hardware,
            settings=self.settings,
            pod_resources=self.pod_resources,
            policies=self.policies,
            cordon=self.cordon,
            originals=self.originals,
            planner=Planner(geometry_of, self.options.intervals.withdraw_s),
            reconciler=self.reconciler,
            plugins=self.plugins,
            state_writer=self.state_writer,
            cdi=self.cdi,
            guard=GuardFiles(self.options.run_dir),
            watchdog=self.watchdog,
            pipe_tenants=self.pipe_tenants,
            serve=self.endpoints.serve,
            retire=self.endpoints.retire,
            rules=XidRules.of_environment(self.options.environ),
            refusals=self.refusals,
            cluster_trouble=lambda: self.cluster.trouble,
            history_trouble=lambda: self.history.trouble if self.history else "",
            gave_up=lambda: self.cluster.gave_up,
            spared=lambda: self.cluster.spared,
            other_plugin=lambda: self.other_plugins.sentence,
            other_labels=lambda: self.cluster.other_writer,
        )
        return Loop(parts)

    def _know(self, node: ClusterNode) -> None:
        self.know_labels(node.labels)
        self.cordon.know_annotations(node.annotations)

    def _plan(self) -> NodePlan:
        return self.loop.plan()

    def _is_settled(self) -> bool:
        return self.loop.is_settled()

    def _allocated(self) -> None:
        self.pod_resources.allocated()
        self.pipe_tenants.soon()

    def _refused(self, resource: ResourceName, refusal: NoRoom) -> None:
        now_s = self.status.clock()
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
        return {*self.plugins.by_name, *(plugin_resources(desired.offer) if desired else ())}

    def _resend(self) -> bool:
        """Send the lists that the kubelet watches once more. False: it watches none."""
        watched = self.endpoints.watched()
        for resource in watched:
            self.plugins.by_name[resource].resend()
        return bool(watched)
