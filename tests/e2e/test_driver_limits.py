"""Memory limits of the driver's, through the real kubelet and runc. The node's hook is the real one, in front
of the stand-in for NVML; the GPUs are simulated, so nothing is read back.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from partage.model.driver_limit import LimitBackend, LimitSupport
from partage.model.gpu import Driver
from partage.model.ids import GpuUuid
from partage.plan.serve.limit_edits import HOOK_NAME
from partage.sim.node.files.load import load_machine
from partage.sim.node.files.machine_writer import machine_text
from partage.units import GIB
from tests.e2e.cluster import GPU, MACHINE, NAMESPACE, SHARED, Cluster, Json
from tests.e2e.tenants import pod
from tests.edges.cdi.limit_hook.node import Kept, built_hook, hook_in_cgroup2, kept_limits
from tests.edges.hardware.conftest import compiled_stub
from tests.edges.hardware.stub import StubNode

pytestmark = pytest.mark.usefixtures("tenants")

POLICY = """\
version: partage/v1
gpus:
  - select: {index: [0]}
    time-slicing: {replicas: 8, memory: hard}
  - select: {index: [1]}
    time-slicing: {clients: [{name: big, memory: 8Gi}, {name: small, memory: 4Gi}], memory: hard}
  - select: rest
    exclusive: {}
"""
SHARE = 5 * GIB
BIG, SMALL = "nvidia.com/gpu.big", "nvidia.com/gpu.small"
OFFERED = {SHARED: 8, BIG: 1, SMALL: 1, GPU: 2}
HOOK = f"/var/lib/partage/bin/{HOOK_NAME}"


class LimitedNode:
    """A node whose runtime runs the hook. driver: what it talks to."""

    def __init__(self, cluster: Cluster) -> None:
        assert cluster.folder is not None
        self.cluster, self.root = cluster, cluster.folder / "driver-of-limits"
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        self.driver = StubNode(self.root / "root", compiled_stub(self.root)).add_h100s(2)
        self.program = built_hook(self.root)

    def machine(self) -> str:
        """Its GPUs, in a file, as the helper sees it."""
        found = load_machine(MACHINE)
        gpus = [replace(gpu, uuid=GpuUuid(gpu.uuid)) for gpu in found.inventory]
        inventory = replace(found.inventory, driver=Driver("615.71.09", "13.4"), gpus=tuple(gpus))
        machine = replace(found, inventory=inventory, limits=LimitSupport(LimitBackend.MISC))
        path = self.driver.root / "machine.json"
        path.write_text(machine_text(machine, as_yaml=False))
        self.driver.write(driver="615.71.09")
        for number in range(2):
            self.driver.write(**{f"gpu.{number}.limits": "misc", f"gpu.{number}.uuid": gpus[number].uuid})
        return f"/driver-root/{path.name}"

    def put_hook(self) -> None:
        """Where the agent of a node with GPUs puts it."""
        place = self.cluster.path_on_node(HOOK)
        place.parent.mkdir(exist_ok=True)
        hook_in_cgroup2(self.program, place)

    def hooks(self) -> list[int]:
        """Pids of hooks that run."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and (entry / "exe").readlink() == self.program:
                    found.append(int(entry.name))
        return found

    def limits(self) -> list[Kept]:
        return kept_limits(self.driver)

    def limit_of(self, name: str, container: str = "main") -> int | None:
        """What the driver was told last of the cgroup of a container that runs."""
        cgroup = self.cgroup_of(self.cluster.pod(name), container)
        return {kept.directory: kept.hard for kept in self.limits()}.get(cgroup)

    def cgroup_of(self, found: Json, container: str) -> str:
        (pid,) = (
            pid
            for pid, status in zip(
                self.cluster.pids_of(found), found["status"]["containerStatuses"], strict=True
            )
            if status["name"] == container
        )
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        return "/sys/fs/cgroup" + next(line[3:] for line in lines if line.startswith("0::"))

    def restarted(self, name: str) -> None:
        """Kill the container, and wait for the next one."""
        found = self.cluster.pod(name)
        self.cluster.kill_container(found, "main")
        self.until_runs(name, found["status"]["containerStatuses"][0]["containerID"])

    def until_runs(self, name: str, before: str = "") -> None:
        """Wait until its container runs, and is another one than before."""

        def runs() -> bool:
            (status,) = self.cluster.pod(name)["status"]["containerStatuses"]
            return status.get("containerID") != before and "running" in status["state"]

        self.cluster.until(f"{name} runs", runs, timeout_s=120)


@pytest.fixture(scope="module")
def limited(cluster: Cluster) -> Iterator[LimitedNode]:
    if not cluster.own:
        pytest.skip("the node's hook and cgroups are looked at")
    made = LimitedNode(cluster)
    try:
        install_limited(made)
        yield made
    finally:
        cluster.uninstall()
    shutil.rmtree(made.root)


def install_limited(node: LimitedNode) -> None:
    """The chart on it, once it offers its shares."""
    node.cluster.install(
        hardware={"machine": node.machine()},
        config={"map": {"default": POLICY}},
        driverRoot=str(node.driver.root),
    )
    node.put_hook()
    node.cluster.until_allocatable(OFFERED)


def _tenant(name: str, **spec: Any) -> Json:
    return pod(name, {SHARED: 1}, **spec)


