"""The agent as a DRA driver: a simulated node, an API server that keeps objects, a scripted kubelet."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from partage.agent.kubelet_service import run
from partage.agent.options import AgentOptions, Intervals
from partage.agent.status.readiness import readiness_of
from partage.agent.status.status import AgentStatus
from partage.answers.documents.plan import held_row
from partage.answers.report import report_document
from partage.claims.agent.part import ClaimsOfNode
from partage.claims.agent.ports import ClaimStep, StepTaken, go_on
from partage.claims.model.names import OWN_NAMES, ClaimNames
from partage.explain.shares import share_rows
from partage.model.claim import ClaimRef
from partage.plan.report import Report
from partage.sim.node.faults import RaiseXid, Reboot
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from tests.agent.harness import Place, place
from tests.dra_script import DriverSocket
from tests.edges.kube.scripted import Answer
from tests.edges.kube.store import SLICES, ObjectStore, claims_path, object_store
from tests.kubelet_script import LIMIT_S, ScriptedKubelet, grpc, held, until

GPUS = """
version: partage/v1
gpus:
  - {select: {index: [0]}, via: claims, mps: {unit: 1Gi}}
  - {select: {index: [1]}, via: claims, time-slicing: {replicas: 4}}
  - {select: {index: [2]}, via: claims, exclusive: {}}
  - {select: rest, exclusive: {}}
