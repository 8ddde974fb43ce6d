"""The composition root: who is wired to whom. Every task of the agent is started here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from partage.agent.endpoints.cdi_specs import CdiSpecs
from partage.agent.endpoints.guard_files import GuardFiles
from partage.agent.endpoints.plugin_set import PluginSet
from partage.agent.endpoints.resource_plugin import Hooks, ResourcePlugin
from partage.agent.loop import Loop, Parts, Requests
from partage.agent.observers.hardware import HardwareObserver
from partage.agent.observers.pod_resources import OurNames, PodResourcesPoller
from partage.agent.observers.policy import PolicyObserver
from partage.agent.observers.settings import SettingsObserver
from partage.agent.options import AgentOptions
from partage.agent.reconciler import Reconciler
from partage.agent.retries import Retries
from partage.agent.state_writer import StateWriter
from partage.agent.status.status import AgentStatus
from partage.agent.watchdog import Watchdog
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.state import SavedState, StateDir
from partage.edges.hardware.port import Hardware
from partage.edges.kubelet.checkpoint import held_in_checkpoint
from partage.edges.kubelet.endpoint import ResourceEndpoint
from partage.edges.kubelet.pod_resources import PodResourcesClient
from partage.errors import InputError
from partage.model.gpu import Inventory
from partage.model.paths import check_socket_path
from partage.model.xid import XidRules
from partage.plan.reconcile.transition import answerable
from partage.plan.serve.ledger import Ledger
from partage.plan.turn import NodeState, after_restart

log = logging.getLogger(__name__)

FIRST_WORD_S = 0.3
"""How long the start waits for PodResources' first answer, and for the watchdog's first look. Who holds what,
and whether anybody watches, is better known before anything is offered; whoever is slow to say it shall not
keep the node's GPUs from being offered."""

FIRST_LOOK_S = 5.0
"""How long the start waits for the first look at the node: a policy that does not fit it ends the agent.
A helper that takes longer hangs; then the agent runs, says so, and offers what it sees once it sees it."""

Beside = Callable[[AgentStatus], Coroutine[Any, Any, None]]


async def run(
    settings: AgentOptions,
    hardware: Hardware,
    *,
    stop: asyncio.Event,
    board: AgentStatus | None = None,
    beside: Beside | None = None,
) -> None:
    """Run the node until ``stop`` is set; then sockets are removed, the state is written, and it returns.

    board: where reports are published, for those who want to watch. beside: a task of the caller's, run
    along; it ends with the agent. The hardware is the caller's to close.

    Raises InputError or Unsatisfiable, with nothing registered, where the policy cannot hold and no last good
    one stands in; InputError for a socket's path that is too long, where another agent has the state
    directory, and where the helper refuses what it was started with.
    """
    board = board or AgentStatus(time.monotonic)
    _check_paths(settings)
    memory = StateWriter(StateDir(settings.state_dir), board.clock)
    try:
        agent = _Agent(settings, hardware, board, memory)
        await agent.run(stop, beside)
    finally:
        memory.directory.close()


def _check_paths(settings: AgentOptions) -> None:
    sockets = {"--kubelet-dir": settings.kubelet_socket, "--pod-resources": settings.pod_resources}
    for option, path in sockets.items():
        check_socket_path(path, f"choose a shorter {option}")


