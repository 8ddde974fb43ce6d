"""The real runc runs our hook, and NVIDIA's: limits are in force before a container's first instruction."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.edges.cdi.limit_hook.node import GROUP, PROGRAM, Kept, Runc, built_hook, kept_limits
from tests.edges.hardware.stub import StubNode
from tests.nvidia.packages import toolkit

pytestmark = pytest.mark.real
GPU, OTHER = str(StubNode.uuid(0)), str(StubNode.uuid(1))
GIB = 1 << 30

Hook = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Way:
    """One of the two hooks: how a bundle names it. limits: GPU to bytes."""

    program: Path
    driver: StubNode

    @property
    def ours(self) -> bool:
        return self.program.name == PROGRAM

    def hook(self, limits: Mapping[str, int]) -> Hook:
        root = str(self.driver.root)
        if self.ours:
            words = ["set", f"--driver-root={root}", *(f"{gpu}={limit}" for gpu, limit in limits.items())]
        else:
            words = ["apply-cuda-memory-limits", "--driver-root", root]
            words += [word for gpu in limits for word in ("--gpu-id", gpu)]
        return {"path": str(self.program), "args": [self.program.name, *words], "env": ["LC_ALL=C"]}

    def env(self, limits: Mapping[str, int]) -> tuple[str, ...]:
        """Without a request, and whole MiB."""
        if self.ours:
            return ()
        (limit,) = set(limits.values())
        return "NVIDIA_GPU_MEMORY_REQUEST=0", f"NVIDIA_GPU_MEMORY_LIMIT={limit >> 20}"


@pytest.fixture(params=[PROGRAM, "nvidia-cdi-hook"])
def way(request: pytest.FixtureRequest, hook: Path, driver: StubNode) -> Way:
    """Each of the two."""
    return Way(hook if request.param == PROGRAM else toolkit() / "nvidia-cdi-hook", driver)


@pytest.fixture
def ours(hook: Path, driver: StubNode) -> Way:
    """Where only ours can do it."""
    return Way(hook, driver)


def _bundle(runc: Runc, way: Way, id_: str, limits: Mapping[str, int], *args: str) -> Path:
    # The driver's file is looked at by the container's first instruction.
    mounts = [(way.driver.library.parent, "/driver")]
    return runc.bundle(id_, [way.hook(limits)], *args, env=way.env(limits), mounts=mounts)


LOOK = "cat", "/driver/limits.txt", "/proc/self/cgroup"


def test_the_first_instruction_finds_the_limit_on_its_own_cgroup(way: Way, runc: Runc) -> None:
    limits = {GPU: 8 * GIB, OTHER: 8 * GIB}
    ran = runc.run("c1", _bundle(runc, way, "c1", limits, *LOOK))
    assert ran.returncode == 0, ran.stderr
    leaf = f"/{GROUP}/c1"
    assert f"0::{leaf}" in ran.stdout.splitlines()
    place = f"/sys/fs/cgroup{leaf}"
    assert kept_limits(way.driver) == [Kept(GPU, 0, 8 * GIB, place), Kept(OTHER, 0, 8 * GIB, place)]
    assert [line for line in ran.stdout.splitlines() if place in line] == [
        f"{gpu} {place} 0 {8 * GIB}" for gpu in (0, 1)
    ]


def test_a_container_that_starts_again_has_it_on_its_new_cgroup(way: Way, runc: Runc) -> None:
    """As the kubelet does it, and with an init container before: another container, the same CDI name."""
    for id_ in ("init", "first", "again"):
        ran = runc.run(id_, _bundle(runc, way, id_, {GPU: GIB}, *LOOK))
        assert ran.returncode == 0, ran.stderr
    assert [kept.directory.rpartition("/")[2] for kept in kept_limits(way.driver)] == [
        "init",
        "first",
        "again",
    ]


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"gpu.1.limits": None}, 3),
        ({"unprivileged": 1}, 4),
        ({"gpu.1.uuid": "GPU-gone"}, 6),
        ({"gpu.1.code": 15}, 15),
        ({"init": 9}, 9),
    ],
)
def test_the_container_is_not_created_if_the_driver_refuses(
    way: Way, runc: Runc, keys: dict[str, object], code: int
) -> None:
    way.driver.write(**keys)
    ran = runc.run("c1", _bundle(runc, way, "c1", {GPU: GIB, OTHER: GIB}, "sh", "-c", "echo started"))
    assert ran.returncode != 0
    assert "started" not in ran.stdout
    assert "hook" in ran.stderr
    if way.ours:
        assert f"partage-limit-hook: {'opening' if code == 9 else ''}" in ran.stderr
        assert f"(NVML error {code})" in ran.stderr


def test_each_gpu_of_a_container_has_its_own_limit(ours: Way, runc: Runc) -> None:
    ran = runc.run("c1", _bundle(runc, ours, "c1", {GPU: GIB, OTHER: 5 * GIB}, *LOOK))
    assert ran.returncode == 0, ran.stderr
    assert [(kept.gpu, kept.hard) for kept in kept_limits(ours.driver)] == [(GPU, GIB), (OTHER, 5 * GIB)]


def test_variables_of_the_container_change_nothing_of_ours(ours: Way, runc: Runc) -> None:
    env = ["NVIDIA_GPU_MEMORY_LIMIT=81559", "NVIDIA_GPU_MEMORY_REQUEST=0", "LD_PRELOAD=/bin/busybox"]
    bundle = runc.bundle("c1", [ours.hook({GPU: GIB})], "true", env=env)
    assert runc.run("c1", bundle).returncode == 0
    assert [kept.hard for kept in kept_limits(ours.driver)] == [GIB]


def test_nvidias_takes_the_first_value_of_a_variable(driver: StubNode, runc: Runc) -> None:
    """Programs take the last one, and a CDI file's edits replace the last one: a tenant that names a variable
    twice, in a pod or an image, can keep its own first. So ours is used where it can be.
    """
    theirs = Way(toolkit() / "nvidia-cdi-hook", driver)
    env = ["NVIDIA_GPU_MEMORY_LIMIT=81559", *theirs.env({GPU: GIB})]
    bundle = runc.bundle("c1", [theirs.hook({GPU: GIB})], "true", env=env)
    assert runc.run("c1", bundle).returncode == 0
    assert [kept.hard for kept in kept_limits(driver)] == [81559 << 20]


def test_nvidias_hook_takes_one_variable_alone(driver: StubNode, runc: Runc) -> None:
    """It then sets a soft limit of the same size, which would outlive the cgroup: both are always given."""
    theirs = Way(toolkit() / "nvidia-cdi-hook", driver)
    bundle = runc.bundle("c1", [theirs.hook({GPU: GIB})], "true", env=["NVIDIA_GPU_MEMORY_LIMIT=1024"])
    assert runc.run("c1", bundle).returncode == 0
    assert [(kept.soft, kept.hard) for kept in kept_limits(driver)] == [(GIB, GIB)]


def test_nvidias_hook_refuses_a_request_above_its_limit(driver: StubNode, runc: Runc) -> None:
    """As a tenant can write it: its container does not start."""
    theirs = Way(toolkit() / "nvidia-cdi-hook", driver)
    env = ["NVIDIA_GPU_MEMORY_REQUEST=2048", "NVIDIA_GPU_MEMORY_LIMIT=1024"]
    ran = runc.run("c1", runc.bundle("c1", [theirs.hook({GPU: GIB})], "true", env=env))
    assert ran.returncode != 0
    assert kept_limits(driver) == []


def test_without_a_cgroup_of_version_2_both_refuse(way: Way, tmp_path: Path) -> None:
    """A node that has version 1 alone: what the kernel says of a process there has no line for version 2."""
    lines = tmp_path / "cgroup"
    lines.write_text("4:memory:/docker/c1\n1:name=systemd:/docker/c1\n")
    env = ["PATH=/bin", *way.env({GPU: GIB})]
    (tmp_path / "config.json").write_text(json.dumps({"ociVersion": "1.0.2", "process": {"env": env}}))
    hook = way.hook({GPU: GIB})
    with subprocess.Popen(["sleep", "60"]) as process:
        state = {"ociVersion": "1.0.2", "id": "c1", "status": "creating", "pid": process.pid}
        ended = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c",
             'mount -t tmpfs tmpfs /sys/fs/cgroup && mount --bind "$1" /proc/$2/cgroup && shift 2 && '
             'exec "$@"',
             "sh", lines, str(process.pid), hook["path"], *hook["args"][1:]],
            input=json.dumps({**state, "bundle": str(tmp_path)}), capture_output=True, text=True, check=False,
        )  # fmt: skip
        process.kill()
    assert (ended.returncode, "cgroup" in ended.stderr) == (1, True), ended.stderr
    assert kept_limits(way.driver) == []


def test_the_hook_is_replaced_while_containers_start(ours: Way, runc: Runc, tmp_path: Path) -> None:
    """By rename, as the agent does: each start has one version or the other, and never none or a half."""
    place = tmp_path / "bin" / PROGRAM
    place.parent.mkdir()
    shutil.copy2(ours.program, place)
    newer = built_hook(tmp_path)
    done = threading.Event()

    def replace() -> None:
        versions = [ours.program, newer]
        for turn in range(1_000_000):
            if done.is_set():
                return
            shutil.copy2(versions[turn % 2], place.with_name("new"))
            place.with_name("new").replace(place)

    replacing = threading.Thread(target=replace)
    replacing.start()
    try:
        moved = Way(place, ours.driver)
        ran = [runc.run(f"c{at}", _bundle(runc, moved, f"c{at}", {GPU: GIB}, "true")) for at in range(12)]
    finally:
        done.set()
        replacing.join()
    assert [each.stderr for each in ran if each.returncode] == []
    assert len(kept_limits(ours.driver)) == len(ran)


def test_an_interrupted_start_leaves_no_container_without_a_limit(ours: Way, runc: Runc) -> None:
    """Runc is killed while the driver does not answer the hook: nothing runs in the container."""
    ours.driver.write(**{"hang.nvmlDeviceSetMemoryLimits_v1": 60_000})
    bundle = _bundle(runc, ours, "c1", {GPU: GIB}, "sh", "-c", "echo started")
    started = runc.node.start(
        *runc.command("run", "--bundle", str(bundle), "c1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    hung = ours.driver.library.with_name("hangs.txt")
    while not hung.exists() and started.poll() is None:
        pass
    started.kill()
    printed, _ = started.communicate()
    runc.node.run(*runc.command("delete", "--force", "c1"))
    for pid in runc.node.run("pgrep", "-f", f"{ours.program} set").stdout.split():
        os.kill(int(pid), 9)
    assert b"started" not in printed
    assert kept_limits(ours.driver) == []
