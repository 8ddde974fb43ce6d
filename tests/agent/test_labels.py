"""An agent whose policy labels choose: over the kubelet's real sockets, labels through the port.

A configuration that is edited to something invalid and back, and a label that is removed and set again, are
what other systems fail at: they stop offering GPUs, or keep the old label's policy for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from partage.agent.kubelet_service import run
from partage.agent.options import AgentOptions, Intervals
from partage.agent.status.readiness import readiness_of
from partage.agent.status.status import AgentStatus
from partage.errors import Unsupported
from partage.plan.report import MigConfigState, PolicyReason, PolicyState, Report
from partage.sim.node.faults import FailCall
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from tests.agent.harness import Place, healthy, ids, offered, registered, running, spawn
from tests.kubelet_script import ScriptedKubelet, held, until, wait_for

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
CHOICE, MIG_CONFIG = "nvidia.com/device-plugin.config", "nvidia.com/mig.config"
PENDING, SUCCESS, FAILED = MigConfigState.PENDING, MigConfigState.SUCCESS, MigConfigState.FAILED
MACHINE = "2xh100-sxm5-80gb"
PLAIN = "version: partage/v1\n"
FOURS = "version: partage/v1\ngpus: [{select: all, time-slicing: {replicas: 4}}]\n"
INTERVALS = Intervals(policy_s=30.0, withdraw_s=0.05, turn_gap_s=0.01, retry_s=0.2, holders_s=0.2)


def mount(directory: Path, **texts: str) -> None:
    """Put a ConfigMap in place as the kubelet does: a directory of its own, to which ``..data`` is moved."""
    directory.mkdir(exist_ok=True)
    content = directory / f"..{len(list(directory.iterdir()))}"
    content.mkdir()
    for name, text in texts.items():
        (content / name).write_text(text, encoding="utf-8")
    beside = directory / "..data_tmp"
    beside.symlink_to(content.name)
    beside.replace(directory / "..data")
    for name in texts:
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")


class Node:
    """The labels of the Node, as the task that watches it tells them; nothing until they are set."""

    def __init__(self) -> None:
        self._know: list[Callable[[Mapping[str, str]], None]] = []
        self._labels: dict[str, str] | None = None

    async def watch(self, know: Callable[[Mapping[str, str]], None]) -> None:
        self._know.append(know)
        if self._labels is not None:
            know(self._labels)
        await asyncio.Event().wait()

    def label(self, **labels: str) -> None:
        names = {"policy": CHOICE, "mig": MIG_CONFIG}
        self._labels = {names[key]: value for key, value in labels.items()}
        for know in self._know:
            know(self._labels)


@asynccontextmanager
async def agent(
    place: Place, node: Node, policy: Path | None, hardware: SimulatedHardware | None = None
) -> AsyncIterator[AgentStatus]:
    """An agent in this process, with the sockets of that place."""
    options = AgentOptions(
        kubelet_dir=place.kubelet_dir,
        pod_resources=place.pod_resources,
        state_dir=place.state_dir,
        run_dir=place.run_dir,
        container_logs=place.container_logs,
        policy=policy,
        intervals=INTERVALS,
    )
    stop, status = asyncio.Event(), AgentStatus(asyncio.get_running_loop().time)
    hardware = hardware or SimulatedHardware(load_machine(MACHINE))
    task = asyncio.create_task(run(options, hardware, stop=stop, status=status, labels=node.watch))
    try:
        await until(lambda: status.report is not None or task.done())
        yield status
    finally:
        stop.set()
        await task


async def follow(status: AgentStatus, seen: list[MigConfigState | None]) -> None:
    """What is said of the label, one after the other."""
    last: Report | None = None
    while True:
        last = await status.until(lambda report: report is not last)  # noqa: B023 - asked at once
        said = last.mig_config.state if last.mig_config else None
        if not seen or seen[-1] is not said:
            seen.append(said)


def reason(status: AgentStatus) -> PolicyReason | None:
    return status.report.policy.reason if status.report else None


async def test_labels_choose_while_the_agent_runs(node: Place, kubelet: ScriptedKubelet) -> None:
    policies, here = node.root / "policies", Node()
    mount(policies, default=PLAIN, fours=FOURS)
    async with agent(node, here, policies) as status:
        # Before labels are known nothing is guessed, and that is said.
        assert (reason(status), kubelet.last(GPU)) == (PolicyReason.LABELS_UNKNOWN, None)
        well = readiness_of(status, INTERVALS)
        assert [one.code for one in well.unhealthy] == ["no-policy"]
        assert "labels-unknown" in [one.code for one in well.degraded]

        here.label()
        await until(lambda: len(healthy(kubelet, GPU)) == 2)
        here.label(policy="fours")
        await until(lambda: len(healthy(kubelet, SHARED)) == 8 and not healthy(kubelet, GPU))
        here.label(policy="nonsense")
        await until(lambda: reason(status) is PolicyReason.UNKNOWN_NAME)
        assert len(healthy(kubelet, SHARED)) == 8
        assert [one.code for one in readiness_of(status, INTERVALS).degraded][:1] == ["policy-unknown"]
        here.label(policy="fours")
        await until(lambda: reason(status) is PolicyReason.IN_FORCE)

        # The ConfigMap is edited; the agent looks by itself every 30 s only.
        mount(policies, default=PLAIN, fours=FOURS.replace("4", "6"))
        await until(lambda: len(healthy(kubelet, SHARED)) == 12)
        mount(policies, default=PLAIN, fours="version: partage/v1\ngpus: 7\n")
        await until(lambda: reason(status) is PolicyReason.WRONG)
        assert len(healthy(kubelet, SHARED)) == 12
        mount(policies, default=PLAIN, fours=FOURS)
        await until(lambda: len(healthy(kubelet, SHARED)) == 8)


async def test_scenario_12_a_label_that_is_removed_and_set_again_takes_no_pod_its_share(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    policies, here = node.root / "policies", Node()
    mount(policies, default=PLAIN, fours=FOURS)
    async with agent(node, here, policies) as status:
        here.label(policy="fours")
        await until(lambda: len(healthy(kubelet, SHARED)) == 8)
        share = healthy(kubelet, SHARED)[0]
        kubelet.pod_resources = held({"team/train": {"main": {SHARED: [share]}}})
        await status.until(lambda report: bool(report.entries))
        here.label()
        await until(lambda: len(healthy(kubelet, GPU)) == 1, 20)
        await until(lambda: ids(kubelet, SHARED) == [share], 20)
        assert not healthy(kubelet, SHARED), "it was to be given to somebody else"
        here.label(policy="fours")
        await until(lambda: len(healthy(kubelet, SHARED)) == 8 and not healthy(kubelet, GPU), 20)
        assert reason(status) is PolicyReason.IN_FORCE


async def test_a_new_agent_serves_what_the_old_one_did_before_it_knows_labels(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    policies, here = node.root / "policies", Node()
    mount(policies, default=PLAIN, fours=FOURS)
    here.label(policy="fours", mig="all-3g.40gb")
    hardware = SimulatedHardware(load_machine(MACHINE))
    mig = "nvidia.com/mig-3g.40gb.shared"
    async with agent(node, here, policies, hardware):
        await until(lambda: len(healthy(kubelet, mig)) == 16, 20)
    async with agent(node, Node(), policies, hardware) as status:  # no API server
        await until(lambda: len(healthy(kubelet, mig)) == 16, 20)
        assert status.report is not None
        assert status.report.policy.state is PolicyState.LAST_GOOD
        assert not healthy(kubelet, GPU)
        assert not [one for one in readiness_of(status, INTERVALS).unhealthy if one.code == "no-policy"]


@pytest.mark.parametrize("policy", [None, PLAIN])
async def test_a_layout_by_label_is_made_and_what_the_hardware_refuses_is_tried_again(
    node: Place, kubelet: ScriptedKubelet, policy: str | None
) -> None:
    if policy is not None:
        node.write_policy(policy)
    here, hardware = Node(), SimulatedHardware(load_machine(MACHINE))
    seen: list[MigConfigState | None] = []
    async with agent(node, here, node.policy if policy else None, hardware) as status:
        await until(lambda: len(healthy(kubelet, GPU)) == 2)
        following = asyncio.create_task(follow(status, seen))
        await hardware.inject(FailCall("perform", Unsupported("the driver says no"), times=2))
        here.label(mig="all-1g.10gb")
        await until(lambda: len(healthy(kubelet, "nvidia.com/mig-1g.10gb")) == 14, 20)
        await until(lambda: seen[-1] is SUCCESS)
        here.label(mig="all-disabled")
        await until(lambda: len(healthy(kubelet, GPU)) == 2, 20)
        await until(lambda: seen[-1] is SUCCESS)
        here.label()
        await until(lambda: seen[-1] is None)
        following.cancel()
    assert [one for one in seen if one is not None] == [PENDING, FAILED, SUCCESS, PENDING, SUCCESS]


def test_a_process_takes_its_policy_from_a_directory(node: Place, kubelet: ScriptedKubelet) -> None:
    policies = node.root / "policies"
    mount(policies, default=PLAIN, fours=FOURS)
    options = [f"--policy={policies}", "--node-labels", f"{CHOICE}=fours"]
    with running(spawn(node, *options, machine=MACHINE)) as one:
        registered(kubelet, SHARED)
        offered(kubelet, SHARED, 8)
        assert one.report()["policy"]["chosenBy"] == f"label {CHOICE}"
        mount(policies, default=PLAIN, fours=FOURS.replace("4", "3"))
        offered(kubelet, SHARED, 6)
        (policies / "..data").unlink()
        wait_for(lambda: one.metric('partage_policy_reason{reason="unknown-name"}') == 1.0, what="said")
        assert one.metric("partage_policy_valid") == 0.0
        assert one.health()[0] == 200
        offered(kubelet, SHARED, 6)


def test_a_directory_that_chooses_nothing_ends_a_process_without_a_cluster(node: Place) -> None:
    policies = node.root / "policies"
    mount(policies, a=PLAIN, b=FOURS)
    with running(spawn(node, f"--policy={policies}", machine=MACHINE, http=False)) as one:
        assert one.finish() == 2
        assert "no policy is chosen" in "".join(one.log)
