"""The task that keeps Slurm and the GPUs of a compute node the same: look, decide, make one move, look again.

The move is chosen in ``slurm/decide/next_move``; layouts are made by the same reconciler as on a node of
Kubernetes. Daemons, compute modes and time slices are left alone: the prolog has them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable

from msgspec import Struct, field
from msgspec.structs import replace

from partage.agent.service import NodeService
from partage.errors import InputError, PartageError, Unreachable
from partage.model.gpu import NoDriver
from partage.plan.reconcile.known_node import KnownNode
from partage.plan.reconcile.node_plan import NodePlan, Phase
from partage.slurm.agent.node_files import NodeFiles, WantedFiles, wanted_of
from partage.slurm.agent.options import SlurmOptions
from partage.slurm.decide import releases
from partage.slurm.decide.job_processes import of_jobs
from partage.slurm.decide.next_move import (
    DrainNode,
    LoadFiles,
    MakeLayout,
    Move,
    MoveInput,
    Rest,
    ResumeNode,
    WriteFiles,
    next_move,
    what_is_due,
)
from partage.slurm.decide.node_files import Writes
from partage.slurm.host.control import SlurmControl
from partage.slurm.model import LiveNode

log = logging.getLogger(__name__)

_STAYS = (Phase.SETTLED, Phase.BLOCKED)
"""Phases of a GPU whose layout is not about to change."""
_DOUBLED = 6
"""So often the pause after a request that brought nothing is doubled."""


class SlurmMover(Struct):
    """Looks and acts. node: the service, whose plan it follows. move: the last one.

    sick: which GPUs must get no jobs although they answer. ready: called once, when slurmd may start, with
    what is done or waited for. done: called after each move. due_s: when it has to have moved again, else it
    has stopped.
    """

    options: SlurmOptions
    node: NodeService
    files: NodeFiles
    control: SlurmControl
    sick: Callable[[], str]
    ready: Callable[[str], bool]
    done: Callable[[], None]
    move: Move = field(default_factory=Rest)
    _said: str = ""
    _pause_s: float = 0.0
    _unwritten: str = ""
    _unwritten_s: float = 0.0
    due_s: float = math.inf
    _asked: LoadFiles | None = None
    _asked_until_s: float = 0.0
    _requests: int = 0
    _refused: str = ""
    _started_s: float | None = None

    async def run(self) -> None:
        """Look and act until cancelled."""
        if self._started_s is None:
            self._started_s = self.node.clock()
        self._moves_within(self.options.pace.step_s)
        await self.node.reconciler.finish_cut_off()
        while True:
            before = self.move
            self._moves_within(self.options.pace.turn_s)
            try:
                self.move = await self.turn()
            except PartageError as error:
                self.move = Rest(str(error))
            self._let_slurmd_start(self.move)
            self._say(self.move)
            self.done()
            await self._pause(before)

    def _moves_within(self, seconds: float) -> None:
        self.due_s = self.node.clock() + seconds

    async def turn(self) -> Move:
        """One look and one move. Raises ClusterError where Slurm refuses, HardwareError."""
        node = self.node.hardware.node
        if node is None or self.node.hardware.trouble:
            return Rest(f"the GPUs are not known: {self.node.hardware.trouble or 'not observed yet'}")
        self.node.policies.resolve_on(node)
        now, wanted = await self._look(node)
        move = next_move(now)
        if self._let_slurmd_start(move) and isinstance(move, LoadFiles):
            self._note_request(LoadFiles(reconfigure=False))  # systemd starts it now
            return Rest("slurmd starts")
        await self._do(move, now.node, wanted)
        return move

    def _let_slurmd_start(self, move: Move) -> bool:
        """At the start of the node slurmd waits for the layout, and for files that fit it: what it finds is
        what it needs, or it does not come up. Not for ever: some things are not known before it is there.
        Whether something waited for it.
        """
        if self._started_s is None or isinstance(move, (DrainNode, MakeLayout, WriteFiles)):
            return False
        waits = isinstance(move, Rest) and move.why
        if waits and self.node.clock() < self._started_s + self.options.pace.first_s:
            return False
        self._started_s = None
        return self.ready(move.why if isinstance(move, Rest) and move.why else "the layout is there")

    # --- looking ------------------------------------------------------------------------------

    async def _look(self, node: KnownNode) -> tuple[MoveInput, WantedFiles | None]:
        live = await self._ask_slurm()
        trouble = "; ".join(filter(None, (_trouble(node), self.sick())))
        plan = NodePlan() if trouble else self.node.plan()
        if not plan.settled:
            await self.node.settings.observe(users=True, slices=False)
            plan = self.node.plan()
        self.node.reconciler.published(plan)
        now = MoveInput(
            node=live,
            version=self.options.version,
            trouble=trouble,
            change=_change(node, plan),
            ready=bool(plan.ready),
            stuck="; ".join(
                dict.fromkeys(gpu_plan.reason for gpu_plan in plan.gpus.values() if gpu_plan.reason)
            ),
            writes_counts=self.options.writes is Writes.SHARED,
            resumed=self.files.state.resumed,
        )
        wanted = None
        if not (trouble or now.change):
            try:
                wanted = self._wanted()
            except PartageError as error:
                now = await asyncio.to_thread(self._undescribed, now, node, str(error))
        if wanted is not None and live is not None:
            now = replace(
                now,
                files=await asyncio.to_thread(self.files.compare, wanted, live),
                loaded=await asyncio.to_thread(self.files.loaded, wanted, live),
                told=await asyncio.to_thread(self._told),
                wanted=wanted.counts,
            )
        if live is not None and live.drained and what_is_due(now):
            jobs = await asyncio.to_thread(self.control.jobs, self.options.node)
            found = await self.node.hardware.hardware.processes()
            now = replace(now, jobs=jobs, processes=of_jobs(found.rows))
        if self._unwritten and self.node.clock() >= self._unwritten_s:
            self._unwritten = ""
        unwritten = self._unwritten or self.files.by_others
        return replace(
            now,
            unwritten=unwritten,
            asked=self._asked if self.node.clock() < self._asked_until_s else None,
            refused=self._refused,
            reconfigured=self.files.state.reconfigured,
        ), wanted

    def _told(self) -> bool:
        """Whether slurmctld has read the files, where it can: before 23.11 it has to be started anew, and the
        counts say whether it was."""
        if self.files.state.told or self.options.version < releases.RECONFIGURE_APPLIES:
            return True
        return self.files.told(self.control.settings().started_s)

    async def _ask_slurm(self) -> LiveNode | None:
        try:
            return await asyncio.to_thread(self.control.node, self.options.node)
        except Unreachable as error:
            log.debug("slurmctld does not answer", extra={"reason": str(error)})
            return None

    def _wanted(self) -> WantedFiles:
        """What the files have to say. Raises InputError, Unsatisfiable."""
        if self.node.policies.desired is None:
            raise InputError("no policy is in force")
        return wanted_of(self.node.policies.desired, self.options)

    def _undescribed(self, now: MoveInput, node: KnownNode, why: str) -> MoveInput:
        """The node cannot be described to Slurm: it stays as it is, as long as all that jobs are given is
        still there."""
        there = {gpu.uuid for gpu in node.inventory} | {
            mig.uuid for gpu in node.inventory for mig in gpu.mig_devices
        }
        gone = self.files.told_devices() - there
        if gone:
            return replace(now, trouble=f"devices that Slurm gives to jobs are gone: {why}")
        return replace(now, undescribed=why)

    # --- acting -------------------------------------------------------------------------------

    async def _do(self, move: Move, live: LiveNode | None, wanted: WantedFiles | None) -> None:
        name = self.options.node
        match move:
            case DrainNode(reason=reason):
                await asyncio.to_thread(self.control.drain, name, reason)
            case MakeLayout():
                self._moves_within(self.options.pace.step_s)
                await self.node.reconciler.step()
            case WriteFiles() if wanted is not None:
                await self._write(wanted)
            case LoadFiles():
                await self._load(move)
            case ResumeNode() if live is not None:
                await asyncio.to_thread(self.control.resume, name)
                await asyncio.to_thread(self.files.resumed, live)
                self._forget_requests()

    async def _write(self, wanted: WantedFiles) -> None:
        self._forget_requests()
        try:
            await asyncio.to_thread(self.files.write, wanted)
            await asyncio.sleep(await asyncio.to_thread(self.files.until_readable_s))
            if self.options.writes is Writes.SHARED and not self.files.state.loaded:
                await asyncio.sleep(random.uniform(0, self.options.pace.spread_s))  # noqa: S311 - no secret
        except PartageError as error:
            self._unwritten, self._unwritten_s = str(error), self.node.clock() + self.options.pace.retry_s
            log.warning("files cannot be written", extra={"reason": str(error)})

    async def _load(self, move: LoadFiles) -> None:
        await asyncio.sleep(await asyncio.to_thread(self.files.until_readable_s))
        self._refused = ""
        try:
            if move.reconfigure:
                await asyncio.to_thread(self.control.reconfigure)
                await asyncio.to_thread(self.files.reconfigured)
            else:
                await asyncio.to_thread(self.control.restart_slurmd, self.options.restart)
        except PartageError as error:
            self._refused = str(error)
            raise
        finally:
            self._note_request(move)

    def _note_request(self, move: LoadFiles) -> None:
        """The next request of the same kind waits twice as long as this one."""
        pause_s = self.options.pace.asked_s * 2.0 ** min(self._requests, _DOUBLED)
        self._asked, self._asked_until_s = move, self.node.clock() + pause_s
        self._requests += 1

    def _forget_requests(self) -> None:
        self._asked, self._requests, self._refused = None, 0, ""

    # --- saying and waiting -------------------------------------------------------------------

    def _say(self, move: Move) -> None:
        """Log a move, or why there is none, once."""
        if isinstance(move, Rest):
            self._log_once("slurm waits" if move.why else "slurm is as it should be", move.why)
        else:
            self._said = ""
            log.info(f"slurm: {_name(move)}", extra={"reason": getattr(move, "reason", None)})

    def _log_once(self, event: str, why: str) -> None:
        said = f"{event} {why}"
        if said != self._said:
            self._said = said
            log.log(logging.WARNING if why else logging.INFO, event, extra={"reason": why or None})

    async def _pause(self, before: Move) -> None:
        pace = self.options.pace
        if self.move == Rest():
            self._pause_s = pace.idle_s
        elif self.move == before:
            self._pause_s = min(max(2 * self._pause_s, pace.busy_s), pace.longest_s)
        else:
            self._pause_s = pace.busy_s if isinstance(self.move, Rest) else min(0.2, pace.busy_s)
        self._moves_within(self._pause_s + pace.turn_s)
        await self.node.requests.wait(self._pause_s)


_NAMES = {
    DrainNode: "node drained",
    MakeLayout: "layout made",
    WriteFiles: "files written",
    ResumeNode: "node resumed",
}


def _name(move: Move) -> str:
    if isinstance(move, LoadFiles):
        return "reconfigure asked for" if move.reconfigure else "slurmd restarted"
    return _NAMES[type(move)]


def _trouble(node: KnownNode) -> str:
    """Why the node cannot serve jobs whatever is done."""
    driver = node.inventory.driver
    if isinstance(driver, NoDriver):
        return f"no driver: {driver.reason}"
    gone = [f"GPU {node.known[uuid].index} does not answer: {why}" for uuid, why in node.lost.items()]
    gone += [f"GPU {gpu.index} does not answer: {gpu.reason}" for gpu in node.inventory.lost]
    return "; ".join(gone)


def _change(node: KnownNode, plan: NodePlan) -> str:
    """Which layouts have to be made; empty: none."""
    indexes = sorted(node.known[gpu].index for gpu, one in plan.gpus.items() if one.phase not in _STAYS)
    if not indexes:
        return ""
    some = f"GPU {indexes[0]}" if len(indexes) == 1 else f"GPUs {', '.join(map(str, indexes))}"
    return f"the MIG layout of {some} changes"
