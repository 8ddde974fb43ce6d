"""Claims of all kinds, eight at a time, while agent and helper are killed: between any two steps, also of
those that make a MIG device, and at any moment. What is given is compared from outside, by answers, CDI files
and what is on the GPUs.

``PARTAGE_CLAIMS`` and ``PARTAGE_KILLS`` say how many there are (``make claims-kills``).
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle
from random import Random
from typing import Any

import pytest

from partage.claims.agent.ports import ClaimStep
from partage.model.claim import ClaimRef
from partage.model.ids import MigUuid
from tests.claims.kills.node import DEVICES, MOMENTS, SLICES_OF_ALL, KilledNode, killed_node, names
from tests.edges.kube.store import SLICES, claims_path
from tests.kubelet_script import grpc, held, until

CLAIMS = int(os.environ.get("PARTAGE_CLAIMS", "60"))
KILLS = int(os.environ.get("PARTAGE_KILLS", "10"))
AT_ONCE = 8
STUCK_S = 60.0
"""A claim that is not served after so long is stuck."""

GIB = 1 << 30
Result = dict[str, Any]


@dataclass
class Device:
    """A device as the scheduler counts it. left: GiB, shares, or 1 for all of it. uses: of the counters that
    it uses up together with others, how much; none: it is always there.
    """

    name: str
    mode: str
    most: int
    left: int
    uses: dict[str, int] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What a pod chooses by: that it is made is a kind of its own."""
        return "made" if self.uses else self.mode

    def excludes(self, other: Device) -> bool:
        """Whether nobody can have the other one beside it: both have a memory slice in common."""
        return any(name.startswith("memory-slice-") for name in self.uses.keys() & other.uses.keys())

    def result(self, amount: int, share: str) -> Result:
        found: Result = {
            "request": "gpu",
            "driver": "gpu.partage.dev",
            "pool": "n1-partage",
            "device": self.name,
        }
        match self.mode:
            case "amounts":
                consumed = {"memory": f"{amount}Gi", "cores": "0"}
            case "replicas":
                consumed = {"shares": str(amount), "memory": "0"}
            case _:
                return found
        return {**found, "shareID": share, "consumedCapacity": consumed}


def device_of(found: Any) -> Device:
    mode = found["attributes"]["mode"]["string"]
    most = {"amounts": "memory", "replicas": "shares"}.get(mode)
    amount = 1 if most is None else int(found["capacity"][most]["value"].removesuffix("Gi"))
    uses = {
        name: int(counter["value"])
        for use in found.get("consumesCounters", ())
        for name, counter in use["counters"].items()
    }
    return Device(found["name"], mode, amount, amount, uses)


def without_names(sentence: str) -> str:
    """So that equal ones can be counted."""
    return re.sub(r"team/\S+|/tmp/\S+|the helper is away: .*", "...", sentence)


@dataclass
class Given:
    """What a claim has, as the runtime and the kubelet see it."""

    answer: list[tuple[str, str, tuple[str, ...]]]
    cdi: Any

    @property
    def env(self) -> dict[str, str]:
        (device,) = self.cdi["devices"]
        return dict(line.split("=", 1) for line in device["containerEdits"]["env"])

    @property
    def slot(self) -> str:
        """Its namespace of MPS; empty: it has none."""
        (device,) = self.cdi["devices"]
        pipes = [
            one["hostPath"]
            for one in device["containerEdits"].get("mounts", ())
            if "/pipe/" in one["hostPath"]
        ]
        below = [path.rpartition("/")[2] for path in pipes]
        return next((name for name in below if name.startswith("slot")), "")


