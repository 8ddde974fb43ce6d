"""The watchdog on a node, with simulated seconds: what it says, whom it ends, and what it never changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from partage.agent.options import Intervals
from partage.agent.status.readiness import readiness_of
from partage.agent.status.status import AgentStatus, WatchObservation
from partage.answers.documents.use import WatchRow
from partage.answers.report import report_document
from partage.codec.values import decode, encode
from partage.errors import HardwareTimeout
from partage.model.gpu_use import Processes
from partage.model.ids import ContainerId
from partage.model.mps import PipeTenant, PipeTenants, ProcessRights
from partage.model.pod import Container, Pod
from partage.model.share import Guarantee
from partage.plan.reconcile.verification import stated_guarantee, verified_guarantee
from partage.plan.serve.ledger_entry import Holder
from partage.plan.serve.watchdog import ViolationKind
from partage.sim.kubelet.behaviour import Behaviour, PodResourcesMode
from partage.sim.node.faults import FailCall, HealCall, HideProcesses, Vacate
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.units import GIB
from tests.agent.harness import place
from tests.agent.tenants import NOTEBOOK, TRAIN, works, write_logs
from tests.node.loops import SimulatedTimeLoop
from tests.node.sharing import EXCLUSIVE, SHARED, Sharing
from tests.node.world import World

WATCH_S = Intervals().watch_s
HALVES = ("mps", (SHARED,) * 2)
WARNED = Sharing("warned", "mps: {replicas: 2}", *HALVES)
KILLED = Sharing("killed", "watch: kill, mps: {replicas: 2}", *HALVES)
IGNORED = Sharing("ignored", "watch: off, mps: {replicas: 2}", *HALVES)
SLICED = Sharing("sliced", "watch: kill, time-slicing: {replicas: 2}", "time-slicing", (SHARED,) * 2)
NAMES = {TRAIN: Holder("default", "train", "main"), NOTEBOOK: Holder("default", "notebook", "main")}
"""An L40S has 44.99 GiB: a half is 22.49 GiB."""


@contextmanager
def one_gpu(
    sharing: Sharing,
    kind: type[SimulatedHardware] = SimulatedHardware,
    options: Mapping[str, object] | None = None,
) -> Iterator[Callable[[Callable[[World], Coroutine[None, None, None]]], None]]:
    """Runs a story on a node of one GPU that is shared so, with a kubelet and an agent. options: more of
    the agent's."""
    with place() as somewhere, asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedTimeLoop)
        write_logs(somewhere.container_logs, NAMES)
        world = World.of(somewhere, loop, load_machine("1xl40s"), Behaviour(), 0)
        world.hardware = kind(load_machine("1xl40s"), clock=loop.time)
        world.options = options or {}

        async def play(story: Callable[[World], Coroutine[None, None, None]]) -> None:
            world.write_policy([sharing])
            await world.start_kubelet()
            world.start_agent()
            await until(lambda: bool(world.kubelet.allocatable()))
            await story(world)

        try:
            yield lambda story: runner.run(play(story))
        finally:
            runner.run(world.close())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(120.0):
        while not condition():
            await asyncio.sleep(0.01)


def status_of(world: World) -> AgentStatus:
    assert world.agent is not None
    return world.agent.status


def look(world: World) -> WatchObservation:
    """The last one."""
    found = status_of(world).watch_observation()
    assert found is not None
    return found


async def looks_again(world: World, times: int = 1) -> WatchObservation:
    """Wait until the watchdog has looked so often."""
    for _ in range(times):
        before = look(world).at_s
        await until(lambda: look(world).at_s > before)  # noqa: B023 (waited for at once)
    return look(world)


async def admitted(world: World, *names: str) -> dict[str, str]:
    """Pods with a share each, until the agent knows who they are; the last one's environment."""
    for name in names:
        await world.admit(Pod("default", name, (Container("main", {SHARED: 1}),)), bound=True, patience_s=5.0)
    report = status_of(world).report
    assert report is not None
    await status_of(world).until(
        lambda report: set(names) <= {who.pod for entry in report.entries if (who := entry.holder)}
    )
    (status,) = (status for status in world.kubelet.pods() if status.pod.name == names[-1])
    return dict(status.container("main").env)


