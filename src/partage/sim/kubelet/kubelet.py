"""A small kubelet: real gRPC over unix sockets, and a device manager that behaves as the real one.

It knows the agent only by its sockets. ``protocol_errors`` has all that plugins do against the protocol,
``panics`` what would have crashed a real kubelet. A device that this kubelet itself gives twice raises
AssertionError.
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
from partage.model.ids import PodUid, ShareId
from partage.model.paths import check_socket_path
from partage.model.pod import Pod
from partage.sim.kubelet.behaviour import Behaviour, PodResourcesMode
from partage.sim.kubelet.device_manager import AdmissionError, DeviceManager, KubeletPanic, write_checkpoint
from partage.sim.kubelet.plugin_client import PluginError
from partage.sim.kubelet.plugin_registry import PluginRegistry
from partage.sim.kubelet.pod_resources import PodResourcesService, TokenBucket, device_message, pod_message
from partage.sim.kubelet.pods import (
    ContainerState,
    PodPhase,
    PodStatus,
    SimulatedScheduler,
    waiting_container,
)
from partage.sim.node.machine import derived_uuid


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
        self._behaviour = behaviour or Behaviour()
        self._awake = asyncio.Event()
        self._awake.set()
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
            keeps_by_path=self.behaviour.keeps_by_path,
            answered=self._answered,
        )
        self._registry = PluginRegistry(
            kubelet_dir,
            self._manager,
            behaviour=lambda: self.behaviour,
            awake=self._awake,
            report=self._report,
            listed=self._listed_devices,
            gone=self._note_change,
        )
        self._scheduler = SimulatedScheduler(self.allocatable, lambda: bool(self._servers))
        self._uids: dict[str, PodUid] = {}
        self._namesakes: Counter[str] = Counter()
        self._pods: dict[str, PodStatus] = {}
        self._unlisted: set[str] = set()
        self._unknown: set[str] = set()
        self._ended: list[Pod] = []
        self._left: list[PodStatus] = []
        self._sync: asyncio.Task[None] | None = None
        self._protocol_errors: list[str] = []
        self._panics: list[str] = []
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
        if self._unknown:
            self._sync = asyncio.create_task(self._admit_again(), name="pods are admitted again")
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
        await server.serve_at(path)
        self._servers.append(server)

    async def stop(self) -> None:
        """End at once, like a killed process: socket files stay, containers continue."""
        self.go_on()
        if self._sync is not None:
            self._sync.cancel()
            await asyncio.gather(self._sync, return_exceptions=True)
        servers, self._servers = self._servers, []
        for server in servers:
            await server.stop()
        await self._registry.stop()  # last: a registration that is not answered yet starts one more watch

    async def restart(self) -> None:
        """Stop and start."""
        await self.stop()
        await self.start()

    def stand_still(self) -> None:
        """Do nothing more with what arrives, like a process that SIGSTOP has stopped."""
        self._awake.clear()

    def go_on(self) -> None:
        """Everything that has arrived meanwhile is dealt with."""
        self._awake.set()

    @property
    def behaviour(self) -> Behaviour:
        """How it behaves from now on."""
        return self._behaviour

    @behaviour.setter
    def behaviour(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._note_change()

    async def _answered(self) -> None:
        """An answer to Allocate has arrived; it is taken over later."""
        await asyncio.sleep(self.behaviour.answer_delay_s)
        await self._awake.wait()

    async def _admit_again(self) -> None:
        """The API server names the pods: a kubelet that has started admits them all once more."""
        await asyncio.sleep(self.behaviour.sync_delay_s)
        while not self.behaviour.knows_pods:
            self._changed.clear()
            await self._changed.wait()
        await self._awake.wait()
        known, self._unknown = self._unknown, set()
        for status in [status for key, status in self._pods.items() if key in known]:
            running = {
                container.name for container in status.containers if container.state is ContainerState.RUNNING
            }
            try:
                if status.holds:
                    self._manager.readmit(status.pod, running)
            except AdmissionError as error:
                await self._end(status.pod, PodPhase.FAILED, *_unexpected(error))
        self._note_change()

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

    @property
    def panics(self) -> tuple[str, ...]:
        """A real kubelet would have crashed; the pod that it admitted has failed here."""
        return tuple(self._panics)

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

    @property
    def knows_pods(self) -> bool:
        """Whether the API server has named the pods since the last start."""
        return not self._unknown

    def waiting(self) -> tuple[Pod, ...]:
        """Pods that wait until the scheduler finds room for them, oldest first."""
        return self._scheduler.waiting()

    def left(self) -> tuple[PodStatus, ...]:
        """Pods that were deleted by force and whose processes run on: the kubelet knows nothing of them."""
        return tuple(self._left)

    async def until(self, condition: Callable[[], bool], limit_s: float = 10.0) -> None:
        """Wait until ``condition()`` is true; devices and pods are its subject. Raises TimeoutError."""
        async with asyncio.timeout(limit_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    # --- pods ---------------------------------------------------------------------------------

    async def admit(self, pod: Pod, *, bound: bool = False, waits: bool = False) -> PodStatus:
        """Schedule a pod to this node, give it its devices, start its containers.

        bound: it is bound to the node already, and the scheduler does not check it. A pod that cannot be
        scheduled is Pending. waits: it is scheduled at the moment at which it fits, before this returns;
        else it can be admitted later. A pod that the kubelet refuses has failed.
        """
        if not self._servers:
            raise RuntimeError("the kubelet does not run")
        pod.must_be_possible()
        if self._scheduler.knows(pod):
            raise ValueError(f"pod {pod.key} is there already")
        if bound:
            self._scheduler.bind(pod)
        elif lacking := await self._scheduler.place(pod, waits=waits):
            reasons = ", ".join(f"1 Insufficient {resource}" for resource in lacking)
            return PodStatus(pod, PodPhase.PENDING, "Unschedulable", f"0/1 nodes are available: {reasons}.")
        await self._awake.wait()
        self._update_allocated()
        self._uids[pod.key] = self._new_uid(pod)
        try:
            await self._manager.admit(pod)
        except AdmissionError as error:
            return self._refused(pod, error)
        except KubeletPanic as panic:
            self._panics.append(str(panic))
            return self._refused(pod, panic)
        finally:
            self._write_checkpoint()
        containers = tuple(
            waiting_container(container.name, self._manager.holdings(pod, container.name))
            for container in pod.containers
        )
        self._put(PodStatus(pod, PodPhase.PENDING, containers=containers, uid=self._uids[pod.key]))
        await self._make_ready(pod)
        return await self.retry(pod)

    def _new_uid(self, pod: Pod) -> PodUid:
        """Each pod of a name has another one."""
        before = self._namesakes[pod.key]
        self._namesakes[pod.key] += 1
        return PodUid(derived_uuid("", "pod", pod.key, *([before] if before else [])))

    async def _make_ready(self, pod: Pod) -> None:
        """Wait for sandbox and image. The pod has its devices; PodResources does not name it at first."""
        if self.behaviour.unlisted_s:
            self._unlisted.add(pod.key)
            await asyncio.sleep(self.behaviour.unlisted_s)
            self._unlisted.discard(pod.key)
        if self.behaviour.start_delay_s:
            await asyncio.sleep(self.behaviour.start_delay_s)

    def _refused(self, pod: Pod, error: Exception) -> PodStatus:
        self._scheduler.unbind(pod)
        return self._put(PodStatus(pod, PodPhase.FAILED, *_unexpected(error)))

    async def retry(self, pod: Pod) -> PodStatus:
        """Start the containers that wait, init containers in order. A kubelet does this after a back-off."""
        for container in pod.containers:
            status = self._pods[pod.key]
            if not status.holds or status.container(container.name).state is not ContainerState.WAITING:
                continue
            started = await self._start(pod, container.name)
            if not started and container.kind != "main":
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
        if all(container.name != name for container in pod.lasting):
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
        self.crash(pod, name)
        await self._start(pod, name)
        return self._pods[pod.key]

    def crash(self, pod: Pod, name: str) -> None:
        """A container has crashed and waits for its next start. Raises ValueError where its pod has ended."""
        status = self._pods[pod.key]
        if not status.holds:
            raise ValueError(f"pod {pod.key} has ended")
        crashed = status.container(name)
        again = replace(crashed, state=ContainerState.WAITING, restarts=crashed.restarts + 1)
        self._put(status.with_container(again))

    async def end(self, pod: Pod, *, failed: bool = False) -> PodStatus:
        """All containers have ended: the devices are free as soon as the kubelet looks, the pod is still
        known."""
        return await self._end(pod, PodPhase.FAILED if failed else PodPhase.SUCCEEDED)

    async def _end(self, pod: Pod, phase: PodPhase, reason: str = "", message: str = "") -> PodStatus:
        await self._awake.wait()
        status = self._pods[pod.key]
        if not status.holds:
            return status
        self._ended.append(pod)
        self._scheduler.unbind(pod)
        ended = tuple(replace(container, state=ContainerState.TERMINATED) for container in status.containers)
        return self._put(replace(status, phase=phase, reason=reason, message=message, containers=ended))

    async def delete(self, pod: Pod, *, force: bool = False) -> None:
        """End it if it runs, and forget it. force: its processes run on, and nobody waits for them."""
        self._scheduler.give_up(pod)
        if pod.key in self._pods:
            status = self._pods[pod.key]
            if force and any(container.state is ContainerState.RUNNING for container in status.containers):
                self._left.append(status)
            await self.end(pod)
            del self._pods[pod.key]
            self._note_change()

    def processes_end(self, status: PodStatus) -> None:
        """The processes of a pod that was deleted by force end. Raises ValueError where they have ended."""
        self._left.remove(status)
        self._note_change()

    def _put(self, status: PodStatus) -> PodStatus:
        self._pods[status.pod.key] = status
        self._note_change()
        return status

    def _listed_devices(self) -> None:
        """A plugin has sent its list: the device manager writes its checkpoint, which it does not when a
        plugin has gone."""
        self._write_checkpoint()
        self._note_change()

    def _write_checkpoint(self) -> None:
        write_checkpoint(self._dir, self._manager.all_holdings(), self._uids, self._manager.devices())

    def _update_allocated(self) -> None:
        """Forget what pods held that ended; not before the pods are known. Admission and List do so."""
        if self.behaviour.knows_pods and not self._unknown:
            for pod in self._ended:
                self._manager.release(pod)
            self._ended.clear()

    def _note_change(self) -> None:
        self._scheduler.schedule()
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


def _unexpected(error: Exception) -> tuple[str, str]:
    """Reason and message of a pod that the kubelet does not admit."""
    return (
        "UnexpectedAdmissionError",
        f"Pod was rejected: Allocate failed due to {error}, which is unexpected",
    )
