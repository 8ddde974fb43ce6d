"""What holds a claim to its amount, and when it is taken back: the whole agent on a simulated node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from partage.agent.options import Intervals
from partage.claims.agent.ports import ClaimStep, StepTaken, go_on
from partage.errors import HardwareError
from partage.model.ids import ContainerId, PodUid
from partage.model.mps import DaemonPhase, MpsNamespace
from partage.model.strategy import Interval
from partage.plan.serve.ledger_entry import Holder
from partage.sim.node.faults import FailCall, HealCall, HideProcesses, Occupy, SetDaemonPhase, Vacate
from partage.sim.node.processes import time_slices_of
from partage.units import GIB
from tests.agent.tenants import write_logs
from tests.claims.agent.test_claims_of_node import QUICK, DraNode, StopsAt, dra_node
from tests.kubelet_script import LIMIT_S, grpc, held

SHARE = {"apiVersion": "partage.dev/v1", "kind": "ShareConfig"}
NAMESPACES = """
version: partage/v1
gpus:
  - {select: {index: [0]}, via: claims, mps: {unit: 1Gi, protocol: 3}}
  - {select: rest, exclusive: {}}
"""
SLICED = """
version: partage/v1
gpus:
  - {select: {index: [0]}, via: claims, time-slicing: {unit: 1Gi}}
  - {select: rest, exclusive: {}}
