"""The agent of a node, whoever gives its GPUs away: lock, state, observers, reconciler, history, tasks.

``kubelet_service`` and ``slurm/agent/service`` add what is their own: what is planned, and who is told.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from partage.agent.observers.hardware import HardwareObserver, XidLog
from partage.agent.observers.policy import PolicyObserver
from partage.agent.observers.settings import SettingsObserver
from partage.agent.observers.usage import HistoryObserver
from partage.agent.options import AgentOptions
from partage.agent.reconciler.node_port import NodePort, Originals, UnfinishedChange
from partage.agent.reconciler.reconciler import Reconciler
from partage.agent.state_writer import StateWriter
from partage.agent.status.status import AgentStatus, UsageObservation
from partage.agent.supervision import Supervisor, wait_at_most
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.directory_lock import locked_run_directory
from partage.edges.files.state import SavedState, StateDir
from partage.edges.files.usage_days import UsageDays
from partage.edges.hardware.port import Hardware
from partage.edges.host.own_task import unending
from partage.edges.host.waiting import DirectoryChanges
from partage.model.driver_limit import LimitSetter
from partage.model.gpu import Inventory
from partage.model.health import Health
from partage.model.ids import GpuUuid
from partage.model.xid import XidRules
from partage.plan.history.evidence import JobName
from partage.plan.reconcile.node_plan import NodePlan, Phase
from partage.plan.reconcile.planner import Planner
from partage.plan.reconcile.transition import GpuServing
from partage.plan.report import Report, diff_reports

FIRST_OBSERVATION_S = 5.0
"""How long the start waits for the first observation of the node: a policy that does not fit it ends the
agent. A helper that takes longer hangs; then the agent starts, reports it, and offers GPUs once it observes
them."""

Tasks = Mapping[str, Callable[[], Coroutine[Any, Any, None]]]
"""What runs as long as the agent, by name."""

Beside = Callable[[AgentStatus], Coroutine[Any, Any, None]]
"""A task of the caller, such as HTTP, that runs with the agent and ends with it."""


class TurnRequests:
    """Requests for a turn."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Ask for a turn, soon."""
        self._asked.set()

    async def wait(self, longest_s: float | None) -> None:
        """Wait until a turn is asked for, at most longest_s seconds; all requests so far are taken."""
        await wait_at_most(self._asked, longest_s)
        self._asked.clear()