async def works_on(
    world: World, *pids: int, container: ContainerId = TRAIN, each: int = 12, mps: bool = True
) -> None:
    for pid in pids:
        await world.fault(works(pid, each * GIB, container, mps=mps))


async def running(world: World) -> set[int]:
    """Pids of the tenants' processes."""
    return {row.pid for row in (await world.hardware.processes()).rows if row.pid < 900_000}


# --- whom it ends --------------------------------------------------------------------------------


def test_two_processes_that_each_keep_to_the_limit_and_exceed_the_share_together_are_ended() -> None:
    """MPS limits each process, and a pod may have as many as it likes."""

    async def story(world: World) -> None:
        await admitted(world, "train", "notebook")
        await works_on(world, 11, 12)
        await works_on(world, 21, container=NOTEBOOK)
        (verdict,) = (await looks_again(world)).watched.violations
        assert verdict.usage.holder == NAMES[TRAIN]
        assert all((row.used_bytes or 0) < verdict.usage.granted_bytes for row in verdict.usage.processes)
        assert await running(world) == {11, 12, 21}, "one look is not enough"
        await looks_again(world)
        await until(lambda: status_of(world).counts.kills)
        assert await running(world) == {21}
        assert dict(status_of(world).counts.kills) == {(verdict.usage.gpu, "client"): 2}
        assert (await looks_again(world)).watched.violations == ()

    with one_gpu(KILLED) as play:
        play(story)


def test_without_mps_the_process_itself_is_ended() -> None:
    async def story(world: World) -> None:
        await admitted(world, "train")
        await works_on(world, 11, each=30, mps=False)
        await until(lambda: status_of(world).counts.kills)
        assert await running(world) == set()
        assert [how for _, how in status_of(world).counts.kills] == ["process"]

    with one_gpu(SLICED) as play:
        play(story)


def test_a_holder_that_exceeds_its_share_at_every_other_look_is_named_and_lives() -> None:
    async def story(world: World) -> None:
        await admitted(world, "train")
        await looks_again(world)
        for _ in range(4):
            await works_on(world, 11, each=30)
            assert len((await looks_again(world)).watched.violations) == 1
            await world.fault(Vacate(0))
            await works_on(world, 11, each=10)
            assert (await looks_again(world)).watched.violations == ()
            await world.fault(Vacate(0))
        assert not status_of(world).counts.kills

    with one_gpu(KILLED) as play:
        play(story)


def test_with_warn_it_is_said_once_when_it_begins_and_once_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def said() -> list[str]:
        return [
            record.message
            for record in caplog.records
            if "share" in record.message and "exceeds" in record.message
        ]

    async def story(world: World) -> None:
        await admitted(world, "train")
        await works_on(world, 11, 12)
        await looks_again(world, 4)
        assert said() == ["container exceeds its share"]
        (record,) = (record for record in caplog.records if "exceeds" in record.message)
        facts = {name: getattr(record, name) for name in ("pod", "container", "used", "share", "guarantee")}
        assert facts == {
            "pod": "default/train",
            "container": "main",
            "used": "24 GiB",
            "share": "22.5 GiB",
            "guarantee": "guarded",
        }
        await world.fault(Vacate(0))
        await looks_again(world, 2)
        assert said() == ["container exceeds its share", "container no longer exceeds its share"]
        assert not status_of(world).counts.kills

    with caplog.at_level("INFO", logger="partage.agent.watchdog"), one_gpu(WARNED) as play:
        play(story)


def test_who_holds_no_share_is_named_and_never_ended() -> None:
    async def story(world: World) -> None:
        await admitted(world, "train")
        await works_on(world, 21, each=30, container=NOTEBOOK)
        (verdict,) = (await looks_again(world, 4)).watched.violations
        assert verdict.concern is ViolationKind.UNGRANTED
        assert await running(world) == {21}
        assert not status_of(world).counts.not_killed, "nobody tried"

    with one_gpu(KILLED) as play:
        play(story)


def test_while_the_kubelet_does_not_say_who_holds_what_nobody_is_said_to_hold_nothing() -> None:
    async def story(world: World) -> None:
        await admitted(world, "train")
        world.behave(pod_resources=PodResourcesMode.REFUSES)
        await until(lambda: (report := status_of(world).report) and report.dependencies.pod_resources)
        await works_on(world, 21, container=NOTEBOOK)
        await works_on(world, 11, each=30)
        (verdict,) = (await looks_again(world)).watched.violations
        assert (verdict.concern, verdict.usage.holder) == (ViolationKind.OVER, NAMES[TRAIN])
        world.behave(pod_resources=PodResourcesMode.SERVES)
        await until(lambda: len(look(world).watched.violations) == 2)

    with one_gpu(WARNED) as play:
        play(story)