"""
POOL = "n1-partage"
QUICK = Intervals(
    turn_gap_s=0.01,
    withdraw_s=0.05,
    holders_first_s=0.02,
    holders_s=0.5,
    watch_s=0.05,
    conditions_s=0.5,
)


@dataclass
class DraNode:
    """One node with an agent that can be stopped, killed and started."""

    place: Place
    store: ObjectStore
    kubelet: ScriptedKubelet
    hardware: SimulatedHardware
    names: ClaimNames = OWN_NAMES
    intervals: Intervals = QUICK
    counters: bool = False
    status: AgentStatus | None = None
    taken: StepTaken = go_on
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    _starts: int = 0

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.status, self._stop = AgentStatus(loop.time), asyncio.Event()
        options = AgentOptions(
            kubelet_dir=self.place.kubelet_dir,
            pod_resources=self.place.pod_resources,
            state_dir=self.place.state_dir,
            run_dir=self.place.run_dir,
            policy=self.place.policy,
            container_logs=self.place.container_logs,
            cluster=self.store.server.config(),
            node_name="n1",
            cdi_dir=self.place.root / "cdi",
            dra=True,
            dra_counters=self.counters,
            dra_driver=self.names.driver,
            intervals=self.intervals,
        )
        work = run(
            options,
            self.hardware,
            stop=self._stop,
            status=self.status,
            connect=_NoCluster,
            connect_claims=partial(ClaimsOfNode, taken=self.taken),
        )
        self._task = asyncio.create_task(work)
        await self.until(self.registration.exists, "the registration socket")

    async def end(self, *, kill: bool = False) -> None:
        """kill: nothing is put in order, as after SIGKILL."""
        if (task := self._task) is None:
            return
        await self._kubelet_has_connected(task)
        if kill:
            task.cancel()
        self._stop.set()
        with suppress(asyncio.CancelledError):
            await task
        self._task = None

    async def _kubelet_has_connected(self, task: asyncio.Task[None]) -> None:
        """A connection that comes while an agent ends would be left open: a process would end it."""
        self._starts += 1
        if self.status is None or not self.status.endpoints():  # all GPUs are there for claims
            return

        def connected() -> bool:
            watches = [one.watch for one in self.kubelet.registered if one.watch and one.watch.lists]
            return task.done() or len(watches) >= self._starts

        if self.kubelet.goes_on.is_set():
            await until(connected, what="the kubelet has the lists")

    async def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait, and say what the agent died of if it did."""

        def is_there() -> Any:
            if self._task is not None and self._task.done():
                self._task.result()
            return condition()

        return await until(is_there, what=what)

    @property
    def report(self) -> Report:
        assert self.status is not None
        assert self.status.report is not None
        return self.status.report

    @property
    def registration(self) -> Path:
        return self.place.root / "plugins_registry" / f"{self.names.driver}-reg.sock"

    @property
    def devices(self) -> dict[str, Any]:
        """All devices of the slices, by name."""
        slices = self.store.objects.get(SLICES, {}).values()
        return {one["name"]: one for found in slices for one in found["spec"].get("devices", [])}

    def device(self, index: int) -> Any:
        by_index = {one["attributes"]["index"]["int"]: one for one in self.devices.values()}
        return by_index.get(index)

    async def call(self, method: str, *claims: ClaimRef) -> Any:
        calls = DriverSocket(self.place.root / "plugins" / self.names.driver / "dra.sock")
        try:
            return await asyncio.to_thread(getattr(calls, method), *claims)
        finally:
            await asyncio.to_thread(calls.close)

    async def prepare(self, *claims: ClaimRef) -> Any:
        return await self.call("prepare", *claims)

    async def refusal(self, claim: ClaimRef) -> str:
        """Why it is refused; empty if it is not."""
        error: str = (await self.prepare(claim))[claim.uid].error
        return error

    async def until_prepared(self, claim: ClaimRef, tries: int = 40) -> str:
        """As the kubelet does: ask again and again. Why it is refused at last; empty if it is not."""
        for _ in range(tries):
            if (error := await self.refusal(claim)) == "":
                return ""
            await asyncio.sleep(0.2)
        return error

    def claim(
        self, name: str, *results: dict[str, Any], config: Any = None, pods: dict[str, str] | None = None
    ) -> ClaimRef:
        """A claim that the scheduler has allocated. pods: that it is reserved for, name to UID."""
        driver, pool = self.names.driver, self.names.pool("n1")
        made = [{"request": "gpu", "driver": driver, "pool": pool, **one} for one in results]
        configs = (
            [{"source": "FromClaim", "opaque": {"driver": driver, "parameters": config}}] if config else []
        )
        found = self.store.put(
            claims_path("team"),
            {
                "metadata": {"name": name, "namespace": "team"},
                "spec": {},
                "status": {
                    "allocation": {"devices": {"results": made, "config": configs}},
                    "reservedFor": [
                        {"resource": "pods", "name": pod, "uid": uid} for pod, uid in (pods or {}).items()
                    ],
                },
            },
        )
        return ClaimRef("team", name, found["metadata"]["uid"])

    def amount(self, name: str, memory: str, share: str = "s", cores: int = 0, **more: Any) -> ClaimRef:
        """A claim of GPU 0's memory."""
        consumed = {"memory": memory, "cores": str(cores)}
        result = {
            "device": self.device(0)["name"],
            "shareID": f"{name}-{share}",
            "consumedCapacity": consumed,
        }
        return self.claim(name, result, **more)

    def status_of(self, name: str) -> Any:
        """The only device in the status of a claim; None: none is said."""
        devices = self.store.objects[claims_path("team")][name]["status"].get("devices") or [None]
        return devices[0]

    def cdi_path(self, uid: str) -> Path:
        return self.place.run_dir / "cdi" / f"gpu.partage.dev-claim_{uid}.json"

    def record_path(self, uid: str) -> Path:
        return self.place.state_dir / "claims" / f"{uid}.json"

    def cdi(self, uid: str) -> Any:
        """The CDI file of a claim; None: there is none."""
        path = self.cdi_path(uid)
        return json.loads(path.read_text()) if path.exists() else None


def _NoCluster(*parts: Any) -> Any:  # noqa: N802 (stands for a class)
    from partage.agent.parts import NoCluster

    class Quiet(NoCluster):
        async def run(self, config: Any, pause_s: float) -> None:
            await asyncio.Event().wait()

    return Quiet(*parts)