"""
MAIN, SIDE = ContainerId("3f" * 32), ContainerId("a0" * 32)
POD, LATER = PodUid("11111111-1111-1111-1111-111111111111"), PodUid("22222222-2222-2222-2222-222222222222")
AT_ONCE = replace(QUICK, ends_s=0.0, amiss_s=0.05)
"""The kubelet is kept waiting by no process."""


@asynccontextmanager
async def named_node(
    directory: Path, policy: str = NAMESPACES, intervals: Intervals = QUICK, taken: StepTaken = go_on
) -> AsyncIterator[DraNode]:
    """Of a driver branch that has namespaces."""
    machine = directory / "machine.json"
    gpus = [{"name": "NVIDIA H100 80GB HBM3"}] * 2
    machine.write_text(
        json.dumps({"version": "partage/v1", "kind": "Machine", "driver": "615.71.09", "gpus": gpus})
    )
    async with dra_node(policy, str(machine), taken=taken, intervals=intervals) as node:
        await node.until(lambda: node.device(0), "the device")
        await node.until(lambda: "taints" not in node.device(0), "a device that is open")
        yield node


def slots(node: DraNode) -> dict[str, MpsNamespace]:
    """Those that are not closed."""
    (daemon,) = node.hardware.state.daemons.values()
    return dict(daemon.slots)


def works(
    pid: int, memory: int = GIB, container: ContainerId = MAIN, pod: PodUid = POD, name: str = "python"
) -> Occupy:
    return Occupy(0, name, pid=pid, memory_bytes=memory, container=container, pod=pod)


def names(node: DraNode, **containers: str) -> None:
    """The kubelet names these pods with the claim of their name."""
    answer = held({f"team/{pod}": {container: {} for container in ("main",)} for pod in containers})
    for pod, claim in zip(answer.pod_resources, containers.values(), strict=True):
        pod.containers[0].dynamic_resources.add(claim_name=claim, claim_namespace="team")
    node.kubelet.pod_resources = answer


# --- a namespace for each claim ----------------------------------------------------------------------


async def test_each_claim_has_a_namespace_with_its_memory_and_cores_that_is_closed_afterwards(
    tmp_path: Path,
) -> None:
    async with named_node(tmp_path) as node:
        first, second = node.amount("first", "10Gi", cores=25), node.amount("second", "5Gi")
        assert [await node.refusal(claim) for claim in (first, second)] == ["", ""]
        assert slots(node) == {
            "slot0": MpsNamespace("slot0", 10 * GIB, 25),
            "slot10": MpsNamespace("slot10", 5 * GIB, 100),
        }
        edits = node.cdi(second.uid)["devices"][0]["containerEdits"]
        assert next(one["hostPath"].rpartition("/pipe/")[2] for one in edits["mounts"]) == "gpu/slot10"
        said = await node.until(lambda: node.status_of("first"), "the status")
        assert (said["data"]["guarantee"], said["data"]["means"]) == ("guarded", "mps-namespace")
        assert (said["data"]["cores"], said["data"]["coresEnforced"]) == (25, True)
        assert said["conditions"][0]["status"] == "True"
        assert await node.call("unprepare", first) == {first.uid: ""}
        assert list(slots(node)) == ["slot10"]
        third = node.amount("third", "2Gi", cores=50)
        assert await node.refusal(third) == ""
        assert slots(node)["slot0"] == MpsNamespace("slot0", 2 * GIB, 50)


async def test_without_its_limit_a_claim_gets_nothing_and_nothing_is_left(tmp_path: Path) -> None:
    async with named_node(tmp_path) as node:
        claim = node.amount("first", "10Gi")
        await node.hardware.inject(FailCall("perform", HardwareError("it allows any memory"), times=1))
        assert "it allows any memory" in await node.refusal(claim)
        assert (node.cdi(claim.uid), slots(node), node.status_of("first")) == (None, {}, None)
        assert await node.refusal(claim) == ""


async def test_limits_are_set_again_when_the_daemon_was_started_again(tmp_path: Path) -> None:
    async with named_node(tmp_path) as node:
        claim = node.amount("first", "10Gi", cores=25)
        assert await node.refusal(claim) == ""
        before, (dead,) = slots(node), node.hardware.state.daemons.values()
        await node.hardware.inject(SetDaemonPhase(0, DaemonPhase.DEAD))

        def new_one() -> bool:
            return all(daemon.pid != dead.pid for daemon in node.hardware.state.daemons.values())

        await node.until(lambda: new_one() and node.hardware.state.daemons, "another daemon")
        await node.until(lambda: slots(node) == before, "the limits")


async def test_what_an_agent_that_was_killed_has_opened_is_closed(tmp_path: Path) -> None:
    stops = StopsAt(ClaimStep.LIMITED)
    async with named_node(tmp_path, taken=stops) as node:
        call = asyncio.create_task(node.prepare(node.amount("first", "10Gi")))
        await asyncio.wait_for(stops.there.wait(), LIMIT_S)
        await node.end(kill=True)
        with pytest.raises(grpc.RpcError):
            await call
        assert list(slots(node)) == ["slot0"]
        node.taken = go_on
        await node.start()
        await node.until(lambda: not slots(node), "a closed slot")


async def test_what_a_claim_says_of_itself_follows_what_is_seen(tmp_path: Path) -> None:
    async with named_node(tmp_path) as node:
        claim = node.amount("first", "10Gi")
        assert await node.refusal(claim) == ""

        def says(word: str) -> bool:
            said = node.status_of("first")
            return said is not None and said["data"]["guarantee"] == word

        await node.until(lambda: says("guarded"), "what was read back")
        await node.hardware.inject(HideProcesses())
        await node.until(lambda: says("advisory"), "nobody watches")
        assert node.status_of("first")["conditions"][0]["status"] == "False"
        need = node.amount("second", "10Gi", config={**SHARE, "need": "guarded"})
        assert "needs memory that is guarded" in await node.refusal(need)
        await node.hardware.inject(HideProcesses(on=False))
        await node.until(lambda: says("guarded"), "it is watched again")
        assert await node.refusal(need) == ""


# --- a claim is one holder ---------------------------------------------------------------------------


async def test_pods_of_one_claim_are_ended_when_they_use_more_together() -> None:
    """Each alone is below the limit; the policy only warns, and the claim asks for more."""
    async with dra_node(SLICED) as node:
        await node.until(lambda: node.device(0), "the device")
        together = node.amount("together", "10Gi", config={**SHARE, "watch": "kill"})
        other = node.amount("other", "10Gi")
        assert [await node.refusal(claim) for claim in (together, other)] == ["", ""]
        third = ContainerId("b1" * 32)
        pods = {MAIN: "one", SIDE: "two", third: "three"}
        write_logs(node.place.container_logs, {key: Holder("team", pod, "main") for key, pod in pods.items()})
        names(node, one="together", two="together", three="other")
        await node.until(lambda: len([one for one in node.report.entries if one.holders]) == 20, "all names")
        await node.hardware.inject(works(7, 6 * GIB))
        await node.hardware.inject(works(8, 6 * GIB, SIDE, LATER))
        await node.hardware.inject(
            works(9, 11 * GIB, third, PodUid("3" * 8 + "-3333-3333-3333-333333333333"))
        )
        assert node.status is not None
        kills = node.status.counts.kills
        await node.until(lambda: kills.total() == 2, "two were ended")
        assert {use.pid for use in node.hardware.state.uses} == {9}


# --- time slices -------------------------------------------------------------------------------------


async def test_a_claims_time_slice_is_set_before_it_is_prepared_and_restored_afterwards() -> None:
    async with dra_node(SLICED) as node:
        await node.until(lambda: node.device(0), "the device")

        def now() -> Interval | None:
            return time_slices_of(node.hardware.state)[0].interval

        before = now()
        first = node.amount("first", "10Gi", config={**SHARE, "interval": "long"})
        assert await node.refusal(first) == ""
        assert now() is Interval.LONG is not before
        second = node.amount("second", "10Gi", config={**SHARE, "interval": "short"})
        assert "of which claim team/first has long" in await node.refusal(second)
        assert await node.call("unprepare", first) == {first.uid: ""}
        await node.until(lambda: now() is before, "the time slice of before")
        assert await node.refusal(second) == ""
        assert now() is Interval.SHORT


# --- taken back --------------------------------------------------------------------------------------


async def test_a_claim_is_not_taken_back_while_its_pod_runs_and_the_next_one_waits_for_that() -> None:
    """A pod that was deleted by force, or a kubelet that is wrong about who uses a claim."""
    async with dra_node() as node:
        await node.until(lambda: node.device(0), "the device")
        first = node.amount("first", "70Gi", pods={"train": POD})
        assert await node.refusal(first) == ""
        await node.hardware.inject(works(7))
        said = await node.call("unprepare", first)
        assert said == {
            first.uid: "claim team/first is not taken back yet: process python (pid 7) of its pods still runs"
        }
        assert node.cdi(first.uid) is not None
        second = node.amount("second", "70Gi")
        assert "claim team/first has the rest" in await node.refusal(second)
        await node.hardware.inject(Vacate(0))
        assert await node.call("unprepare", first) == {first.uid: ""}
        assert await node.refusal(second) == ""


async def test_a_pod_that_came_after_the_prepare_is_waited_for() -> None:
    """The kubelet asks once for all pods of a claim; of later ones it says the names."""
    async with dra_node() as node:
        await node.until(lambda: node.device(0), "the device")
        first = node.amount("first", "70Gi", pods={"train": POD})
        assert await node.refusal(first) == ""
        write_logs(node.place.container_logs, {SIDE: Holder("team", "late", "main")})
        names(node, late="first")
        await node.until(lambda: any(one.holders for one in node.report.entries), "a name")
        await node.hardware.inject(works(8, container=SIDE, pod=LATER))
        assert "pid 8" in (await node.call("unprepare", first))[first.uid]


async def test_a_process_of_another_pod_on_the_same_gpu_is_in_nobodys_way() -> None:
    async with dra_node() as node:
        await node.until(lambda: node.device(0), "the device")
        first = node.amount("first", "10Gi", pods={"train": POD})
        assert await node.refusal(first) == ""
        await node.hardware.inject(works(8, container=SIDE, pod=LATER))
        assert await node.call("unprepare", first) == {first.uid: ""}


async def test_what_does_not_end_keeps_its_shares_and_not_the_kubelet() -> None:
    """As a process that hangs in the driver. Its shares are free when it has ended."""
    async with dra_node(intervals=AT_ONCE) as node:
        await node.until(lambda: node.device(0), "the device")
        first = node.amount("first", "70Gi", pods={"train": POD})
        assert await node.refusal(first) == ""
        await node.hardware.inject(works(7))
        assert await node.call("unprepare", first) == {first.uid: ""}
        assert node.cdi(first.uid) is None
        second = node.amount("second", "70Gi")
        await node.until(lambda: any(one.left for one in node.report.entries), "it was looked")
        assert "process python (pid 7)" in await node.refusal(second)
        await node.end(kill=True)
        await node.start()
        await node.until(lambda: any(one.left for one in node.report.entries), "it was looked again")
        assert "process python (pid 7)" in await node.refusal(second)
        await node.hardware.inject(Vacate(0))
        await node.until(lambda: not node.report.entries, "nothing is held")
        assert await node.refusal(second) == ""


async def test_what_still_runs_keeps_its_namespace_as_long_as_its_shares(tmp_path: Path) -> None:
    async with named_node(tmp_path, intervals=AT_ONCE) as node:
        first = node.amount("first", "10Gi", pods={"train": POD})
        assert await node.refusal(first) == ""
        await node.hardware.inject(works(7))
        assert await node.call("unprepare", first) == {first.uid: ""}
        await node.until(lambda: any(one.left for one in node.report.entries), "it was looked")
        second = node.amount("second", "5Gi")
        assert await node.refusal(second) == ""
        assert list(slots(node)) == ["slot0", "slot10"]
        await node.hardware.inject(Vacate(0))
        await node.until(lambda: list(slots(node)) == ["slot10"], "the first is closed")


async def test_without_a_known_pod_and_with_a_helper_that_fails_nothing_is_held_for_ever() -> None:
    async with dra_node(intervals=AT_ONCE) as node:
        await node.until(lambda: node.device(0), "the device")
        first = node.amount("first", "70Gi")
        assert await node.refusal(first) == ""
        names(node, late="first")
        await node.until(lambda: any(one.holders for one in node.report.entries), "a name")
        await node.hardware.inject(FailCall("processes", HardwareError("no answer")))
        assert await node.call("unprepare", first) == {first.uid: ""}
        await node.until(lambda: not node.report.entries, "nothing is held")


async def test_where_nobody_can_look_the_kubelets_word_decides_and_a_failure_is_no_such_word() -> None:
    async with dra_node() as node:
        await node.until(lambda: node.device(0), "the device")
        first = node.amount("first", "70Gi", pods={"train": POD})
        assert await node.refusal(first) == ""
        await node.hardware.inject(works(7))
        await node.hardware.inject(FailCall("left", HardwareError("no /proc")))
        assert "nobody can tell" in (await node.call("unprepare", first))[first.uid]
        await node.hardware.inject(HealCall("left"))
        await node.hardware.inject(HideProcesses())
        assert await node.call("unprepare", first) == {first.uid: ""}
