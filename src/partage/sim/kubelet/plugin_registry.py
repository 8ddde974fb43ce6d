"""The embedded kubelet's Registration service, and a task for each plugin that registered.

Its table of plugins follows Kubernetes, also where that is surprising:

- A registration that fails takes the living plugin of its resource (from 1.37 on: of its path) out of the
  table. Nobody is told when the stream of a plugin ends that is not in the table: its last list goes on
  counting, and from 1.37 on its path stays connected until the kubelet starts again.
- The end of a stream closes the plugin that is in the table at its place: up to 1.36 this may be a newer
  one.
"""

# ruff: noqa: N802  (gRPC's methods are called as the protocol calls them)
from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from partage.edges.kubelet._generated import deviceplugin_pb2 as pb
from partage.edges.kubelet._generated.deviceplugin_grpc import RegistrationBase
from partage.sim.kubelet.behaviour import Behaviour
from partage.sim.kubelet.device_manager import DeviceManager
from partage.sim.kubelet.plugin_client import PluginClient, PluginError, registration_refusal


class PluginRegistry(RegistrationBase):
    """Serves Registration. A task reads the lists of each plugin that registered, until ``stop``.

    behaviour: of the moment. awake: set while the kubelet does not stand still.
    listed: called when a plugin has sent its list. gone: when its stream has ended.
    """

    def __init__(
        self,
        kubelet_dir: Path,
        manager: DeviceManager,
        *,
        behaviour: Callable[[], Behaviour],
        awake: asyncio.Event,
        report: Callable[[str], None],
        listed: Callable[[], None],
        gone: Callable[[], None],
    ) -> None:
        self._dir = kubelet_dir
        self._manager = manager
        self._behaviour = behaviour
        self._by_path = behaviour().keeps_by_path
        self._awake = awake
        self._report = report
        self._listed = listed
        self._gone = gone
        self._table: dict[tuple[str, Path | None], list[PluginClient]] = {}
        self._open: set[PluginClient] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def _place(self, plugin: PluginClient) -> tuple[str, Path | None]:
        """Its place in the table."""
        return plugin.resource, plugin.path if self._by_path else None

    # --- registration -------------------------------------------------------------------------

    async def Register(self, stream: Stream[pb.RegisterRequest, pb.Empty]) -> None:
        request = await stream.recv_message()
        if request is None:
            raise GRPCError(Status.INVALID_ARGUMENT, "the call carries no message")
        if not self._behaviour().answers_registration:
            await asyncio.Event().wait()
        given_up = asyncio.Event()
        registering = self._spawn(self._register(request, given_up), f"register {request.resource_name}")
        try:
            await asyncio.shield(registering)
        except asyncio.CancelledError:  # the kubelet ends, or the plugin no longer waits
            given_up.set()
            raise
        await stream.send_message(pb.Empty())

    async def _register(self, request: pb.RegisterRequest, given_up: asyncio.Event) -> None:
        """Goes on when the caller has given up, as a kubelet does. Raises GRPCError."""
        await asyncio.sleep(self._behaviour().registration_delay_s)
        await self._awake.wait()
        if reason := registration_refusal(request):
            raise GRPCError(Status.UNKNOWN, reason)
        plugin = PluginClient(self._dir / request.endpoint, request.resource_name, self._report)
        self._open.add(plugin)
        place = self._place(plugin)
        self._table[place] = [*(self._table.get(place, []) if self._by_path else []), plugin]
        try:
            await self._connect(plugin, request, given_up)
        except PluginError as error:
            self._table.pop(place, None)
            self._close(plugin)
            raise GRPCError(Status.UNKNOWN, str(error)) from error
        opened = asyncio.Event()
        self._spawn(self._watch(plugin, opened), f"watch {plugin.resource}")
        await opened.wait()

    async def _connect(
        self, plugin: PluginClient, request: pb.RegisterRequest, given_up: asyncio.Event
    ) -> None:
        """Ask for the options, before the plugin's Register is answered. Raises PluginError."""
        asking = asyncio.ensure_future(plugin.options())
        waiting = asyncio.ensure_future(given_up.wait())
        until = [asking] if self._behaviour().accepts_late else [asking, waiting]
        try:
            await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
            if given_up.is_set() and not self._behaviour().accepts_late:
                raise PluginError("failed to dial device plugin: context canceled")
            try:
                options = await asking
            except PluginError as error:
                raise PluginError(f"failed to dial device plugin: {error}") from error
        finally:
            asking.cancel()
            waiting.cancel()
            await asyncio.gather(asking, waiting, return_exceptions=True)
        if options != request.options:
            self._report(f"{plugin.resource}: options differ between Register and GetDevicePluginOptions")
        self._manager.connected(plugin, options)

    # --- lists --------------------------------------------------------------------------------

    async def _watch(self, plugin: PluginClient, opened: asyncio.Event) -> None:
        async def listed(devices: Sequence[pb.Device]) -> None:
            await asyncio.sleep(self._behaviour().watch_delay_s)
            await self._awake.wait()
            self._manager.listed(plugin, devices)
            self._listed()

        try:
            await plugin.watch(opened, listed)
        except PluginError:
            pass  # why a plugin disconnects does not matter
        finally:
            opened.set()
        await self._awake.wait()
        for client in self._table.pop(self._place(plugin), [])[:1]:
            self._close(client)
            self._manager.disconnected(client)
            self._gone()

    def _close(self, plugin: PluginClient) -> None:
        self._open.discard(plugin)
        plugin.close()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and not isinstance(task.exception(), GRPCError | None):
            task.get_loop().call_exception_handler(
                {"message": f"{task.get_name()} failed", "exception": task.exception()}
            )

    async def stop(self) -> None:
        """Disconnect from all plugins."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for plugin in list(self._open):
            self._close(plugin)
        self._table.clear()
