"""A cordoned GPU: who holds a share keeps it, nobody gets another one, also after a restart."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from partage.cli.main import run
from tests.agent.harness import MACHINE, healthy, ids, native, registered
from tests.agent.hosted import hosted
from tests.agent.test_cluster import _agent, _kubeconfig, _until
from tests.kubelet_script import held, wait_for

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
HALF = native("{select: all, time-slicing: {replicas: 2}}")


def _cordon(node, *words: str) -> int:
    return run([*words, f"--state-dir={node.state_dir}", f"--machine={MACHINE}"])


def test_held_shares_stay_healthy_and_free_ones_are_given_to_nobody(node, kubelet, capsys):
    with hosted(node, policy=HALF) as agent:
        calls = registered(kubelet, SHARED).calls
        share = ids(kubelet, SHARED)[0]
        assert calls is not None
        calls.allocate([share])
        kubelet.pod_resources = held({"a/train": {"main": {SHARED: [share]}}})
        agent.wait(lambda: agent.gpu(0).get("held") == 1, "held")
        assert _cordon(node, "cordon", "0") == 0
        wait_for(lambda: len(healthy(kubelet, SHARED)) == 15, what="cordoned")
        assert share in healthy(kubelet, SHARED)
        assert len(ids(kubelet, SHARED)) == 16, "its capacity stays"
        assert agent.gpu(0)["cordoned"]
        assert agent.gpu(0)["phase"] == "settled", "a reason, no error"
        assert agent.health() == (200, [])
        capsys.readouterr()
        node.in_report_file('"cordoned":true')
        assert run(["plan", f"--machine={MACHINE}", f"--run-dir={node.run_dir}"]) == 0
        assert "GPU 0 is cordoned" in capsys.readouterr().out
        assert run(["show", f"--machine={MACHINE}", f"--run-dir={node.run_dir}"]) == 0
        assert "GPU 0 is cordoned" in capsys.readouterr().out
        agent.stop()
    with hosted(node, policy=HALF) as agent:
        registered(kubelet, SHARED)
        wait_for(lambda: len(healthy(kubelet, SHARED)) == 15, what="cordoned from the first list on")
        assert _cordon(node, "uncordon", "0") == 0
        wait_for(lambda: len(healthy(kubelet, SHARED)) == 16, what="uncordoned")
    assert not (node.state_dir / "cordoned").exists()


@pytest.mark.parametrize(("cluster", "healthy_ones"), [(True, 7), (False, 8)])
def test_what_the_node_said_last_counts_while_the_api_server_is_away(node, kubelet, cluster, healthy_ones):
    node.state_dir.mkdir()
    (node.state_dir / "cordoned-by-node").write_text("0\n")
    away: dict[str, Any] = (
        {"kubeconfig": _kubeconfig(node.root, "https://127.0.0.1:1"), "node_name": "n1"} if cluster else {}
    )
    with hosted(node, **away) as agent:
        registered(kubelet, GPU)
        agent.wait(lambda: len(healthy(kubelet, GPU)) == healthy_ones, "from the first list on")


def test_names_of_no_gpu_are_refused(node, capsys):
    assert _cordon(node, "cordon", "8") == 2
    assert "has no GPU 8" in capsys.readouterr().err
    assert _cordon(node, "cordon", "../etc") == 2
    assert run(["cordon", "0", "--node=n1", f"--machine={MACHINE}"]) == 2
    assert not (node.state_dir / "cordoned").exists()


async def test_from_afar_by_an_annotation_that_outlives_the_agent():
    async with _agent(policy=native(), kubelet=True) as (here, api, agent, kubelet):
        await asyncio.to_thread(registered, kubelet, GPU)
        await _until(lambda: api.watched and api.applied, "a watch", agent)
        uuid = ids(kubelet, GPU)[1]
        config = _kubeconfig(here.root, api.server.url)

        def verb(*words: str) -> int:
            """In a process of its own: in this one, asyncio has been imported with TLS."""
            command = [sys.executable, "-m", "partage", *words, "--node=n1", f"--kubeconfig={config}"]
            return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode

        assert await asyncio.to_thread(verb, "cordon", uuid, "3") == 0
        inspect = [sys.executable, "-m", "partage", "inspect", "n1", f"--kubeconfig={config}"]
        asked = await asyncio.to_thread(subprocess.run, inspect, capture_output=True, timeout=60)
        assert asked.returncode == 3, "the same way: it is reached, and shares nothing by memory"
        assert api.annotations["partage.dev/cordoned"] == f"3,{uuid}"
        await _until(lambda: len(healthy(kubelet, GPU)) == 2, "cordoned", agent)
        assert (here.state_dir / "cordoned-by-node").read_text().splitlines() == ["3", uuid]
        assert await asyncio.to_thread(verb, "uncordon", "3") == 0
        await _until(lambda: len(healthy(kubelet, GPU)) == 3, "one of them uncordoned", agent)
        assert api.labels["nvidia.com/gpu.count"] == "4", "what the agent has written stays"