def test_a_container_that_the_kubelet_does_not_name_is_nobodys() -> None:
    async def story(world: World) -> None:
        await admitted(world, "train")
        await works_on(world, 31, each=30, container=ContainerId("ee" * 32))
        found = (await looks_again(world, 4)).watched
        assert found.violations == ()
        assert [usage.holder for usage in found.usages] == [None]
        assert await running(world) == {31}

    with one_gpu(KILLED) as play:
        play(story)


def test_who_cannot_be_ended_is_tried_again_and_the_log_says_why_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> None:
        await admitted(world, "train")
        await looks_again(world)
        await world.fault(FailCall("perform", HardwareTimeout("no answer"), times=None))
        await works_on(world, 11, each=30)
        await looks_again(world, 6)
        assert await running(world) == {11}
        gpu = look(world).watched.usages[0].gpu
        assert status_of(world).counts.not_killed[gpu] >= 2
        await world.fault(HealCall("perform"))
        await until(lambda: status_of(world).counts.kills)
        errors = [record for record in caplog.records if record.levelname == "ERROR"]
        assert [(one.message, one.reason) for one in errors] == [("container not ended", "no answer")]  # type: ignore[attr-defined]

    with one_gpu(KILLED) as play:
        play(story)


# --- what shares are worth while nobody watches --------------------------------------------------


def told(world: World) -> set[Guarantee]:
    """What the report says that the shares guarantee."""
    report = status_of(world).report
    assert report is not None
    now = report.snapshot
    assert now is not None
    shares = [share for rows in report.offer.values() for share in rows]
    return {
        stated_guarantee(share, verified_guarantee(share, now.observed, report.watched, report.doubts))
        for share in shares
    }


def undisturbed(world: World) -> bool:
    """Nothing is withdrawn, and no GPU waits for its holders."""
    report = status_of(world).report
    assert report is not None
    return world.kubelet.allocatable() == {SHARED: 2} and not any(gpu.waits for gpu in report.gpus)


class Restricted(SimulatedHardware):
    """All containers with names have the pipe, and none of them is or becomes root."""

    async def tenants(self) -> PipeTenants:
        rights = (ProcessRights(7, 1000, 1000, 1000, no_new_privs=True, permitted=0),)
        devices = [one.device for one in await self.daemons()]
        return PipeTenants(
            tuple(PipeTenant(device, container=one, rights=rights) for device in devices for one in NAMES)
        )


RESTRICTED = {"restricted_mps": True}


def test_where_nobody_can_be_seen_new_containers_are_promised_less_and_nothing_is_withdrawn() -> None:
    async def story(world: World) -> None:
        assert (await admitted(world, "train"))["PARTAGE_GUARANTEE"] == "guarded"
        await until(lambda: told(world) == {Guarantee.GUARDED})
        await world.fault(HideProcesses())
        await until(lambda: told(world) == {Guarantee.ADVISORY})
        assert [reason.code for reason in readiness_of(status_of(world), Intervals()).degraded] == [
            "processes-hidden"
        ]
        assert (await admitted(world, "notebook"))["PARTAGE_GUARANTEE"] == "advisory"
        await asyncio.sleep(10.0)
        assert undisturbed(world)
        await world.fault(HideProcesses(on=False))
        await until(lambda: told(world) == {Guarantee.GUARDED})
        assert readiness_of(status_of(world), Intervals()).degraded == ()
        assert undisturbed(world)

    with one_gpu(WARNED, Restricted, RESTRICTED) as play:
        play(story)


def test_when_a_container_was_seen_limits_are_set_again_once_and_its_share_is_guarded() -> None:
    """Until then it may have been root, and its commands need not stand in the daemon's log."""

    async def story(world: World) -> None:
        def times() -> list[int]:
            return [one.set_ns for one in world.hardware.state.daemons.values()]

        await until(times)
        again = [one + 1 for one in times()]
        await admitted(world, "train")
        await until(lambda: times() == again)
        await until(lambda: told(world) == {Guarantee.GUARDED})
        await asyncio.sleep(100.0)
        assert times() == again
        assert undisturbed(world)

    with one_gpu(WARNED, Restricted, RESTRICTED) as play:
        play(story)


