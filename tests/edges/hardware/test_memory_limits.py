"""The driver's memory limits of cgroups through NVML: the probe, reading, setting one again.

The driver is the stand-in, whose refusals are those that nvml.h documents. The kernel's tree is a folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from partage.edges.hardware.nvml import NvmlHardware
from partage.errors import HardwareError, NotFound, NotPermitted, Unsupported
from partage.model.driver_limit import (
    LimitAt,
    LimitBackend,
    LimitObstacle,
    LimitSetter,
    LimitState,
    LimitSupport,
    LimitWay,
    SeenLimit,
)
from partage.model.ids import ContainerId
from partage.model.step import SetMemoryLimit
from partage.units import GIB, MIB
from tests.edges.hardware.stub import StubNode

CONTAINER, OTHER = ContainerId("c" * 64), ContainerId("d" * 64)
POD = "kubepods.slice/kubepods-pod0aa9e3a1_0000_4000_8000_000000000001.slice"
HERE = f"{POD}/cri-containerd-{CONTAINER}.scope"
GPU = StubNode.uuid(0)


class LimitNode:
    """A node of branch 615 with one GPU and a tree of cgroup v2."""

    def __init__(self, node: StubNode) -> None:
        self.node = node.add_h100s(2).with_live_mig(0)
        self.root = node.root / "sys/fs/cgroup"
        node.file("sys/fs/cgroup/cgroup.controllers", "cpu memory dmem\n")
        node.file("sys/fs/cgroup/cgroup.procs", "1\n")
        node.file("proc/self/cgroup", "0::/system.slice/partage.service\n")
        node.file("sys/fs/cgroup/system.slice/partage.service/cgroup.type", "domain\n")
        self.hardware = NvmlHardware(node.root, host=node.host)

    def container(self, path: str = HERE, *, dmem: bool = False) -> Path:
        directory = self.root / path
        directory.mkdir(parents=True)
        if dmem:
            (directory / "dmem.max").touch()
        return directory

    async def support(self) -> LimitSupport | None:
        return (await self.hardware.observe()).gpus[0].limits

    async def seen(self, container: ContainerId = CONTAINER) -> SeenLimit:
        (found,) = await self.hardware.limits([LimitAt(container, GPU)])
        return found

    async def set(self, limit_bytes: int = 8 * GIB, container: ContainerId = CONTAINER) -> None:
        await self.hardware.perform(SetMemoryLimit(GPU, container, limit_bytes))

    @property
    def recorded(self) -> list[str]:
        told = self.node.library.with_name("limits.txt")
        return told.read_text().splitlines() if told.exists() else []


@pytest.fixture
async def limits(node: StubNode) -> AsyncIterator[LimitNode]:
    made = LimitNode(node)
    made.node.write(driver="615.71.09", gpu__0__limits="misc")
    yield made
    await made.hardware.close()


# --- the probe ------------------------------------------------------------------------------------


async def test_a_get_that_answers_is_enough(limits: LimitNode) -> None:
    assert await limits.support() == LimitSupport(LimitBackend.MISC)


@pytest.mark.parametrize("address", ["0000:1a:00.0", "00000000:1A:00.0"])
async def test_so_is_the_kernels_list_of_regions(limits: LimitNode, address: str) -> None:
    limits.node.write(gpu__0__limits="dmem")
    limits.node.file("sys/fs/cgroup/dmem.capacity", f"drm/0000:03:00.0/vram0 1\nnvidia/{address}/vidmem 85\n")
    assert await limits.support() == LimitSupport(LimitBackend.DMEM)


@pytest.mark.parametrize("name", ["nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"])
async def test_without_the_function_it_is_the_driver(limits: LimitNode, name: str) -> None:
    limits.node.lacks(name)
    assert await limits.support() == LimitSupport(obstacle=LimitObstacle.DRIVER)


async def test_without_cgroup_v2_it_is_the_kernels_tree(limits: LimitNode) -> None:
    (limits.root / "cgroup.controllers").unlink()
    assert await limits.support() == LimitSupport(obstacle=LimitObstacle.CGROUP_V1)


async def test_on_a_node_of_slurm_the_plugin_sets_them_and_its_files_are_read_anew(
    limits: LimitNode,
) -> None:
    assert (await limits.hardware.observe()).limits_by is None
    plugin = limits.node.root / "etc/slurm/partage_limits.so"
    for name, text in (
        ("slurm.conf", "TaskPlugin=task/cgroup\n"),
        ("cgroup.conf", "ConstrainDevices=yes\n"),
        (plugin.name, ""),
    ):
        limits.node.file(f"etc/slurm/{name}", text)
    without = (await limits.hardware.observe()).limits_by
    assert without is not None
    assert (without.way, "plugstack.conf does not have the line" in without.why) == (None, True)
    limits.node.file("etc/slurm/plugstack.conf", f"required {plugin}\n")
    assert (await limits.hardware.observe()).limits_by == LimitSetter(LimitWay.SPANK)
    assert await limits.support() == LimitSupport(LimitBackend.MISC), "the driver can, whatever Slurm does"


async def test_in_mig_mode_it_is_that_and_it_is_looked_at_again(limits: LimitNode) -> None:
    from partage.model.step import SetMigMode

    await limits.hardware.perform(SetMigMode(GPU, True))
    assert await limits.support() == LimitSupport(obstacle=LimitObstacle.MIG)
    await limits.hardware.perform(SetMigMode(GPU, False))
    assert await limits.support() == LimitSupport(LimitBackend.MISC)


@pytest.mark.parametrize(
    ("params", "controllers", "obstacle"),
    [
        ("RmMemacctMode: 0\n", "cpu dmem", LimitObstacle.MODE),
        ('EnableMSI: 1\nRegistryDwords: "RmMemacctMode=0"\n', "cpu", LimitObstacle.MODE),
        ("RmMemacctMode: 2\n", "cpu memory", LimitObstacle.KERNEL),
        ("RmMemacctMode: 2\n", "cpu dmem", LimitObstacle.SILENT),
        ("RmMemacctMode: 3\n", "cpu", LimitObstacle.SILENT),
        ("", "cpu", LimitObstacle.SILENT),
    ],
)
async def test_a_silent_driver_is_explained(
    limits: LimitNode, params: str, controllers: str, obstacle: LimitObstacle
) -> None:
    limits.node.write(gpu__0__limits=None)
    limits.node.file("proc/driver/nvidia/params", params)
    limits.node.file("sys/fs/cgroup/cgroup.controllers", controllers)
    assert await limits.support() == LimitSupport(obstacle=obstacle)


async def test_a_get_that_fails_otherwise_costs_no_gpu(limits: LimitNode) -> None:
    limits.node.write(fail__nvmlDeviceGetMemoryLimits_v1=999)
    inventory = await limits.hardware.observe()
    assert not inventory.lost
    assert inventory.gpus[0].limits == LimitSupport(obstacle=LimitObstacle.SILENT)


# --- reading and setting --------------------------------------------------------------------------


async def test_a_limit_is_set_on_the_containers_own_cgroup_and_read_back(limits: LimitNode) -> None:
    directory = limits.container()
    limits.container("kubepods.slice/kubepods-pod0aa9e3a1_0000_4000_8000_000000000002.slice/x")
    await limits.set()
    limits.node.write(**{f"gpu__0__cgroup__{directory.name}".replace(".", "."): 3 * GIB})
    assert limits.recorded == [f"0 {directory} 0 {8 * GIB}"]
    found = await limits.seen()
    assert (found.state, found.cgroup) == (LimitState(8 * GIB, 0, 3 * GIB), str(directory))
    assert found.hard_bytes == 8 * GIB


async def test_reading_needs_no_rights_and_setting_does(limits: LimitNode) -> None:
    limits.container()
    limits.node.write(unprivileged=1)
    assert (await limits.seen()).state == LimitState(None, 0, 0)
    with pytest.raises(NotPermitted, match="root or a capability"):
        await limits.set()


async def test_no_file_of_the_kernels_is_written(limits: LimitNode) -> None:
    limits.node.write(gpu__0__limits="dmem")
    directory = limits.container(dmem=True)
    await limits.set()
    assert (directory / "dmem.max").read_text() == ""
    assert limits.recorded


async def test_without_the_kernels_files_there_is_no_limit(limits: LimitNode) -> None:
    """The controller is not on in the cgroup above."""
    limits.node.write(gpu__0__limits="dmem")
    limits.container()
    found = await limits.seen()
    assert (found.state, found.why) == (None, "the driver knows no limit of its cgroup")
    with pytest.raises(HardwareError, match="there is no such object"):
        await limits.set()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (3, "the driver knows no limit of its cgroup"),  # not supported
        (6, "the driver knows no limit of its cgroup"),  # not found
        (17, "the driver knows no limit of its cgroup"),  # the directory went meanwhile
        (4, "no permission"),
        (999, "unknown"),
    ],
)
async def test_a_limit_that_the_driver_does_not_say_was_not_read(
    limits: LimitNode, code: int, why: str
) -> None:
    limits.container()
    await limits.set()
    limits.node.write(fail__nvmlDeviceGetMemoryLimits_v1=code)
    found = await limits.seen()
    assert (found.hard_bytes, found.state, why in found.why) == (None, None, True), found.why


async def test_a_container_that_has_ended_has_none(limits: LimitNode) -> None:
    directory = limits.container()
    await limits.set()
    directory.rmdir()
    found = await limits.seen()
    assert (found.state, found.cgroup) == (None, "")
    with pytest.raises(NotFound, match="has no cgroup"):
        await limits.set()


async def test_a_cgroup_that_a_container_makes_is_not_taken_for_another_one(limits: LimitNode) -> None:
    """A container can make cgroups in its own, with the id of another one as their name."""
    limits.container(f"{HERE}/cri-containerd-{OTHER}.scope")
    assert (await limits.seen(OTHER)).cgroup == ""
    assert (await limits.seen()).cgroup == str(limits.root / HERE)


STEPS = "system.slice/g1_slurmstepd.scope"


@pytest.mark.parametrize(("name", "place"), [("71", "job_71"), ("s5K1KKYAYG5D00", "s5K1KKYAYG5D00")])
async def test_the_limit_of_a_slurm_job_is_that_of_the_cgroup_above_its_steps(
    limits: LimitNode, name: str, place: str
) -> None:
    job = ContainerId(name)
    limits.container(f"{STEPS}/{place}/step_0/user/task_0/slurmstepd.scope/job_72")
    limits.container(f"{STEPS}/job_711/step_0/user")
    await limits.set(GIB, job)
    directory = limits.root / STEPS / place
    assert limits.recorded == [f"0 {directory} 0 {GIB}"]
    assert ((await limits.seen(job)).hard_bytes, (await limits.seen(job)).cgroup) == (GIB, str(directory))
    assert (await limits.seen(ContainerId("72"))).cgroup == "", "a job can make cgroups in its own"


async def test_a_job_in_a_container_is_not_taken_for_one_of_the_nodes(limits: LimitNode) -> None:
    limits.container(f"{HERE}/slurmstepd.scope/job_71/step_0")
    limits.container(f"{POD}/slurmstepd.scope/job_71/step_0")
    assert (await limits.seen(ContainerId("71"))).cgroup == ""


async def test_jobs_are_looked_for_beside_a_job(limits: LimitNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job with a SLUID has a name that is never there: the tree is not walked for it at each look."""
    limits.container(f"{STEPS}/job_71/step_0")
    assert (await limits.seen(ContainerId("71"))).cgroup
    scandir = Mock(wraps=os.scandir)
    monkeypatch.setattr(os, "scandir", scandir)  # what was listed cannot be told from the answers
    limits.container(f"{STEPS}/s5K1KKYAYG5D00/step_0")
    assert (await limits.seen(ContainerId("s5K1KKYAYG5D00"))).cgroup == str(
        limits.root / STEPS / "s5K1KKYAYG5D00"
    )
    assert (await limits.seen(ContainerId("72"))).cgroup == ""
    assert not scandir.called
    shutil.rmtree(limits.root / STEPS)
    limits.container("system.slice/slurmstepd.scope/job_72/step_0")
    assert (await limits.seen(ContainerId("72"))).cgroup, "the scope has another name now"


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's directories take root")
async def test_nor_is_a_cgroup_that_a_user_has_made(limits: LimitNode) -> None:
    """systemd gives each user who logs in a part of the tree."""
    own = limits.container("user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_71")
    os.chown(own, 1000, 1000)
    assert (await limits.seen(ContainerId("71"))).cgroup == ""
    os.chown(own.parent.parent, 1000, 1000)
    os.chown(own, 0, 0)
    assert (await limits.seen(ContainerId("71"))).cgroup == "", "what is below a user's is not looked through"
    of_slurm = limits.container(f"{STEPS}/job_71/step_0").parent
    assert (await limits.seen(ContainerId("71"))).cgroup == str(of_slurm)
    os.chown(limits.container(f"{STEPS}/job_72"), 1000, 1000)
    assert (await limits.seen(ContainerId("72"))).cgroup == "", "nor beside a job of Slurm's"


