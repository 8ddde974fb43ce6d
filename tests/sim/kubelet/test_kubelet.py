"""The embedded kubelet does what a real kubelet was seen to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from partage.edges.kubelet.checkpoint import CheckpointFile
from partage.edges.kubelet.endpoint import ResourceEndpoint
from partage.edges.kubelet.pod_resources import PodResourcesClient
from partage.edges.kubelet.registration import register
from partage.edges.kubelet.server import PluginServer
from partage.errors import Rejected, Unreachable
from partage.model.ids import PodUid, ResourceName, ShareId
from partage.model.pod import Container, Pod
from partage.model.share import ContainerAllocation, ContainerHold, DeviceNode, DeviceRow, Mount
from partage.sim.kubelet.behaviour import Behaviour, PodResourcesMode
from partage.sim.kubelet.kubelet import EmbeddedKubelet
from partage.sim.kubelet.pod_resources import RateLimit
from partage.sim.kubelet.pods import ContainerState, PodPhase
from tests.edges.kubelet.shelf import Shelf, running
from tests.kubelet_script import until

GPU = "nvidia.com/gpu"


@pytest.fixture
def place(short_dir: Path) -> Path:
    return short_dir


def pod(name: str, count: int = 1, *, init: tuple[Container, ...] = ()) -> Pod:
    return Pod("default", name, (*init, Container("main", {GPU: count})))


def held(checkpoint: CheckpointFile) -> Mapping[ShareId, frozenset[PodUid]]:
    """The devices of GPU in it."""
    content = checkpoint.held()
    assert content is not None
    return content[ResourceName(GPU)]


@asynccontextmanager
async def node(
    place: Path, *shelves: Shelf, behaviour: Behaviour | None = None, seed: int = 0, clock: list[float]
) -> AsyncIterator[tuple[EmbeddedKubelet, PodResourcesClient]]:
    """A kubelet with the plugins of ``shelves`` registered."""
    path = place / "pod-resources" / "kubelet.sock"
    kubelet = EmbeddedKubelet(place / "plugins", path, seed=seed, behaviour=behaviour, clock=lambda: clock[0])
    await kubelet.start()
    client = PodResourcesClient(path, timeout_s=2.0)
    endpoints = [ResourceEndpoint(shelf, place / "plugins") for shelf in shelves]
    tasks = [asyncio.create_task(endpoint.run()) for endpoint in endpoints]
    offered = {str(shelf.resource): len(shelf.devices().rows) for shelf in shelves}
    await kubelet.until(lambda: kubelet.allocatable() == offered)
    try:
        yield kubelet, client
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        client.close()
        await kubelet.stop()
        assert kubelet.protocol_errors == ()


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


async def test_a_pod_gets_what_its_plugin_gives(place: Path, clock: list[float]) -> None:
    shelf = Shelf("a", "b", "c")
    async with node(place, shelf, clock=clock) as (kubelet, client):
        status = await kubelet.admit(pod("train", 2))
        assert status.phase is PodPhase.RUNNING
        main = status.container("main")
        assert main.state is ContainerState.RUNNING
        assert set(main.ids[GPU]) == {"a", "b"}, "the plugin prefers the first"
        assert set(main.env["NVIDIA_VISIBLE_DEVICES"].split(",")) == {"a", "b"}
        assert main.mounts == (Mount("/in", "/out", read_only=True),)
        assert main.devices == (DeviceNode("/dev/nvidia0", "/host/dev/nvidia0", "rw"),)
        assert main.annotations == {"cdi.k8s.io/x": "y"}
        assert main.cdi_devices == ("nvidia.com/gpu=0",)
        (held,) = await client.held()
        assert held == ContainerHold("default", "train", "main", ResourceName(GPU), main.ids[GPU])
        assert kubelet.capacity() == kubelet.allocatable() == {GPU: 3}


async def test_free_ids_come_in_an_order_that_the_seed_decides(place: Path, clock: list[float]) -> None:
    orders = []
    for run, seed in enumerate((7, 7, 8)):
        shelf = Shelf(*(f"d{n}" for n in range(20)))
        async with node(place / str(run), shelf, seed=seed, clock=clock) as (kubelet, _):
            await kubelet.admit(pod("train"))
        orders.append(shelf.asked[0])
    assert orders[0] == orders[1] != orders[2]
    assert list(orders[0]) != sorted(orders[0])


async def test_without_choice_a_kubelet_that_aligns_does_not_ask(place: Path, clock: list[float]) -> None:
    shelf = Shelf("a", "b")
    async with node(place, shelf, behaviour=Behaviour(always_asks_preference=False), clock=clock) as (
        kubelet,
        _,
    ):
        await kubelet.admit(pod("all", 2))
        assert shelf.asked == []
        await kubelet.end(pod("all", 2))
        await kubelet.admit(pod("one"))
        assert len(shelf.asked) == 1


async def test_main_containers_get_the_devices_of_init_containers_again(
    place: Path, clock: list[float]
) -> None:
    """Allocate for each, the same ids, asked once which; PodResources names the main container alone."""
    shelf = Shelf("a", "b", "c")
    async with node(place, shelf, clock=clock) as (kubelet, client):
        status = await kubelet.admit(pod("train", 2, init=(Container("prepare", {GPU: 2}, "init"),)))
        assert len(shelf.asked) == 1
        assert [set(ids) for ids in shelf.allocated] == [{"a", "b"}, {"a", "b"}]
        assert status.container("prepare").state is ContainerState.TERMINATED
        assert [held.container for held in await client.held()] == ["main"]


async def test_a_main_container_that_needs_more_must_include_what_the_init_container_had(
    place: Path, clock: list[float]
) -> None:
    shelf = Shelf("a", "b", "c")
    async with node(place, shelf, clock=clock) as (kubelet, _):
        status = await kubelet.admit(pod("train", 3, init=(Container("prepare", {GPU: 1}, "init"),)))
        assert set(status.container("main").ids[GPU]) == {"a", "b", "c"}
        assert [len(asked) for asked in shelf.asked] == [3, 3]


async def test_a_sidecar_keeps_its_device_and_is_listed(place: Path, clock: list[float]) -> None:
    shelf = Shelf("a", "b")
    async with node(place, shelf, clock=clock) as (kubelet, client):
        status = await kubelet.admit(pod("train", init=(Container("side", {GPU: 1}, "sidecar"),)))
        assert status.container("side").ids[GPU] != status.container("main").ids[GPU]
        assert status.container("side").state is ContainerState.RUNNING
        assert {held.container for held in await client.held()} == {"side", "main"}


async def test_a_device_of_an_init_container_has_no_observed_holder(place: Path, clock: list[float]) -> None:
    shelf = Shelf("a")
    only_init = Pod("default", "odd", (Container("prepare", {GPU: 1}, "init"), Container("main")))
    async with node(place, shelf, clock=clock) as (kubelet, client):
        await kubelet.admit(only_init)
        assert await client.held() == ()
        refused = await kubelet.admit(pod("late"))
        assert refused.reason == "Unschedulable"


async def test_a_refused_allocation_fails_the_pod_for_good_and_frees_everything(
    place: Path, clock: list[float]
) -> None:
    shelf, other = Shelf("a", "b"), Shelf("c", "bug", resource="nvidia.com/other")
    wants_both = Pod(
        "default", "train", (Container("one", {GPU: 2}), Container("two", {"nvidia.com/other": 2}))
    )
    async with node(place, shelf, other, clock=clock) as (kubelet, client):
        status = await kubelet.admit(wants_both)
        assert (status.phase, status.reason) == (PodPhase.FAILED, "UnexpectedAdmissionError")
        assert status.message == (
            "Pod was rejected: Allocate failed due to rpc error: code = Internal desc = "
            "ZeroDivisionError: a bug of ours, which is unexpected"
        )
        assert not status.holds
        assert await client.held() == ()
        assert (await kubelet.admit(pod("next", 2))).phase is PodPhase.RUNNING


async def test_a_full_node_is_refused_by_the_scheduler_or_by_the_kubelet(
    place: Path, clock: list[float]
) -> None:
    async with node(place, Shelf("a"), clock=clock) as (kubelet, _):
        await kubelet.admit(pod("first"))
        pending = await kubelet.admit(pod("second"))
        assert (pending.phase, pending.message) == (
            PodPhase.PENDING,
            "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
        )
        failed = await kubelet.admit(pod("second"), bound=True)
        assert failed.message == (
            "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
            "nvidia.com/gpu. Requested: 1, Available: 0, which is unexpected"
        )
        await kubelet.end(pod("first"))
        assert (await kubelet.admit(pod("second"))).phase is PodPhase.RUNNING


async def test_pods_that_come_at_once_do_not_share(place: Path, clock: list[float]) -> None:
    shelf = Shelf(*(f"d{n}" for n in range(10)))
    async with node(place, shelf, clock=clock) as (kubelet, _):
        statuses = await asyncio.gather(*(kubelet.admit(pod(f"p{n}", 2)) for n in range(8)))
        assert [status.phase for status in statuses].count(PodPhase.RUNNING) == 5
        ids = [one for status in statuses if status.holds for one in status.container("main").ids[GPU]]
        assert sorted(ids) == sorted(shelf.devices().rows[n].id for n in range(10))


async def test_pre_start_is_called_where_asked_for_and_the_pod_is_listed_by_then(
    place: Path, clock: list[float]
) -> None:
    shelf, plain = Shelf("a"), Shelf("b", resource="nvidia.com/plain")
    shelf.pre_start_required = True
    listed: list[Sequence[ContainerHold]] = []
    both = Pod(
        "default",
        "train",
        (Container("i", {GPU: 1}, "init"), Container("main", {GPU: 1, "nvidia.com/plain": 1})),
    )
    async with node(place, shelf, plain, clock=clock) as (kubelet, client):

        async def look() -> None:
            listed.append(await client.held())

        shelf.before_start = look
        await kubelet.admit(both)
        assert shelf.started == [("a",), ("a",)], "once for each container"
        assert plain.started == []
        assert [{held.container for held in held_by} for held_by in listed] == [{"main"}, {"main"}]


async def test_a_container_that_restarts_keeps_devices_and_answer_without_a_new_allocate(
    place: Path, clock: list[float]
) -> None:
    shelf = Shelf("a", "b")
    async with node(place, shelf, clock=clock) as (kubelet, _):
        before = await kubelet.admit(pod("train"))
        after = await kubelet.restart_container(pod("train"), "main")
        assert after.container("main") == replace(before.container("main"), restarts=1)
        assert len(shelf.allocated) == 1


async def test_a_plugin_that_goes_away_takes_health_along_and_after_the_grace_period_capacity(
    place: Path, clock: list[float]
) -> None:
    kubelet = EmbeddedKubelet(place, clock=lambda: clock[0])
    await kubelet.start()
    async with running(ResourceEndpoint(Shelf("a", "b"), place)):
        await kubelet.until(lambda: kubelet.allocatable() == {GPU: 2})
    await kubelet.until(lambda: kubelet.allocatable() == {GPU: 0})
    assert kubelet.capacity() == {GPU: 2}
    clock[0] = 299.0
    assert kubelet.capacity() == {GPU: 2}
    clock[0] = 301.0
    assert kubelet.capacity() == kubelet.allocatable() == {}
    await kubelet.stop()


async def test_without_its_plugin_a_container_that_needs_pre_start_waits(
    place: Path, clock: list[float]
) -> None:
    shelf = Shelf("a")
    shelf.pre_start_required = True
    kubelet = EmbeddedKubelet(place, clock=lambda: clock[0])
    await kubelet.start()
    async with running(ResourceEndpoint(shelf, place)):
        await kubelet.until(lambda: kubelet.allocatable() == {GPU: 1})
        await kubelet.admit(pod("train"))
    await kubelet.until(lambda: kubelet.allocatable() == {GPU: 0})
    status = await kubelet.restart_container(pod("train"), "main")
    main = status.container("main")
    assert (main.state, main.reason) == (ContainerState.WAITING, "CreateContainerConfigError")
    assert "has been stopped" in main.message
    async with running(ResourceEndpoint(shelf, place)):
        await kubelet.until(lambda: kubelet.allocatable() == {GPU: 1})
        status = await kubelet.retry(pod("train"))
        assert status.container("main").state is ContainerState.RUNNING
        assert status.container("main").message == ""
    await kubelet.stop()


async def test_a_restarted_kubelet_knows_who_holds_what_and_waits_for_plugins(
    place: Path, clock: list[float]
) -> None:
    shelf = Shelf("a", "b")
    async with node(place, shelf, clock=clock) as (kubelet, client):
        before = await kubelet.admit(pod("train"))
        await kubelet.restart()
        assert kubelet.capacity() == {GPU: 0}
        assert not list((place / "plugins").glob("nvidia*"))
        early = await kubelet.admit(pod("early"), bound=True)
        assert "no healthy devices present" in early.message
        await kubelet.until(lambda: kubelet.allocatable() == {GPU: 2}, limit_s=3.0)
        assert await client.held() == (), "the API server has not named its pods yet"
        await kubelet.until(lambda: kubelet.knows_pods)
        (held,) = await client.held()
        assert held.ids == before.container("main").ids[GPU]
        late = await kubelet.admit(pod("late"))
        assert late.container("main").ids != before.container("main").ids


async def test_a_wiped_directory_is_registered_anew_within_two_seconds(
    place: Path, clock: list[float]
) -> None:
    async with node(place, Shelf("a"), clock=clock) as (kubelet, _):
        kubelet.wipe()
        await kubelet.until(lambda: kubelet.allocatable() == {GPU: 0}, limit_s=2.0)
        await kubelet.until(lambda: kubelet.allocatable() == {GPU: 1}, limit_s=2.0)


async def test_ended_pods_stay_listed_where_kubelets_do_so(place: Path, clock: list[float]) -> None:
    async with node(place, Shelf("a"), clock=clock) as (kubelet, client):
        await kubelet.admit(pod("first"))
        await kubelet.end(pod("first"))
        assert await client.held() == ()
        kubelet.behaviour = Behaviour(lists_ended_pods=True)
        await kubelet.admit(pod("second"))
        assert [(held.pod, held.ids) for held in await client.held()] == [
            ("first", ("a",)),
            ("second", ("a",)),
        ]
        await kubelet.delete(pod("first"))
        assert [held.pod for held in await client.held()] == ["second"]


async def test_pod_resources_can_be_limited_refused_and_absent(place: Path, clock: list[float]) -> None:
    limited = Behaviour(list_rate=RateLimit(per_second=2.0, burst=2))
    async with node(place, Shelf("a"), behaviour=limited, clock=clock) as (kubelet, client):
        for _ in range(2):
            assert await client.held() == ()
        with pytest.raises(Unreachable, match="RESOURCE_EXHAUSTED"):
            await client.held()
        clock[0] = 0.5
        assert await client.held() == ()
        clock[0] = 10.0
        kubelet.behaviour = Behaviour(pod_resources=PodResourcesMode.REFUSES)
        with pytest.raises(Unreachable, match="rejected"):
            await client.held()
        kubelet.behaviour = Behaviour(pod_resources=PodResourcesMode.ABSENT)
        await kubelet.restart()
        with pytest.raises(Unreachable, match="no such socket"):
            await client.held()


async def test_a_kubelet_may_never_answer_a_registration(place: Path, clock: list[float]) -> None:
    kubelet = EmbeddedKubelet(place, behaviour=Behaviour(answers_registration=False))
    await kubelet.start()
    async with running(ResourceEndpoint(Shelf("a"), place, register_timeout_s=0.1)) as endpoint:
        await until(lambda: endpoint.state.attempts == 2)
        assert kubelet.capacity() == {}
        kubelet.behaviour = Behaviour()
        await kubelet.until(lambda: kubelet.allocatable() == {GPU: 1})
    await kubelet.stop()


async def test_registrations_that_a_kubelet_refuses(place: Path) -> None:
    kubelet = EmbeddedKubelet(place)
    await kubelet.start()
    server = PluginServer(Shelf("a"), place / "a.sock")
    await server.start()
    socket = place / "kubelet.sock"
    for name, endpoint, reason in (
        ("gpu", "a.sock", "invalid"),
        ("kubernetes.io/gpu", "a.sock", "invalid"),
        (GPU, "b.sock", "failed to dial"),
        (GPU, "../a.sock", "base name"),
    ):
        with pytest.raises(Rejected, match=reason):
            await register(socket, endpoint=endpoint, resource=ResourceName(name), options=server.options)
    await register(socket, endpoint="a.sock", resource=ResourceName(GPU), options=server.options)
    await kubelet.until(lambda: kubelet.allocatable() == {GPU: 1})
    await server.stop()
    await kubelet.stop()


@asynccontextmanager
async def plugin(place: Path, name: str, *ids: str) -> AsyncIterator[PluginServer]:
    """A plugin that serves at that name and has not registered."""
    server = PluginServer(Shelf(*ids), place / name)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def registers(server: PluginServer) -> None:
    path = server.socket_path
    await register(
        path.parent / "kubelet.sock", endpoint=path.name, resource=ResourceName(GPU), options=server.options
    )


def streams() -> int:
    """How many lists of plugins are read."""
    return [task.get_name() for task in asyncio.all_tasks()].count(f"watch {GPU}")


@pytest.mark.parametrize(("by_path", "alive"), [(True, 1), (False, 0)])
async def test_the_late_end_of_an_old_stream_may_stop_a_newer_registration(
    place: Path, by_path: bool, alive: int
) -> None:
    """Up to 1.36 the kubelet mixes the two up; it takes another registration to mend it."""
    kubelet = EmbeddedKubelet(place, behaviour=Behaviour(keeps_by_path=by_path))
    await kubelet.start()
    async with plugin(place, "old.sock", "a") as old, plugin(place, "new.sock", "a") as new:
        for server in (old, new):
            await registers(server)
            await kubelet.until(lambda: kubelet.allocatable() == {GPU: 1})
        await old.stop()
        await until(lambda: streams() == alive)
        assert kubelet.allocatable() == {GPU: alive}
        await registers(new) if not by_path else None
        await kubelet.until(lambda: kubelet.allocatable() == {GPU: 1})
        await kubelet.stop()


async def test_where_one_of_two_plugins_ends_the_other_one_serves(place: Path) -> None:
    """From 1.37 on. Its list is not asked for anew: the last one counts, be it of whom it may."""
    kubelet = EmbeddedKubelet(place, behaviour=Behaviour(keeps_by_path=True))
    await kubelet.start()
    async with plugin(place, "old.sock", "a", "b") as old, plugin(place, "new.sock", "a") as new:
        await registers(old)
        await registers(new)
        await kubelet.until(lambda: kubelet.allocatable() == {GPU: 1})
        await new.stop()
        await until(lambda: streams() == 1)
        assert kubelet.allocatable() == {GPU: 1}
        assert (await kubelet.admit(pod("train"))).phase is PodPhase.RUNNING
        await kubelet.stop()


async def test_a_path_that_is_connected_is_refused_and_so_poisoned(place: Path) -> None:
    """From 1.37 on: the refusal drops the living plugin from the table, and nobody notices its end."""
    kubelet = EmbeddedKubelet(place, behaviour=Behaviour(keeps_by_path=True))
    await kubelet.start()
    async with plugin(place, "a.sock", "a") as server:
        await registers(server)
        await kubelet.until(lambda: kubelet.allocatable() == {GPU: 1})
        with pytest.raises(Rejected, match=r"device plugin already connected: .*a\.sock"):
            await registers(server)
    await until(lambda: streams() == 0)
    assert kubelet.allocatable() == {GPU: 1}, "nobody is told that it is gone"
    assert (await kubelet.admit(pod("lost"))).phase is PodPhase.FAILED
    async with plugin(place, "a.sock", "a") as again:
        with pytest.raises(Rejected, match="device plugin already connected"):
            await registers(again)
        assert (await kubelet.admit(pod("served"))).phase is PodPhase.RUNNING, "who listens there is asked"
        await kubelet.restart()
        await again.stop()
        await again.start()
        await registers(again)
        await kubelet.stop()


async def test_up_to_1_36_a_path_registers_anew_and_again(place: Path) -> None:
    kubelet = EmbeddedKubelet(place)
    await kubelet.start()
    async with plugin(place, "a.sock", "a") as server:
        for _ in range(3):
            await registers(server)
        await kubelet.until(lambda: kubelet.allocatable() == {GPU: 1})
    await kubelet.until(lambda: kubelet.allocatable() == {GPU: 0})
    await kubelet.stop()


@pytest.mark.parametrize("accepts", [True, False])
async def test_a_registration_that_was_given_up_is_dealt_with_late(place: Path, accepts: bool) -> None:
    """Either it is accepted, or it fails and drops the plugin that lives from the table."""
    kubelet = EmbeddedKubelet(place, behaviour=Behaviour(accepts_late=accepts))
    await kubelet.start()
    async with plugin(place, "a.sock", "a") as server:
        await registers(server)
        await kubelet.until(lambda: kubelet.allocatable() == {GPU: 1})
        kubelet.stand_still()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await registers(server)
        before = streams()
        kubelet.go_on()
        await until(lambda: not [one for one in asyncio.all_tasks() if one.get_name() == f"register {GPU}"])
        assert streams() == before + accepts
    await until(lambda: streams() == 0)
    assert kubelet.allocatable() == {GPU: 0 if accepts else 1}
    await kubelet.stop()


async def test_a_pod_that_waits_has_a_freed_device_before_anybody_can_look(
    place: Path, clock: list[float]
) -> None:
    async with node(place, Shelf("a", "b"), clock=clock) as (kubelet, _):
        for name in ("first", "second"):
            await kubelet.admit(pod(name))
        third, fourth = (
            asyncio.create_task(kubelet.admit(pod(name), waits=True)) for name in ("third", "fourth")
        )
        await until(lambda: len(kubelet.waiting()) == 2)
        await kubelet.end(pod("second"))
        assert kubelet.waiting() == (pod("fourth"),), "the oldest is bound within the same moment"
        assert (await third).container("main").ids == {GPU: ("b",)}
        await kubelet.delete(pod("fourth"))
        assert (await fourth).phase is PodPhase.PENDING


async def test_an_unhealthy_device_that_is_held_keeps_a_free_one_from_who_waits(
    place: Path, clock: list[float]
) -> None:
    """The scheduler counts what is healthy, less all that is held."""
    shelf = Shelf("a", "b")
    async with node(place, shelf, clock=clock) as (kubelet, _):
        await kubelet.admit(pod("first"))
        await shelf.put(DeviceRow(ShareId("a"), healthy=False), DeviceRow(ShareId("b"), healthy=True))
        await kubelet.until(lambda: kubelet.allocatable() == {GPU: 1})
        waits = asyncio.create_task(kubelet.admit(pod("second"), waits=True))
        await until(lambda: kubelet.waiting() == (pod("second"),))
        await kubelet.end(pod("first"))
        assert (await waits).container("main").ids == {GPU: ("b",)}


@pytest.mark.parametrize("stays", [True, False])
async def test_an_id_that_leaves_the_list_under_an_allocate_would_crash_a_kubelet(
    place: Path, clock: list[float], stays: bool
) -> None:
    """One that has become unhealthy would not: it has its container."""
    shelf = Shelf("a", "b")
    async with node(place, shelf, behaviour=Behaviour(answer_delay_s=0.3), clock=clock) as (kubelet, _):
        admission = asyncio.create_task(kubelet.admit(pod("train")))
        await until(lambda: bool(shelf.allocated))
        gone = [DeviceRow(ShareId("a"), healthy=False)] if stays else []
        await shelf.put(*gone, DeviceRow(ShareId("b"), healthy=True))
        status = await admission
        assert status.phase is (PodPhase.RUNNING if stays else PodPhase.FAILED)
        assert kubelet.panics == (() if stays else (f"{GPU} a left the list while Allocate was under way",))


async def test_a_pod_deleted_by_force_is_forgotten_while_its_processes_run(
    place: Path, clock: list[float]
) -> None:
    """The next pod has its devices, be it one of the same name: it is another pod."""
    async with node(place, Shelf("a"), clock=clock) as (kubelet, client):
        first = await kubelet.admit(pod("web-0"))
        again = asyncio.create_task(kubelet.admit(pod("web-0b"), waits=True))
        await kubelet.delete(pod("web-0"), force=True)
        assert (await again).container("main").ids == {GPU: ("a",)}
        assert kubelet.left() == (first,)
        kubelet.processes_end(first)
        assert kubelet.left() == ()
        await kubelet.delete(pod("web-0b"))
        second = await kubelet.admit(pod("web-0"))
        assert second.uid != first.uid
        (held,) = await client.held()
        assert held.pod == "web-0"


@pytest.mark.parametrize("healthy", [True, False])
async def test_a_restarted_kubelet_admits_its_pods_again(
    place: Path, clock: list[float], healthy: bool
) -> None:
    """Who has a container that does not run and a device that is not healthy fails, all of it."""
    shelf = Shelf("a", "b", "c")
    init = (Container("init", {GPU: 1}, "init"),)
    async with node(place, shelf, clock=clock) as (kubelet, _):
        await kubelet.admit(pod("runs"))
        await kubelet.admit(pod("prepared", init=init))
        rows = [DeviceRow(ShareId(name), healthy=name == "c" or healthy) for name in ("a", "b", "c")]
        await shelf.put(*rows)
        await kubelet.until(lambda: kubelet.allocatable() == {GPU: 3 if healthy else 1})
        assert (await kubelet.restart_container(pod("runs"), "main")).phase is PodPhase.RUNNING
        kubelet.behaviour = Behaviour(knows_pods=False, sync_delay_s=0.0)
        await kubelet.restart()
        await kubelet.until(lambda: kubelet.allocatable()[GPU] > 0)
        kubelet.behaviour = Behaviour(sync_delay_s=0.0)
        await kubelet.until(lambda: kubelet.knows_pods)
        status = kubelet.pods()[1]
        if not healthy:
            assert status.phase is PodPhase.FAILED
            assert "previously allocated devices are no longer healthy" in status.message
            assert {one.state for one in status.containers} == {ContainerState.TERMINATED}
        assert [one.holds for one in kubelet.pods()] == [True, healthy]


async def test_a_list_beyond_four_mebibytes_ends_the_stream(place: Path) -> None:
    long = Shelf(*(f"{n:063}" for n in range(70_000)))
    kubelet = EmbeddedKubelet(place)
    await kubelet.start()
    async with running(ResourceEndpoint(long, place)) as endpoint:
        await until(lambda: endpoint.state.registered)
        await until(lambda: endpoint.state.watching == 0)
        assert kubelet.allocatable() == {GPU: 0}
    await kubelet.stop()


class Liar(Shelf):
    """A plugin that says what no plugin may say."""

    def preferred(
        self, available: Sequence[ShareId], must_include: Sequence[ShareId], size: int
    ) -> list[ShareId]:
        return [ShareId("x"), ShareId("x")]

    async def allocate(self, ids: Sequence[ShareId]) -> ContainerAllocation:
        return ContainerAllocation(
            envs={"NOT A NAME": ""},
            mounts=(Mount("in", "/out"),),
            devices=(DeviceNode("/dev/x", "/dev/x", "rwx"),),
            cdi_devices=("gpu0",),
        )


async def test_what_contradicts_the_protocol_is_written_down(place: Path) -> None:
    kubelet = EmbeddedKubelet(place)
    await kubelet.start()
    liar = Liar()
    await liar.put(*(DeviceRow(ShareId(name), healthy=True) for name in ("a", "a", "b" * 64)))
    async with running(ResourceEndpoint(liar, place)):
        await kubelet.until(lambda: kubelet.allocatable() == {GPU: 2})
        status = await kubelet.admit(pod("train"))
        assert status.phase is PodPhase.RUNNING, "it takes what is left of a bad preference"
        assert status.container("main").ids[GPU][0] in ("a", "b" * 64)
    await kubelet.stop()
    told = "\n".join(kubelet.protocol_errors)
    for word in (
        "listed twice",
        "longer than 63",
        "preferred allocation of 1 is ['x', 'x']",
        "not available",
        "'NOT A NAME'",
        "mount path 'in'",
        "permissions 'rwx'",
        "CDI device 'gpu0'",
    ):
        assert word in told


async def test_a_resource_that_no_plugin_ever_offered_is_not_the_kubelets_affair(
    place: Path, clock: list[float]
) -> None:
    """As with a real one: only the scheduler stands in the way."""
    async with node(place, Shelf("a"), clock=clock) as (kubelet, _):
        unknown = Pod("default", "odd", (Container("main", {"example.com/x": 1}),))
        assert (await kubelet.admit(unknown)).reason == "Unschedulable"
        assert (await kubelet.admit(unknown, bound=True)).phase is PodPhase.RUNNING


async def test_a_pod_has_one_life_at_a_time(place: Path, clock: list[float]) -> None:
    async with node(place, Shelf("a", "b"), clock=clock) as (kubelet, _):
        await kubelet.admit(pod("train"))
        with pytest.raises(ValueError, match="there already"):
            await kubelet.admit(pod("train"))
        await kubelet.end(pod("train"))
        with pytest.raises(ValueError, match="has ended"):
            await kubelet.restart_container(pod("train"), "main")
        await kubelet.admit(pod("train"))
        assert [status.phase for status in kubelet.pods()] == [PodPhase.RUNNING]


async def test_a_pod_is_named_a_moment_after_its_admission(place: Path, clock: list[float]) -> None:
    """It has its devices already, and they stand in the checkpoint."""
    behaviour = Behaviour(unlisted_s=0.2)
    async with node(place, Shelf("a"), behaviour=behaviour, clock=clock) as (kubelet, client):
        admission = asyncio.create_task(kubelet.admit(pod("train")))
        await kubelet.until(lambda: bool(kubelet.pods()))
        assert kubelet.pods()[0].container("main").ids == {GPU: ("a",)}
        assert await client.held() == ()
        assert held(CheckpointFile(place / "plugins")).keys() == {"a"}
        assert (await admission).phase is PodPhase.RUNNING
        assert [row.pod for row in await client.held()] == ["train"]


async def test_a_kubelet_that_ends_while_a_pod_starts_calls_its_plugins_no_more(
    place: Path, clock: list[float]
) -> None:
    shelf = Shelf("a")
    shelf.pre_start_required = True
    async with node(place, shelf, behaviour=Behaviour(start_delay_s=0.1), clock=clock) as (kubelet, _):
        admission = asyncio.create_task(kubelet.admit(pod("train")))
        await kubelet.until(lambda: bool(kubelet.pods()))
        await kubelet.stop()
        (waiting,) = (await admission).waiting
        assert "connection is closing" in waiting.message
        assert shelf.started == []


async def test_devices_are_told_as_the_last_list_has_them(place: Path, clock: list[float]) -> None:
    shelf = Shelf("a", "b")
    async with node(place, shelf, clock=clock) as (kubelet, _):
        await shelf.put(DeviceRow(ShareId("a"), healthy=False), DeviceRow(ShareId("b"), healthy=True))
        await kubelet.until(lambda: kubelet.devices() == {GPU: {"a": False, "b": True}})


async def test_a_kubelet_that_has_just_started_names_no_pods_and_frees_nothing(
    place: Path, clock: list[float]
) -> None:
    """As while the API server is away: the checkpoint has the hold, PodResources answers with nothing."""
    checkpoint = CheckpointFile(place / "plugins")
    async with node(place, Shelf("a", "b"), clock=clock) as (kubelet, client):
        await kubelet.admit(pod("train"))
        kubelet.behaviour = Behaviour(knows_pods=False)
        await kubelet.restart()
        assert await client.held() == ()
        await kubelet.end(pod("train"))
        assert await client.held() == ()
        assert held(checkpoint).keys() == {"a"}
        kubelet.behaviour = Behaviour()
        await kubelet.until(lambda: kubelet.knows_pods)
        assert await client.held() == ()
        await kubelet.admit(pod("other"))
        assert [len(pods) for pods in held(checkpoint).values()] == [1]


async def test_the_checkpoint_is_written_when_a_plugin_sends_its_list(
    place: Path, clock: list[float]
) -> None:
    """Ids of pods that ended stay in it until PodResources was asked."""
    shelf = Shelf("a")
    checkpoint = CheckpointFile(place / "plugins")
    async with node(place, shelf, clock=clock) as (kubelet, client):
        await kubelet.admit(pod("train"))
        await kubelet.end(pod("train"))
        written = checkpoint.identity()
        assert checkpoint.held()
        assert await client.held() == ()
        assert checkpoint.identity() == written
        await shelf.put(DeviceRow(ShareId("a"), healthy=True))
        await kubelet.until(lambda: checkpoint.identity() != written)
        assert checkpoint.held() == {}
