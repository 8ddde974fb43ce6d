"""MIG devices that are made when claims ask for them: the whole agent on a simulated node."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from partage.agent.options import Intervals
from partage.agent.status.readiness import readiness_of
from partage.answers.node_plan import make_plan
from partage.answers.report import report_document
from partage.claims.agent.ports import ClaimStep, go_on
from partage.claims.files import PLACES_FILE
from partage.edges.files.policy import parse_policy
from partage.errors import InsufficientResources
from partage.explain.shares import share_rows
from partage.model.claim import ClaimRef
from partage.model.gpu import NoDriver
from partage.model.layout import LayoutItem
from partage.model.step import CreateCompute, CreateInstance, DestroyInstance, SetMigMode, Step
from partage.plan.reconcile.node_plan import Phase
from partage.sim.node.faults import (
    DriverGone,
    DriverLoaded,
    FailCall,
    HangCall,
    Occupy,
    Reboot,
    SetMig,
    Vacate,
)
from tests.claims.agent.test_claims_of_node import OF_MAKING, QUICK, DraNode, StopsAt, dra_node
from tests.dra_script import DriverSocket
from tests.edges.kube.store import SLICES
from tests.kubelet_script import LIMIT_S, grpc

ON_DEMAND = """
version: partage/v1
gpus:
  - {select: {index: [3]}, via: claims, mig: {on-demand: true}}
  - {select: rest, exclusive: {}}