@asynccontextmanager
async def dra_node(
    policy: str = GPUS,
    machine: str = "4xh100-sxm5-80gb",
    names: ClaimNames = OWN_NAMES,
    taken: StepTaken = go_on,
    intervals: Intervals = QUICK,
    *,
    version: str = "v1.37.2",
    counters: bool = False,
) -> AsyncIterator[DraNode]:
    async with AsyncExitStack() as stack:
        here = stack.enter_context(place())
        (here.root / "plugins_registry").mkdir()
        here.write_policy(policy)
        store = await stack.enter_async_context(object_store())
        store.node("n1")
        kubelet = ScriptedKubelet(here.kubelet_dir, here.pod_resources)
        await asyncio.to_thread(kubelet.start)
        store.version = version
        hardware = SimulatedHardware(load_machine(machine))
        node = DraNode(here, store, kubelet, hardware, names, intervals, counters, taken=taken)
        try:
            await node.start()
            yield node
        finally:
            await node.end(kill=True)
            await asyncio.to_thread(kubelet.stop)


async def test_slices_have_what_the_policy_gives_to_claims() -> None:
    async with dra_node() as node:
        await node.until(lambda: len(node.devices) == 3, "three devices")
        assert [node.device(index)["attributes"]["mode"]["string"] for index in range(3)] == [
            "amounts",
            "replicas",
            "whole",
        ]
        ((made),) = node.store.objects[SLICES].values()
        assert made["spec"]["pool"] == {"name": POOL, "generation": 1, "resourceSliceCount": 1}
        assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-n1"
        assert {one.request.resource_name for one in node.kubelet.registered} == {"nvidia.com/gpu"}


async def test_claims_can_be_prepared_when_the_kubelet_has_its_first_list() -> None:
    """By the clock, and also where the kubelet does not take a list at all."""
    async with dra_node() as node:
        (plugin,) = await node.until(lambda: node.kubelet.registered, "the device plugin")
        listed = await node.until(lambda: plugin.watch and plugin.watch.times, "the first list")
        served_s = node.registration.stat().st_ctime - (time.time() - time.monotonic())
        assert served_s < listed[0] + 0.05
        await node.until(lambda: node.device(2), "the device")
        await node.end(kill=True)
        node.registration.unlink(missing_ok=True)
        node.kubelet.goes_on.clear()
        await node.start()
        assert await node.refusal(node.claim("whole", {"device": node.device(2)["name"]})) == ""
        assert len(node.kubelet.registered) == 2
        node.kubelet.goes_on.set()


async def test_slices_that_are_deleted_or_changed_are_put_back() -> None:
    async with dra_node() as node:
        await node.until(lambda: len(node.devices) == 3, "three devices")
        for name in [*node.store.objects[SLICES]]:
            node.store.remove(SLICES, name)
        await node.until(lambda: len(node.devices) == 3, "three devices again")
        ((name, made),) = node.store.objects[SLICES].items()
        node.store.put(SLICES, {**made, "spec": {**made["spec"], "devices": []}})
        await node.until(lambda: len(node.devices) == 3, "three devices once more")


async def test_a_claim_gets_its_amount_until_the_card_is_full() -> None:
    async with dra_node() as node:
        await node.until(lambda: node.device(0), "the device")
        first = node.amount("first", "70Gi")
        ((device,),) = [(await node.prepare(first))[first.uid].devices]
        assert device.device_name == node.device(0)["name"]
        assert next(iter(device.cdi_device_ids)).startswith("gpu.partage.dev/claim=uid-first-gpu-")
        env = node.cdi(first.uid)["devices"][0]["containerEdits"]["env"]
        assert f"PARTAGE_MEMORY_BYTES={70 << 30}" in env
        assert "NVIDIA_VISIBLE_DEVICES=void" in env
        second = node.amount("second", "10Gi")
        assert "9 GiB is free of 79 GiB" in await node.refusal(second)
        assert node.cdi(second.uid) is None
        again = (await node.prepare(first))[first.uid].devices
        assert list(again) == [device]
        assert await node.call("unprepare", first) == {first.uid: ""}
        assert node.cdi(first.uid) is None
        assert await node.refusal(second) == ""


