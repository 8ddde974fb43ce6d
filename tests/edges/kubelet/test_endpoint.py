"""One resource's life with a scripted kubelet: registration, restarts, kubelets that misbehave."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from socket import AF_UNIX

import pytest

from partage.edges.kubelet.endpoint import LONGEST_PAUSE_S, ResourceEndpoint, pause_s
from partage.edges.kubelet.other_plugins import HANDBACK
from partage.edges.kubelet.registration import NextAction, ObservedSockets, next_action
from partage.edges.kubelet.sockets import SocketIdentity, marked_sockets
from partage.errors import InputError
from partage.model.ids import ShareId
from partage.model.share import DeviceRow
from tests.edges.kubelet.shelf import Shelf, listening_child, running
from tests.kubelet_script import PluginCalls, ScriptedKubelet, scripted_kubelet, until

RESOURCE = "nvidia.com/gpu"
ANSWER_S = 0.5
"""For a kubelet that is to miss it and then to answer: a busy machine takes a tenth of it, or more."""


async def test_a_resource_is_registered_while_it_is_served(short_dir: Path) -> None:
    """The scripted kubelet answers Register only after it has the options and a first list."""
    shelf = Shelf("a")
    with scripted_kubelet(short_dir) as kubelet:
        async with running(ResourceEndpoint(shelf, short_dir)) as endpoint:
            await until(lambda: endpoint.state.registered)
            registered = kubelet.registered[0]
            state = endpoint.state
        await asyncio.to_thread(kubelet.stop)
    request = registered.request
    assert (request.version, request.resource_name) == ("v1beta1", RESOURCE)
    assert re.fullmatch(r"nvidia-gpu_partage-[0-9a-f]{6}\.sock", request.endpoint)
    assert request.options == registered.options
    assert registered.watch
    assert registered.watch.health == {"a": "Healthy"}
    assert (state.serving, state.registrations, state.attempts, state.last_error) == (True, 1, 1, "")
    assert not list(short_dir.glob("nvidia-gpu*"))
    assert not endpoint.state.serving


async def test_a_restarted_kubelet_is_registered_with_again(short_dir: Path) -> None:
    with scripted_kubelet(short_dir) as kubelet:
        async with running(ResourceEndpoint(Shelf("a"), short_dir)) as endpoint:
            await until(lambda: endpoint.state.registered)
            for _ in range(2):
                kubelet.registered.clear()
                await asyncio.to_thread(kubelet.restart)
                await until(lambda: kubelet.registered)
                await until(lambda: endpoint.state.registered)
            assert endpoint.state.registrations == 3


async def test_a_kubelet_that_was_away_is_registered_with_when_it_comes(
    short_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with scripted_kubelet(short_dir / "plugins", started=False) as kubelet:
        async with running(ResourceEndpoint(Shelf("a"), short_dir / "plugins")) as endpoint:
            await until(lambda: endpoint.state.last_error)
            assert not endpoint.state.registered
            await until(lambda: caplog.records)
            await asyncio.to_thread(kubelet.start)
            await until(lambda: endpoint.state.registered)
            assert endpoint.state.last_error == ""
    reasons = [vars(record)["reason"] for record in caplog.records if record.getMessage() == "not registered"]
    assert reasons
    assert len(set(reasons)) == len(reasons), "each reason is said once"


async def test_a_wiped_directory_is_served_and_registered_again(short_dir: Path) -> None:
    """The kubelet lives on: its old connection has ended before the new registration comes."""
    with scripted_kubelet(short_dir) as kubelet:
        async with running(ResourceEndpoint(Shelf("a"), short_dir)) as endpoint:
            await until(lambda: endpoint.state.registered)
            kubelet.wipe()
            await until(lambda: len(kubelet.registered) == 2)
            first, second = kubelet.registered
            assert first.watch
            assert second.watch
            assert first.watch.ended.is_set()
            assert not second.watch.ended.is_set()
            assert (short_dir / second.request.endpoint).is_socket()
            assert first.request.endpoint != second.request.endpoint


async def test_of_two_that_serve_one_resource_the_newer_keeps_it_until_it_ends(
    short_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with scripted_kubelet(short_dir) as kubelet:
        async with running(ResourceEndpoint(Shelf("a"), short_dir)) as first:
            await until(lambda: first.state.registered)
            async with running(ResourceEndpoint(Shelf("b"), short_dir, takeover=True)) as second:
                await until(lambda: second.state.registered)
                await until(lambda: not first.state.registered)
                assert f"another process serves {short_dir}/nvidia-gpu_partage-" in first.state.last_error
                await until(lambda: first._backoff and first._backoff.failures >= 3)
                assert len(kubelet.registered) == 2
            await until(lambda: len(kubelet.registered) == 3)
            await until(lambda: first.state.registered)
    assert [record.getMessage() for record in caplog.records].count("not registered") == 1


async def test_what_another_process_serves_is_not_registered_until_that_has_ended(short_dir: Path) -> None:
    with scripted_kubelet(short_dir) as kubelet:
        async with AsyncExitStack() as stack:
            async with running(ResourceEndpoint(Shelf("a"), short_dir)) as first:
                await until(lambda: first.state.registered)
                second = await stack.enter_async_context(running(ResourceEndpoint(Shelf("b"), short_dir)))
                await until(lambda: second.state.other)
                assert f"another process serves {short_dir}/nvidia-gpu_partage-" in second.state.last_error
                assert f"pid {os.getpid()}" in second.state.last_error
                assert not second.state.serving
                assert first.state.registered
                assert len(kubelet.registered) == 1
            await until(lambda: second.state.registered)
            assert second.state.other is None


async def test_a_plugin_that_comes_later_gets_the_resource_and_no_list_of_ours_any_more(
    short_dir: Path,
) -> None:
    """The stream stays open: a kubelet up to 1.36 would take its end for the end of the other plugin."""
    shelf = Shelf("a")
    with scripted_kubelet(short_dir) as kubelet:
        async with running(ResourceEndpoint(shelf, short_dir, takeover=True)) as endpoint:
            await until(lambda: endpoint.state.registered)
            watch = kubelet.registered[0].watch
            assert watch
            with listening_child(short_dir / "nvidia-gpu.sock"):
                await until(lambda: endpoint.state.other)
                assert not endpoint.state.registered
                await shelf.put(DeviceRow(ShareId("b"), healthy=True))
                await asyncio.sleep(0.05)
                assert len(kubelet.registered) == len(watch.lists) == 1
                assert not watch.ended.is_set()
            await until(lambda: endpoint.state.registered)
            assert kubelet.offered(RESOURCE) == {"b"}


GPU = "GPU-00000000-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    ("listed", "name", "said"),
    [
        ({RESOURCE: ["nvidia0", "nvidia1"]}, "nvidiaGPU-1.sock", "seems to serve nvidia.com/gpu"),
        (
            {"nvidia.com/gpu.shared": [f"{GPU}::0"]},
            "nvidia-gpu.shared.sock",
            "the same GPUs as nvidia.com/gpu.shared",
        ),
        ({RESOURCE: [GPU]}, "rdma.sock", ""),
        ({"nvidia.com/gpu.shared": [f"{GPU}::0"]}, "rdma.sock", ""),
        ({RESOURCE: ["nvidia0"]}, "", ""),
    ],
    ids=["another name of socket", "same GPUs", "our own of before", "no longer served", "nobody listens"],
)
async def test_plugins_with_other_names_are_told_by_the_kubelets_checkpoint(
    short_dir: Path, listed: dict[str, list[str]], name: str, said: str
) -> None:
    content = {"Data": {"PodDeviceEntries": None, "RegisteredDevices": listed}, "Checksum": 0}
    (short_dir / "kubelet_internal_checkpoint").write_text(json.dumps(content))
    with scripted_kubelet(short_dir), listening_child(short_dir / name if name else None):
        async with running(ResourceEndpoint(Shelf(GPU), short_dir)) as endpoint:
            if said:
                await until(lambda: said in endpoint.state.last_error)
                assert "(python" in endpoint.state.last_error
                assert not endpoint.state.registrations
            else:
                await until(lambda: endpoint.state.registered)
        async with running(ResourceEndpoint(Shelf(GPU), short_dir, takeover=True)) as endpoint:
            await until(lambda: endpoint.state.registered)


async def test_a_socket_that_nobody_serves_any_more_is_replaced(short_dir: Path) -> None:
    with scripted_kubelet(short_dir) as kubelet, socket.socket(socket.AF_UNIX) as left_behind:
        async with running(ResourceEndpoint(Shelf("a"), short_dir)) as endpoint:
            await until(lambda: endpoint.state.registered)
            path = short_dir / kubelet.registered[0].request.endpoint
            path.unlink()
            left_behind.bind(str(path))
            await until(lambda: len(kubelet.registered) == 2)


async def test_a_file_in_the_place_of_the_socket_is_left_alone(short_dir: Path) -> None:
    with scripted_kubelet(short_dir) as kubelet:
        async with running(ResourceEndpoint(Shelf("a"), short_dir)) as endpoint:
            await until(lambda: endpoint.state.registered)
            path = short_dir / kubelet.registered[0].request.endpoint
            path.unlink()
            path.write_text("no socket")
            await until(lambda: len(kubelet.registered) == 2)
            assert path.read_text() == "no socket"


async def test_a_socket_that_an_agent_has_left_is_removed_by_the_next_one(short_dir: Path) -> None:
    left, others = short_dir / "nvidia-gpu_partage-0a1b2c.sock", short_dir / "nvidia-gpu.shared.sock"
    with scripted_kubelet(short_dir), socket.socket(AF_UNIX) as one, socket.socket(AF_UNIX) as two:
        one.bind(str(left))
        two.bind(str(others))
        async with running(ResourceEndpoint(Shelf("a"), short_dir)) as endpoint:
            await until(lambda: endpoint.state.registered)
            assert not left.exists()
            assert others.exists()


async def test_a_kubelet_that_never_answers_is_cut_off_and_tried_again(short_dir: Path) -> None:
    with scripted_kubelet(short_dir) as kubelet:
        kubelet.answers = False
        endpoint = ResourceEndpoint(Shelf("a"), short_dir, register_timeout_s=ANSWER_S)
        async with running(endpoint):
            await until(lambda: endpoint.state.attempts >= 3)
            state = endpoint.state
            assert state.serving
            assert not state.registered
            assert "did not answer in time" in state.last_error
            kubelet.answers = True
            await until(lambda: endpoint.state.registered)


async def test_a_refusal_is_told_and_tried_again_with_back_off(short_dir: Path) -> None:
    with scripted_kubelet(short_dir) as kubelet:
        kubelet.refuses = "not today"
        async with running(ResourceEndpoint(Shelf("a"), short_dir)) as endpoint:
            await until(lambda: len(kubelet.registered) >= 6)
            assert "not today" in endpoint.state.last_error
            times = [registered.time for registered in kubelet.registered]
            gaps = [later - earlier for earlier, later in pairwise(times)]
            assert all(gap >= 0.99 * pause_s(failures) for failures, gap in enumerate(gaps, start=1))
            kubelet.refuses = ""
            await asyncio.to_thread(kubelet.restart)
            await until(lambda: endpoint.state.registered, what="a new kubelet is tried at once")


async def test_a_socket_that_accepts_and_says_nothing_is_no_kubelet(short_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(short_dir / "kubelet.sock"))
        mute.listen()
        endpoint = ResourceEndpoint(Shelf("a"), short_dir, register_timeout_s=0.1)
        async with running(endpoint):
            await until(lambda: endpoint.state.attempts >= 2)
            assert "did not answer in time" in endpoint.state.last_error


async def test_options_that_change_are_told_by_a_new_registration(short_dir: Path) -> None:
    """The kubelet asks for options only when a resource registers."""
    shelf = Shelf("a")
    with scripted_kubelet(short_dir) as kubelet:
        async with running(ResourceEndpoint(shelf, short_dir)) as endpoint:
            await until(lambda: endpoint.state.registered)
            shelf.pre_start_required = True
            await until(lambda: len(kubelet.registered) == 2)
            options = kubelet.registered[1].options
            assert options
            assert options.pre_start_required


async def test_a_new_registration_is_tried_until_the_kubelet_accepts_it(short_dir: Path) -> None:
    """It knows the resource from before, but not what changed since."""
    shelf = Shelf("a")
    with scripted_kubelet(short_dir) as kubelet:
        async with running(ResourceEndpoint(shelf, short_dir, register_timeout_s=ANSWER_S)) as endpoint:
            await until(lambda: endpoint.state.registered)
            kubelet.answers = False
            shelf.pre_start_required = True
            await until(lambda: "did not answer in time" in endpoint.state.last_error)
            kubelet.answers = True
            await until(lambda: endpoint.state.registered)
            options = kubelet.registered[-1].options
            assert options
            assert options.pre_start_required


async def test_a_stream_that_the_kubelet_closes_is_registered_again_at_once(short_dir: Path) -> None:
    clock = [0.0]
    with scripted_kubelet(short_dir) as kubelet:
        async with running(ResourceEndpoint(Shelf("a"), short_dir, clock=lambda: clock[0])) as endpoint:
            await until(lambda: endpoint.state.registered)
            clock[0] = 100.0
            watch = kubelet.registered[0].watch
            assert watch
            await asyncio.sleep(0.6)  # a look at an open stream, long as it may last, changes nothing
            assert len(kubelet.registered) == 1
            await asyncio.to_thread(watch.cancel)
            await until(lambda: len(kubelet.registered) == 2)
            assert kubelet.registered[1].request.endpoint != kubelet.registered[0].request.endpoint
            await until(lambda: endpoint.state.watching == 1)


async def test_a_kubelet_that_closes_every_stream_is_asked_with_pauses(short_dir: Path) -> None:
    with scripted_kubelet(short_dir) as kubelet:
        async with running(ResourceEndpoint(Shelf("a"), short_dir)) as endpoint:
            for number in range(1, 7):
                await until(lambda: endpoint.state.registrations == number)  # noqa: B023 - awaited at once
                watch = kubelet.registered[-1].watch
                assert watch
                await asyncio.to_thread(watch.cancel)
            times = [registered.time for registered in kubelet.registered]
            gaps = [later - earlier for earlier, later in pairwise(times)]
            assert all(gap >= 0.9 * pause_s(short) for short, gap in enumerate(gaps[1:], start=1)), gaps


async def test_a_kubelet_that_never_opens_the_stream_is_registered_with_again(short_dir: Path) -> None:
    clock = [100.0]
    with scripted_kubelet(short_dir) as kubelet:
        kubelet.asks_back = False
        async with running(ResourceEndpoint(Shelf("a"), short_dir, clock=lambda: clock[0])) as endpoint:
            await until(lambda: endpoint.state.registered)
            assert endpoint.state.unwatched_since == 100.0
            clock[0] = 111.0
            await until(lambda: endpoint.state.registrations == 2)
            assert endpoint.state.unwatched_since == 100.0, "no stream since the first registration"
            kubelet.asks_back = True
            clock[0] = 122.0
            await until(lambda: endpoint.state.registrations == 3)
            assert endpoint.state.unwatched_since is None


async def test_the_stream_of_a_tool_does_not_hide_that_the_kubelet_has_none(short_dir: Path) -> None:
    with scripted_kubelet(short_dir) as kubelet:
        async with running(ResourceEndpoint(Shelf("a"), short_dir)) as endpoint:
            await until(lambda: endpoint.state.registered)
            tool = PluginCalls(short_dir / kubelet.registered[0].request.endpoint)
            tools = await asyncio.to_thread(tool.watch)
            await until(lambda: tools.lists)
            assert endpoint.state.watching == 1
            watch = kubelet.registered[0].watch
            assert watch
            await asyncio.to_thread(watch.cancel)
            await until(lambda: len(kubelet.registered) == 2)
            await until(lambda: kubelet.offered(RESOURCE) == {"a"})
            await asyncio.to_thread(tool.close)


# --- what kubelets do with paths (docs/adr/0126) ------------------------------------------------------

KUBELETS = pytest.mark.parametrize("minor", [36, 37])


@KUBELETS
async def test_a_late_answer_to_a_register_that_was_given_up_leaves_the_resource_served(
    short_dir: Path, minor: int
) -> None:
    """As a kubelet that stood still: it dials the socket of each Register that it finds in its queue."""
    kubelet = ScriptedKubelet(short_dir)
    kubelet.minor = minor
    kubelet.start()
    try:
        async with running(ResourceEndpoint(Shelf("a"), short_dir, register_timeout_s=ANSWER_S)) as endpoint:
            await until(lambda: endpoint.state.registered)
            kubelet.goes_on.clear()
            watch = kubelet.registered[0].watch
            assert watch
            await asyncio.to_thread(watch.cancel)
            await until(lambda: len(kubelet.registered) >= 4)
            kubelet.goes_on.set()
            await until(lambda: endpoint.state.registered)
            await until(lambda: kubelet.offered(RESOURCE) == {"a"})
            asked = kubelet.table.asked[RESOURCE].calls
            assert asked
            await asyncio.to_thread(asked.allocate, ["a"])
            names = [registered.request.endpoint for registered in kubelet.registered]
            assert len(set(names)) == len(names)
        await until(lambda: not kubelet.offered(RESOURCE), what="an agent that ends offers nothing")
    finally:
        await asyncio.to_thread(kubelet.stop)


@KUBELETS
async def test_the_old_stream_has_ended_for_the_kubelet_before_the_new_registration(
    short_dir: Path, minor: int
) -> None:
    """A kubelet up to 1.36 would stop the new one at the end of the old one."""
    kubelet, shelf = ScriptedKubelet(short_dir), Shelf("a")
    kubelet.minor = minor
    kubelet.start()
    try:
        async with running(ResourceEndpoint(shelf, short_dir)) as endpoint:
            await until(lambda: endpoint.state.registered)
            for number in range(2, 6):
                shelf.pre_start_required = not shelf.pre_start_required
                await until(lambda: endpoint.state.registrations == number)  # noqa: B023 - awaited at once
            assert shelf.registrations == 5, "told before each registration, and no other was needed"
            last = kubelet.registered[-1].watch
            assert last
            assert not last.ended.is_set()
            assert kubelet.offered(RESOURCE) == {"a"}
    finally:
        await asyncio.to_thread(kubelet.stop)


async def test_a_path_that_the_kubelet_keeps_is_served_until_it_starts_again(short_dir: Path) -> None:
    """From 1.37 on, a second Register for a living socket is refused, and the client forgotten."""
    with scripted_kubelet(short_dir) as kubelet:
        async with running(ResourceEndpoint(Shelf("a"), short_dir)) as endpoint:
            await until(lambda: endpoint.state.registered)
            poisoned = kubelet.registered[0].request.endpoint
            refusal = await asyncio.to_thread(kubelet.register_by_hand, poisoned, RESOURCE)
            assert refusal == f"device plugin already connected: {poisoned}"
            await until(lambda: endpoint.state.kept == (poisoned,))
            await until(lambda: endpoint.state.registered)
            await until(lambda: kubelet.offered(RESOURCE) == {"a"})
        assert kubelet.offered(RESOURCE) == set(), "it keeps the last list, in which nothing can be given"
        assert marked_sockets(short_dir) == [short_dir / poisoned]
        async with running(ResourceEndpoint(Shelf("a"), short_dir)) as endpoint:
            await until(lambda: endpoint.state.registered)
            assert endpoint.state.kept == (poisoned,)
            await until(lambda: kubelet.offered(RESOURCE) == {"a"})
            promoted = PluginCalls(short_dir / poisoned)
            await asyncio.to_thread(promoted.allocate, ["a"])
            await asyncio.to_thread(promoted.close)
            await asyncio.to_thread(kubelet.restart)
            await until(lambda: not endpoint.state.kept)
            await until(lambda: kubelet.offered(RESOURCE) == {"a"})
        assert marked_sockets(short_dir) == []
        assert not list(short_dir.glob("nvidia-gpu*"))


async def test_after_a_refusal_of_a_path_another_one_is_registered(short_dir: Path) -> None:
    with scripted_kubelet(short_dir) as kubelet:
        kubelet.refuses = f"device plugin already connected: {short_dir}/nvidia-gpu_partage-x.sock"
        async with running(ResourceEndpoint(Shelf("a"), short_dir)) as endpoint:
            await until(lambda: endpoint.state.kept)
            kubelet.refuses = ""
            await until(lambda: endpoint.state.registered)
            refused = kubelet.registered[0].request.endpoint
            assert refused in endpoint.state.kept
            assert refused != kubelet.registered[-1].request.endpoint
            calls = PluginCalls(short_dir / refused)
            await asyncio.to_thread(calls.options)
            await asyncio.to_thread(calls.close)


async def test_partage_handback_gets_the_resource_before_the_other_plugin_comes(short_dir: Path) -> None:
    with scripted_kubelet(short_dir) as kubelet:
        async with running(ResourceEndpoint(Shelf("a"), short_dir)) as endpoint:
            await until(lambda: endpoint.state.registered)
            with listening_child(short_dir / HANDBACK):
                await until(lambda: endpoint.state.other)
                assert "partage handback waits" in endpoint.state.last_error
                await until(lambda: not kubelet.offered(RESOURCE))
            await until(lambda: endpoint.state.registered)


async def test_a_change_of_one_resource_sends_nothing_on_the_stream_of_another(short_dir: Path) -> None:
    gpu, shared = Shelf("a"), Shelf("b", resource="nvidia.com/gpu.shared")
    with scripted_kubelet(short_dir) as kubelet:
        async with (
            running(ResourceEndpoint(gpu, short_dir)) as one,
            running(ResourceEndpoint(shared, short_dir)) as two,
        ):
            await until(lambda: one.state.registered and two.state.registered)
            changed, unchanged = kubelet.last("nvidia.com/gpu"), kubelet.last("nvidia.com/gpu.shared")
            assert changed
            assert changed.watch
            assert unchanged
            assert unchanged.watch
            await gpu.put(DeviceRow(ShareId("a"), healthy=False))
            await until(lambda: len(changed.watch.lists) == 2)  # type: ignore[union-attr]
            assert len(unchanged.watch.lists) == 1


def test_a_directory_that_is_too_deep_is_refused_before_anything_is_served(short_dir: Path) -> None:
    with pytest.raises(InputError, match="bytes"):
        ResourceEndpoint(Shelf("a"), short_dir / ("d" * 100))


@pytest.mark.parametrize(
    ("failures", "pause"), [(1, 0.02), (2, 0.04), (3, 0.08), (9, 5.12), (10, LONGEST_PAUSE_S), (10**6, 10.0)]
)
def test_pauses_double_up_to_ten_seconds(failures: int, pause: float) -> None:
    assert pause_s(failures) == pytest.approx(pause)


OURS, OTHER = SocketIdentity(1, 10), SocketIdentity(2, 20)
KUBELET, NEW_KUBELET = SocketIdentity(3, 30), SocketIdentity(3, 31)


@pytest.mark.parametrize(
    ("served", "known_to", "sockets", "need"),
    [
        (None, None, ObservedSockets(kubelet=KUBELET, own=None), NextAction.SERVE),
        (None, None, ObservedSockets(kubelet=None, own=OURS), NextAction.SERVE),
        (OURS, KUBELET, ObservedSockets(kubelet=KUBELET, own=None), NextAction.SERVE),
        (OURS, KUBELET, ObservedSockets(kubelet=KUBELET, own=OTHER), NextAction.SERVE),
        (OURS, KUBELET, ObservedSockets(kubelet=NEW_KUBELET, own=None), NextAction.SERVE),
        (OURS, KUBELET, ObservedSockets(kubelet=None, own=OURS), NextAction.WAIT_FOR_KUBELET),
        (OURS, None, ObservedSockets(kubelet=KUBELET, own=OURS), NextAction.REGISTER),
        (OURS, KUBELET, ObservedSockets(kubelet=NEW_KUBELET, own=OURS), NextAction.REGISTER),
        (OURS, KUBELET, ObservedSockets(kubelet=KUBELET, own=OURS), NextAction.NOTHING),
        (OURS, KUBELET, ObservedSockets(kubelet=KUBELET, own=SocketIdentity(1, 99)), NextAction.NOTHING),
    ],
)
def test_what_is_needed_follows_from_what_is_seen(
    served: SocketIdentity | None, known_to: SocketIdentity | None, sockets: ObservedSockets, need: NextAction
) -> None:
    assert next_action(served, known_to, sockets) is need
