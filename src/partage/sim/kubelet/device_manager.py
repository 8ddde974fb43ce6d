"""The part of the kubelet that knows devices: which plugin offers them, which container holds them.

It follows Kubernetes' device manager, also where that is surprising:

- A main container gets the devices of the pod's ordinary init containers again. Each container has its own
  Allocate, and the plugin is not asked again which devices it prefers.
- Lists of ids come in no order.
- When a plugin disconnects, all its devices become unhealthy; they stay counted for a grace period.
- Nobody stops a list from arriving between the choice of an id and the answer to its Allocate. A kubelet
  panics if the id is no longer in it.
- A restarted kubelet knows which pod holds what, but knows devices and plugins only when they register.
  It admits its pods again: an id is looked at for each container that does not run then, and for no other.

There are no sockets here: a ``PluginClient`` calls the plugin.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from msgspec import Struct, field

from partage.edges.kubelet._generated import deviceplugin_pb2 as pb
from partage.edges.kubelet.checkpoint import CHECKPOINT
from partage.edges.kubelet.messages import HEALTHY
from partage.model.ids import PodUid, ShareId
from partage.model.pod import Container, Pod
from partage.model.share import ContainerAllocation
from partage.sim.kubelet.plugin_client import PluginClient, PluginError
from partage.sim.kubelet.pods import Holding, Holdings
from partage.values import Frozen

GRACE_S = 300.0
"""How long the devices of a disconnected plugin stay in the node's capacity."""


class AdmissionError(Exception):
    """A pod cannot have its devices. The text is the kubelet's."""


class KubeletPanic(Exception):
    """A kubelet of Kubernetes would have crashed here."""


class Device(Frozen):
    """One id of one resource, as the plugin's last list has it."""

    healthy: bool
    numa_nodes: tuple[int, ...] = ()


class Endpoint(Struct):
    """The plugin of a resource. plugin: None where only the checkpoint knows it. stopped_at: clock time."""

    plugin: PluginClient | None
    options: pb.DevicePluginOptions = field(default_factory=pb.DevicePluginOptions)
    stopped_at: float | None = None