async def test_what_a_claim_has_survives_kill() -> None:
    async with dra_node() as node:
        await node.until(lambda: node.device(0), "the device")
        first = node.amount("first", "70Gi")
        prepared = (await node.prepare(first))[first.uid].devices
        await node.end(kill=True)
        await node.start()
        assert list((await node.prepare(first))[first.uid].devices) == list(prepared)
        assert "9 GiB is free" in await node.refusal(node.amount("second", "10Gi"))
        assert await node.call("unprepare", first) == {first.uid: ""}


class StopsAt:
    """The agent comes to this step of a claim and not further, until ``on``."""

    def __init__(self, step: ClaimStep) -> None:
        self._step = step
        self.there, self.on = asyncio.Event(), asyncio.Event()

    async def __call__(self, step: ClaimStep, claim: ClaimRef) -> None:
        if step is self._step:
            self.there.set()
            await self.on.wait()


OF_MAKING = (ClaimStep.PLACE_NOTED, ClaimStep.MADE)
"""Only of devices that are made on demand."""


@pytest.mark.parametrize("step", [step for step in ClaimStep if step not in OF_MAKING])
async def test_killed_after_any_step_nothing_stays_of_a_claim(step: ClaimStep) -> None:
    """Then it is prepared and taken back as if nothing had been, and nobody else has its share."""
    stops, backwards = StopsAt(step), step in (ClaimStep.FILE_REMOVED, ClaimStep.FORGOTTEN)
    async with dra_node(taken=stops) as node:
        await node.until(lambda: node.device(0), "the device")
        claim = node.amount("cut", "70Gi")
        if backwards:
            assert await node.refusal(claim) == ""
        call = asyncio.create_task(node.call("unprepare" if backwards else "prepare", claim))
        await asyncio.wait_for(stops.there.wait(), LIMIT_S)
        await node.end(kill=True)
        with pytest.raises(grpc.RpcError):
            await call
        node.taken = go_on
        await node.start()
        if not backwards:
            assert await node.refusal(claim) == ""
            assert "9 GiB is free of 79 GiB" in await node.refusal(node.amount("more", "10Gi"))
        assert await node.call("unprepare", claim) == {claim.uid: ""}
        assert node.cdi(claim.uid) is None
        assert [*(node.place.state_dir / "claims").iterdir()] == []
        assert await node.refusal(node.amount("other", "70Gi")) == ""


async def test_a_step_that_fails_is_undone_and_said() -> None:
    """In the way: first of the record, then of the CDI file."""
    async with dra_node() as node:
        await node.until(lambda: node.device(0), "the device")
        claim = node.amount("first", "70Gi")
        cdi = node.cdi_path(claim.uid)
        for path in (
            node.record_path(claim.uid).with_suffix(".json.new"),
            cdi.with_name(f".{cdi.name}.new"),
        ):
            path.mkdir(parents=True)
            assert "cannot" in await node.refusal(claim)
            assert (node.cdi(claim.uid), node.record_path(claim.uid).exists()) == (None, False)
            path.rmdir()
        assert await node.refusal(node.amount("other", "70Gi")) == ""
        assert "9 GiB is free of 79 GiB" in await node.refusal(claim)


async def test_the_half_of_a_cdi_file_that_a_killed_agent_wrote_is_removed() -> None:
    async with dra_node() as node:
        await node.until(lambda: node.device(0), "the device")
        half = node.cdi_path("uid-a").with_name(".gpu.partage.dev-claim_uid-a.json.new")
        half.write_text('{"cdiVersion"')
        await node.end(kill=True)
        await node.start()
        assert not half.exists()


