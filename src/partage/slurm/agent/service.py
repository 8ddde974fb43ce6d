"""The agent of a compute node of Slurm: connects its parts and starts its tasks. There is no kubelet."""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from partage.agent.observers.hardware import HardwareObserver, XidLog
from partage.agent.observers.history import HistoryObserver
from partage.agent.observers.policy import PolicyObserver
from partage.agent.observers.settings import SettingsObserver
from partage.agent.options import AgentOptions
from partage.agent.originals import Originals
from partage.agent.reconciler.node_port import NodePort
from partage.agent.reconciler.reconciler import Reconciler
from partage.agent.reconciler.unfinished import UnfinishedChange
from partage.agent.supervision import Supervisor
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.directory_lock import locked_run_directory
from partage.edges.files.state import SavedState, StateDir
from partage.edges.files.usage_days import UsageDays
from partage.edges.hardware.port import Hardware
from partage.edges.host.directory_changes import DirectoryChanges
from partage.edges.host.own_task import unending
from partage.edges.host.service_manager import say_ready
from partage.edges.host.ticks import until_tick
from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid
from partage.model.xid import XidRules
from partage.plan.reconcile.node_plan import Phase
from partage.plan.reconcile.planner import Planner
from partage.plan.reconcile.settings_steps import OriginalSettings
from partage.slurm.agent.gpu_health import GpuHealth
from partage.slurm.agent.history import JobUsageObserver
from partage.slurm.agent.node_files import NodeFiles
from partage.slurm.agent.options import SlurmOptions
from partage.slurm.agent.status import SlurmStatus
from partage.slurm.agent.upkeep import SlurmUpkeep
from partage.slurm.host.control import SlurmControl

log = logging.getLogger(__name__)

FIRST_OBSERVATION_S = 5.0
"""How long the start waits for the first observation: a policy that does not fit the node ends the agent."""


async def run(
    options: AgentOptions,
    slurm: SlurmOptions,
    hardware: Hardware,
    *,
    stop: asyncio.Event,
    beside: Callable[[SlurmStatus], Awaitable[None]] | None = None,
) -> None:
    """Keep Slurm and the GPUs of this node the same until ``stop`` is set. The caller closes the hardware.

    beside: runs at the same time, and is cancelled in the end.

    Raises InputError or Unsatisfiable, with nothing changed, if the policy cannot be applied and there is no
    last good one; InputError if another agent has locked the state or the run directory.
    """
    wait_s = options.intervals.other_ends_s
    directory = await asyncio.to_thread(StateDir, options.state_dir, wait_s)
    try:
        with locked_run_directory(options.run_dir, wait_s=wait_s):
            await _Service(options, slurm, hardware, directory).run(stop, beside)
    finally:
        directory.close()


