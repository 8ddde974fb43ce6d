"""Scenarios 5 to 7: what a share is worth, in quotas, on unequal GPUs, and in one message to the kubelet."""

from __future__ import annotations

import json
from typing import Any

from partage.units import GIB, MIB
from tests.agent.harness import (
    Place,
    healthy,
    ids,
    native,
    offered,
    registered,
    run_to_end,
)
from tests.agent.hosted import hosted
from tests.kubelet_script import LIMIT_S, ScriptedKubelet, held, wait_for

SHARED = "nvidia.com/gpu.shared"
MESSAGE_BYTES = 4 * MIB
"""The most that a kubelet reads."""


def test_scenario_05_the_number_that_a_quota_counts_is_the_number_that_the_pod_holds(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    """A quota adds up requests. Each share is one, of one size, so the sum is also that of the memory."""
    policy = native("{select: {index: [0]}, time-slicing: {replicas: 8}}")
    policy += "resources: {fail-requests-greater-than-one: false}\n"
    with hosted(node, policy=policy) as agent:
        offered(kubelet, SHARED, 8)
        calls = registered(kubelet, SHARED).calls
        assert calls is not None
        one, three = ids(kubelet, SHARED)[:1], ids(kubelet, SHARED)[1:4]
        memory = {len(some): int(calls.allocate(some).envs["PARTAGE_MEMORY_BYTES"]) for some in (one, three)}
        assert memory[3] == 3 * memory[1]
        assert memory[1] == int(agent.report()["resources"][0]["gpus"][0]["memoryBytes"])
        kubelet.pod_resources = held({"a/one": {"c": {SHARED: one}}, "a/three": {"c": {SHARED: three}}})
        agent.wait(lambda: _held(agent.report()) == {"one": 1, "three": 3}, "as many as were asked for")


def _held(report: dict[str, Any]) -> dict[str, int]:
    """Pod to the number of its shares."""
    pods = [holder["pod"] for row in report["held"] for holder in row["holders"]]
    return {pod: pods.count(pod) for pod in pods}


def test_scenario_06_a_share_of_a_small_gpu_is_limited_by_the_memory_of_that_gpu(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    """24 GB and 80 GB in one node, in four shares each."""
    machine = node.root / "machine.json"
    gpus = [{"name": "NVIDIA L4"}, {"name": "NVIDIA H100 80GB HBM3"}]
    machine.write_text(json.dumps({"version": "partage/v1", "kind": "Machine", "gpus": gpus}))
    policy = native("{select: all, mps: {replicas: 4}}")
    with hosted(node, machine=str(machine), policy=policy) as agent:
        offered(kubelet, SHARED, 8)
        calls = registered(kubelet, SHARED).calls
        assert calls is not None
        rows = agent.report()["gpus"]
        of_gpu = {row["uuid"]: [one for one in ids(kubelet, SHARED) if row["uuid"] in one] for row in rows}
        assert [len(shares) for shares in of_gpu.values()] == [4, 4]
        sizes = [int(calls.allocate(some[:1]).envs["PARTAGE_MEMORY_BYTES"]) for some in of_gpu.values()]
        assert [round(size / GIB, 1) for size in sizes] == [5.6, 19.9]
        agent.wait(
            lambda: [row["mpsDaemons"][0]["memoryBytes"] for row in agent.report()["gpus"]] == sizes,
            "the daemon of each GPU has that limit",
        )


def test_scenario_07_shares_of_a_mebibyte_on_eight_gpus_of_80_gb_are_refused_with_the_number_that_fits(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    code, said = run_to_end(node, policy=native("{select: all, time-slicing: {replicas: 81920}}"))
    assert code == 3
    assert "655,360 shares do not fit into the kubelet's message of 4 MiB" in said
    assert "at most 7,929 for each device" in said
    assert kubelet.registered == []


def test_scenario_07_the_longest_list_that_fits_reaches_the_kubelet(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    with hosted(node, policy=native("{select: all, time-slicing: {replicas: 7929}}")) as agent:
        wait_for(lambda: len(ids(kubelet, SHARED)) == 8 * 7929, 3 * LIMIT_S, "the list")
        watch = registered(kubelet, SHARED).watch
        assert watch is not None
        assert 0.95 * MESSAGE_BYTES < watch.lists[-1].ByteSize() <= MESSAGE_BYTES
        assert len(healthy(kubelet, SHARED)) == 8 * 7929
        agent.wait(lambda: agent.health() == (200, []), "healthy")
