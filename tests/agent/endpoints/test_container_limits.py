"""Containers with memory limits of the driver: the CDI name in the answer, and the life of its file."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import grpc
import pytest

from partage.agent.endpoints.container_limits import ContainerLimits
from partage.model.driver_limit import DriverLimit, LimitSetter, LimitWay
from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid, ResourceName
from partage.model.policy import DeviceListStrategy, Options
from partage.model.share import AllocationRefused, ContainerAllocation
from partage.plan.serve.limit_edits import limit_set
from partage.units import GIB
from tests.agent.harness import Place, ids, native, registered
from tests.agent.hosted import hosted
from tests.agent.test_left_processes import books
from tests.kubelet_script import ScriptedKubelet, held, wait_for

NAME = ResourceName("nvidia.com/gpu.shared")
POLICY = native("{select: all, time-slicing: {replicas: 4, memory: hard}}")
MACHINE_TEXT = """\
driver: 615.71.09
memory-limits: dmem
gpus: [{name: NVIDIA H100 80GB HBM3}, {name: NVIDIA H100 80GB HBM3}]
"""
A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")
ONE, BOTH = (DriverLimit(A, GIB),), (DriverLimit(A, GIB), DriverLimit(B, 2 * GIB))
NODE = Inventory(driver=None, gpus=())  # type: ignore[arg-type]


def _files(directory: Path) -> dict[str, Any]:
    """The sets that a runtime finds, by name."""
    found = (json.loads(path.read_bytes()) for path in directory.glob("gpu.partage.dev-limits_*.json"))
    return {spec["devices"][0]["name"]: spec["devices"][0]["containerEdits"] for spec in found}


class _Node:
    """What an agent has of limits, on a node of a test. nvidia: NVIDIA's hook comes with the GPUs."""

    def __init__(self, root: Path) -> None:
        self.root, self.cdi, self.nvidia = root, root / "cdi", False
        self.compiled = root / "image"
        self.compiled.write_bytes(b"program")

    def agent(self, *, limited: bool = True, options: Options | None = None) -> ContainerLimits:
        """A new one, after its first turn."""
        made = ContainerLimits(self.root / "state", lambda _: self.cdi, lambda: self.nvidia, self.compiled)
        self.turn(made, limited=limited, options=options)
        return made

    def turn(self, agent: ContainerLimits, *, limited: bool = True, options: Options | None = None) -> None:
        agent.request(NODE, options or Options(), wanted=limited)


@pytest.fixture
def node_of_limits(tmp_path: Path) -> _Node:
    """A node."""
    return _Node(tmp_path)


def _asked(limits: tuple[DriverLimit, ...]) -> ContainerAllocation:
    return ContainerAllocation(cdi_devices=("nvidia.com/gpu=0",), limits=limits)


def test_a_node_without_limits_has_nothing_of_them(node_of_limits: _Node) -> None:
    agent = node_of_limits.agent(limited=False)
    assert agent.trouble == ""
    assert not (node_of_limits.root / "state").exists()
    assert not node_of_limits.cdi.exists()


def test_the_file_is_there_before_the_answer_and_names_the_nodes_hook(node_of_limits: _Node) -> None:
    agent = node_of_limits.agent(options=Options(driver_root="/run/nvidia/driver"))
    hook = node_of_limits.root / "state/bin/partage-limit-hook"
    assert hook.read_bytes() == b"program"
    answer = agent.limited(_asked(BOTH), NAME)
    # Ours last: what NVIDIA's hook sets by a tenant's variables does not stay.
    assert answer.cdi_devices == ("nvidia.com/gpu=0", limit_set(BOTH, NAME).device)
    (edits,) = _files(node_of_limits.cdi).values()
    assert edits["hooks"][0]["path"] == str(hook)
    assert edits["hooks"][0]["args"][1:] == [
        "set", "--driver-root=/run/nvidia/driver", f"GPU-a={GIB}", f"GPU-b={2 * GIB}",
    ]  # fmt: skip


def test_the_same_limits_write_nothing_again(node_of_limits: _Node) -> None:
    agent = node_of_limits.agent()
    agent.limited(_asked(ONE), NAME)
    (file,) = node_of_limits.cdi.iterdir()
    before = file.stat().st_ino
    agent.limited(_asked(ONE), NAME)
    assert file.stat().st_ino == before