async def test_a_damaged_record_is_made_anew_from_the_cdi_file() -> None:
    """Also without an API server: until it answers, the claim holds what it held."""
    async with dra_node() as node:
        await node.until(lambda: node.device(0), "the device")
        claim, other = node.amount("first", "70Gi"), node.amount("other", "70Gi")
        answer = list((await node.prepare(claim))[claim.uid].devices)
        await node.end(kill=True)
        node.record_path(claim.uid).write_text('{"version": "partage-cl')
        node.store.refuse = lambda request: Answer(drop=True)
        await node.start()
        await node.until(lambda: node.report.entries, "it is held")
        assert list((await node.prepare(claim))[claim.uid].devices) == answer
        node.store.refuse = lambda request: None
        assert "9 GiB is free of 79 GiB" in await node.refusal(other)
        assert await node.call("unprepare", claim) == {claim.uid: ""}
        assert await node.refusal(other) == ""
        assert sorted(path.name for path in node.record_path("").parent.iterdir()) == [
            f"{claim.uid}.json.corrupt-1",
            f"{other.uid}.json",
        ]


async def test_a_claim_without_record_and_cdi_file_is_found_by_its_container() -> None:
    async with dra_node() as node:
        await node.until(lambda: node.device(0), "the device")
        claim, nobodys = node.amount("first", "30Gi"), node.amount("nobodys", "30Gi")
        for one in (claim, nobodys):
            assert await node.refusal(one) == ""
        answer = held({"team/train": {"main": {}}})
        for name in ("first", "of-another-driver"):
            answer.pod_resources[0].containers[0].dynamic_resources.add(
                claim_name=name, claim_namespace="team"
            )
        node.kubelet.pod_resources = answer
        await node.end(kill=True)
        for one in (claim, nobodys):
            node.record_path(one.uid).write_text("")
            node.cdi_path(one.uid).unlink()
        node.store.refuse = lambda request: Answer(drop=True)
        await node.start()
        assert not node.report.entries
        node.store.refuse = lambda request: None
        await node.until(lambda: node.cdi(claim.uid), "the CDI file")
        await node.until(lambda: {one.claim for one in node.report.entries} == {"team/first"}, "it is held")
        assert node.cdi(nobodys.uid) is None


@pytest.mark.parametrize("step", [ClaimStep.STARTED, ClaimStep.FILE_WRITTEN])
async def test_what_was_only_begun_is_taken_back_at_the_next_start(step: ClaimStep) -> None:
    stops = StopsAt(step)
    async with dra_node(taken=stops) as node:
        await node.until(lambda: node.device(0), "the device")
        claim = node.amount("cut", "70Gi")
        call = asyncio.create_task(node.prepare(claim))
        await asyncio.wait_for(stops.there.wait(), LIMIT_S)
        await node.end(kill=True)
        with pytest.raises(grpc.RpcError):
            await call
        assert [path.stem for path in (node.place.state_dir / "claims").iterdir()] == [claim.uid]
        node.taken = go_on
        await node.start()
        assert node.cdi(claim.uid) is None
        assert await node.refusal(node.amount("other", "70Gi")) == ""


async def test_a_card_changes_books_when_its_claims_have_ended() -> None:
    async with dra_node() as node:
        await node.until(lambda: node.device(2), "the device")
        whole = node.claim("whole", {"device": node.device(2)["name"]})
        assert await node.refusal(whole) == ""
        node.place.write_policy(GPUS.replace("via: claims, exclusive", "exclusive"))
        await node.until(lambda: "taints" in (node.device(2) or {}), "a taint")
        assert node.device(2)["taints"][0]["key"] == "gpu.partage.dev/changing"
        late = node.claim("late", {"device": node.device(2)["name"]})
        assert "is to be used in another way" in await node.refusal(late) or "held by claim team/whole" in (
            await node.refusal(late)
        )
        assert len(node.kubelet.offered("nvidia.com/gpu")) == 1
        await node.call("unprepare", whole)
        await node.until(lambda: node.device(2) is None, "no device")
        await node.until(lambda: len(node.kubelet.offered("nvidia.com/gpu")) == 2, "two GPUs by plugin")


