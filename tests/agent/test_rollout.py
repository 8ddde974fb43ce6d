"""A rollout over several nodes: real agents on simulated GPUs, and one API server."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from partage.agent.status.status import AgentStatus
from partage.edges.kube.cluster import ApiCluster
from partage.edges.kube.leases import Rollout, RolloutPlace
from partage.kubernetes.agent.rollout import RolloutMember
from partage.plan.report import UNASKED
from partage.sim.kubelet.device_manager import write_checkpoint
from tests.agent.harness import Agent, AgentProcess, Place, native, place, running, spawn
from tests.agent.hosted import hosted_beside
from tests.agent.test_cluster import _kubeconfig
from tests.edges.kube.store import (
    NODES,
    ObjectStore,
    leases_path,
    object_store,
    rollout_objects,
)

NAMESPACE, NAME = "default", "partage-rollout"
LEASES = leases_path(NAMESPACE)


def shared(replicas: int) -> str:
    return native(f"{{select: all, time-slicing: {{replicas: {replicas}}}}}")


@dataclass
class Fleet:
    """Nodes, by name. holders: of any slot, in the order in which they took one."""

    store: ObjectStore
    stack: ExitStack
    hosts: AsyncExitStack
    places: dict[str, Place] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    processes: dict[str, AgentProcess] = field(default_factory=dict)
    holders: list[str] = field(default_factory=list)

    def noticed(self, collection: str, found: dict[str, Any]) -> None:
        holder = (found.get("spec") or {}).get("holderIdentity") or ""
        if collection == LEASES and holder and self.holders[-1:] != [holder]:
            self.holders.append(holder)

    async def start(
        self,
        name: str,
        machine: str = "1xl4",
        policy: str | None = None,
        *,
        killed_later: bool = False,
        **labels: str,
    ) -> None:
        """killed_later: in a process of its own."""
        if name not in self.places:
            here = self.places[name] = self.stack.enter_context(place())
            write_checkpoint(here.kubelet_dir, {}, {})
            self.store.node(name, **labels)
        here = self.places[name]
        kubeconfig = _kubeconfig(here.root, self.store.server.url)
        if killed_later:
            options = [f"--cluster={kubeconfig}", f"--node-name={name}", f"--rollout={NAME}"]
            process = spawn(here, *options, machine=machine, policy=policy)
            self.agents[name] = self.processes[name] = self.stack.enter_context(running(process))
            return
        where = {"kubeconfig": kubeconfig, "node_name": name, "rollout": NAME}
        self.agents[name] = await self.hosts.enter_async_context(
            hosted_beside(here, machine=machine, policy=policy, **where)
        )

    def note(self, name: str) -> dict[str, Any]:
        meta = self.store.objects[NODES][name]["metadata"]
        found: dict[str, Any] = json.loads(meta.get("annotations", {}).get("partage.dev/rollout", "{}"))
        return found

    def policy_condition(self, name: str) -> str:
        """The reason in the node's condition about its policy."""
        conditions = self.store.objects[NODES][name].get("status", {}).get("conditions", [])
        said: dict[str, str] = {one["type"]: one["reason"] for one in conditions}
        return said.get("PartagePolicyInForce", "")

    def phases(self) -> dict[str, str]:
        return {name: self.note(name).get("phase", "") for name in self.places}

    def replicas(self) -> dict[str, str]:
        nodes = self.store.objects[NODES]
        return {
            name: nodes[name]["metadata"]["labels"].get("nvidia.com/gpu.replicas", "") for name in self.places
        }

    def edit(self, text: str, *names: str) -> None:
        """One edit of the ConfigMap reaches the nodes."""
        for name in names or self.places:
            self.places[name].write_policy(text)

    async def until(self, true_of: Any, what: str) -> None:
        try:
            async with asyncio.timeout(30):
                while not true_of():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            logs = "".join("".join(agent.log[-12:]) for agent in self.agents.values())
            raise AssertionError(f"{what}: {self.phases()} {self.slots()}\n{logs}") from None

    def slots(self) -> list[dict[str, Any]]:
        return [one.get("spec") or {} for one in self.store.objects[LEASES].values()]

    @property
    def free(self) -> bool:
        return not any(one.get("holderIdentity") for one in self.slots())