@dataclass
class Run:
    """One run. counters: what is left of them. given: by UID, what is prepared for pods that run. ended:
    claims that had all of it. wait_for_all: pods that want all of a GPU of which others have MIG devices: no
    more of these are given meanwhile, so that MIG mode is turned off and on.
    """

    node: KilledNode
    random: Random
    devices: dict[str, Device] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    given: dict[str, Given] = field(default_factory=dict)
    pods: dict[str, ClaimRef] = field(default_factory=dict)
    told: Counter[str] = field(default_factory=Counter)
    begun: int = 0
    ended: int = 0
    wait_for_all: int = 0
    longest_s: float = 0.0
    kills_done: bool = False

    # --- a pod's life ---

    async def pods_come(self) -> None:
        while self.begun < CLAIMS or not self.kills_done:
            self.begun += 1
            await self._pod(f"c{self.begun}")
            self.ended += 1

    async def _pod(self, name: str) -> None:
        device, amount = await self._allocated()
        claim = self._claim(name, device.result(amount, f"{name}-s"))
        began_s = time.monotonic()
        self._has(claim, device, await self._prepared(claim))
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)
        self.pods[name] = claim
        self._tell_pods()
        if self.random.random() < 0.3:
            assert await self._prepared(claim) == self.given[claim.uid].answer, "another answer"
        if self.random.random() < 0.2:
            await self._rival(f"{name}-rival", device)
        await asyncio.sleep(self.random.random() * 0.2)
        assert self.node.cdi(claim.uid) == self.given[claim.uid].cdi, "the CDI file is another one"
        self._is_there(device, self.given[claim.uid])
        del self.pods[name]
        self._tell_pods()
        # Its pod has ended. The agent may give it to the next claim before this one's answer is read here.
        del self.given[claim.uid]
        await self._taken_back(claim)
        device.left += amount
        self.counters.update(device.uses)
        self.node.store.remove(claims_path("team"), name)

    async def _rival(self, name: str, device: Device) -> None:
        """A scheduler that has lost count gives all of a device of which a claim has a part, or a device that
        cannot be made beside one that a claim has.
        """
        if device.uses:
            device = self.random.choice([one for one in self.devices.values() if one.excludes(device)])
        rival = self._claim(name, device.result(device.most, f"{name}-s"))
        answer = await self._answer(rival)
        assert answer.error, f"{device.name} was given twice: {names(answer.devices)}"
        self.told["a rival is refused"] += 1
        await self._taken_back(rival)
        self.node.store.remove(claims_path("team"), name)

    # --- the scheduler and the kubelet ---

    async def _allocated(self) -> tuple[Device, int]:
        """What the scheduler gives to the next pod, as soon as something is free."""
        kind = self.random.choice(["amounts", "replicas", "whole", "mig", "made"])
        wanted = {"amounts": self.random.randint(1, 16), "replicas": self.random.randint(1, 2)}.get(kind, 1)
        wants_all = kind == "made" and self.random.random() < 0.3

        def free() -> Device | None:
            if kind == "made" and self.wait_for_all and not wants_all:
                return None
            fits = [
                one
                for one in self.devices.values()
                if one.kind == kind
                and one.left >= wanted
                and self._beside_others(one)
                and (kind != "made" or wants_all == (one.mode == "whole"))
            ]
            return self.random.choice(fits) if fits else None

        self.wait_for_all += wants_all
        device = await until(free, what=f"a free device for {kind}", limit_s=STUCK_S)
        self.wait_for_all -= wants_all
        device.left -= wanted
        self.counters.subtract(device.uses)
        return device, wanted

    def _beside_others(self, device: Device) -> bool:
        return all(self.counters[name] >= amount for name, amount in device.uses.items())

    def _claim(self, name: str, result: Result) -> ClaimRef:
        claim = {
            "metadata": {"name": name, "namespace": "team"},
            "spec": {},
            "status": {
                "allocation": {"devices": {"results": [result], "config": []}},
                "reservedFor": [{"resource": "pods", "name": name, "uid": f"pod-{name}"}],
            },
        }
        return ClaimRef("team", name, self.node.store.put(claims_path("team"), claim)["metadata"]["uid"])

    def _tell_pods(self) -> None:
        answer = held({f"team/{name}": {"main": {}} for name in self.pods})
        for pod in answer.pod_resources:
            pod.containers[0].dynamic_resources.add(claim_name=pod.name, claim_namespace="team")
        self.node.kubelet.pod_resources = answer

    async def _prepared(self, claim: ClaimRef) -> list[tuple[str, str, tuple[str, ...]]]:
        """As the kubelet asks: again and again."""
        end_s = time.monotonic() + STUCK_S
        while (answer := await self._answer(claim)).error:
            self.told[without_names(answer.error)] += 1
            assert time.monotonic() < end_s, f"{claim.name} is stuck: {answer.error}\n{self.node.said()}"
            await asyncio.sleep(0.05)
        return names(answer.devices)

    async def _answer(self, claim: ClaimRef) -> Any:
        """Of the first agent that lives long enough."""
        return (await self._asked("prepare", claim))[claim.uid]

    async def _taken_back(self, claim: ClaimRef) -> None:
        end_s = time.monotonic() + STUCK_S
        while refused := (await self._asked("unprepare", claim))[claim.uid]:
            self.told[without_names(refused)] += 1
            assert time.monotonic() < end_s, f"{claim.name} is stuck: {refused}\n{self.node.said()}"
            await asyncio.sleep(0.05)

    async def _asked(self, method: str, claim: ClaimRef) -> Any:
        end_s = time.monotonic() + STUCK_S
        while True:
            try:
                return await self.node.call(method, claim)
            except grpc.RpcError:
                self.told["the agent was killed in the call, or away"] += 1
            assert time.monotonic() < end_s, f"{claim.name} is stuck\n{self.node.said()}"
            await asyncio.sleep(0.05)

    # --- what is seen from outside ---

    def _has(self, claim: ClaimRef, device: Device, answer: list[tuple[str, str, tuple[str, ...]]]) -> None:
        """The claim's answer and its CDI file belong together, and nobody else has what they give."""
        mine = Given(answer, self.node.cdi(claim.uid))
        ((name, _, cdi_names),) = answer
        assert name == device.name
        assert [one["name"] for one in mine.cdi["devices"]] == [cdi_names[0].partition("=")[2]]
        others = [one for one in self.given.values() if one.answer[0][0] == name]
        shares = [one.env["PARTAGE_SHARES"].split(",") for one in (*others, mine)]
        flat = [share for some in shares for share in some]
        assert len(flat) == len(set(flat)), f"{name} is given twice: {shares}"
        if device.mode == "amounts":
            memory = sum(int(one.env["PARTAGE_MEMORY_BYTES"]) for one in (*others, mine))
            assert memory <= device.most * GIB, f"{name} has {device.most} GiB, and {memory} bytes are given"
        else:
            assert len(flat) <= device.most, f"{name} has {device.most} shares, and {shares} are given"
        uuids = [share for one in self.given.values() for share in one.env["PARTAGE_SHARES"].split(",")]
        assert not device.uses or not {*flat} & {*uuids}, f"{flat} is given twice"
        self._is_there(device, mine)
        if mine.slot:
            assert self.node.slots[mine.slot] == int(mine.env["PARTAGE_MEMORY_BYTES"]), "another limit"
            self.told["a namespace has the claim's memory"] += 1
        self.given[claim.uid] = mine

    def _is_there(self, device: Device, given: Given) -> None:
        """What was made for a claim is on the GPU, and is what its device's name says."""
        if not device.uses:
            return
        gpu, share = self.node.on_demand, given.env["PARTAGE_SHARES"]
        if device.mode == "whole":
            assert (share, gpu.mig_enabled) == (gpu.uuid, False)
            return
        found = {one.uuid: f"{one.profile}@{one.known_placement.start}" for one in gpu.mig_devices}
        start = device.name.rpartition("-")[2]
        said = re.sub("[^0-9a-z@]", "", found.get(MigUuid(share), "nothing"))
        assert device.name.split("-mig-")[1].startswith(said.partition("@")[0] + "-"), (device.name, found)
        assert said.endswith(f"@{start}"), (device.name, found)
        self.told["its MIG device is there"] += 1

    async def nothing_is_left(self, before: Any) -> None:
        node = self.node

        def left() -> list[str]:
            return [
                *(str(path) for path in node.cdi_dir.iterdir() if "claim" in path.name),
                *(str(path) for path in (node.place.state_dir / "claims").iterdir()),
                *(str(row) for row in node.report()["held"]),
                *(f"taints of {name}" for name in node.tainted),
                *(f"namespace {name}" for name in node.slots),
                *(f"MIG device {name}" for name in node.made),
                *(f"place {place}" for place in node.places),
            ]

        try:
            await until(lambda: not left(), limit_s=STUCK_S, what="nothing is left")
        except AssertionError as error:
            raise AssertionError(f"{error}: {left()}\n{node.said()}") from None
        assert await self.gpus() == before
        assert len(node.store.objects[SLICES]) == SLICES_OF_ALL
        assert len(node.devices) == DEVICES

    async def gpus(self) -> Any:
        """What outlives the processes: MIG devices, daemons, time slices. The GPU on demand has no time slice
        while it is in MIG mode, which stays.
        """
        gpus = self.node.gpus
        inventory = await gpus.observe()
        return (
            [mig for gpu in inventory for mig in gpu.mig_devices],
            [(one.gpu, one.phase) for one in await gpus.daemons()],
            [one for one in await gpus.time_slices() if one.gpu != self.node.on_demand.uuid],
        )

    # --- who kills ---

    async def agents_die(self) -> None:
        """Two of three die after a step, each step in its turn; the others at any moment."""
        node, steps = self.node, cycle(self.random.sample(MOMENTS, len(MOMENTS)))
        await node.kill_agent()
        for number in range(1, KILLS - KILLS // 4):
            if number % 3:
                step = next(steps)
                often = isinstance(step, ClaimStep)
                node.start_agent(step, self.random.randint(1, 8 if often else 2))
                await until(node.notice_death, limit_s=STUCK_S, what=f"the agent kills itself after {step}")
            else:
                node.start_agent()
                await self._claims_end(self.random.randint(1, 8))
                await node.kill_agent()
        node.start_agent()

    async def helpers_die(self) -> None:
        for _ in range(KILLS // 4):
            await self._claims_end(max(1, CLAIMS // (KILLS // 4 + 1)))
            await self.node.kill_helper()

    async def _claims_end(self, number: int) -> None:
        wanted = self.ended + number
        await until(lambda: self.ended >= wanted, limit_s=STUCK_S, what=f"{number} more claims")

    async def kills(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.agents_die())
            group.create_task(self.helpers_die())
        self.kills_done = True

    def said(self) -> str:
        killed = self.node.killed
        lines = [
            f"{self.ended} claims, longest prepare {self.longest_s:.1f} s, killed {killed.total()} times:"
        ]
        lines += [f"  {count:4} {what}" for what, count in killed.items()]
        return "\n".join(
            [*lines, "told:", *(f"  {count:4} {what[:140]}" for what, count in self.told.items())]
        )


@pytest.mark.real
@pytest.mark.timeout(1800)
async def test_nothing_is_given_twice_and_nothing_is_left_whoever_is_killed() -> None:
    async with killed_node() as node:
        run = Run(node, Random(CLAIMS * KILLS))
        run.devices = {name: device_of(found) for name, found in node.devices.items()}
        run.counters.update(node.counters)
        before = await run.gpus()
        began_s = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(run.kills())
                for _ in range(AT_ONCE):
                    group.create_task(run.pods_come())
        except* AssertionError as errors:
            raise AssertionError(f"{errors.exceptions}\n{run.said()}\n{node.said()}") from errors
        await run.nothing_is_left(before)
        print(f"\n{time.monotonic() - began_s:.0f} s; {run.said()}")
        after_steps = {step: node.killed[f"agent after {step}"] for step in MOMENTS}
        assert node.killed.total() >= KILLS
        assert sum(after_steps.values()) >= KILLS // 3
