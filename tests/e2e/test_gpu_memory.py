"""GPU memory as an amount, through the real scheduler and kubelet: ten pods at once, the agent is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from random import Random

import pytest

from tests.e2e.cluster import MACHINE, NAMESPACE, Cluster, Json
from tests.e2e.tenants import pod

pytestmark = pytest.mark.usefixtures("tenants")

MEMORY = "aliyun.com/gpu-mem"
BY_MEMORY = "version: partage/v1\ngpus:\n  - select: all\n    mps: {unit: 1Gi}\n"
UNITS = 39
"""Of each of the four cards: 40 GiB less 512 MiB."""
SIZES = (1, 2, 3, 5, 8, 12, 16, 20)


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    with cluster.with_chart(hardware={"machine": MACHINE}, config={"map": {"default": BY_MEMORY}}):
        cluster.until_allocatable({MEMORY: 4 * UNITS, "aliyun.com/gpu-count": 4})
        yield cluster


def _kill_agent(node: Cluster) -> None:
    agent = node.component("agent")["metadata"]["name"]
    node.kubectl("delete", "pod", "-n", NAMESPACE, agent, "--grace-period=0", "--force")


def _inspect(node: Cluster) -> list[str]:
    """The lines of ``partage inspect`` in a process of its own, as an admin calls it."""
    command = [sys.executable, "-m", "partage", "inspect", "-d", node.node]
    told = [*command, "--kubeconfig", str(node.kubeconfig)]
    return subprocess.run(told, check=True, capture_output=True, text=True, timeout=30).stdout.splitlines()


def _phase(node: Cluster, name: str) -> Json | None:
    """A pod that runs, or has failed for good."""
    found = node.pod(name)
    return found if found["status"]["phase"] in ("Running", "Failed") else None


def test_ten_pods_of_any_size_at_once_while_the_agent_is_killed(node: Cluster) -> None:
    rng = Random(17)
    asked = {f"amount-{number}": rng.choice(SIZES) for number in range(10)}
    node.apply(*(pod(name, {MEMORY: units}) for name, units in asked.items()))
    _kill_agent(node)
    for name in asked:
        node.until(f"{name} runs or has failed", lambda: _phase(node, name), timeout_s=120)  # noqa: B023
    running = [name for name in asked if node.pod(name)["status"]["phase"] == "Running"]
    assert running, "pods that came while no plugin was there may fail; not all of them"
    environment = {name: node.environment(name) for name in running}
    used: dict[str, int] = defaultdict(int)
    for name, env in environment.items():
        assert env["ALIYUN_COM_GPU_MEM_CONTAINER"] == str(asked[name])
        assert env["ALIYUN_COM_GPU_MEM_DEV"] == "40", "all memory of the card"
        assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={asked[name] * 1024}M"
        ids = env["PARTAGE_SHARES"].split(",")
        assert {one.partition("-_-")[0] for one in ids} == {env["NVIDIA_VISIBLE_DEVICES"]}
        used[env["ALIYUN_COM_GPU_MEM_IDX"]] += len(ids)
    assert all(units <= UNITS for units in used.values()), "a card has given more than it has"

    def agreed() -> bool:
        """The annotation, which is what inspect shows, and the ledger have what the containers have."""
        annotations = node.get("node", node.node)["metadata"]["annotations"]
        memory = json.loads(annotations["partage.dev/gpu-memory"])
        shown = {one["name"]: sum(one["units"]) for one in memory["pods"]}
        assert shown == {name: asked[name] for name in running}
        assert {str(card["index"]): card["used"] for card in memory["cards"] if card["used"]} == dict(used)
        return True

    node.until("ledger and containers agree", agreed)
    described = node.kubectl("describe", "node", node.node)
    (line,) = [line for line in described.splitlines() if line.strip().startswith(f"{MEMORY} ")][-1:]
    assert line.split()[1] == str(sum(asked[name] for name in running))
    inspected = {line.split()[0]: line.split()[2:] for line in _inspect(node) if line.startswith("amount-")}
    assert {name: sum(map(int, amounts)) for name, amounts in inspected.items()} == {
        name: asked[name] for name in running
    }
    for name, env in environment.items():
        assert inspected[name][int(env["ALIYUN_COM_GPU_MEM_IDX"])] == str(asked[name]), "on that card"
    ceilings = {
        str(gpu["index"]): daemon["memoryBytes"]
        for gpu in node.report()["gpus"]
        for daemon in gpu["mpsDaemons"]
    }
    for name, env in environment.items():
        ceiling = ceilings[env["ALIYUN_COM_GPU_MEM_IDX"]]
        assert ceiling is None or ceiling >= asked[name] * 2**30, (
            "the daemon lets the container have its amount"
        )


def test_an_amount_that_no_card_has_is_refused_with_what_is_free_and_not_sent_again(node: Cluster) -> None:
    node.apply(pod("larger", {MEMORY: UNITS + 1}))
    refused = node.until_phase("larger", "Failed")
    assert "the largest GPU of this node has 39 GiB" in refused["status"]["message"]
    node.until("one card is listed", lambda: node.allocatable()[MEMORY] == UNITS)
    node.apply(pod("again", {MEMORY: UNITS + 1}))
    node.until(
        "the scheduler keeps it",
        lambda: "Unschedulable" in json.dumps(node.pod("again")["status"]),
        timeout_s=60,
    )
    node.apply(pod("fits", {MEMORY: UNITS}))
    node.until_phase("fits", "Running")
