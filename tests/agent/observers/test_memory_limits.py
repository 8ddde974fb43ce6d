"""Limits of the driver's in a whole agent: what is said before, while and after a container has one.

The hook is the simulation's: it sets a limit when a container begins, or does not.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from partage.cli.main import run
from partage.sim.node.faults import HideProcesses, LoseLimits, Vacate
from partage.sim.node.files.machine_file import read_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.sim.node.machine import Machine
from partage.units import GIB, MIB
from tests.agent.harness import Place, ids, native, registered, simulated_helper
from tests.agent.hosted import HostedAgent, hosted
from tests.agent.tenants import NOTEBOOK, TRAIN, works, write_logs
from tests.kubelet_script import ScriptedKubelet, held

SHARED = "nvidia.com/gpu.shared"
HARD = native("{select: all, time-slicing: {replicas: 4, memory: hard}}")
SHARE = 20389 * MIB
TEXT = "driver: {driver}\nmemory-limits: {word}\ngpus: [{{name: NVIDIA H100 80GB HBM3}}]"


def machine(word: str = "misc", driver: str = "615.71.09") -> Machine:
    return read_machine(TEXT.format(word=word, driver=driver).encode(), "m.yaml")


@pytest.fixture
def node(node: Place) -> Place:
    """With the names of its containers."""
    write_logs(node.container_logs)
    return node


def pods(**shares: list[str]) -> Any:
    return held({f"team/{name}": {"main": {SHARED: some}} for name, some in shares.items()})


def guarantee(agent: HostedAgent) -> tuple[str | None, str | None, str | None]:
    """Said, promised and seen of the shares."""
    (row,) = [row for row in agent.report()["resources"] if row["name"] == SHARED]
    return row["guarantee"], row["promised"], row["verified"]


def limits(agent: HostedAgent) -> list[Any]:
    return [row["limit"] for row in agent.report()["held"]]


def share_bytes(agent: HostedAgent, said: str) -> float | None:
    """Memory of a share in the metrics, if they say this of it."""
    body = agent.get("/metrics")[1].decode()
    found = [line for line in body.splitlines() if line.startswith("partage_share_memory_bytes{")]
    return next((float(line.split()[-1]) for line in found if f'guarantee="{said}"' in line), None)


def test_hard_is_said_only_of_what_was_read(node: Place, kubelet: ScriptedKubelet) -> None:
    with simulated_helper(node, machine()) as helper, hosted(node, machine=None, policy=HARD) as agent:
        calls = registered(kubelet, SHARED).calls
        assert calls is not None
        first, second, *_ = ids(kubelet, SHARED)
        assert guarantee(agent) == ("none", "hard", None), "nothing has been read"
        assert calls.allocate([first]).envs["PARTAGE_GUARANTEE"] == "hard", "what is promised"
        helper.inject(replace(works(11, 15 * GIB, mps=False), limit_bytes=SHARE))
        kubelet.pod_resources = pods(train=[first])
        agent.wait(lambda: guarantee(agent) == ("hard", "hard", "hard"), "the limit was read")
        (limit,) = limits(agent)
        assert limit == {"limitBytes": SHARE, "seenBytes": SHARE, "late": False, "reason": "", "sharedBy": 1}
        assert share_bytes(agent, "hard") == SHARE

        calls.allocate([second])
        agent.wait(lambda: guarantee(agent)[2] == "none", "a neighbour that nobody has seen yet", 20)
        assert share_bytes(agent, "hard") is None
        helper.inject(replace(works(12, GIB, NOTEBOOK, mps=False), limit_bytes=SHARE))
        kubelet.pod_resources = pods(train=[first], notebook=[second])
        agent.wait(lambda: guarantee(agent)[2] == "hard", "both were read", 20)


def test_a_lost_limit_is_set_again_late_and_said(
    node: Place, kubelet: ScriptedKubelet, capsys: pytest.CaptureFixture[str]
) -> None:
    with simulated_helper(node, machine()) as helper, hosted(node, machine=None, policy=HARD) as agent:
        registered(kubelet, SHARED)
        first, *_ = ids(kubelet, SHARED)
        helper.inject(replace(works(11, 15 * GIB, mps=False), limit_bytes=SHARE))
        kubelet.pod_resources = pods(train=[first])
        agent.wait(lambda: guarantee(agent)[2] == "hard", "the limit was read")
        helper.inject(LoseLimits(0))
        agent.wait(lambda: [limit["late"] for limit in limits(agent)] == [True], "it was set again", 20)
        assert guarantee(agent)[2] == "hard"
        gpu = agent.gpu(0)["uuid"]
        line = f'partage_memory_limits_repaired_total{{gpu="{gpu}",outcome="set"}}'
        agent.wait(lambda: agent.metric(line) == 1.0, "counted")
        node.in_report_file('"late":true')
        capsys.readouterr()
        file = node.root / "m.yaml"
        file.write_text(TEXT.format(word="misc", driver="615.71.09"))
        assert run(["show", f"--machine={file}", f"--run-dir={node.run_dir}"]) == 0
        assert "the memory limit of team/train, 19.9 GiB, was set late" in " ".join(
            capsys.readouterr().out.split()
        )
        helper.inject(Vacate(0))
        kubelet.pod_resources = pods()
        agent.wait(lambda: guarantee(agent) == ("none", "hard", None), "it went with its container", 20)


BIG, SMALL = "nvidia.com/gpu.big", "nvidia.com/gpu.small"
UNEQUAL = native(
    "{select: all, time-slicing: {clients: [{name: big, memory: 40Gi}, {name: small, memory: 8Gi}], "
    "memory: hard}}"
)


def test_two_resources_in_one_container_have_the_sum_of_their_limits(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    """Each Allocate brings a hook of its own, which adds up; the last one alone, as NVIDIA's hook sets it, is
    not the limit, and is set again.
    """
    with simulated_helper(node, machine()) as helper, hosted(node, machine=None, policy=UNEQUAL) as agent:
        names, shares = [], {}
        for resource in (BIG, SMALL):
            calls = registered(kubelet, resource).calls
            assert calls is not None
            shares[resource] = ids(kubelet, resource)[:1]
            names += [device.name for device in calls.allocate(shares[resource]).cdi_devices]
        grants = {
            json.loads(path.read_text())["devices"][0]["containerEdits"]["hooks"][0]["env"][-1]
            for path in (node.run_dir / "cdi").glob("*limits*")
        }
        assert len(set(names)) == len(grants) == 2, "the runtime drops a name that comes twice"
        helper.inject(replace(works(11, GIB, mps=False), limit_bytes=48 * GIB))
        kubelet.pod_resources = held({"team/train": {"main": shares}})

        def seen() -> list[tuple[int, int | None, bool]]:
            return [
                (limit["limitBytes"], limit["seenBytes"], limit["late"]) for limit in limits(agent) if limit
            ]

        agent.wait(lambda: seen() == [(48 * GIB, 48 * GIB, False)] * 2, "the sum was read", 20)
        helper.inject(LoseLimits(0))
        agent.wait(lambda: seen() == [(48 * GIB, 48 * GIB, True)] * 2, "the sum was set again", 20)


def test_what_is_counted_for_a_cgroup_is_what_the_watchdog_says(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    """A process wants 30 GiB; what it has is counted for its cgroup."""
    with simulated_helper(node, machine()) as helper, hosted(node, machine=None, policy=HARD) as agent:
        registered(kubelet, SHARED)
        first, *_ = ids(kubelet, SHARED)
        helper.inject(replace(works(11, 30 * GIB, mps=False), limit_bytes=SHARE))
        kubelet.pod_resources = pods(train=[first])
        agent.wait(lambda: [limit and limit["seenBytes"] for limit in limits(agent)] == [SHARE], "read")

        def used() -> list[int]:
            return [row["usedBytes"] for row in agent.report()["watch"]["containers"]]

        agent.wait(lambda: used() == [SHARE], "no more than its limit")
        assert agent.report()["watch"]["concerns"] == []


def test_where_the_kernel_counts_no_process_and_no_limit_is_needed(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    """Shares without limits, and processes that cannot be seen: for the watchdog, and for the metrics and
    what rightsize reads.
    """
    plain = native("{select: all, time-slicing: {replicas: 4}}")
    with simulated_helper(node, machine("dmem")) as helper, hosted(node, machine=None, policy=plain) as agent:
        registered(kubelet, SHARED)
        first, *_ = ids(kubelet, SHARED)
        helper.inject(works(11, 3 * GIB, mps=False))
        helper.inject(HideProcesses())
        kubelet.pod_resources = pods(train=[first])

        def watched() -> list[int]:
            return [row["usedBytes"] for row in agent.report()["watch"]["containers"]]

        agent.wait(lambda: watched() == [3 * GIB], "what the kernel counts", 20)
        assert limits(agent) == [None]

        def exported() -> list[float]:
            body = agent.get("/metrics")[1].decode()
            rows = [line for line in body.splitlines() if line.startswith("partage_container_memory_used")]
            return [float(line.split()[-1]) for line in rows]

        agent.wait(lambda: exported() == [3 * GIB], "the same in the metrics", 20)


@pytest.mark.parametrize(
    ("word", "driver", "said"),
    [
        ("misc", "580.95.05", "driver branch 580 has no memory limits"),
        ("off", "615.71.09", "RmMemacctMode is 0"),
        ("cgroup-v1", "615.71.09", "no cgroup v2"),
        ("kernel", "615.71.09", "no dmem controller"),
        ("silent", "615.71.09", "does not answer"),
    ],
)
def test_a_node_that_cannot_promises_nothing_and_asks_for_nothing(
    node: Place, kubelet: ScriptedKubelet, word: str, driver: str, said: str
) -> None:
    with simulated_helper(node, machine(word, driver)) as helper:
        with hosted(node, machine=None, policy=HARD) as agent:
            calls = registered(kubelet, SHARED).calls
            assert calls is not None
            first, *_ = ids(kubelet, SHARED)
            assert calls.allocate([first]).envs["PARTAGE_GUARANTEE"] == "none"
            kubelet.pod_resources = pods(train=[first])
            helper.inject(works(11, GIB, TRAIN, mps=False))
            agent.wait(lambda: agent.gpu(0).get("held") == 1, "held")
            assert guarantee(agent)[:2] == ("none", "none")
            assert limits(agent) == [None]
            assert said in str(agent.report()["policy"]["problems"])
        hardware = helper.hardware
        assert isinstance(hardware, SimulatedHardware)
        assert hardware.calls["limits"] == 0