def test_a_policy_that_stops_watching_promises_less_and_withdraws_nothing() -> None:
    async def story(world: World) -> None:
        await admitted(world, "train")
        await until(lambda: told(world) == {Guarantee.GUARDED})
        world.write_policy([IGNORED])
        await until(lambda: told(world) == {Guarantee.ADVISORY})
        assert status_of(world).watch_observation() is None
        assert (await admitted(world, "notebook"))["PARTAGE_GUARANTEE"] == "advisory"
        await works_on(world, 11, each=40)
        await asyncio.sleep(10.0)
        assert undisturbed(world)
        assert status_of(world).watch_observation() is None
        world.write_policy([KILLED])
        await until(lambda: told(world) == {Guarantee.GUARDED})
        assert undisturbed(world)

    with one_gpu(WARNED, Restricted, RESTRICTED) as play:
        play(story)


def test_hardware_that_does_not_answer_twice_watches_nobody() -> None:
    async def story(world: World) -> None:
        await admitted(world, "train")
        await until(lambda: told(world) == {Guarantee.GUARDED})
        await world.fault(FailCall("processes", HardwareTimeout("no answer")))
        await asyncio.sleep(WATCH_S + 1)
        assert told(world) == {Guarantee.GUARDED}, "once may be a helper that is replaced"
        await world.fault(FailCall("processes", HardwareTimeout("no answer"), times=2))
        await until(lambda: look(world).hidden == "no answer")
        await until(lambda: told(world) == {Guarantee.ADVISORY})
        await until(lambda: not look(world).hidden)
        await until(lambda: told(world) == {Guarantee.GUARDED})

    with one_gpu(WARNED, Restricted, RESTRICTED) as play:
        play(story)


class OneEyed(SimulatedHardware):
    """Lists processes, and does not know whether they are all: as in a pid namespace of its own."""

    async def processes(self) -> Processes:
        return replace(await super().processes(), hidden="of some processes we know")


def test_who_is_seen_by_chance_is_named_and_not_ended() -> None:
    """The pids that are seen may be numbered otherwise than the MPS daemon's."""

    async def story(world: World) -> None:
        await admitted(world, "train")
        await works_on(world, 11, each=30)
        found = await looks_again(world, 4)
        assert found.hidden == "of some processes we know"
        assert [one.concern for one in found.watched.violations] == [ViolationKind.OVER]
        assert await running(world) == {11}

    with one_gpu(KILLED, OneEyed) as play:
        play(story)


# --- what it costs -------------------------------------------------------------------------------


@pytest.mark.parametrize("sharing", [EXCLUSIVE, IGNORED], ids=["nothing is shared", "off everywhere"])
def test_where_nothing_has_to_be_watched_nobody_is_asked(sharing: Sharing) -> None:
    async def story(world: World) -> None:
        await world.fault(FailCall("processes", HardwareTimeout("asked")))
        await asyncio.sleep(60.0)
        assert "processes will" in str(world.hardware), "the fault still waits for its call"
        world.write_policy([SLICED])
        await until(lambda: "processes will" not in str(world.hardware))

    with one_gpu(sharing) as play:
        play(story)


def test_the_report_has_a_section_only_while_something_is_watched() -> None:
    async def story(world: World) -> None:
        await admitted(world, "train")
        await works_on(world, 11, 12)
        await looks_again(world)

        def section() -> WatchRow | None:
            report = status_of(world).report
            assert report is not None
            return report_document(
                report, status_of(world), readiness_of(status_of(world), Intervals())
            ).watch

        said = section()
        assert said is not None
        assert decode(WatchRow, encode(said)) == said
        (row,) = said.containers
        assert (row.pod, row.used_bytes, row.over) == ("train", 24 * GIB, True)
        (concern,) = said.concerns
        assert (concern.concern, said.hidden) == (ViolationKind.OVER, None)
        assert concern.reason.startswith("default/train, container main, uses 24 GiB of GPU-")
        world.write_policy([IGNORED])
        await until(lambda: section() is None)

    with one_gpu(WARNED) as play:
        play(story)