class DeviceManager:
    """Devices, plugins and holders of one node.

    answered: waited for before an answer to Allocate is taken over.
    allocate_delay_s: how long after its choice of ids Allocate is called.
    always_asks_preference: call GetPreferredAllocation whenever the plugin has it, as a kubelet without
        topology manager does. False: only where fewer devices are needed than are free, as a kubelet does
        that has aligned them by NUMA node.
    keeps_by_path: several plugins are kept for a resource, by the paths of their sockets, as from Kubernetes
        1.37 on (#135437): a path that is connected is refused, and where one plugin disconnects, another one
        serves. False: one for each resource, and the end of any of its streams stops the newest.
    """

    def __init__(
        self,
        *,
        rng: Random,
        clock: Callable[[], float],
        grace_s: float,
        allocate_delay_s: float = 0.0,
        always_asks_preference: bool,
        keeps_by_path: bool,
        answered: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._rng = rng
        self._clock = clock
        self._grace_s = grace_s
        self._delay_s = allocate_delay_s
        self._asks_always = always_asks_preference
        self._by_path = keeps_by_path
        self._answered = answered
        self._devices: dict[str, dict[ShareId, Device]] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self._connected: dict[str, dict[Path, Endpoint]] = {}
        self._held: dict[str, dict[str, Holdings]] = {}
        self._admission = asyncio.Lock()

    # --- plugins ------------------------------------------------------------------------------

    def connected(self, plugin: PluginClient, options: pb.DevicePluginOptions) -> None:
        """A plugin has registered. The newest one serves the resource. Raises PluginError."""
        endpoint = Endpoint(plugin, options)
        if self._by_path:
            there = self._connected.setdefault(plugin.resource, {})
            if plugin.path in there:
                raise PluginError(f"device plugin already connected: {plugin.path}")
            there[plugin.path] = endpoint
        self._endpoints[plugin.resource] = endpoint
        self._devices.setdefault(plugin.resource, {})

    def listed(self, plugin: PluginClient, devices: Iterable[pb.Device]) -> None:
        """A plugin sent its list: it replaces the one before."""
        self._devices[plugin.resource] = {
            ShareId(device.ID): Device(
                device.health == HEALTHY, tuple(node.ID for node in device.topology.nodes)
            )
            for device in devices
        }

    def disconnected(self, plugin: PluginClient) -> None:
        """A plugin's stream has ended. By path another one takes its place, if there is one, with the list
        that was sent last, be it of whom it may.
        """
        resource = plugin.resource
        endpoint = self._endpoints.get(resource)
        if self._by_path:
            there = self._connected.get(resource, {})
            endpoint = there.pop(plugin.path, None)
            if there and endpoint is not None:
                endpoint.stopped_at = self._clock()
                self._endpoints[resource] = self._rng.choice(list(there.values()))
                return
        if endpoint is None:
            return
        endpoint.stopped_at = self._clock()
        devices = self._devices.get(resource, {})
        self._devices[resource] = {name: Device(False, device.numa_nodes) for name, device in devices.items()}

    def restart(self) -> None:
        """The kubelet starts again: holders are known from the checkpoint, devices are not known yet."""
        for resource in self._endpoints:
            self._endpoints[resource] = Endpoint(plugin=None, stopped_at=self._clock())
            self._devices[resource] = {}
        self._connected.clear()

    # --- the status of the node ---------------------------------------------------------------

    def capacity(self) -> dict[str, int]:
        """Resource name to devices, unhealthy ones included."""
        self._forget_expired()
        return {resource: len(devices) for resource, devices in self._devices.items()}

    def allocatable(self) -> dict[str, int]:
        """Resource name to healthy devices, held ones included."""
        self._forget_expired()
        return {resource: len(self.healthy(resource)) for resource in self._devices}

    def devices(self) -> dict[str, dict[ShareId, bool]]:
        """Resource name to device ids, in the order of the list, and whether each is healthy."""
        self._forget_expired()
        return {
            resource: {name: device.healthy for name, device in devices.items()}
            for resource, devices in self._devices.items()
        }

    def healthy(self, resource: str) -> list[ShareId]:
        """In the order of the list."""
        return [name for name, device in self._devices.get(resource, {}).items() if device.healthy]

    def device(self, resource: str, name: ShareId) -> Device:
        """The device as in the last list; an unhealthy one where the list no longer has it."""
        return self._devices.get(resource, {}).get(name, Device(healthy=False))

    def _forget_expired(self) -> None:
        now = self._clock()
        for resource, endpoint in list(self._endpoints.items()):
            if endpoint.stopped_at is not None and now - endpoint.stopped_at > self._grace_s:
                del self._endpoints[resource], self._devices[resource]

    # --- pods ---------------------------------------------------------------------------------

    async def admit(self, pod: Pod) -> None:
        """Give every container its devices, all or none. Raises AdmissionError, KubeletPanic."""
        async with self._admission:
            self._held[pod.key] = {}
            try:
                await self._admit(pod)
            except (AdmissionError, KubeletPanic):
                del self._held[pod.key]
                raise
            self.check()

    def readmit(self, pod: Pod, running: Collection[str]) -> None:
        """Admit a pod again after a restart. running: containers that need not be looked at.

        Raises AdmissionError.
        """
        for container in pod.containers:
            if container.name not in running:
                for resource, holding in self.holdings(pod, container.name).items():
                    self._require_healthy(resource, holding.ids)

    def _require_healthy(self, resource: str, held: Collection[ShareId] = ()) -> None:
        """Raises AdmissionError, also where none of the resource is healthy."""
        if resource not in self._devices:
            raise AdmissionError(f"cannot allocate unregistered device {resource}")
        healthy = self.healthy(resource)
        if not healthy:
            raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if not set(held) <= set(healthy):
            raise AdmissionError(
                "previously allocated devices are no longer healthy; "
                f"cannot allocate unhealthy devices {resource}"
            )

    async def _admit(self, pod: Pod) -> None:
        reusable: dict[str, list[ShareId]] = {}
        for container in pod.containers:
            holdings = await self._allocate(container, reusable)
            self._held[pod.key][container.name] = holdings
            for resource, holding in holdings.items():
                rest = [name for name in reusable.get(resource, []) if name not in holding.ids]
                reusable[resource] = [*rest, *holding.ids] if container.kind == "init" else rest

    async def _allocate(self, container: Container, reusable: Mapping[str, Sequence[ShareId]]) -> Holdings:
        holdings: Holdings = {}
        for resource, count in container.requests.items():
            if count and resource in self._devices:  # other resources are not the device manager's
                ids = await self._choose(resource, count, reusable.get(resource, ()))
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                holdings[resource] = Holding(tuple(ids), await self._ask(resource, ids))
        return holdings

    async def _choose(self, resource: str, count: int, reusable: Sequence[ShareId]) -> list[ShareId]:
        self._require_healthy(resource)
        chosen = self._shuffled(reusable)[:count]
        missing = count - len(chosen)
        if not missing:
            return chosen
        free = sorted(set(self.healthy(resource)) - self.in_use(resource))
        if len(free) < missing:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {missing}, Available: {len(free)}"
            )
        preferred = await self._preferred(resource, free, chosen, count)
        candidates = [*(name for name in preferred if name in free), *self._shuffled(free)]
        return [*chosen, *list(dict.fromkeys(candidates))[:missing]]

    async def _preferred(
        self, resource: str, free: Sequence[ShareId], chosen: Sequence[ShareId], count: int
    ) -> list[ShareId]:
        endpoint = self._endpoints[resource]
        if not endpoint.options.get_preferred_allocation_available:
            return []
        if not self._asks_always and count - len(chosen) == len(free):
            return []
        try:
            available = self._shuffled([*free, *chosen])
            return await self._running(resource).preferred(available, chosen, count)
        except PluginError as error:
            raise AdmissionError(
                f"device plugin GetPreferredAllocation rpc failed with err: {error}"
            ) from error

    async def _ask(self, resource: str, ids: Sequence[ShareId]) -> ContainerAllocation:
        try:
            answer = await self._running(resource).allocate(self._shuffled(ids))
        except PluginError as error:
            raise AdmissionError(str(error)) from error
        if self._answered is not None:
            await self._answered()
        if gone := [name for name in ids if name not in self._devices.get(resource, {})]:
            raise KubeletPanic(f"{resource} {', '.join(gone)} left the list while Allocate was under way")
        return answer

    def _running(self, resource: str) -> PluginClient:
        """Raises PluginError where no plugin serves the resource now."""
        endpoint = self._endpoints[resource]
        if endpoint.plugin is None or endpoint.stopped_at is not None:
            raise PluginError(f"endpoint {resource} has been stopped")
        return endpoint.plugin

    async def before_start(self, pod: Pod, container: str) -> None:
        """PreStartContainer for every resource whose plugin asked for it. Raises PluginError.

        A restarted kubelet does not know the options of a plugin until it registers; until then it starts
        containers without this call.
        """
        for resource, holding in self.holdings(pod, container).items():
            endpoint = self._endpoints.get(resource)
            if endpoint is None:
                raise PluginError(f"endpoint not found in cache for a registered resource: {resource}")
            if endpoint.options.pre_start_required:
                try:
                    await self._running(resource).pre_start(self._shuffled(holding.ids))
                except PluginError as error:
                    text = f"device plugin PreStartContainer rpc failed with err: {error}"
                    raise PluginError(text) from error

    def release(self, pod: Pod) -> None:
        """The pod has ended."""
        self._held.pop(pod.key, None)

    def holdings(self, pod: Pod, container: str) -> Holdings:
        """What one container holds."""
        return self._held.get(pod.key, {}).get(container, {})

    def all_holdings(self) -> Mapping[str, Mapping[str, Holdings]]:
        """What every pod's containers hold, by the pod's key and the container's name."""
        return self._held

    def in_use(self, resource: str) -> set[ShareId]:
        """Every id that some pod holds."""
        return {name for pod in self._held for name in self._ids(pod, resource)}

    def _ids(self, pod_key: str, resource: str) -> Iterator[ShareId]:
        for holdings in self._held[pod_key].values():
            if resource in holdings:
                yield from holdings[resource].ids

    def _shuffled(self, ids: Iterable[ShareId]) -> list[ShareId]:
        order = list(ids)
        self._rng.shuffle(order)
        return order

    def check(self) -> None:
        """Raises AssertionError where a device has two holders: that would be an error of this kubelet."""
        for resource in {
            resource for pod in self._held.values() for held in pod.values() for resource in held
        }:
            holders: dict[ShareId, str] = {}
            for pod_key in self._held:
                for name in set(self._ids(pod_key, resource)):
                    if holders.setdefault(name, pod_key) != pod_key:
                        raise AssertionError(f"{resource} {name} is given to {holders[name]} and {pod_key}")


def write_checkpoint(
    directory: Path,
    held: Mapping[str, Mapping[str, Holdings]],
    uids: Mapping[str, PodUid],
    listed: Mapping[str, Mapping[ShareId, bool]] | None = None,
) -> None:
    """Write it. held: by pod key and container name. uids: by pod key. listed: devices of each resource, and
    whether each is healthy. The answers to Allocate are left out.
    """
    healthy = {
        resource: [name for name, well in devices.items() if well]
        for resource, devices in (listed or {}).items()
    }
    entries = [
        {
            "PodUID": uids[pod],
            "ContainerName": container,
            "ResourceName": resource,
            "DeviceIDs": {"-1": list(holding.ids)},
            "AllocResp": "",
        }
        for pod, containers in held.items()
        for container, holdings in containers.items()
        for resource, holding in holdings.items()
    ]
    content = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": healthy}, "Checksum": 0}
    beside = directory / f"{CHECKPOINT}.new"
    beside.write_text(json.dumps(content), encoding="ascii")
    beside.replace(directory / CHECKPOINT)