class _Service:
    """The connected parts."""

    def __init__(
        self, options: AgentOptions, slurm: SlurmOptions, hardware: Hardware, directory: StateDir
    ) -> None:
        self._options, self._directory, self._saved = options, directory, SavedState()
        clock, intervals = time.monotonic, options.intervals
        self._supervisor = Supervisor(clock)
        asked, news = asyncio.Event(), asyncio.Event()
        self._hardware = HardwareObserver(hardware, news.set, intervals, XidLog(clock))
        self._health = GpuHealth(
            hardware=self._hardware,
            clock=clock,
            ask=asked.set,
            rules=XidRules.of_environment(options.environ),
            in_hand=self._in_hand,
            news=news,
        )
        self._pulse_s = clock()
        settings = SettingsObserver(hardware, clock, intervals.observe_s)
        self._changes = DirectoryChanges()
        self._policies = PolicyObserver(options, geometry_of, asked.set, changes=self._changes)
        unfinished = UnfinishedChange(options.state_dir)
        self._upkeep = SlurmUpkeep(
            options=slurm,
            hardware=self._hardware,
            settings=settings,
            policies=self._policies,
            planner=Planner(geometry_of, intervals.withdraw_s),
            files=NodeFiles.of(slurm, options.state_dir),
            control=SlurmControl(slurm.programs, options.environ, slurm.pace.answer_s),
            clock=clock,
            asked=asked,
            sick=lambda: self._health.trouble,
            ready=partial(say_ready, options.environ),
        )
        port = NodePort(
            hardware=self._hardware,
            settings=settings,
            policies=self._policies,
            originals=Originals(_no_settings),
            unfinished=unfinished,
            geometry_of=geometry_of,
            intervals=intervals,
            planned=self._upkeep.plan,
            until_usable=_at_once,
            ask=asked.set,
        )
        self._upkeep.reconciler = Reconciler(port, clock, asked.set, intervals.retry_s)
        self._upkeep.reconciler.in_hand = dict.fromkeys(unfinished.read(), Phase.VERIFYING)
        self._use = JobUsageObserver(hardware, self._upkeep.control, slurm.node, options.run_dir)
        self._history = self._history_of(slurm, self._use) if options.history_days else None

    def _in_hand(self) -> Mapping[GpuUuid, Phase]:
        reconciler = self._upkeep.reconciler
        return {} if reconciler is None else reconciler.in_hand

    async def _pulse(self) -> None:
        """Note regularly that the event loop is alive; the HTTP thread checks how old the note is."""
        while True:
            self._pulse_s = time.monotonic()
            await until_tick(self._options.intervals.policy_s)

    def _stopped(self) -> str:
        """Whether the loop has stopped, a sentence; asked from another thread."""
        now_s = time.monotonic()
        if (age_s := now_s - self._pulse_s) > self._options.intervals.stalled_s:
            return f"the agent's loop has not moved for {age_s:.0f} s"
        if (late_s := now_s - self._upkeep.due_s) > 0:
            return f"the agent has not looked at Slurm; it is {late_s:.0f} s late"
        return ""

    def _history_of(self, slurm: SlurmOptions, use: JobUsageObserver) -> HistoryObserver:
        options = self._options
        return HistoryObserver(
            files=UsageDays(options.state_dir, options.history_days),
            node=slurm.node,
            look=use.look,
            wanted=use.wanted,
            gpus=self._hardware.models,
            intervals=options.intervals,
            jobs=lambda: use.names,
        )

    async def _beside(self, beside: Callable[[SlurmStatus], Awaitable[None]]) -> None:
        status = SlurmStatus(
            node=self._use.node,
            hardware=self._hardware,
            use=self._use,
            loop=asyncio.get_running_loop(),
            dcgm=self._options.dcgm_names,
            history=None if self._history is None else self._history.files.texts,
            ended_tasks=lambda: self._supervisor.trouble,
            stopped=self._stopped,
        )
        await beside(status)

    async def run(self, stop: asyncio.Event, beside: Callable[[SlurmStatus], Awaitable[None]] | None) -> None:
        """Start, run, stop."""
        loaded = self._directory.load(time.monotonic())
        for problem in loaded.problems:
            log.warning("state cannot be used", extra={"problem": problem})
        self._saved = loaded.state or SavedState()
        self._policies.fallback = self._saved.policy
        self._health.restore(self._saved)
        self._policies.start()
        observation = asyncio.create_task(self._hardware.observe(), name="first observation")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait(
                {observation, stopped}, timeout=FIRST_OBSERVATION_S, return_when=FIRST_COMPLETED
            )
            self._policies.resolve_on(self._hardware.node)
            self._policies.check_in_force()
            tasks: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
                "observe": self._hardware.observe_regularly,
                "events": self._hardware.watch_events,
                "conditions": self._hardware.conditions_forever,
                "health": self._health.run,
                "policy": self._policies.watch,
                "state": self._save,
                "upkeep": self._upkeep.run,
                "pulse": self._pulse,
            }
            if self._history is not None:
                tasks["history"] = self._history.run
            async with asyncio.TaskGroup() as group:
                keep = self._supervisor.keep
                running = [group.create_task(keep(name, work)) for name, work in tasks.items()]
                if beside is not None:
                    running.append(group.create_task(unending("pages", self._beside(beside))))
                await stopped
                for task in running:
                    task.cancel()
        finally:
            observation.cancel()
            stopped.cancel()
            self._changes.close()
        if self._history is not None:
            await asyncio.to_thread(self._history.save)

    async def _save(self) -> None:
        """Keep the last good policy, and the health of the GPUs, for the next agent."""
        written = self._saved
        while True:
            policy = self._policies.saved if self._policies.good is not None else written.policy
            boot_id, health = self._health.boot_id, self._health.by_gpu
            state = replace(written, policy=policy, boot_id=boot_id, health=health)
            if state != written:
                written = state
                if failed := await asyncio.to_thread(self._directory.save, state, time.monotonic()):
                    log.warning("state cannot be written", extra={"reason": failed.reason})
            await until_tick(self._options.intervals.policy_s)


async def _no_settings(_: Mapping[GpuUuid, OriginalSettings]) -> None:
    """The agent of a Slurm node changes no settings of GPUs."""


async def _at_once(_: Inventory) -> None:
    """No CDI specs are written for jobs."""
