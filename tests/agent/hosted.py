"""The whole agent on a thread of the test: it starts in a moment and waits a tenth of its usual times.

For rules of an agent. What is about its process (signals, kill, options, log, exit code, own helper) needs
one: ``harness.spawn``. It meets the same sockets, the helper's among them, and its pages.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from partage.agent.kubelet_service import run
from partage.agent.options import AgentOptions, Intervals
from partage.agent.status.status import AgentStatus
from partage.answers.report import ReportFile
from partage.edges.hardware.helper_client import RemoteHardware
from partage.edges.host.waiting import until_tick
from partage.edges.kube.config import cluster_config
from partage.kubernetes.agent.connection import ClusterConnection
from partage.kubernetes.agent.node_writer import ClusterIntervals
from partage.serve_http.agent_pages import agent_pages
from partage.serve_http.http import HttpServer
from partage.serve_http.http_access import listen
from tests.agent.harness import MACHINE, Agent, Place, simulated_helper
from tests.kubelet_script import LIMIT_S, wait_for

QUICK = Intervals(
    observe_s=5.0,
    conditions_s=0.5,
    policy_s=0.1,
    rest_s=0.5,
    holders_first_s=0.05,
    holders_s=0.5,
    holders_waited_s=0.2,
    holders_longest_s=6.0,
    check_longest_s=3.0,
    withdraw_s=0.1,
    watch_s=0.5,
    look_gap_s=0.1,
    report_s=0.1,
    retry_s=0.2,
)
"""A tenth of an agent's usual times; those after which it complains are as usual."""
CONNECT = partial(
    ClusterConnection,
    intervals=ClusterIntervals(
        settle_s=0.05, retry_s=0.1, retry_longest_s=6.0, contested_s=0.5, drain_s=0.5, drain_confirm_s=0.5
    ),
)


@dataclass(slots=True)
class HostedAgent(Agent):
    """An agent in this process, in a loop of its own."""

    options: AgentOptions = field(kw_only=True)
    hardware_socket: Path = field(kw_only=True)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _thread: threading.Thread | None = None
    _failure: BaseException | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._lives, name="hosted agent", daemon=True)
        self._thread.start()
        wait_for(lambda: self.url or self._failure, what="the address of its pages")

    @property
    def runs(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> int:
        """As SIGTERM does; its exit code. Raises what ended it before."""
        assert self._thread is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the agent does not stop"
        if self._failure is not None:
            raise self._failure
        return 0

    def _lives(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._run())
        except Exception as error:  # noqa: BLE001 (the test's thread raises it)
            self._failure = error

    async def _run(self) -> None:
        hardware = RemoteHardware(self.hardware_socket)
        hardware.start()

        async def beside(status: AgentStatus) -> None:
            await self._pages(status, hardware)

        try:
            await run(self.options, hardware, stop=self._stop, beside=beside, connect=CONNECT)
        finally:
            await hardware.close()
            await self._sockets_are_closed()

    async def _sockets_are_closed(self) -> None:
        """A connection is closed by the turn of the loop after its end, and a process need not wait for that:
        the loop watches nothing any more but what wakes it up."""
        watched = self._loop._selector.get_map()  # type: ignore[attr-defined]
        async with asyncio.timeout(LIMIT_S):
            while len(watched) > 1:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0)

    async def _pages(self, status: AgentStatus, hardware: RemoteHardware) -> None:
        """HTTP and the report file, until cancelled."""
        status.helper_trouble = lambda: hardware.state.trouble
        taken, name = listen("127.0.0.1:0"), self.options.node_name
        pages = agent_pages(
            status, self.options.intervals, lambda: hardware.state, name, self.options.dcgm_names
        )
        http = HttpServer(taken, pages)
        try:
            host, port = taken.getsockname()
            self.url = f"http://{host}:{port}"
            file = ReportFile(status, self.options.intervals, self.options.report_file)
            while True:
                await asyncio.to_thread(file.renew)
                await until_tick(self.options.intervals.report_s)
        finally:
            http.close()


@contextmanager
def hosted(
    node: Place,
    *,
    machine: str | None = MACHINE,
    policy: str | Path | None = None,
    kubeconfig: Path | None = None,
    intervals: Intervals = QUICK,
    **options: Any,
) -> Iterator[HostedAgent]:
    """An agent for the length of a block. policy: text, or the path of what is there already. machine None:
    its hardware is at ``hardware_socket``. options: more of ``AgentOptions``.
    """
    if isinstance(policy, str):
        node.write_policy(policy)
        policy = node.policy
    usual: dict[str, Any] = {
        "kubelet_dir": node.kubelet_dir,
        "pod_resources": node.pod_resources,
        "state_dir": node.state_dir,
        "run_dir": node.run_dir,
        "cdi_dir": node.root / "cdi",
        "container_logs": node.container_logs,
        "environ": os.environ,
    }
    chosen = AgentOptions(
        policy=policy,
        cluster=cluster_config(str(kubeconfig), os.environ) if kubeconfig else None,
        intervals=intervals,
        **(usual | options),
    )
    with ExitStack() as stack:
        if machine is not None:
            stack.enter_context(simulated_helper(node, machine))
        agent = HostedAgent(options=chosen, hardware_socket=node.hardware_socket)
        agent.start()
        try:
            yield agent
        finally:
            agent.stop()


@asynccontextmanager
async def hosted_beside(node: Place, **how: Any) -> AsyncIterator[HostedAgent]:
    """The same beside an API server in the loop of the test, for which the agent's last words are."""
    lives = hosted(node, **how)
    agent = lives.__enter__()
    try:
        yield agent
    finally:
        await asyncio.to_thread(lives.__exit__, None, None, None)