async def test_a_gpu_with_a_fault_is_tainted() -> None:
    async with dra_node() as node:
        await node.until(lambda: node.device(2), "the device")
        await node.hardware.inject(RaiseXid(2, 79))
        await node.until(lambda: "taints" in node.device(2), "a taint")
        assert node.device(2)["taints"] == [
            {"key": "gpu.partage.dev/unhealthy", "value": "79", "effect": "NoSchedule"}
        ]
        claim = node.claim("ill", {"device": node.device(2)["name"]})
        assert "is not healthy: XID 79" in await node.refusal(claim)


async def test_a_server_without_the_gate_gets_no_shared_device_and_it_is_said() -> None:
    async with dra_node() as node:
        await node.until(lambda: len(node.devices) == 3, "three devices")

        def drop(found: Any) -> None:
            for device in found["spec"].get("devices", []):
                device.pop("allowMultipleAllocations", None)

        node.store.drops = drop
        for name in [*node.store.objects[SLICES]]:
            node.store.remove(SLICES, name)
        await node.until(lambda: list(node.devices) and len(node.devices) == 1, "the whole GPU alone")
        assert node.device(2) is not None
        await node.until(
            lambda: "DRAConsumableCapacity" in node.report.dependencies.claims, "the gate's name"
        )


async def test_the_ledger_names_the_container_of_a_claim() -> None:
    async with dra_node() as node:
        await node.until(lambda: node.device(2), "the device")
        whole = node.claim("whole", {"device": node.device(2)["name"]})
        assert await node.refusal(whole) == ""
        answer = held({"team/train": {"main": {}}})
        answer.pod_resources[0].containers[0].dynamic_resources.add(
            claim_name="whole", claim_namespace="team"
        )
        node.kubelet.pod_resources = answer
        entries = await node.until(
            lambda: [one for one in node.report.entries if one.holders], "a named holder"
        )
        assert [(one.claim, one.holders[0].pod, one.holders[0].container) for one in entries] == [
            ("team/whole", "train", "main")
        ]


async def test_a_claims_status_says_what_it_has_and_metrics_count_it() -> None:
    async with dra_node() as node:
        await node.until(lambda: node.device(2), "the device")
        whole = node.claim("whole", {"device": node.device(2)["name"]})
        assert await node.refusal(whole) == ""

        def said() -> Any:
            return node.store.objects[claims_path("team")]["whole"]["status"].get("devices")

        (entry,) = await node.until(said, "the status of the claim")
        assert (entry["driver"], entry["pool"], entry["device"]) == (
            "gpu.partage.dev",
            POOL,
            node.device(2)["name"],
        )
        ((enforced,), data) = entry["conditions"], entry["data"]
        assert (enforced["type"], enforced["status"], enforced["reason"]) == ("Enforced", "True", "Hard")
        assert data["uuid"] == node.device(2)["attributes"]["uuid"]["string"]

        late = node.claim("late", {"device": node.device(2)["name"]})
        assert "held by claim team/whole" in await node.refusal(late)
        assert node.status is not None
        figures = node.status.claims()
        assert figures is not None
        assert (figures.states, figures.refused["held"]) == ({"started": 0, "prepared": 1}, 1)
        assert figures.prepares == 2
        claims = node.status.claims

        def slices() -> int:
            now = claims()
            return now.slices if now else 0

        await node.until(lambda: slices() == 1, "the slice is as it should be")


async def test_after_a_reboot_claims_hold_nothing_until_they_are_prepared_again() -> None:
    """One whose pod ended with the reboot is only taken back: its record goes, too."""
    async with dra_node() as node:
        await node.until(lambda: node.device(2) and node.device(0), "the devices")
        whole = node.claim("whole", {"device": node.device(2)["name"]})
        ends = node.amount("ends", "10Gi")
        for one in (whole, ends):
            assert await node.refusal(one) == ""
        await node.hardware.inject(Reboot())
        await node.until(lambda: not node.report.entries, "nothing is held")
        await node.until(lambda: "taints" not in (node.device(2) or {"taints": []}), "no taint")
        assert await node.refusal(whole) == ""
        await node.until(lambda: [one.claim for one in node.report.entries] == ["team/whole"], "it is held")
        assert await node.call("unprepare", ends) == {ends.uid: ""}
        assert [path.stem for path in node.record_path("").parent.iterdir()] == [whole.uid]