@asynccontextmanager
async def fleet(slots: int = 1, **settings: str) -> AsyncIterator[Fleet]:
    async with object_store() as store:
        rollout_objects(store, NAMESPACE, NAME, slots, **settings)
        with ExitStack() as stack:
            async with AsyncExitStack() as hosts:
                found = Fleet(store, stack, hosts)
                store.noticed = found.noticed
                yield found


def _all(found: Fleet, phase: str) -> Any:
    return lambda: set(found.phases().values()) == {phase}


async def test_one_edit_changes_one_node_after_the_other_the_canary_first() -> None:
    async with fleet(canary="pool=canary") as nodes:
        for name, pool in (("n1", "a"), ("n2", "canary"), ("n3", "a")):
            await nodes.start(name, policy=shared(2), pool=pool)
        await nodes.until(_all(nodes, "done"), "the first policy waits for nobody")
        assert (nodes.holders, set(nodes.replicas().values())) == ([], {"2"})

        begun = len(nodes.store.server.requests)
        nodes.edit(shared(4))
        await nodes.until(lambda: nodes.free and len(nodes.holders) == 3, "all have changed")
        await nodes.until(_all(nodes, "done"), "all say so")
        await nodes.until(lambda: set(nodes.replicas().values()) == {"4"}, "labels")
        assert nodes.holders[0] == "n2"
        assert sorted(nodes.holders) == ["n1", "n2", "n3"]
        kept = [one["metadata"] for one in nodes.store.objects[LEASES].values()]
        assert kept[0]["labels"] == {"partage.dev/rollout": NAME}, "a Lease keeps what others have written"
        assert kept[0]["annotations"] == {"meta.helm.sh/release-name": "partage"}
        assert nodes.note("n1")["inForce"] == nodes.note("n2")["inForce"] != ""
        assert len(nodes.store.server.requests) - begun < 120