def test_two_resources_of_a_container_have_names_of_their_own(node_of_limits: _Node) -> None:
    """The kubelet and containerd drop a name that comes twice, and the hook adds what is granted."""
    agent = node_of_limits.agent()
    names = [agent.limited(_asked(ONE), ResourceName(name)).cdi_devices[-1] for name in ("a/a", "a/b")]
    grants = [edits["hooks"][0]["env"][-1] for edits in _files(node_of_limits.cdi).values()]
    assert {f"PARTAGE_GRANT={name.partition('=')[2]}" for name in names} == set(grants)
    assert len(set(grants)) == 2


def test_a_full_disk_refuses_the_pod_and_not_the_next_one(node_of_limits: _Node) -> None:
    agent = node_of_limits.agent()
    node_of_limits.cdi.write_text("in the way")
    with pytest.raises(AllocationRefused, match="cannot be set before it starts: cannot write the CDI file"):
        agent.limited(_asked(ONE), NAME)
    node_of_limits.cdi.unlink()
    agent.limited(_asked(ONE), NAME)
    assert _files(node_of_limits.cdi).keys() == {limit_set(ONE, NAME).name}


def test_the_next_agent_keeps_them_and_after_a_boot_writes_them_again(node_of_limits: _Node) -> None:
    node_of_limits.agent().limited(_asked(BOTH), NAME)
    shutil.rmtree(node_of_limits.cdi)
    node_of_limits.agent(limited=False)  # whatever the policy says now: its pods live
    assert _files(node_of_limits.cdi).keys() == {limit_set(BOTH, NAME).name}


def test_a_newer_agent_gives_them_its_own_hook(node_of_limits: _Node) -> None:
    node_of_limits.agent().limited(_asked(ONE), NAME)
    node_of_limits.compiled.write_bytes(b"newer")
    node_of_limits.agent(options=Options(driver_root="/elsewhere"))
    assert (node_of_limits.root / "state/bin/partage-limit-hook").read_bytes() == b"newer"
    (edits,) = _files(node_of_limits.cdi).values()
    assert "--driver-root=/elsewhere" in edits["hooks"][0]["args"]


def test_a_file_that_somebody_removed_is_written_at_the_next_turn(node_of_limits: _Node) -> None:
    agent = node_of_limits.agent()
    agent.limited(_asked(ONE), NAME)
    shutil.rmtree(node_of_limits.cdi)
    node_of_limits.turn(agent)
    assert _files(node_of_limits.cdi).keys() == {limit_set(ONE, NAME).name}


def test_they_go_when_no_gpu_of_them_has_a_holder(node_of_limits: _Node) -> None:
    agent = node_of_limits.agent()
    agent.limited(_asked(ONE), NAME)
    agent.limited(_asked(BOTH), NAME)
    agent.sweep({B})
    assert _files(node_of_limits.cdi).keys() == {limit_set(BOTH, NAME).name}
    agent.sweep(())
    assert (_files(node_of_limits.cdi), agent.given) == ({}, {})
    assert node_of_limits.agent().given == {}