def test_eight_tenants_of_one_gpu_have_their_limits(limited: LimitedNode) -> None:
    node = limited.cluster
    names = [f"tenant-{number}" for number in range(8)]
    node.apply(*map(_tenant, names))
    for name in names:
        node.until_phase(name, "Running")
    assert [limited.limit_of(name) for name in names] == [SHARE] * 8
    assert {kept.soft for kept in limited.limits()} == {0}
    assert node.environment("tenant-0")["PARTAGE_GUARANTEE"] == "hard"


def test_two_resources_of_one_gpu_in_one_container_have_the_sum(limited: LimitedNode) -> None:
    """The kubelet asks for each of them, and hands both names on."""
    limited.cluster.apply(pod("both", {BIG: 1, SMALL: 1}, restartPolicy="Always"))
    limited.cluster.until_phase("both", "Running")
    assert limited.limit_of("both") == 12 * GIB
    limited.restarted("both")
    assert limited.limit_of("both") == 12 * GIB


def test_an_init_container_and_one_that_starts_again_have_them(limited: LimitedNode) -> None:
    node, before = limited.cluster, len(limited.limits())
    init = _tenant("unused", command=("true",))["spec"]["containers"][0] | {"name": "init"}
    node.apply(_tenant("again", initContainers=[init], restartPolicy="Always"))
    node.until_phase("again", "Running")
    found = node.pod("again")
    (ended,) = found["status"]["initContainerStatuses"]
    of_init = [kept for kept in limited.limits()[before:] if ended["containerID"][13:] in kept.directory]
    assert [kept.hard for kept in of_init] == [SHARE]
    assert limited.limit_of("again") == SHARE
    limited.restarted("again")
    assert limited.limit_of("again") == SHARE
    assert len({kept.directory for kept in limited.limits()[before:]}) == 3


def test_a_container_whose_limit_the_driver_refuses_does_not_start(limited: LimitedNode) -> None:
    node = limited.cluster
    limited.driver.write(**{"gpu.0.code": 15})
    try:
        node.apply(_tenant("refused"))

        def told() -> bool:
            return any(
                f"{HOOK_NAME}: looking for the GPU" in line for line in node.events("Failed", "refused")
            )

        node.until("its events say why", told)
        assert node.pod("refused")["status"]["phase"] != "Running"
    finally:
        limited.driver.write(**{"gpu.0.code": None})


@pytest.mark.parametrize(
    "step",
    ["nvmlDeviceGetHandleByUUID", "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"],
)
def test_a_hook_that_is_killed_in_a_step_starts_nothing_and_the_next_one_does(
    limited: LimitedNode, step: str
) -> None:
    """Before a limit is set, while it is, and before it was read back."""
    node, driver = limited.cluster, limited.driver
    driver.library.with_name("hangs.txt").unlink(missing_ok=True)
    driver.write(**{f"hang.{step}": 50_000})
    try:
        node.apply(_tenant("step", restartPolicy="Always"))
        node.until("the hook is in its step", lambda: limited.hooks() and driver.hangs_in() == step)
        (status,) = node.pod("step")["status"]["containerStatuses"]
        assert "running" not in status["state"]
        for pid in limited.hooks():
            os.kill(pid, signal.SIGKILL)

        def ended() -> bool:
            (status,) = node.pod("step")["status"]["containerStatuses"]
            return "hook" in json.dumps(status)

        node.until("its start failed", ended, timeout_s=90)
        (status,) = node.pod("step")["status"]["containerStatuses"]
        assert "running" not in status["state"]
    finally:
        driver.write(**{f"hang.{step}": None})
        for pid in limited.hooks():  # of a start again, which would hang on
            os.kill(pid, signal.SIGKILL)
    limited.until_runs("step")
    assert limited.limit_of("step") == SHARE


def test_pods_that_start_while_the_agent_is_killed_have_them_or_do_not_run(limited: LimitedNode) -> None:
    node = limited.cluster
    names = [f"killed-{number}" for number in range(6)]
    node.apply(*map(_tenant, names))
    agent = node.component("agent")["metadata"]["name"]
    node.kubectl("delete", "pod", "-n", NAMESPACE, agent, "--grace-period=0", "--force")

    def settled() -> list[str]:
        phases = node.phases()
        assert set(phases.values()) <= {"Running", "Failed"}, phases
        return [name for name, phase in phases.items() if phase == "Running"]

    running = node.until("each runs or was refused", settled, timeout_s=120)
    assert [limited.limit_of(name) for name in running] == [SHARE] * len(running)
    node.until_allocatable(OFFERED)


def test_after_an_uninstall_a_restart_has_its_limit_and_without_the_hook_it_fails_closed(
    limited: LimitedNode,
) -> None:
    """Also with the agent away: it is the same to the runtime."""
    node = limited.cluster
    node.apply(_tenant("left", restartPolicy="Always"))
    node.until_phase("left", "Running")
    node.run("helm", "uninstall", "partage", "-n", NAMESPACE, "--wait")
    node.until("its pods are gone", lambda: not node.get("pods", "-n", NAMESPACE)["items"])
    limited.restarted("left")
    assert limited.limit_of("left") == SHARE
    hook = node.path_on_node(HOOK)
    hook.rename(hook.with_name("away"))
    node.kill_container(node.pod("left"), "main")

    def failed() -> bool:
        (status,) = node.pod("left")["status"]["containerStatuses"]
        waiting = status["state"].get("waiting") or status["state"].get("terminated") or {}
        return HOOK_NAME in json.dumps(waiting)

    node.until("it does not start without its hook", failed, timeout_s=90)
    hook.with_name("away").rename(hook)
