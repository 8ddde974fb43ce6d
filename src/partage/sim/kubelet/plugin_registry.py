"""The embedded kubelet's Registration service, and a task for each plugin that registered."""

# ruff: noqa: N802  (gRPC's methods are called as the protocol calls them)
from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from partage.edges.kubelet._generated import deviceplugin_pb2 as pb
from partage.edges.kubelet._generated.deviceplugin_grpc import RegistrationBase
from partage.sim.kubelet.device_manager import DeviceManager
from partage.sim.kubelet.plugin_client import PluginClient, PluginError
from partage.sim.kubelet.protocol_errors import registration_refusal


class PluginRegistry(RegistrationBase):
    """Serves Registration. A task reads the lists of each plugin that registered, until ``stop``.

    answers: whether Register is answered; called for each request.
    listed: called when a plugin has sent its list. gone: when its stream has ended.
    """

    def __init__(
        self,
        kubelet_dir: Path,
        manager: DeviceManager,
        *,
        answers: Callable[[], bool],
        report: Callable[[str], None],
        listed: Callable[[], None],
        gone: Callable[[], None],
    ) -> None:
        self._dir = kubelet_dir
        self._manager = manager
        self._answers = answers
        self._report = report
        self._listed = listed
        self._gone = gone
        self._watches: set[asyncio.Task[None]] = set()

    async def Register(self, stream: Stream[pb.RegisterRequest, pb.Empty]) -> None:
        request = await stream.recv_message()
        if request is None:
            raise GRPCError(Status.INVALID_ARGUMENT, "the call carries no message")
        if not self._answers():
            await asyncio.Event().wait()
        if reason := registration_refusal(request):
            raise GRPCError(Status.UNKNOWN, reason)
        await self._connect(request)
        await stream.send_message(pb.Empty())

    async def _connect(self, request: pb.RegisterRequest) -> None:
        """Ask for the options and open ListAndWatch, before the plugin's Register is answered."""
        plugin = PluginClient(self._dir / request.endpoint, request.resource_name, self._report)
        try:
            options = await plugin.options()
        except asyncio.CancelledError:  # the kubelet ends, or the plugin no longer waits
            plugin.close()
            raise
        except PluginError as error:
            plugin.close()
            raise GRPCError(Status.UNKNOWN, f"failed to dial device plugin: {error}") from error
        if options != request.options:
            self._report(f"{plugin.resource}: options differ between Register and GetDevicePluginOptions")
        self._manager.connected(plugin, options)
        opened = asyncio.Event()
        watch = asyncio.create_task(self._watch(plugin, opened), name=f"watch {plugin.resource}")
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        watch.add_done_callback(lambda _: plugin.close())  # also if it was cancelled before it began
        await opened.wait()

    async def _watch(self, plugin: PluginClient, opened: asyncio.Event) -> None:
        def listed(devices: Sequence[pb.Device]) -> None:
            self._manager.listed(plugin, devices)
            self._listed()

        try:
            await plugin.watch(opened, listed)
        except PluginError:
            pass  # why a plugin disconnects does not matter
        finally:
            opened.set()
        self._manager.disconnected(plugin)
        self._gone()

    async def stop(self) -> None:
        """Disconnect from all plugins."""
        watches = list(self._watches)
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