async def test_a_claim_that_is_gone_is_taken_back_unless_a_container_has_it() -> None:
    """The kubelet has lost its record of it, and never asks for its end."""
    async with dra_node(intervals=replace(QUICK, gone_s=0.05)) as node:
        await node.until(lambda: node.device(0), "the device")
        first, second = node.amount("first", "10Gi"), node.amount("second", "10Gi")
        answer = held({"team/train": {"main": {}}})
        resources = answer.pod_resources[0].containers[0].dynamic_resources
        resources.add(claim_name="first", claim_namespace="team")
        node.kubelet.pod_resources = answer
        assert [await node.refusal(claim) for claim in (first, second)] == ["", ""]
        await node.until(lambda: any(one.holders for one in node.report.entries), "a named holder")
        for claim in (first, second):
            node.store.remove(claims_path("team"), claim.name)
        await node.until(lambda: node.cdi(second.uid) is None, "the second is taken back")
        assert node.cdi(first.uid) is not None
        assert {one.claim for one in node.report.entries} >= {"team/first"}


async def test_shares_are_held_while_the_record_is_written() -> None:
    stops = StopsAt(ClaimStep.HELD)
    async with dra_node(taken=stops) as node:
        await node.until(lambda: node.device(2), "the device")
        whole = node.claim("whole", {"device": node.device(2)["name"]})
        asked = asyncio.create_task(node.refusal(whole))
        await asyncio.wait_for(stops.there.wait(), LIMIT_S)
        node.place.write_policy(GPUS.replace("via: claims, exclusive", "exclusive"))
        await node.until(lambda: "taints" in (node.device(2) or {}), "the GPU is to change")
        assert [one.claim for one in node.report.entries] == ["team/whole"]
        stops.on.set()
        assert await asked == ""
        assert node.device(2) is not None


async def test_show_and_explain_name_the_claim() -> None:
    async with dra_node() as node:
        await node.until(lambda: node.device(2), "the device")
        whole = node.claim("whole", {"device": node.device(2)["name"]})
        assert await node.refusal(whole) == ""
        await node.until(lambda: node.report.entries, "it is held")
        assert node.status is not None
        document = report_document(node.report, node.status, readiness_of(node.status, Intervals()))
        assert [held_row(entry).holders for entry in document.held] == [("claim team/whole",)]
        (row,) = share_rows("n1", document, "2")
        assert "held by claim team/whole since" in row.standing
        assert row.next == "kubectl describe resourceclaim -n team whole"
        (free,) = share_rows("n1", document, "1")
        assert free.next == "ask by a ResourceClaim of the class share.partage.dev"


async def test_a_cdi_file_that_somebody_removed_is_written_again() -> None:
    async with dra_node() as node:
        await node.until(lambda: node.device(0), "the device")
        claim = node.amount("first", "10Gi")
        assert await node.refusal(claim) == ""
        written = node.cdi(claim.uid)
        for restarted in (False, True):
            node.cdi_path(claim.uid).unlink()
            if restarted:
                await node.end(kill=True)
                await node.start()
            else:
                assert await node.refusal(claim) == ""
            await node.until(lambda: node.cdi(claim.uid) == written, "the file")


async def test_a_policy_that_names_devices_by_index_in_cdi_keeps_these_names() -> None:
    """The device plugin answers with them; claims ask by UUID."""
    options = "resources: {device-list-strategy: cdi-cri, device-id-strategy: index}\n"
    async with dra_node(GPUS + options) as node:
        await node.until(lambda: node.device(0), "the device")
        specs = (node.place.run_dir / "cdi").glob("*.json")
        names = {one["name"] for path in specs for one in json.loads(path.read_text())["devices"]}
        assert {"0", "3", node.device(2)["attributes"]["uuid"]["string"]} <= names