class NodeService(ABC):
    """The connected parts, and their life: restore, start, run until told to stop, save.

    Nothing runs before ``run``. A subclass fills the methods in that stand first.
    """

    def __init__(
        self, options: AgentOptions, hardware: Hardware, status: AgentStatus, state_writer: StateWriter
    ) -> None:
        self.options, self.status, self.state_writer = options, status, state_writer
        self.clock = clock = status.clock
        self.requests = TurnRequests()
        ask, intervals = self.requests.ask, options.intervals
        self.changes = DirectoryChanges()
        self.supervisor = Supervisor(clock)
        self.rules = XidRules.of_environment(options.environ)
        self.hardware = HardwareObserver(
            hardware,
            self.hardware_news,
            intervals,
            XidLog(clock),
            restricted_mps=options.restricted_mps,
            settled=self.is_settled,
            limits_by=self.limits_by,
        )
        self.settings = SettingsObserver(hardware, clock, intervals.observe_s)
        self.policies = PolicyObserver(options, geometry_of, ask, changes=self.changes)
        self.originals = Originals(state_writer.write_originals)
        self.unfinished = UnfinishedChange(options.state_dir)
        self.planner = Planner(geometry_of, intervals.withdraw_s)
        port = NodePort(
            hardware=self.hardware,
            settings=self.settings,
            policies=self.policies,
            originals=self.originals,
            unfinished=self.unfinished,
            geometry_of=geometry_of,
            intervals=intervals,
            planned=self.plan,
            until_usable=self.until_usable,
            ask=ask,
            look=self.look_for_others,
            slices_asked=self.slices_asked,
        )
        self.reconciler = Reconciler(port, clock, ask, intervals.retry_s, intervals.cut_off_s)
        self.history: HistoryObserver | None = None
        status.ended_tasks = lambda: self.supervisor.trouble
        status.counts.xids = self.hardware.xid_counts
        status.counts.last_xids = self.hardware.last_xids
        status.counts.changes = self.reconciler.endings

    # --- what differs ---

    @abstractmethod
    def limits_by(self, inventory: Inventory) -> LimitSetter | None:
        """What sets the driver's memory limits before a container or job starts; None: not known yet."""

    @abstractmethod
    def plan(self) -> NodePlan:
        """The plan of this moment."""

    @abstractmethod
    def restore(self, saved: SavedState) -> None:
        """Go on from what the agent before has left. Nothing runs yet."""

    @abstractmethod
    def tasks(self) -> Tasks:
        """Its own tasks; those that every node has are not among them."""

    @abstractmethod
    async def first_turn(self, group: asyncio.TaskGroup) -> None:
        """The first look, and the first report; the tasks run already, ``turns`` does not."""

    @abstractmethod
    async def turns(self) -> None:
        """Look and act whenever a turn is asked for or due, until cancelled."""

    def hardware_news(self) -> None:
        """The hardware has answered something new."""
        self.requests.ask()

    def is_settled(self) -> bool:
        """Whether a turn would say what the last one said, as long as nothing is new."""
        return False

    async def until_usable(self, inventory: Inventory) -> None:
        """Wait until new devices can be given away; there is nothing to wait for."""
        del inventory

    def look_for_others(self) -> None:
        """See whether somebody else gives these GPUs away; nobody does."""
        return

    def slices_asked(self) -> bool:
        """Whether a claim asks for time slices; there are none without a kubelet."""
        return False

    def stop(self) -> None:
        """The tasks were cancelled: end what was started beside them."""
        self.changes.close()

    # --- what does not ---

    def keep_history(
        self,
        node: str,
        look: Callable[[], Awaitable[UsageObservation | None]],
        wanted: Callable[[], bool],
        jobs: Callable[[], Mapping[str, JobName]] = dict,
    ) -> None:
        """Keep the history of use, where the options say so; see ``HistoryObserver``."""
        options = self.options
        if not options.history_days:
            return
        files = UsageDays(options.state_dir, options.history_days)
        self.status.history = files.texts
        self.history = HistoryObserver(
            files=files,
            node=node,
            look=look,
            wanted=wanted,
            gpus=self.hardware.models,
            intervals=options.intervals,
            ask=self.requests.ask,
            jobs=jobs,
        )

    @property
    def history_trouble(self) -> str:
        """Why the history of use is not on disk; empty if it is, or if there is none."""
        return self.history.trouble if self.history is not None else ""

    def remember(self, serving: Mapping[GpuUuid, GpuServing], health: Mapping[GpuUuid, Health]) -> None:
        """Have this on disk for the next agent, with the policy and the settings of before."""
        saved, original = self.policies.saved, self.originals.by_gpu
        self.state_writer.update(SavedState(self.hardware.boot_id, saved, serving, health, original))

    def publish(self, report: Report, log: logging.Logger) -> None:
        """Make this the report, and log what is new in it."""
        for event in diff_reports(self.status.report, report):
            log.log(logging.WARNING if event.warning else logging.INFO, event.event, extra=dict(event.facts))
        counts = self.status.counts
        counts.turns = report.made.number
        counts.reloads_ok, counts.reloads_failed = self.policies.reloads_ok, self.policies.reloads_failed
        self.status.publish(report)

    async def run(self, stop: asyncio.Event, beside: Beside | None) -> None:
        """Start, run until ``stop`` is set, stop. Raises InputError or Unsatisfiable, with nothing changed,
        if the policy cannot be applied and there is no last good one."""
        observation = asyncio.create_task(self.hardware.observe(), name="first observation")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            self._restore()
            self.policies.start()
            await asyncio.wait(
                {observation, stopped}, timeout=FIRST_OBSERVATION_S, return_when=FIRST_COMPLETED
            )
            if observation.done():
                observation.result()
            self.policies.resolve_on(self.hardware.node)
            self.policies.check_in_force()
            await self._run_tasks(stopped, beside)
        finally:
            observation.cancel()
            stopped.cancel()
            self.changes.close()  # where it did not start
        await asyncio.to_thread(self.state_writer.save)
        if self.history is not None:
            await asyncio.to_thread(self.history.save)

    def _restore(self) -> None:
        saved = self.state_writer.load()
        self.policies.fallback = saved.policy
        self.originals.by_gpu = saved.original
        self.hardware.boot_id = saved.boot_id
        self.reconciler.in_hand = dict.fromkeys(self.unfinished.read(), Phase.VERIFYING)
        self.restore(saved)

    async def _run_tasks(self, stopped: asyncio.Task[Any], beside: Beside | None) -> None:
        every: Tasks = {
            "observe": self.hardware.observe_regularly,
            "conditions": self.hardware.conditions_forever,
            "events": self.hardware.watch_events,
            "policy": self.policies.watch,
            "state": self.state_writer.run,
        }
        history: Tasks = {} if self.history is None else {"history": self.history.run}
        keep = self.supervisor.keep
        async with asyncio.TaskGroup() as group:
            tasks = {**self.tasks(), **every, **history}
            running = [group.create_task(keep(name, work)) for name, work in tasks.items()]
            try:
                await self.first_turn(group)
                running.append(group.create_task(keep("turns", self.turns)))
                if beside is not None:
                    running.append(group.create_task(unending("beside", beside(self.status))))
                await stopped
            finally:
                for task in running:
                    task.cancel()
                self.stop()


async def run_locked(
    options: AgentOptions,
    status: AgentStatus,
    make: Callable[[StateWriter], NodeService],
    *,
    stop: asyncio.Event,
    beside: Beside | None,
) -> None:
    """Lock state and run directory, make the service of the node, and run it until ``stop`` is set.

    Raises what ``NodeService.run`` does; InputError if another agent has locked one of the directories.
    """
    wait_s = options.intervals.other_ends_s
    # Two that are deleted by force one after the other wait for the same one: both saw that it was free.
    directory = await asyncio.to_thread(StateDir, options.state_dir, wait_s)
    try:
        with locked_run_directory(options.run_dir, wait_s=wait_s):
            await make(StateWriter(directory, options.report_file, status.clock)).run(stop, beside)
    finally:
        directory.close()