def _verb(found: Fleet, *arguments: str) -> tuple[int, dict[str, Any]]:
    """``partage rollout`` in a process of its own."""
    kubeconfig = next(iter(found.places.values())).root / "kubeconfig"
    command = [sys.executable, "-m", "partage", "rollout", *arguments, "-n", NAMESPACE, "-o", "json"]
    command += ["--kubeconfig", str(kubeconfig)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert not done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def _plan(here: Place) -> str:
    """What ``partage plan`` says beside the agent, in one line: where its lines end, the length of a path in
    them decides.
    """
    command = [sys.executable, "-m", "partage", "plan", "--machine=1xl4", f"--run-dir={here.run_dir}"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return " ".join(said.split())


async def test_a_pause_holds_those_that_have_not_begun_also_after_a_restart() -> None:
    async with fleet() as nodes:
        await nodes.start("n1", policy=shared(2))
        await nodes.start("n2", policy=shared(2), killed_later=True)
        await nodes.until(_all(nodes, "done"), "the first policy")
        assert (await asyncio.to_thread(_verb, nodes))[0] == 0
        code, told = await asyncio.to_thread(_verb, nodes, "pause")
        assert (code, told["pausedBy"]) == (0, "hand")

        nodes.edit(shared(4))
        await nodes.until(_all(nodes, "waiting"), "all wait")
        await nodes.until(lambda: nodes.note("n1")["why"] == "the rollout is paused", "why")
        first = nodes.agents["n1"]
        await asyncio.to_thread(first.wait, lambda: "rollout-paused" in first.degraded(), "degraded")
        report = await asyncio.to_thread(nodes.agents["n1"].report)
        assert (report["policy"]["state"], report["policy"]["reason"]) == ("last-good", "rollout-paused")
        assert report["policy"]["revision"] != report["policy"]["wanted"]
        code, told = await asyncio.to_thread(_verb, nodes)
        assert (code, [row["phase"] for row in told["nodes"]]) == (1, ["waiting", "waiting"])

        metric = 'partage_policy_reason{reason="rollout-paused"}'
        assert await asyncio.to_thread(nodes.agents["n1"].metric, metric) == 1
        await asyncio.to_thread(nodes.places["n1"].in_report_file, '"rollout-paused"')
        assert "the rollout is paused" in await asyncio.to_thread(_plan, nodes.places["n1"])
        await nodes.until(lambda: nodes.policy_condition("n1") == "RolloutPaused", "the condition")

        nodes.processes["n2"].kill()
        await nodes.start("n2", policy=shared(4))
        await asyncio.to_thread(
            nodes.agents["n2"].wait, lambda: "rollout-paused" in nodes.agents["n2"].degraded(), "it waits"
        )
        report = await asyncio.to_thread(nodes.agents["n2"].report)
        assert [row["listed"] for row in report["resources"]] == [2]
        assert set(nodes.replicas().values()) == {"2"}
        assert nodes.holders == []

        assert (await asyncio.to_thread(_verb, nodes, "resume"))[0] == 0
        await nodes.until(lambda: set(nodes.replicas().values()) == {"4"}, "they go on")
        await nodes.until(lambda: nodes.free, "and let go of their slots")
        assert sorted(nodes.holders) == ["n1", "n2"]


async def test_a_node_that_cannot_have_it_stops_the_others_until_a_person_or_an_edit_lets_them_go_on() -> (
    None
):
    second_gpu = native("{select: {index: [1]}, time-slicing: {replicas: 3}}")
    async with fleet() as nodes:
        await nodes.start("n1", "1xl4", policy=shared(2), killed_later=True)
        await nodes.start("n2", "2xl4", policy=shared(2))
        await nodes.until(_all(nodes, "done"), "the first policy")
        nodes.edit(second_gpu, "n1")
        await nodes.until(lambda: nodes.note("n1")["phase"] == "failed", "it does not fit")
        await nodes.until(lambda: not nodes.free, "it says so in its slot")
        nodes.edit(second_gpu, "n2")
        await nodes.until(lambda: "node n1" in nodes.note("n2").get("why", ""), "the other one has stopped")
        code, told = await asyncio.to_thread(_verb, nodes, "status", "--watch")
        assert code == 1
        assert told["stopped"].startswith("node n1: ")
        await nodes.until(lambda: "RolloutStopped" in [one["reason"] for one in nodes.store.events], "event")

        code, told = await asyncio.to_thread(_verb, nodes, "resume")
        assert (code, told["freed"]) == (0, [f"{NAME}-0"])
        await nodes.until(lambda: nodes.note("n2")["phase"] == "done", "it goes on")
        await nodes.until(lambda: nodes.free, "and is done")
        await nodes.until(lambda: nodes.note("n1").get("accepted"), "its failure is taken note of")
        nodes.processes["n1"].kill()
        begun = len(nodes.store.server.requests)
        await nodes.start("n1", "1xl4", policy=second_gpu)

        def asked(method: str, what: str) -> bool:
            return any(one.method == method and what in one.path for one in requests[begun:])

        requests = nodes.store.server.requests
        await nodes.until(lambda: asked("GET", "leases") and asked("PATCH", "nodes/n1"), "it is back")
        assert not asked("GET", "configmaps"), "a restart does not stop the others again"

        nodes.edit(shared(4))
        await nodes.until(_all(nodes, "done"), "another edit")
        await nodes.until(lambda: set(nodes.replicas().values()) == {"4"}, "is in force")


async def test_an_agent_that_is_killed_while_it_changes_goes_on_when_it_comes_back() -> None:
    async with fleet() as nodes:
        await nodes.start("n1", policy=shared(2), killed_later=True)
        await nodes.start("n2", policy=shared(2))
        await nodes.until(_all(nodes, "done"), "the first policy")
        nodes.edit(shared(4), "n1")
        await nodes.until(lambda: nodes.holders == ["n1"], "it has a slot")
        nodes.processes["n1"].process.send_signal(signal.SIGKILL)
        nodes.edit(shared(4), "n2")
        await nodes.until(lambda: nodes.note("n2")["phase"] == "waiting", "the other one waits")
        await asyncio.to_thread(nodes.processes["n1"].finish)
        await nodes.start("n1", policy=shared(4))
        await nodes.until(_all(nodes, "done"), "both are done")
        await nodes.until(lambda: nodes.free, "and have let go of their slots")
        assert nodes.holders == ["n1", "n2"]


async def test_a_lease_that_is_deleted_while_a_node_holds_it_is_no_slot_any_more() -> None:
    """An upgrade of the chart to fewer slots deleted it; the node takes another one for its next change."""
    async with fleet(2) as nodes:
        await nodes.start("n1", policy=shared(2))
        await nodes.until(_all(nodes, "done"), "the first policy")
        nodes.edit(native("{select: {index: [1]}, time-slicing: {replicas: 3}}"))
        await nodes.until(lambda: nodes.note("n1")["phase"] == "failed" and not nodes.free, "it holds a slot")
        nodes.store.remove(LEASES, f"{NAME}-0")
        nodes.edit(shared(4))
        await nodes.until(lambda: nodes.replicas() == {"n1": "4"}, "it has changed")
        await nodes.until(lambda: nodes.free, "and is done")


async def test_a_slot_that_is_found_after_a_reboot_does_not_count_before_it_is_renewed() -> None:
    """The clock of a node that has just booted shows fewer seconds than a slot lasts."""
    judged = asyncio.Event()
    async with fleet() as nodes:
        name = f"{NAME}-0"
        lease = nodes.store.objects[LEASES][name]
        meta = lease["metadata"] | {"annotations": {"partage.dev/revision": "r1"}}
        nodes.store.put(LEASES, {"metadata": meta, "spec": {"holderIdentity": "n1"}})
        rollout = Rollout(ApiCluster(nodes.store.server.config(), "n1"), RolloutPlace(NAMESPACE, NAME))
        member = RolloutMember(
            rollout, "n1", AgentStatus(lambda: 5.0), judge_again=judged.set, ask=lambda: None
        )
        member.node_seen({})
        task = asyncio.create_task(member.run())
        try:
            await nodes.until(judged.is_set, "the slot is found")
            assert member.may_change("r1") == UNASKED
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_what_disturbs_nobody_goes_at_once_and_a_settled_fleet_asks_nothing() -> None:
    async with fleet(paused="true") as nodes:
        await nodes.start("n1", policy=shared(2))
        await nodes.until(_all(nodes, "done"), "the first policy")
        before = nodes.note("n1")["inForce"]
        nodes.edit("# why\n" + shared(2))
        await nodes.until(lambda: nodes.note("n1")["inForce"] != before, "a comment")
        assert nodes.note("n1")["phase"] == "done"
        asked = [one for one in nodes.store.server.requests if "rollout" in one.path or "leases" in one.path]
        assert len(asked) == 1, "an agent looks once, at its start, whether it has left a slot"
        code, told = await asyncio.to_thread(_verb, nodes)
        assert (code, told["pausedBy"]) == (0, "chart")


async def test_while_the_api_server_is_away_a_node_waits_and_goes_on_afterwards() -> None:
    async with fleet() as nodes:
        await nodes.start("n1", policy=shared(2))
        await nodes.until(_all(nodes, "done"), "the first policy")
        await nodes.store.server.stop()
        nodes.edit(shared(4))
        agent = nodes.agents["n1"]
        await asyncio.to_thread(agent.wait, lambda: "rollout-waits" in agent.degraded(), "it waits")
        assert [row["listed"] for row in (await asyncio.to_thread(agent.report))["resources"]] == [2]
        await nodes.store.server.start()
        await nodes.until(lambda: nodes.replicas() == {"n1": "4"}, "it goes on")
        await nodes.until(lambda: nodes.free, "and is done")


def test_where_no_rollout_is_configured_nothing_of_it_is_imported() -> None:
    names = "[one for one in sys.modules if 'rollout' in one or one.endswith(('leases', 'disturbance'))]"
    code = f"import sys, partage.cli.run_agent, partage.kubernetes.agent.own_node; print({names})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
