"""The agent of a compute node of Slurm: the frame of every agent, and what tells Slurm. No kubelet."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from partage.agent.observers.memory_limits import MemoryLimitsObserver
from partage.agent.options import AgentOptions
from partage.agent.service import Beside, NodeService, Tasks, run_locked
from partage.agent.state_writer import StateWriter
from partage.agent.status.status import AgentStatus
from partage.edges.files.state import SavedState
from partage.edges.hardware.port import Hardware
from partage.edges.host.unix_sockets import say_ready
from partage.edges.host.waiting import until_tick
from partage.model.driver_limit import LimitSetter, LimitWay
from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid
from partage.plan.reconcile.known_node import UNSEEN
from partage.plan.reconcile.node_plan import NodePlan, Snapshot
from partage.plan.report import DependencyProblems, Report, ReportTime, gpu_reports
from partage.plan.serve.held_limits import counted_gpus
from partage.plan.serve.kubelet_view import EMPTY_VIEW
from partage.plan.turn import NodeState, TurnResult
from partage.slurm.agent.gpu_health import GpuHealth
from partage.slurm.agent.history import JobUsageObserver
from partage.slurm.agent.job_limits import JobHolders
from partage.slurm.agent.mover import SlurmMover
from partage.slurm.agent.node_files import NodeFiles
from partage.slurm.agent.options import SlurmOptions
from partage.slurm.decide.next_move import Rest
from partage.slurm.host.control import SlurmControl

if TYPE_CHECKING:
    from partage.serve_http.agent_pages import MakeWriter

log = logging.getLogger(__name__)

_NO_FILES = "there is no slurm.conf in /etc/slurm or /run/slurm/conf, so it is not known what slurmd does"


async def run(
    options: AgentOptions,
    slurm: SlurmOptions,
    hardware: Hardware,
    *,
    stop: asyncio.Event,
    status: AgentStatus | None = None,
    beside: Beside | None = None,
) -> None:
    """Keep Slurm and the GPUs of this node the same until ``stop`` is set. The caller closes the hardware.

    status: where reports are published.

    Raises InputError or Unsatisfiable, with nothing changed, if the policy cannot be applied and there is no
    last good one; InputError if another agent has locked the state or the run directory.
    """
    now = status or AgentStatus(time.monotonic)
    await run_locked(
        options,
        now,
        lambda state_writer: SlurmService(options, slurm, hardware, now, state_writer),
        stop=stop,
        beside=beside,
    )


def import_metrics() -> MakeWriter:
    """What makes the writer of the metrics of a compute node."""
    from partage.slurm.agent.metrics import slurm_metrics_writer

    return slurm_metrics_writer


class SlurmService(NodeService):
    """The frame of a node, and what Slurm needs. Jobs are Slurm's: no share is offered, held or withdrawn."""

    def __init__(
        self,
        options: AgentOptions,
        slurm: SlurmOptions,
        hardware: Hardware,
        status: AgentStatus,
        state_writer: StateWriter,
    ) -> None:
        self.news = asyncio.Event()
        super().__init__(options, hardware, status, state_writer)
        self.saved = SavedState()
        self.health = GpuHealth(
            hardware=self.hardware,
            clock=self.clock,
            ask=self._health_changed,
            rules=self.rules,
            in_hand=lambda: self.reconciler.in_hand,
            news=self.news,
            taken=self._remember,
        )
        control = SlurmControl(slurm.programs, options.environ, slurm.pace.answer_s)
        self.mover = SlurmMover(
            options=slurm,
            node=self,
            files=NodeFiles.of(slurm, options.state_dir),
            control=control,
            sick=lambda: self.health.trouble,
            ready=partial(say_ready, options.environ),
            done=self._report,
        )
        self.holders = JobHolders(options.run_dir, self._counted, self._report)
        self.memory_limits = MemoryLimitsObserver(hardware, options.intervals, status.counts, self.holders)
        self.use = JobUsageObserver(
            hardware, control, slurm.node, options.run_dir, counted=lambda: self.memory_limits.used
        )
        self.keep_history(slurm.node, self.use.look, self.use.wanted, self.use.names_now)
        status.job_names = self.use.names_now
        status.use_seen = lambda: self.use.seen
        status.stopped = self._late

    def plan(self) -> NodePlan:
        """Of layouts alone: daemons, compute modes and time slices are the prolog's."""
        desired = self.policies.desired
        only_layouts = None if desired is None else replace(desired, settings={}, existing_settings={})
        return self.planner.plan(only_layouts, self._snapshot())

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            now_s=self.clock(),
            observed=replace(self.settings.observed(self.hardware.node or UNSEEN), daemons=()),
            attempts=self.reconciler.attempts,
            in_hand=self.reconciler.in_hand,
        )

    def restore(self, saved: SavedState) -> None:
        self.saved, self.health.by_gpu = saved, saved.health

    def limits_by(self, inventory: Inventory) -> LimitSetter:
        """The plugin, as the helper has found it in Slurm's files."""
        unseen = LimitSetter(LimitWay.SPANK) if inventory.simulated else LimitSetter(None, _NO_FILES)
        return inventory.limits_by or unseen

    def tasks(self) -> Tasks:
        return {
            "health": self.health.run,
            "pulse": self._pulse,
            "memory limits": self.memory_limits.run,
        }

    async def first_turn(self, group: asyncio.TaskGroup) -> None:
        del group
        loop, wait_s = asyncio.get_running_loop(), self.options.intervals.usage_answer_s
        self.status.usage = lambda: self.use.fresh(wait_s, loop)
        self.health.take()
        self._report()

    async def turns(self) -> None:
        await self.mover.run()

    def hardware_news(self) -> None:
        self.news.set()

    async def _pulse(self) -> None:
        """Note regularly that the event loop is alive; the HTTP thread checks how old the note is."""
        while True:
            self.status.pulse_s = self.clock()
            await until_tick(self.options.intervals.policy_s)

    def _late(self) -> str:
        late_s = self.clock() - self.mover.due_s
        return f"the agent has not looked at Slurm; it is {late_s:.0f} s late" if late_s > 0 else ""

    def _health_changed(self) -> None:
        self._report()
        self.requests.ask()

    def _counted(self) -> frozenset[GpuUuid]:
        """GPUs whose memory the kernel counts for each cgroup."""
        return counted_gpus(self.hardware.node.inventory) if self.hardware.node else frozenset()

    def _remember(self) -> None:
        """What GPUs served under a kubelet stays as it is on disk."""
        self.remember(self.saved.serving, self.health.by_gpu)

    def _report(self) -> None:
        """Say how the node is now."""
        self._remember()
        began_s, before = self.clock(), self.status.report
        snapshot, plan, desired = self._snapshot(), self.plan(), self.policies.desired
        done = TurnResult(NodeState(plan.serving, self.health.by_gpu), EMPTY_VIEW, plan)
        move = self.mover.move
        report = Report(
            made=ReportTime(
                at_s=time.time(),
                clock_s=self.clock(),
                number=before.made.number + 1 if before else 1,
                took_s=self.clock() - began_s,
            ),
            node=snapshot.observed.node,
            offer={},
            gpus=gpu_reports(snapshot, done, desired, ()),
            resources=(),
            entries=(),
            policy=self.policies.report,
            dependencies=DependencyProblems(
                hardware=self.hardware.trouble,
                state_dir=self.state_writer.trouble,
                history=self.history_trouble,
            ),
            slurm_waits=move.why if isinstance(move, Rest) else "",
            jobs=self.holders.rows,
        )
        self.publish(report, log)