class _Agent:
    """The parts, wired."""

    def __init__(
        self, settings: AgentOptions, hardware: Hardware, board: AgentStatus, memory: StateWriter
    ) -> None:
        self._settings = settings
        self._board = board
        self._memory = memory
        self._requests = Requests()
        self._ledger = Ledger()
        self._pod_resources = PodResourcesClient(settings.pod_resources)
        self._endpoints: list[ResourceEndpoint] = []
        self._group: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._served_before: set[str] = set()
        ask, clock = self._requests.ask, board.clock
        self._sense = HardwareObserver(hardware, ask, settings.intervals)
        self._holders = PodResourcesPoller(
            pod_resources=self._pod_resources,
            ledger=self._ledger,
            clock=clock,
            ask=ask,
            intervals=settings.intervals,
            names=self._names,
            checkpoint=lambda: held_in_checkpoint(settings.kubelet_dir),
            there=settings.pod_resources.exists,
        )
        hooks = Hooks(self._ledger, clock, self._holders.question, self._holders.soon)
        self._plugins = PluginSet(hooks)
        self._policies = PolicyObserver(settings, geometry_of, ask)
        self._cdi = CdiSpecs(self._cdi_dir, ask, clock)
        self._changes = Reconciler(
            sense=self._sense,
            failures=Retries(clock, settings.intervals.retry_s),
            looks=SettingsObserver(hardware, clock, settings.intervals.observe_s),
            state_dir=settings.state_dir,
            geometry_of=geometry_of,
            ask=ask,
            intervals=settings.intervals,
            digest=self._policies.digest,
            fit=self._cdi.fit,
            remember=memory.keep,
        )
        self._watchdog = Watchdog(
            hardware=hardware,
            ledger=self._ledger,
            holders_known=lambda: self._holders.known and not self._holders.trouble,
            directory=settings.container_logs,
            clock=clock,
            ask=ask,
            intervals=settings.intervals,
            counts=board.counts,
        )
        board.look = lambda: self._watchdog.look
        board.endpoints = lambda: [endpoint.state for endpoint in list(self._endpoints)]
        board.counts.asked = self._plugins.asked
        board.counts.xids = self._sense.xid_counts
        board.counts.changes = self._changes.made

    async def run(self, stop: asyncio.Event, beside: Beside | None) -> None:
        """Start, run, stop."""
        look = asyncio.create_task(self._sense.observe(), name="first look")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            remembered = self._memory.load()
            self._policies.fallback = remembered.policy
            self._changes.before = remembered.before
            self._served_before = {
                offering.device for offer in answerable(remembered.serving).values() for offering in offer
            }
            self._changes.begin()
            self._policies.start()
            await asyncio.wait({look, stopped}, timeout=FIRST_LOOK_S, return_when=FIRST_COMPLETED)
            if look.done():
                look.result()
            self._policies.lay_on(self._sense.node)
            self._policies.must_hold()
            self._watchdog.stand(self._policies.wish, answerable(remembered.serving))
            async with self._running(self._loop(remembered), beside):
                await stopped
            log.info("stopped")
        finally:
            look.cancel()
            stopped.cancel()
            self._pod_resources.close()
        await asyncio.to_thread(self._memory.save)

    def _loop(self, remembered: SavedState) -> Loop:
        environ = self._settings.environ
        disabled, enabled = (environ.get(f"DP_{word}_HEALTHCHECKS", "") for word in ("DISABLE", "ENABLE"))
        parts = Parts(
            settings=self._settings,
            clock=self._board.clock,
            board=self._board,
            requests=self._requests,
            ledger=self._ledger,
            sense=self._sense,
            holders=self._holders,
            policies=self._policies,
            changes=self._changes,
            plugins=self._plugins,
            memory=self._memory,
            cdi=self._cdi,
            guard=GuardFiles(self._settings.run_dir),
            watchdog=self._watchdog,
            serve=self._serve,
            rules=XidRules.parse(disabled, enabled),
        )
        return Loop(
            parts,
            standing=after_restart(NodeState(remembered.serving, remembered.health)),
            boot_id=remembered.boot_id,
        )

    @contextlib.asynccontextmanager
    async def _running(self, loop: Loop, beside: Beside | None) -> AsyncIterator[None]:
        """All tasks, for the length of a block. A task that fails has a bug, and ends the agent."""
        tasks: dict[str, Coroutine[Any, Any, None]] = {
            "holders": self._holders.run(),
            "pulse": loop.pulse(),
            "observe": self._sense.observe_for_ever(),
            "conditions": self._sense.conditions_for_ever(),
            "events": self._sense.events_for_ever(),
            "policy": self._policies.watch(),
            "changes": self._changes.run(),
            "state": self._memory.run(),
            "cdi": self._cdi.run(),
            "watchdog": self._watchdog.run(),
        }
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._tasks += [group.create_task(task, name=name) for name, task in tasks.items()]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_WORD_S):
                    await self._holders.asked_once.wait()
                    await self._watchdog.looked_once.wait()
            await loop.turn()
            self._tasks.append(group.create_task(loop.run(), name="turns"))
            if beside is not None:
                self._tasks.append(group.create_task(beside(self._board), name="beside"))
            try:
                yield
            finally:
                for task in self._tasks:
                    task.cancel()

    def _serve(self, plugin: ResourcePlugin) -> None:
        """Serve and register one more resource."""
        assert self._group is not None
        try:
            endpoint = ResourceEndpoint(plugin, self._settings.kubelet_dir, clock=self._board.clock)
        except InputError as error:
            # Only a name that an earlier policy or another plugin gave; those of ours were checked before.
            log.warning(
                "resource cannot be served", extra={"resource": plugin.resource, "reason": str(error)}
            )
            return
        self._endpoints.append(endpoint)
        self._tasks.append(self._group.create_task(endpoint.run(), name=f"serve {plugin.resource}"))

    def _names(self) -> OurNames:
        node = self._sense.node
        gpus = node.known.values() if node else ()
        devices = {gpu.uuid for gpu in gpus} | {mig.uuid for gpu in gpus for mig in gpu.mig_devices}
        return OurNames(self._plugins.by_name.keys(), devices | self._served_before)

    def _cdi_dir(self, inventory: Inventory) -> Path:
        """A simulated node's specs shall not reach a real container runtime."""
        return self._settings.run_dir / "cdi" if inventory.simulated else self._settings.cdi_dir
