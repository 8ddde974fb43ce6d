"""``plan``, ``apply`` and ``assert`` beside a running agent: one truth, the agent's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.harness import (
    MACHINE,
    REPOSITORY,
    Agent,
    Place,
    healthy,
    ids,
    native,
    place,
    registered,
    running,
    simulated_helper,
    spawn,
)
from tests.agent.hosted import hosted
from tests.kubelet_script import ScriptedKubelet, held, scripted_kubelet, wait_for

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
MPS = native("{select: {index: [0]}, mps: {replicas: 4}}")
PLAIN = native()


class Beside:
    """A node with an agent, and the verbs beside it."""

    def __init__(self, node: Place, kubelet: ScriptedKubelet, agent: Agent) -> None:
        self.node, self.kubelet, self.agent = node, kubelet, agent

    def verb(self, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "partage",
            verb,
            f"--machine={MACHINE}",
            f"--run-dir={self.node.run_dir}",
        ]
        return subprocess.run(
            [*command, *options], capture_output=True, text=True, check=False, cwd=REPOSITORY
        )

    def plan(self, *options: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.verb("plan", "-o", "json", *options).stdout)
        return document

    def policy(self, text: str) -> str:
        path = self.node.root / "another.yaml"
        path.write_text(text)
        return f"--policy={path}"

    def settled(self) -> None:
        def phases() -> list[str]:
            return [gpu["phase"] for gpu in self.agent.report()["gpus"]]

        def in_the_file() -> bool:
            path = self.node.run_dir / "report.json"
            report = json.loads(path.read_text()) if path.exists() else {"gpus": []}
            return [gpu["phase"] for gpu in report["gpus"]] == phases()

        self.agent.wait(lambda: phases() == ["settled"] * 8, "everything settled")
        wait_for(in_the_file, what="the report file, which is written once a second")


@pytest.fixture
def beside() -> Iterator[Beside]:
    with (
        place() as node,
        scripted_kubelet(node.kubelet_dir, node.pod_resources) as kubelet,
        simulated_helper(node),
        hosted(node, machine=None, policy=MPS) as agent,
    ):
        wait_for(lambda: len(healthy(kubelet, SHARED)) == 4, what="four shares")
        found = Beside(node, kubelet, agent)
        found.settled()
        yield found


def acts(plan: dict[str, Any]) -> list[str]:
    return [step["act"] for step in plan["steps"]]


def test_a_settled_agent_has_no_steps_and_its_shares_are_verified(beside: Beside) -> None:
    plan = beside.plan()
    assert (acts(plan), {gpu["phase"] for gpu in plan["gpus"]}) == ([], {"settled"})
    (shared,) = [row for row in beside.agent.report()["resources"] if row["name"] == SHARED]
    # A pod whose processes are root could come, and none has.
    assert (shared["promised"], shared["verified"]) == ("advisory", "guarded")
    assert shared["guarantee"] == "advisory"


def test_another_policy_says_what_would_come_with_it(beside: Beside) -> None:
    assert acts(beside.plan(beside.policy(PLAIN))) == ["stop-daemon", "set-compute-mode"]
    assert acts(beside.plan()) == [], "nothing was changed"


def test_apply_leaves_the_node_to_the_agent_and_says_what_it_would_do(beside: Beside) -> None:
    state = f"--state-dir={beside.node.state_dir}"
    answer = beside.verb("apply", state, beside.policy(PLAIN))
    assert answer.returncode == 3
    assert "the agent of this node owns it" in answer.stderr
    assert "stop the MPS daemon" in answer.stderr
    assert acts(beside.plan()) == []


def test_steps_that_wait_for_a_pod_stay_in_the_plan_until_it_has_ended(beside: Beside) -> None:
    calls = registered(beside.kubelet, SHARED).calls
    assert calls is not None
    share = ids(beside.kubelet, SHARED)[0]
    calls.allocate([share])
    beside.kubelet.pod_resources = held({"default/train": {"main": {SHARED: [share]}}})
    beside.node.write_policy(PLAIN)
    beside.agent.wait(lambda: beside.agent.gpu(0)["phase"] == "waiting", "the pod is waited for")

    def names_the_pod() -> dict[str, Any] | None:
        """The plan, once the report file has it: an Allocate is known before its pod has a name."""
        plan = beside.plan()
        holders = [row["holders"] for row in plan["gpus"][0]["waitingFor"]]
        return plan if holders == [["default/train/main"]] else None

    plan = wait_for(names_the_pod, what="the pod in the report file")
    assert acts(plan) == ["stop-daemon", "set-compute-mode"]
    assert [str(step["detail"]) for step in plan["steps"]] == beside.agent.gpu(0)["steps"]
    beside.kubelet.pod_resources = held({})
    beside.settled()
    wait_for(lambda: acts(beside.plan()) == [], what="nothing left")


def test_a_plan_with_another_policy_goes_by_the_labels_that_the_agent_knows() -> None:
    when = (
        "version: partage/v1\ngpus: [{select: all, when: {label: {pool: a}}, time-slicing: {replicas: 4}}]\n"
    )
    with (
        place() as node,
        scripted_kubelet(node.kubelet_dir, node.pod_resources) as kubelet,
        simulated_helper(node),
        running(spawn(node, "--node-labels=pool=a", machine=None, policy=PLAIN)) as agent,
    ):
        beside = Beside(node, kubelet, agent)
        registered(kubelet, GPU)
        beside.settled()
        policy = beside.policy(when)
        offered = {row["name"]: row["count"] for row in beside.plan(policy)["resources"]}
        assert offered == {SHARED: 32}
        others = {row["name"]: row["count"] for row in beside.plan(policy, "--node-labels=")["resources"]}
        assert others == {GPU: 8}