"""
PLACES = 26
"""Of an H100 with 80 GB: 25 for MIG devices, and the GPU itself."""


def part(node: DraNode, name: str, device: str) -> ClaimRef:
    """A claim that was allocated ``1g10gb-19-6`` of GPU 3."""
    full = next((one for one in node.devices if one.endswith(f"-mig-{device}")), "")
    assert full, [*node.devices]
    return node.claim(name, {"device": full})


def whole(node: DraNode, name: str) -> ClaimRef:
    return node.claim(name, {"device": next(one for one in node.devices if "-mig-" not in one)})


async def made(node: DraNode, index: int = 3) -> list[str]:
    """What is on GPU 3, as an administrator sees it; ``off``: MIG mode is."""
    gpu = (await node.hardware.observe()).gpus[index]
    if not gpu.mig_enabled:
        return ["off"]
    live = [(one.profile, one.known_placement.start) for one in gpu.mig_devices]
    live += [(f"empty {one.profile}", one.placement.start) for one in gpu.empty_instances]
    return sorted(f"{profile}@{start}" for profile, start in live)


async def until_made(node: DraNode, *wanted: str) -> None:
    for _ in range(1500):
        if (now := await made(node)) == [*wanted]:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"GPU 3 has {now}, not {wanted}")


async def until_nothing_is_made(node: DraNode) -> None:
    """MIG mode may be on or off."""
    for _ in range(1500):
        if (now := await made(node)) in (["off"], []):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"GPU 3 has {now}")


def is_settled(node: DraNode) -> bool:
    plan = node.report.gpus[3].plan
    return plan is not None and plan.phase is Phase.SETTLED


async def places(node: DraNode) -> None:
    await node.until(lambda: len(node.devices) == PLACES, "all places")


async def test_every_place_is_a_device_and_no_claim_changes_a_slice() -> None:
    async with dra_node(ON_DEMAND) as node:
        await places(node)
        before = {name: json.dumps(one, sort_keys=True) for name, one in node.store.objects[SLICES].items()}
        assert [len(json.loads(one)["spec"].get("sharedCounters", [])) for one in before.values()] == [1, 0]
        for claim in (whole(node, "all"), part(node, "a", "2g20gb-14-2"), whole(node, "again")):
            assert await node.refusal(claim) == ""
            await node.call("unprepare", claim)
        await node.until(lambda: is_settled(node), "that everything is done")
        after = {name: json.dumps(one, sort_keys=True) for name, one in node.store.objects[SLICES].items()}
        assert after == before, "with the same resourceVersion"


async def test_a_mig_device_is_made_beside_a_neighbour_and_destroyed_after_it() -> None:
    async with dra_node(ON_DEMAND) as node:
        await places(node)
        first, second = part(node, "first", "3g40gb-9-4"), part(node, "second", "1g10gb-19-0")
        assert await node.refusal(first) == ""
        (neighbour,) = (await node.hardware.observe()).gpus[3].mig_devices
        assert await node.refusal(second) == ""
        assert await made(node) == ["1g.10gb@0", "3g.40gb@4"]
        edits = node.cdi(second.uid)["devices"][0]["containerEdits"]["env"]
        assert "PARTAGE_GUARANTEE=hard" in edits
        await node.until(
            lambda: {one.claim for one in node.report.entries} == {"team/first", "team/second"}, "both claims"
        )
        assert await node.call("unprepare", second) == {second.uid: ""}
        await until_made(node, "3g.40gb@4")
        assert (await node.hardware.observe()).gpus[3].mig_devices == (neighbour,)
        assert await node.call("unprepare", first) == {first.uid: ""}
        await until_made(node)
        places_file = node.place.state_dir / "claim-places.json"
        await node.until(lambda: json.loads(places_file.read_text())["places"] == [], "no place is kept")
        assert node.cdi(first.uid) is None


async def test_plan_and_explain_know_what_claims_want() -> None:
    """From the report of the agent, as the verbs read it."""
    async with dra_node(ON_DEMAND) as node:
        await places(node)
        claim = part(node, "a", "1g10gb-19-6")
        assert await node.refusal(claim) == ""
        await node.until(lambda: node.report.gpus[3].held, "a report with what is held")
        assert node.status is not None
        document = report_document(node.report, node.status, readiness_of(node.status, Intervals()))
        made_plan = make_plan(parse_policy(ON_DEMAND.encode(), "p"), None, None, report=document, named=False)
        assert made_plan.plan.settled
        assert made_plan.caveats[-1].sentence.startswith("GPU 3: a claim gets all of a GPU, or a MIG device")
        (row,) = share_rows("n1", document, "3")
        assert (row.profile, row.holders) == ("1g.10gb", ("claim team/a",))
        await node.call("unprepare", claim)
        await until_made(node)
        await node.until(lambda: is_settled(node), "a report of that")
        document = report_document(node.report, node.status, readiness_of(node.status, Intervals()))
        (row,) = share_rows("n1", document, "3")
        assert "its MIG devices are made when claims ask" in row.standing


async def test_whole_and_parts_follow_each_other() -> None:
    async with dra_node(ON_DEMAND) as node:
        await places(node)
        assert await made(node) == ["off"]
        all_of_it = whole(node, "all")
        assert await node.refusal(all_of_it) == ""
        small = part(node, "small", "1g10gb-19-6")
        assert "held by claim team/all" in await node.refusal(small)
        await node.call("unprepare", all_of_it)
        assert await node.refusal(small) == ""
        assert await made(node) == ["1g.10gb@6"]
        again = whole(node, "again")
        assert "held by claim team/small" in await node.refusal(again)
        overlapping = part(node, "overlapping", "3g40gb-9-4")
        assert "held by claim team/small" in await node.refusal(overlapping)
        await node.call("unprepare", small)
        assert await node.refusal(again) == ""
        assert await made(node) == ["off"]


async def test_many_claims_at_once() -> None:
    async with dra_node(ON_DEMAND) as node:
        await places(node)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(20))  # the agent needs some
        claims = [part(node, f"c{start}", f"1g10gb-19-{start}") for start in range(7)]
        answers = await asyncio.gather(*(node.refusal(claim) for claim in claims))
        assert answers == [""] * 7
        assert await made(node) == [f"1g.10gb@{start}" for start in range(7)]
        await node.call("unprepare", *claims)
        await until_made(node)


async def test_what_an_administrator_made_stays_and_nothing_is_given_in_its_place() -> None:
    async with dra_node(ON_DEMAND) as node:
        await places(node)
        await node.hardware.inject(SetMig(3, (LayoutItem.parse("2g.20gb@0"),)))

        def shut() -> set[str]:
            return {name.rpartition("-mig-")[2] for name, one in node.devices.items() if "taints" in one}

        await node.until(shut, "taints")
        assert {"1g10gb-19-0", "1g10gb-19-1", "2g20gb-14-0", "7g80gb-0-0"} <= shut()
        assert not {"1g10gb-19-2", "3g40gb-9-4"} & shut()
        assert "were not made for a claim" in await node.refusal(part(node, "in", "1g10gb-19-1"))
        assert "were not made for a claim" in await node.refusal(whole(node, "all"))
        beside = part(node, "beside", "3g40gb-9-4")
        assert await node.refusal(beside) == ""
        await node.end(kill=True)
        await node.start()
        await node.call("unprepare", beside)
        await until_made(node, "2g.20gb@0")


async def test_what_a_claim_has_survives_kill_and_is_destroyed_by_the_next_agent() -> None:
    async with dra_node(ON_DEMAND) as node:
        await places(node)
        claim = part(node, "a", "1g10gb-19-6")
        before = list((await node.prepare(claim))[claim.uid].devices)
        await node.end(kill=True)
        await node.start()
        assert list((await node.prepare(claim))[claim.uid].devices) == before
        assert await made(node) == ["1g.10gb@6"]
        await node.call("unprepare", claim)
        await node.end(kill=True)  # before the instance is destroyed
        await node.start()
        await until_made(node)


async def test_a_driver_that_refuses_costs_the_claim_and_nothing_else() -> None:
    async with dra_node(ON_DEMAND) as node:
        await places(node)
        neighbour = part(node, "neighbour", "3g40gb-9-4")
        assert await node.refusal(neighbour) == ""
        await node.hardware.inject(FailCall("perform", InsufficientResources("no room at all")))
        claim = part(node, "a", "1g10gb-19-0")
        assert "no room at all" in await node.refusal(claim)
        assert await made(node) == ["3g.40gb@4"]
        assert node.cdi(claim.uid) is None
        assert await node.until_prepared(claim) == ""
        assert await made(node) == ["1g.10gb@0", "3g.40gb@4"]


async def test_a_process_in_the_way_of_mig_mode_is_named() -> None:
    async with dra_node(ON_DEMAND, intervals=replace(QUICK, made_s=1.0)) as node:
        await places(node)
        await node.hardware.inject(Occupy(3, "dcgm-test", pid=4711))
        claim = part(node, "a", "1g10gb-19-0")
        assert "dcgm-test" in await node.refusal(claim)
        assert await made(node) == ["off"]
        await node.hardware.inject(Vacate(3))
        assert await node.until_prepared(claim) == ""


async def test_after_a_reboot_the_claim_is_made_anew() -> None:
    async with dra_node(ON_DEMAND) as node:
        await places(node)
        claim = part(node, "a", "1g10gb-19-6")
        assert await node.refusal(claim) == ""
        await node.end(kill=True)
        await node.hardware.inject(Reboot())
        assert await made(node) == ["off"]
        await node.start()
        await places(node)
        assert await node.refusal(claim) == ""
        assert await made(node) == ["1g.10gb@6"]


def fits(node: DraNode, taken: Collection[str], more: str) -> bool:
    """Whether the scheduler would allocate one more device, by the counters of the slices."""
    left: Counter[str] = Counter()
    for found in node.store.objects[SLICES].values():
        for shared in found["spec"].get("sharedCounters", []):
            left.update({name: int(one["value"]) for name, one in shared["counters"].items()})
    for device in (*taken, more):
        (use,) = node.devices[device]["consumesCounters"]
        left.subtract({name: int(one["value"]) for name, one in use["counters"].items()})
    return min(left.values()) >= 0


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.real) for seed in (1, 2))])
async def test_whatever_the_scheduler_gives_is_made_and_nobody_loses_anything(seed: int) -> None:
    """Claims come and go, and the agent is killed now and then."""
    chance = Random(seed)
    async with dra_node(ON_DEMAND) as node:
        await places(node)
        claims: dict[ClaimRef, str] = {}
        uuids: dict[ClaimRef, str] = {}
        for number in range(40):
            free = [name for name in node.devices if fits(node, claims.values(), name)]
            if claims and (not free or chance.random() < 0.4):
                ended = chance.choice([*claims])
                assert await node.call("unprepare", ended) == {ended.uid: ""}
                del claims[ended], uuids[ended]
            else:
                device = chance.choice(free)
                claim = node.claim(f"c{number}", {"device": device})
                assert await node.until_prepared(claim) == ""
                claims[claim] = device
                edits = node.cdi(claim.uid)["devices"][0]["containerEdits"]
                environment = dict(one.split("=", 1) for one in edits["env"])
                uuids[claim] = environment["PARTAGE_SHARES"]
            if chance.random() < 0.1:
                await node.end(kill=True)
                await node.start()
                await places(node)
            gpu = (await node.hardware.observe()).gpus[3]
            there = {one.uuid for one in gpu.mig_devices} | (set() if gpu.mig_enabled else {gpu.uuid})
            assert {*uuids.values()} <= there
            assert len({*uuids.values()}) == len(uuids)
        await node.call("unprepare", *claims)
        await node.until(lambda: is_settled(node) and not node.report.gpus[3].held, "that everything is done")
        assert await made(node) in (["off"], [])


@pytest.mark.parametrize("file", [PLACES_FILE, "gpu.partage.dev-claim_*.json"], ids=["place", "CDI file"])
async def test_an_agent_that_is_killed_while_it_writes_leaves_nothing(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dra_node(ON_DEMAND) as node:
        await places(node)
        moved = os.replace

        def dies(source: Path, target: Path) -> None:
            moved(source, target)
            if target.match(file):
                raise SystemError("killed")

        claim = part(node, "cut", "1g10gb-19-6")
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", dies)  # no kill from outside hits the moment after a rename
            assert "killed" in await node.refusal(claim)
            await node.end(kill=True)
        await node.start()
        await node.until(lambda: node.cdi(claim.uid) is None, "no CDI file")
        await until_nothing_is_made(node)
        assert await node.until_prepared(part(node, "other", "7g80gb-0-0")) == ""
        assert await made(node) == ["7g.80gb@0"]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", [SetMigMode, CreateInstance, CreateCompute, DestroyInstance])
async def test_an_agent_that_is_killed_between_two_steps_leaves_nothing(
    kind: type[Step], after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dra_node(ON_DEMAND, intervals=replace(QUICK, cut_off_s=0.1)) as node:
        await places(node)
        reached, perform = asyncio.Event(), node.hardware.perform

        async def stops(step: Step) -> Any:
            if not isinstance(step, kind) or reached.is_set():
                return await perform(step)
            if after:
                await perform(step)
            reached.set()
            await asyncio.Event().wait()
            return None

        monkeypatch.setattr(node.hardware, "perform", stops)  # a port that ends with its agent
        claim = part(node, "cut", "1g10gb-19-6")

        async def asks() -> None:
            with suppress(Exception):
                if await node.refusal(claim) == "" and kind is DestroyInstance:
                    await node.call("unprepare", claim)

        asking = asyncio.create_task(asks())
        async with asyncio.timeout(20):
            await reached.wait()
        await node.end(kill=True)
        await asking
        await node.start()
        await until_nothing_is_made(node)
        assert node.cdi(claim.uid) is None
        other = part(node, "other", "7g80gb-0-0")
        assert await node.until_prepared(other) == ""
        assert await made(node) == ["7g.80gb@0"]


@pytest.mark.parametrize("step", [ClaimStep.STARTED, *OF_MAKING])
async def test_an_agent_that_is_killed_while_a_claim_waits_leaves_nothing(step: ClaimStep) -> None:
    stops = StopsAt(step)
    async with dra_node(ON_DEMAND, taken=stops) as node:
        await places(node)
        claim = part(node, "cut", "1g10gb-19-6")
        call = asyncio.create_task(node.call("prepare", claim))
        await asyncio.wait_for(stops.there.wait(), LIMIT_S)
        await node.end(kill=True)
        with pytest.raises(grpc.RpcError):
            await call
        node.taken = go_on
        await node.start()
        await until_nothing_is_made(node)
        assert node.cdi(claim.uid) is None
        assert await node.until_prepared(part(node, "other", "7g80gb-0-0")) == ""
        assert "held by claim team/other" in await node.refusal(claim)


async def test_what_is_made_too_late_for_its_claim_is_destroyed_again() -> None:
    async with dra_node(ON_DEMAND, intervals=replace(QUICK, made_s=0.5)) as node:
        await places(node)
        await node.hardware.inject(HangCall("perform", seconds=2.0))
        claim = part(node, "a", "1g10gb-19-6")
        refused = await node.refusal(claim)
        assert refused.startswith("claim team/a has waited 0 s for gpu-")
        assert refused.endswith("it is tried again by itself")
        await node.until(
            lambda: is_settled(node) and not node.report.gpus[3].offer, "that everything is done"
        )
        assert await made(node) == []
        kept = node.place.state_dir / "claim-places.json"
        await node.until(lambda: json.loads(kept.read_text())["places"] == [], "no place is kept")
        assert await node.until_prepared(claim) == ""


async def test_a_kubelet_that_does_not_wait_leaves_nothing() -> None:
    async with dra_node(ON_DEMAND) as node:
        await places(node)
        await node.hardware.inject(HangCall("perform", seconds=1.0))
        claim = part(node, "a", "1g10gb-19-6")
        kubelet = DriverSocket(node.place.root / "plugins" / "gpu.partage.dev" / "dra.sock")
        asking = asyncio.create_task(asyncio.to_thread(kubelet.prepare, claim))

        def states() -> dict[str, int]:
            assert node.status is not None
            figures = node.status.claims()
            return {} if figures is None else {**figures.states}

        await node.until(lambda: states()["started"], "that it waits")
        kubelet.close()
        with suppress(Exception):
            await asking
        await node.until(lambda: states() == {"started": 0, "prepared": 0}, "that nothing waits")
        await until_nothing_is_made(node)
        assert await node.until_prepared(claim) == ""


async def test_without_a_driver_the_slices_stay_and_claims_wait_for_those_that_lost_theirs() -> None:
    async with dra_node(ON_DEMAND, intervals=replace(QUICK, made_s=1.0)) as node:
        await places(node)
        held = part(node, "held", "3g40gb-9-4")
        assert await node.refusal(held) == ""
        before = {name: one.get("consumesCounters") for name, one in node.devices.items()}
        await node.hardware.inject(DriverGone())
        await node.until(lambda: isinstance(node.report.node.inventory.driver, NoDriver), "a report of that")
        assert {name: one.get("consumesCounters") for name, one in node.devices.items()} == before
        late = part(node, "late", "1g10gb-19-0")
        assert await node.refusal(late)
        await node.hardware.inject(DriverLoaded())  # without the MIG devices of before
        for _ in range(30):
            if "it waits for claim team/held to end" in (refused := await node.refusal(late)):
                break
        assert "it waits for claim team/held to end" in refused
        await node.call("unprepare", held)
        assert await node.until_prepared(late) == ""
        assert await made(node) == ["1g.10gb@0"]


async def test_an_ampere_gpu_is_reset_only_when_nothing_runs_on_it() -> None:
    async with dra_node(ON_DEMAND, "4xa100-sxm4-40gb", intervals=replace(QUICK, made_s=1.0)) as node:
        await node.until(lambda: len(node.devices) > 20, "all places")
        await node.hardware.inject(Occupy(3, "trainer", pid=4711))
        claim = part(node, "a", "1g5gb-19-6")
        assert "trainer" in await node.refusal(claim)
        assert await made(node) == ["off"]
        await node.hardware.inject(Vacate(3))
        assert await node.until_prepared(claim) == ""
        assert await made(node) == ["1g.5gb@6"]


async def test_a_server_without_counters_gets_no_place_and_the_gate_is_named() -> None:
    async with dra_node(ON_DEMAND.replace("rest,", "rest, via: claims,")) as node:
        await node.until(lambda: len(node.devices) == PLACES + 3, "all places")

        def drop(found: Any) -> None:
            found["spec"].pop("sharedCounters", None)
            for device in found["spec"].get("devices", []):
                device.pop("consumesCounters", None)

        node.store.drops = drop
        for name in [*node.store.objects[SLICES]]:
            node.store.remove(SLICES, name)
        await node.until(lambda: len(node.devices) == 3, "the whole GPUs alone")
        await node.until(lambda: "DRAPartitionableDevices" in node.report.dependencies.claims, "the gate")


@pytest.mark.parametrize(
    ("version", "wanted", "there"), [("v1.36.4", False, 1), ("v1.36.4", True, PLACES + 1)]
)
async def test_before_1_37_places_are_offered_where_that_is_asked_for(
    version: str, wanted: bool, there: int
) -> None:
    policy = ON_DEMAND.replace("rest,", "{index: [0]}, via: claims,")
    async with dra_node(policy, counters=wanted, version=version) as node:
        await node.until(lambda: len(node.devices) == there, "the devices")
        if not wanted:
            await node.until(lambda: "--dra-counters" in node.report.dependencies.claims, "what helps")
