"""A small kubelet: real gRPC over unix sockets, and a device manager that behaves as the real one.

It knows the agent only by its sockets. ``protocol_errors`` has all that plugins do against the protocol. A
device that this kubelet itself gives twice raises AssertionError.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from msgspec.structs import replace

from partage.edges.kubelet._generated import podresources_pb2 as pb
from partage.edges.kubelet.connections import ClosingServer
from partage.edges.kubelet.registration import KUBELET_SOCKET
from partage.model.ids import ShareId
from partage.model.paths import check_socket_path
from partage.sim.kubelet.behaviour import Behaviour, PodResourcesMode
from partage.sim.kubelet.checkpoint import write_checkpoint
from partage.sim.kubelet.device_manager import AdmissionError, DeviceManager
from partage.sim.kubelet.holding import waiting_container
from partage.sim.kubelet.plugin_client import PluginError
from partage.sim.kubelet.plugin_registry import PluginRegistry
from partage.sim.kubelet.pod import ContainerState, Pod, PodPhase, PodStatus
from partage.sim.kubelet.pod_resources import PodResourcesService, TokenBucket, device_message, pod_message


class EmbeddedKubelet:
    """The kubelet of one simulated node, and the scheduler's check for devices."""

    def __init__(
        self,
        kubelet_dir: Path,
        pod_resources_socket: Path | None = None,
        *,
        seed: int = 0,
        behaviour: Behaviour | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """pod_resources_socket: None: no PodResources. Raises InputError for too long paths."""
        self.behaviour = behaviour or Behaviour()
        self._dir = kubelet_dir
        self._socket = kubelet_dir / KUBELET_SOCKET
        self._pod_resources_socket = pod_resources_socket
        for path in (self._socket, pod_resources_socket):
            if path is not None:
                check_socket_path(path)
        self._bucket = TokenBucket(self.behaviour.list_rate, clock) if self.behaviour.list_rate else None
        self._manager = DeviceManager(
            rng=Random(seed),  # noqa: S311 (a simulation has to be repeatable)
            clock=clock,
            grace_s=self.behaviour.grace_s,
            allocate_delay_s=self.behaviour.allocate_delay_s,
            always_asks_preference=self.behaviour.always_asks_preference,
            ignores_late_ends=self.behaviour.ignores_late_ends,
        )
        self._registry = PluginRegistry(
            kubelet_dir,
            self._manager,
            answers=lambda: self.behaviour.answers_registration,
            report=self._report,
            listed=self._listed_devices,
            gone=self._note_change,
        )
        self._bound: dict[str, Pod] = {}
        self._pods: dict[str, PodStatus] = {}
        self._unlisted: set[str] = set()
        self._unknown: set[str] = set()
        self._ended: list[Pod] = []
        self._protocol_errors: list[str] = []
        self._servers: list[ClosingServer] = []
        self._changed = asyncio.Event()

    # --- the kubelet itself -------------------------------------------------------------------

    async def start(self) -> None:
        """Remove the sockets of plugins and serve. Holders are still known, plugins are not."""
        if self._servers:
            raise RuntimeError("the kubelet runs already")
        self._dir.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        self.wipe()
        self._manager.restart()
        self._unknown = set(self._pods)
        await self._serve(self._registry, self._socket)
        path = self._pod_resources_socket
        if path is not None:
            path.unlink(missing_ok=True)
            if self.behaviour.pod_resources is not PodResourcesMode.ABSENT:
                path.parent.mkdir(parents=True, exist_ok=True)
                await self._serve(self._pod_resources_service(), path)
        self._note_change()

    async def _serve(self, service: PluginRegistry | PodResourcesService, path: Path) -> None:
        server = ClosingServer([service])
        await server.start(path=str(path))
        self._servers.append(server)

    async def stop(self) -> None:
        """End at once, like a killed process: socket files stay, containers continue."""
        servers, self._servers = self._servers, []
        for server in servers:
            await server.stop()
        await self._registry.stop()  # last: a registration that is not answered yet starts one more watch

    async def restart(self) -> None:
        """Stop and start."""
        await self.stop()
        await self.start()

    def wipe(self) -> None:
        """Remove the sockets of plugins while the kubelet runs."""
        for path in self._dir.iterdir():
            if path.is_socket() and path != self._socket:
                path.unlink()

    # --- the status of the node ---------------------------------------------------------------

    @property
    def protocol_errors(self) -> tuple[str, ...]:
        """All that plugins did against the protocol, in the order in which it happened."""
        return tuple(self._protocol_errors)

    def capacity(self) -> dict[str, int]:
        """Resource name to devices, as the node's status has it."""
        return self._manager.capacity()

    def allocatable(self) -> dict[str, int]:
        """Resource name to healthy devices, held ones included."""
        return self._manager.allocatable()

    def devices(self) -> dict[str, dict[ShareId, bool]]:
        """Resource name to device ids, in the order of the last list, and whether each is healthy."""
        return self._manager.devices()

    def pods(self) -> tuple[PodStatus, ...]:
        """All pods that were bound to this node and not deleted, those that ended or failed included."""
        return tuple(self._pods.values())

    async def until(self, condition: Callable[[], bool], limit_s: float = 10.0) -> None:
        """Wait until ``condition()`` is true; devices and pods are its subject. Raises TimeoutError."""
        async with asyncio.timeout(limit_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    # --- pods ---------------------------------------------------------------------------------

    async def admit(self, pod: Pod, *, bound: bool = False) -> PodStatus:
        """Schedule a pod to this node, give it its devices, start its containers.

        bound: it is bound to the node already, and the scheduler does not check it. A pod that cannot be
        scheduled is Pending and can be admitted later; a pod that the kubelet refuses has failed.
        """
        if not self._servers:
            raise RuntimeError("the kubelet does not run")
        if pod.key in self._bound:
            raise ValueError(f"pod {pod.key} is there already")
        if not bound and (lacking := self._insufficient(pod)):
            reasons = ", ".join(f"1 Insufficient {resource}" for resource in lacking)
            return PodStatus(pod, PodPhase.PENDING, "Unschedulable", f"0/1 nodes are available: {reasons}.")
        self._bound[pod.key] = pod
        self._update_allocated()
        try:
            await self._manager.admit(pod)
        except AdmissionError as error:
            return self._refused(pod, error)
        finally:
            write_checkpoint(self._dir, self._manager.all_holdings(), self._manager.devices())
        containers = tuple(
            waiting_container(one.name, self._manager.holdings(pod, one.name)) for one in pod.in_order
        )
        self._put(PodStatus(pod, PodPhase.PENDING, containers=containers))
        await self._make_ready(pod)
        return await self.retry(pod)

    async def _make_ready(self, pod: Pod) -> None:
        """Wait for sandbox and image. The pod has its devices; PodResources does not name it at first."""
        if self.behaviour.unlisted_s:
            self._unlisted.add(pod.key)
            await asyncio.sleep(self.behaviour.unlisted_s)
            self._unlisted.discard(pod.key)
        if self.behaviour.start_delay_s:
            await asyncio.sleep(self.behaviour.start_delay_s)

    def _insufficient(self, pod: Pod) -> list[str]:
        """Resources that lack devices, as the scheduler sees it: allocatable, less requests of bound pods."""
        allocatable = self.allocatable()
        used: Counter[str] = Counter()
        for other in self._bound.values():
            used.update(other.requests())
        wanted = pod.requests().items()
        return [name for name, count in wanted if count > allocatable.get(name, 0) - used[name]]

    def _refused(self, pod: Pod, error: AdmissionError) -> PodStatus:
        del self._bound[pod.key]
        text = f"Pod was rejected: Allocate failed due to {error}, which is unexpected"
        return self._put(PodStatus(pod, PodPhase.FAILED, "UnexpectedAdmissionError", text))

    async def retry(self, pod: Pod) -> PodStatus:
        """Start the containers that wait, init containers in order. A kubelet does this after a back-off."""
        for container in pod.in_order:
            status = self._pods[pod.key]
            if not status.holds or status.container(container.name).state is not ContainerState.WAITING:
                continue
            started = await self._start(pod, container.name)
            if not started and container in pod.init_containers:
                break
        status = self._pods[pod.key]
        if status.holds and not status.waiting:
            status = self._put(replace(status, phase=PodPhase.RUNNING))
        return status

    async def _start(self, pod: Pod, name: str) -> bool:
        """Start one container, after PreStartContainer. False: it waits."""
        try:
            await self._manager.before_start(pod, name)
        except PluginError as error:
            self._put_container(pod, name, ContainerState.WAITING, "CreateContainerConfigError", str(error))
            return False
        if any(one.name == name and pod.is_ordinary_init(one) for one in pod.init_containers):
            self._put_container(pod, name, ContainerState.TERMINATED, "Completed")
        else:
            self._put_container(pod, name, ContainerState.RUNNING)
        return True

    def _put_container(
        self, pod: Pod, name: str, state: ContainerState, reason: str = "", message: str = ""
    ) -> None:
        status = self._pods[pod.key]
        if status.holds:  # not if it has ended meanwhile
            changed = replace(status.container(name), state=state, reason=reason, message=message)
            self._put(status.with_container(changed))

    async def restart_container(self, pod: Pod, name: str) -> PodStatus:
        """A container has crashed and starts again, with its devices and the answers of its admission."""
        status = self._pods[pod.key]
        if not status.holds:
            raise ValueError(f"pod {pod.key} has ended")
        crashed = status.container(name)
        again = replace(crashed, state=ContainerState.WAITING, restarts=crashed.restarts + 1)
        self._put(status.with_container(again))
        await self._start(pod, name)
        return self._pods[pod.key]

    async def end(self, pod: Pod, *, failed: bool = False) -> PodStatus:
        """All containers have ended: the devices are free as soon as the kubelet looks, the pod is still
        known."""
        status = self._pods[pod.key]
        if not status.holds:
            return status
        self._ended.append(pod)
        del self._bound[pod.key]
        ended = (replace(one, state=ContainerState.TERMINATED) for one in status.containers)
        phase = PodPhase.FAILED if failed else PodPhase.SUCCEEDED
        return self._put(replace(status, phase=phase, containers=tuple(ended)))

    async def delete(self, pod: Pod) -> None:
        """End it if it runs, and forget it."""
        if pod.key in self._pods:
            await self.end(pod)
            del self._pods[pod.key]
            self._note_change()

    def _put(self, status: PodStatus) -> PodStatus:
        self._pods[status.pod.key] = status
        self._note_change()
        return status

    def _listed_devices(self) -> None:
        """A plugin has sent its list: the device manager writes its checkpoint, which it does not when a
        plugin has gone."""
        write_checkpoint(self._dir, self._manager.all_holdings(), self._manager.devices())
        self._note_change()

    def _update_allocated(self) -> None:
        """Forget what pods held that ended; not before the pods are known. Admission and List do so."""
        if self.behaviour.knows_pods:
            self._unknown.clear()
            for pod in self._ended:
                self._manager.release(pod)
            self._ended.clear()

    def _note_change(self) -> None:
        self._changed.set()

    def _report(self, protocol_error: str) -> None:
        self._protocol_errors.append(protocol_error)

    # --- PodResources -------------------------------------------------------------------------

    def _pod_resources_service(self) -> PodResourcesService:
        return PodResourcesService(
            pods=self._listed,
            allocatable=self._allocatable_entries,
            refusal=self._list_refusal,
            delay_s=lambda: self.behaviour.list_delay_s,
        )

    def _numa_nodes(self, resource: str, name: ShareId) -> tuple[int, ...]:
        return self._manager.device(resource, name).numa_nodes

    def _listed(self) -> Iterator[pb.PodResources]:
        self._update_allocated()
        for status in list(self._pods.values()):
            if status.pod.key in self._unlisted or status.pod.key in self._unknown:
                continue
            if status.holds or (self.behaviour.lists_ended_pods and status.containers):
                yield pod_message(status, self._numa_nodes)

    def _allocatable_entries(self) -> Iterator[pb.ContainerDevices]:
        for resource in self._manager.allocatable():
            for name in self._manager.healthy(resource):
                yield device_message(resource, name, self._numa_nodes(resource, name))

    def _list_refusal(self) -> str | None:
        if self.behaviour.pod_resources is PodResourcesMode.REFUSES:
            return "rejected by the embedded kubelet"
        if self._bucket is not None and not self._bucket.take():
            return "rejected by rate limit"
        return None