@pytest.mark.parametrize("limit_bytes", [90 * GIB, 81560 * MIB])
async def test_more_than_the_gpu_has_is_refused(limits: LimitNode, limit_bytes: int) -> None:
    limits.container()
    with pytest.raises(HardwareError, match="does not accept the arguments"):
        await limits.set(limit_bytes)
    assert not limits.recorded


async def test_a_gpu_in_mig_mode_has_none(limits: LimitNode) -> None:
    from partage.model.step import SetMigMode

    limits.container()
    await limits.hardware.perform(SetMigMode(GPU, True))
    assert (await limits.seen()).state is None
    with pytest.raises(Unsupported):
        await limits.set()


async def test_a_driver_that_takes_a_limit_and_does_not_show_it_is_not_believed(limits: LimitNode) -> None:
    limits.container()
    limits.node.library.with_name("limits.txt").symlink_to("/dev/null")
    with pytest.raises(HardwareError, match="does not show it"):
        await limits.set()


async def test_a_namespace_of_cgroups_shows_no_neighbour(limits: LimitNode) -> None:
    """In a container with a cgroup namespace of its own the tree begins with that container."""
    limits.container()
    (limits.root / "cgroup.type").write_text("domain\n")
    found = await limits.seen()
    assert found.state is None
    assert "not the node's root cgroup" in found.why
    with pytest.raises(Unsupported, match="not the node's root cgroup"):
        await limits.set()
