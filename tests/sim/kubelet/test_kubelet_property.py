"""Any interleaving of pods, restarts and failing devices leaves the embedded kubelet and our edge at one."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from partage.edges.kubelet.endpoint import ResourceEndpoint
from partage.edges.kubelet.pod_resources import PodResourcesClient
from partage.model.pod import Container, Pod
from partage.model.share import DeviceRow
from partage.sim.kubelet.behaviour import Behaviour
from partage.sim.kubelet.kubelet import EmbeddedKubelet
from partage.sim.kubelet.pods import ContainerState, PodPhase, PodStatus
from tests.edges.kubelet.shelf import Shelf
from tests.examples import examples

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
REQUESTS = st.dictionaries(st.sampled_from([GPU, SHARED]), st.integers(0, 3), max_size=2)
CONTAINERS = st.lists(st.tuples(REQUESTS, st.booleans()), max_size=2)


def needed(pod: Pod) -> Counter[str]:
    """Devices that a pod takes from the node, counted one container after the other."""
    taken: Counter[str] = Counter()
    reusable: Counter[str] = Counter()
    for container in pod.containers:
        for resource, count in container.requests.items():
            taken[resource] += max(count - reusable[resource], 0)
            if container.kind == "init":
                reusable[resource] = max(reusable[resource], count)
            else:
                reusable[resource] = max(reusable[resource] - count, 0)
    return +taken


class Node(RuleBasedStateMachine):
    """One kubelet, two resources of six devices; their endpoints are turned by hand, so nothing waits."""

    pods = Bundle("pods")

    @initialize(seed=st.integers(0, 99), always=st.booleans(), pre_start=st.booleans())
    def begin(self, seed: int, always: bool, pre_start: bool) -> None:
        self.runner = asyncio.Runner()
        self.place = tempfile.TemporaryDirectory(prefix="ptg", dir="/tmp")
        self.names = iter(range(1000))
        self.running: dict[str, Pod] = {}
        self.runner.run(self._begin(Path(self.place.name), seed, always, pre_start))

    async def _begin(self, path: Path, seed: int, always: bool, pre_start: bool) -> None:
        socket = path / "pr" / "kubelet.sock"
        self.kubelet = EmbeddedKubelet(
            path, socket, seed=seed, behaviour=Behaviour(always_asks_preference=always, sync_delay_s=0.0)
        )
        await self.kubelet.start()
        self.client = PodResourcesClient(socket)
        self.shelves = [Shelf(*(f"{r}{n}" for n in range(6)), resource=r) for r in (GPU, SHARED)]
        self.shelves[1].pre_start_required = pre_start
        self.endpoints = [ResourceEndpoint(shelf, path) for shelf in self.shelves]
        await self._settle()

    async def _settle(self) -> None:
        """Let the endpoints do what they need, and the kubelet hear of it."""
        for endpoint in self.endpoints:
            await endpoint.turn()
            await endpoint.turn()
        expected = {
            str(shelf.resource): sum(row.healthy for row in shelf.devices().rows) for shelf in self.shelves
        }
        await self.kubelet.until(lambda: self.kubelet.allocatable() == expected)

    @rule(target=pods, main=REQUESTS, init=CONTAINERS, bound=st.booleans())
    def come(self, main: dict[str, int], init: list[tuple[dict[str, int], bool]], bound: bool) -> Pod:
        """A pod is admitted if, and only if, there are as many healthy free devices as it takes."""
        inits = [
            Container(f"i{n}", requests, "sidecar" if side else "init")
            for n, (requests, side) in enumerate(init)
        ]
        pod = Pod("default", f"p{next(self.names)}", (*inits, Container("main", main)))
        free = self._free()
        allocatable = self.kubelet.allocatable()
        status = self.runner.run(self.kubelet.admit(pod, bound=bound))
        takes = needed(pod)
        # A resource without a healthy device is refused even where reuse would do.
        fits = all(free[name] >= count and allocatable[name] for name, count in takes.items())
        assert status.phase is not PodPhase.RUNNING or fits
        assert status.phase is not PodPhase.FAILED or not fits
        assert bound or status.phase is not PodPhase.FAILED, "the scheduler knows what the kubelet knows"
        if status.phase is PodPhase.RUNNING:
            self.running[pod.key] = pod
            for container in pod.containers:
                asked = {name: count for name, count in container.requests.items() if count}
                ids = status.container(container.name).ids
                assert {name: len(set(held)) for name, held in ids.items()} == asked
        return pod

    def _free(self) -> Counter[str]:
        held = {one for ids in self._held().values() for one in ids}
        rows = [(shelf.resource, row) for shelf in self.shelves for row in shelf.devices().rows]
        return Counter(str(name) for name, row in rows if row.healthy and row.id not in held)

    def _held(self) -> dict[str, set[str]]:
        return {
            status.pod.key: {one for c in status.containers for ids in c.ids.values() for one in ids}
            for status in self.kubelet.pods()
            if status.holds
        }

    @rule(pod=pods)
    def end(self, pod: Pod) -> None:
        if self.running.pop(pod.key, None):
            self.runner.run(self.kubelet.end(pod))

    @rule(pod=pods)
    def crash(self, pod: Pod) -> None:
        """A container that restarts keeps what it has, and the plugin is not asked to allocate again."""
        if pod.key in self.running:
            allocated = [len(shelf.allocated) for shelf in self.shelves]
            before = self._held()
            status = self.runner.run(self.kubelet.restart_container(pod, "main"))
            assert status.container("main").restarts
            assert self._held() == before
            assert [len(shelf.allocated) for shelf in self.shelves] == allocated

    @rule()
    def restart_kubelet(self) -> None:
        """All hold what they held, those aside of whom a container that does not run has a device that is
        not healthy: they fail."""
        lasting = {status.pod.key for status in self.kubelet.pods() if status.holds and self._lasts(status)}
        before = self._held()
        self.runner.run(self._restart_kubelet())
        assert self._held() == {key: ids for key, ids in before.items() if key in lasting}
        self.running = {key: pod for key, pod in self.running.items() if key in lasting}

    def _lasts(self, status: PodStatus) -> bool:
        rows = [row for shelf in self.shelves for row in shelf.devices().rows]
        healthy = {row.id for row in rows if row.healthy}
        idle = [one for one in status.containers if one.state is not ContainerState.RUNNING]
        return all(set(ids) <= healthy for one in idle for ids in one.ids.values())

    async def _restart_kubelet(self) -> None:
        """The plugins register before the API server names the pods."""
        usual = self.kubelet.behaviour
        self.kubelet.behaviour = replace(usual, knows_pods=False)
        await self.kubelet.restart()
        await self._settle()
        self.kubelet.behaviour = usual
        await self.kubelet.until(lambda: self.kubelet.knows_pods)

    @rule(which=st.integers(0, 1), number=st.integers(0, 5))
    def turn_health(self, which: int, number: int) -> None:
        """A device fails, or comes back. Its holder keeps it."""
        shelf = self.shelves[which]
        rows = list(shelf.devices().rows)
        rows[number] = DeviceRow(rows[number].id, healthy=not rows[number].healthy)
        self.runner.run(self._put(shelf, rows))

    async def _put(self, shelf: Shelf, rows: list[DeviceRow]) -> None:
        await shelf.put(*rows)
        await self._settle()

    @invariant()
    def no_device_has_two_holders(self) -> None:
        held = [one for ids in self._held().values() for one in ids]
        assert len(held) == len(set(held))
        assert set(self._held()) == set(self.running)

    @invariant()
    def pod_resources_tell_what_main_containers_and_sidecars_hold(self) -> None:
        told = {
            (f"{row.namespace}/{row.pod}", row.container, str(row.resource)): row.ids
            for row in self.runner.run(self.client.held())
        }
        expected = {
            (status.pod.key, container.name, resource): ids
            for status in self.kubelet.pods()
            if status.holds
            for container in status.pod.lasting
            for resource, ids in status.container(container.name).ids.items()
        }
        assert told == expected

    @invariant()
    def nobody_contradicts_the_protocol(self) -> None:
        assert self.kubelet.protocol_errors == ()

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.run(self._end())
            self.runner.close()
            self.place.cleanup()

    async def _end(self) -> None:
        self.client.close()
        for endpoint in self.endpoints:
            task = asyncio.create_task(endpoint.run())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        await self.kubelet.stop()


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=examples(15), stateful_step_count=20, deadline=None)
