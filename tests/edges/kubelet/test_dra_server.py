"""The DRA driver's server, called by an independent gRPC implementation."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from partage.edges.kubelet.dra_server import HEALTH_EVERY_S, LOOK_S, DraServer, DraSockets
from partage.edges.kubelet.port import ConditionList
from partage.errors import InputError
from partage.model.claim import ClaimRef, DeviceCondition, PreparedDevice
from tests.dra_script import DriverSocket
from tests.kubelet_script import until
from tests.virtual_time import in_virtual_time

DRIVER = "gpu.partage.dev"
WHOLE, PART, BAD = (ClaimRef("team", name, f"uid-{name}") for name in ("whole", "part", "bad"))
SHARE = "5f0d1b9e-2c3a-4c58-9a61-2f6f4f1f0c11"


class Answers:
    """A DraHandler with the answers of a test."""

    def __init__(self) -> None:
        self.prepared: dict[str, tuple[PreparedDevice, ...] | str] = {
            WHOLE.uid: (PreparedDevice("gpu", "n-partage", "gpu-1", ("gpu.partage.dev/claim=a",)),),
            PART.uid: (PreparedDevice("gpu", "n-partage", "gpu-2", ("x/y=b", "x/y=c"), SHARE),),
            BAD.uid: "claim team/bad has no allocation yet",
        }
        self.asked: list[ClaimRef] = []
        self.fault: Exception | None = None
        self._list = ConditionList(1, (DeviceCondition("n-partage", "gpu-1", healthy=True),))
        self._changed = asyncio.Condition()

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        self.asked += claims
        if self.fault is not None:
            raise self.fault
        return {claim.uid: self.prepared[claim.uid] for claim in claims if claim.uid in self.prepared}

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        return {claim.uid: "" if claim.uid in self.prepared else "no" for claim in claims}

    def conditions(self) -> ConditionList:
        return self._list

    async def put(self, *rows: DeviceCondition) -> None:
        async with self._changed:
            self._list = ConditionList(self._list.version + 1, rows)
            self._changed.notify_all()

    async def changed(self, seen_version: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._list.version != seen_version)


def sockets(directory: Path, pod_uid: str = "") -> DraSockets:
    registry = directory / "reg"
    registry.mkdir(exist_ok=True)
    return DraSockets(directory / "plugins", registry, DRIVER, pod_uid)


@asynccontextmanager
async def running(
    answers: Answers, where: DraSockets, *, ready: bool = True
) -> AsyncIterator[tuple[DraServer, DriverSocket]]:
    server = DraServer(answers, where, lambda: None)
    task = asyncio.create_task(server.run())
    calls = DriverSocket(where.service)
    try:
        if ready:
            await until(where.registration.exists)
        yield server, calls
    finally:
        await asyncio.to_thread(calls.close)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_the_kubelet_is_told_what_it_is_and_where(short_dir: Path) -> None:
    where = sockets(short_dir)
    async with running(Answers(), where) as (server, _):
        registry = DriverSocket(where.registration)
        info = await asyncio.to_thread(registry.info)
        assert (info.type, info.name, info.endpoint) == ("DRAPlugin", DRIVER, str(where.service))
        assert list(info.supported_versions) == [
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        ]
        assert not server.registered
        await asyncio.to_thread(registry.notify)
        assert server.registered
        await asyncio.to_thread(registry.notify, "name is taken")
        assert "name is taken" in server.trouble
        await asyncio.to_thread(registry.close)
    assert not where.service.exists()
    assert not where.registration.exists()


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_each_claim_has_its_own_answer(short_dir: Path, version: str) -> None:
    answers, unknown = Answers(), ClaimRef("team", "gone", "uid-gone")
    async with running(answers, sockets(short_dir)) as (_, calls):
        said = await asyncio.to_thread(calls.prepare, WHOLE, PART, BAD, unknown, version=version)
        assert set(said) == {WHOLE.uid, PART.uid, BAD.uid, unknown.uid}
        (whole,), (part,) = said[WHOLE.uid].devices, said[PART.uid].devices
        assert (list(whole.request_names), whole.pool_name, whole.device_name) == (
            ["gpu"],
            "n-partage",
            "gpu-1",
        )
        assert list(part.cdi_device_ids) == ["x/y=b", "x/y=c"]
        if version == "v1":
            assert part.share_id == SHARE
            assert not whole.HasField("share_id")
        assert said[BAD.uid].error == "claim team/bad has no allocation yet"
        assert said[unknown.uid].error
        assert answers.asked == [WHOLE, PART, BAD, unknown]
        ended = await asyncio.to_thread(calls.unprepare, WHOLE, unknown, version=version)
        assert ended == {WHOLE.uid: "", unknown.uid: "no"}


async def test_a_fault_of_ours_is_an_answer_for_each_claim(short_dir: Path) -> None:
    answers = Answers()
    answers.fault = RuntimeError("a bug")
    async with running(answers, sockets(short_dir)) as (_, calls):
        said = await asyncio.to_thread(calls.prepare, WHOLE, BAD)
        assert {uid: said[uid].error for uid in said} == dict.fromkeys(
            (WHOLE.uid, BAD.uid), "RuntimeError: a bug"
        )


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
async def test_health_is_told_at_once_and_at_each_change(short_dir: Path, version: str) -> None:
    answers = Answers()
    async with running(answers, sockets(short_dir)) as (_, calls):
        watch = await asyncio.to_thread(calls.watch_health, version)
        await until(lambda: watch.lists)
        await answers.put(DeviceCondition("n-partage", "gpu-1", healthy=False, message="XID 79"))
        await until(lambda: len(watch.lists) == 2)
        assert watch.lists == [[("n-partage/gpu-1", 1, "")], [("n-partage/gpu-1", 2, "XID 79")]]
        await asyncio.to_thread(watch.close)


@in_virtual_time
async def test_sockets_that_are_gone_are_made_again(short_dir: Path) -> None:
    where = sockets(short_dir)
    async with running(Answers(), where):
        where.registration.unlink()
        await asyncio.sleep(2 * LOOK_S)
        registry = DriverSocket(where.registration)
        assert (await asyncio.to_thread(registry.info)).name == DRIVER
        await asyncio.to_thread(registry.close)


@in_virtual_time
async def test_directories_that_were_emptied_are_filled_again(short_dir: Path) -> None:
    """The service is there before the registry names it: the kubelet calls it at once."""
    where = sockets(short_dir)
    async with running(Answers(), where):
        shutil.rmtree(where.plugins)
        where.registration.unlink()
        await asyncio.sleep(2 * LOOK_S)
        assert where.service.exists()
        calls = DriverSocket(where.service)
        assert (await asyncio.to_thread(calls.prepare, WHOLE))[WHOLE.uid].devices
        await asyncio.to_thread(calls.close)


@in_virtual_time
async def test_a_registry_that_is_not_there_yet_is_waited_for(short_dir: Path) -> None:
    where = sockets(short_dir)
    where.registry.rmdir()
    async with running(Answers(), where, ready=False) as (server, _):
        await until(lambda: str(where.registry) in server.trouble)
        where.registry.mkdir()
        await asyncio.sleep(2 * LOOK_S)
        registry = DriverSocket(where.registration)
        await asyncio.to_thread(registry.notify)
        assert server.trouble == ""
        await asyncio.to_thread(registry.close)


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_many_claims_with_many_devices_are_one_answer(short_dir: Path, version: str) -> None:
    """More than the window of an HTTP/2 stream holds (64 KiB)."""
    answers = Answers()
    claims = [ClaimRef("team", f"c{number}", f"uid-{number}") for number in range(100)]
    ids = tuple(f"gpu.partage.dev/claim={number:0100d}" for number in range(8))
    for claim in claims:
        devices = tuple(PreparedDevice(f"r{n}", "n-partage", f"gpu-{n}", ids, SHARE) for n in range(8))
        answers.prepared[claim.uid] = devices
    async with running(answers, sockets(short_dir)) as (_, calls):
        said = await asyncio.to_thread(calls.prepare, *claims, version=version)
        assert {uid: len(said[uid].devices) for uid in said} == {claim.uid: 8 for claim in claims}
        assert sum(one.ByteSize() for one in said.values()) > 500_000


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
@in_virtual_time
async def test_health_is_told_again_though_nothing_changed(short_dir: Path, version: str) -> None:
    async with running(Answers(), sockets(short_dir)) as (_, calls):
        watch = await asyncio.to_thread(calls.watch_health, version)
        await asyncio.sleep(3 * HEALTH_EVERY_S)
        await until(lambda: len(watch.lists) > 2)
        await asyncio.to_thread(watch.close)


@in_virtual_time
async def test_a_driver_that_is_slow_to_say_who_it_is_keeps_its_socket(short_dir: Path) -> None:
    """It is alive: without its socket the kubelet would forget it, and delete its slices."""
    where, slow = sockets(short_dir, "pod-b"), sockets(short_dir, "pod-a")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(slow.registration))
        listener.listen(64)
        async with running(Answers(), where, ready=False) as (server, _):
            await asyncio.sleep(2 * LOOK_S)
            assert slow.registration.exists()
            assert not where.registration.exists()
            assert "did not answer in time" in server.trouble
            assert "may be registered" in server.trouble
    async with running(Answers(), where):
        assert not slow.registration.exists()


@in_virtual_time
async def test_another_driver_of_this_name_keeps_it(short_dir: Path) -> None:
    first, second = sockets(short_dir, "pod-a"), sockets(short_dir, "pod-b")
    async with running(Answers(), second, ready=False):
        await until(second.registration.exists)
        async with running(Answers(), first, ready=False) as (server, _):
            await until(lambda: server.trouble)
            assert server.trouble == f"another driver is registered as {DRIVER}, on {second.registration}"
            assert not first.registration.exists()


async def test_what_a_killed_agent_left_is_no_driver(short_dir: Path) -> None:
    where, left = sockets(short_dir, "pod-b"), sockets(short_dir, "pod-a")
    async with running(Answers(), left):
        kept = left.registration.rename(left.registration.with_suffix(".kept"))
    kept.rename(left.registration)
    async with running(Answers(), where):
        assert not left.registration.exists()


def test_a_uid_without_room_is_cut(tmp_path: Path) -> None:
    long = tmp_path / ("d" * (70 - len(str(tmp_path))))
    first, second = (DraSockets(long, long, DRIVER, f"{digit}" * 36) for digit in "12")
    assert first.registration != second.registration
    assert len(str(first.registration)) <= 107
    with pytest.raises(InputError, match="shorter --kubelet-dir"):
        _ = DraSockets(tmp_path / ("d" * 108), tmp_path, DRIVER).service