@pytest.mark.parametrize("step", ["write", "second write", "remove", "second remove"])
def test_an_agent_that_ends_between_two_steps_leaves_a_whole_file_or_none(
    node_of_limits: _Node, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """As kill -9 does. What is left is taken over, and swept once its pod has ended."""

    class Killed(BaseException):
        pass

    agent, left = node_of_limits.agent(), 1 if step.startswith("second") else 0

    def killed(then: Any) -> Any:
        def act(*arguments: Any, **more: Any) -> None:
            nonlocal left
            if not left:
                raise Killed
            left -= 1
            then(*arguments, **more)

        return act

    if step.endswith("remove"):
        agent.limited(_asked(ONE), NAME)
        monkeypatch.setattr(os, "unlink", killed(os.unlink))  # no kill from outside hits this moment
        with pytest.raises(Killed):
            agent.sweep(())
    else:
        monkeypatch.setattr(os, "replace", killed(os.replace))
        with pytest.raises(Killed):
            agent.limited(_asked(ONE), NAME)
    monkeypatch.undo()
    again = node_of_limits.agent()
    assert _files(node_of_limits.cdi).keys() <= {limit_set(ONE, NAME).name}
    again.sweep(())
    kept = node_of_limits.root / "state/limits"
    assert (_files(node_of_limits.cdi), _files(kept)) == ({}, {})


def test_nvidias_hook_is_taken_only_where_ours_cannot_be(node_of_limits: _Node) -> None:
    node_of_limits.nvidia = True
    assert node_of_limits.agent().terms.way is LimitWay.HOOK
    node_of_limits.compiled.unlink()
    assert node_of_limits.agent().terms.way is None, "its hook comes with the CDI names of GPUs alone"
    agent = node_of_limits.agent(options=Options(device_list=(DeviceListStrategy.CDI_CRI,)))
    assert agent.terms.way is LimitWay.NVIDIA
    assert "the hook is not compiled" in agent.trouble
    assert agent.limited(_asked(ONE), NAME) == _asked(ONE)
    assert (agent.setter(NODE).way, agent.setter(NODE).why) == (LimitWay.NVIDIA, agent.trouble)


def test_what_sets_limits_is_known_before_anybody_wants_them_and_after_a_repair(
    node_of_limits: _Node,
) -> None:
    agent = node_of_limits.agent(limited=False)
    assert agent.setter(NODE) == LimitSetter(LimitWay.HOOK)
    assert not (node_of_limits.root / "state").exists(), "nothing is written only to look"
    program = node_of_limits.compiled.read_bytes()
    node_of_limits.compiled.unlink()
    assert "the hook is not compiled" in agent.setter(NODE).why
    node_of_limits.turn(agent)
    node_of_limits.compiled.write_bytes(program)
    assert agent.setter(NODE) == LimitSetter(LimitWay.HOOK)
    assert (node_of_limits.root / "state/bin/partage-limit-hook").exists()


# --- a whole agent -------------------------------------------------------------------------------


@pytest.fixture
def machine(node: Place) -> str:
    """A simulated node whose driver takes memory limits."""
    path = node.root / "machine.yaml"
    path.write_text(MACHINE_TEXT)
    return str(path)


def test_a_pod_has_the_hook_for_as_long_as_it_lives(
    node: Place, kubelet: ScriptedKubelet, machine: str
) -> None:
    cdi = node.run_dir / "cdi"
    with hosted(node, policy=POLICY, machine=machine):
        calls = registered(kubelet, NAME).calls
        assert calls is not None
        mine = ids(kubelet, NAME)[:1]
        answer = calls.allocate(mine)
        (name,) = (device.name for device in answer.cdi_devices)
        gpu, memory = answer.envs["PARTAGE_GPUS"], int(answer.envs["PARTAGE_MEMORY_BYTES"])
        assert name == limit_set([DriverLimit(GpuUuid(gpu), memory)], NAME).device
        assert _files(cdi)[name.partition("=")[2]]["hooks"][0]["args"][-1] == f"{gpu}={memory}"
        kubelet.pod_resources = held({"a/train": {"main": {NAME: mine}}})
    shutil.rmtree(cdi)
    with hosted(node, policy=POLICY, machine=machine) as agent:
        wait_for(lambda: _files(cdi), what="the next agent writes it after a boot")
        agent.wait(lambda: [row["certainty"] for row in agent.report()["held"]] == ["observed"], "held")
        assert _files(cdi)
        kubelet.pod_resources = held({})

        def is_swept() -> bool:
            books(node.kubelet_dir)  # as the kubelet does after each list
            return not list(cdi.glob("gpu.partage.dev-limits_*.json"))

        wait_for(is_swept, what="the pod has ended")


def test_a_pod_is_refused_where_its_limit_cannot_be_written(
    node: Place, kubelet: ScriptedKubelet, machine: str
) -> None:
    with hosted(node, policy=POLICY, machine=machine):
        calls = registered(kubelet, NAME).calls
        assert calls is not None
        (node.run_dir / "cdi").mkdir(exist_ok=True)
        (node.state_dir / "limits").write_text("in the way")
        with pytest.raises(grpc.RpcError, match="its memory limit cannot be set before it starts"):
            calls.allocate(ids(kubelet, NAME)[:1])
