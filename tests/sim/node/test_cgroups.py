"""The simulated limits of cgroups: every refusal and surprise that is documented of driver and kernel."""

from __future__ import annotations

import pytest

from partage.errors import HardwareError, InputError, NotFound, NotPermitted, Unsupported
from partage.model.driver_limit import (
    NO_LIMIT_BYTES,
    STEP_BYTES,
    LimitAt,
    LimitBackend,
    LimitObstacle,
    LimitState,
    LimitSupport,
)
from partage.model.ids import ContainerId, GpuUuid, JobCgroup
from partage.model.step import SetMemoryLimit
from partage.sim.node.cgroups import CONTEXT_BYTES, AllocationFailed, CgroupTree
from partage.sim.node.faults import LoseLimits, Occupy, SetMig, Vacate
from partage.sim.node.files.machine_file import read_machine
from partage.sim.node.files.machine_writer import machine_rows
from partage.sim.node.hardware import SimulatedHardware
from partage.units import GIB, MIB

GPU, OTHER = GpuUuid("GPU-0"), GpuUuid("GPU-1")
POD, LEAF = "/kubepods/pod", "/kubepods/pod/leaf"
TOTAL = 80 * GIB
BOTH = (LimitBackend.DMEM, LimitBackend.MISC)


def tree(backend: LimitBackend = LimitBackend.DMEM) -> CgroupTree:
    return CgroupTree(backend).made(LEAF)


def limited(of: CgroupTree, path: str, hard_bytes: int, soft_bytes: int = 0) -> CgroupTree:
    return of.with_limit(path, GPU, hard_bytes, soft_bytes, total_bytes=TOTAL)


def allocated(of: CgroupTree, path: str, amount_bytes: int, gpu: GpuUuid = GPU) -> CgroupTree:
    after = of.allocated(path, gpu, amount_bytes)
    assert isinstance(after, CgroupTree)
    return after


@pytest.mark.parametrize("backend", BOTH)
def test_beyond_the_limit_an_allocation_fails_and_nothing_else_happens(backend: LimitBackend) -> None:
    held = allocated(limited(tree(backend), LEAF, 2 * GIB), LEAF, GIB)
    assert held.allocated(LEAF, GPU, GIB + 1) == AllocationFailed(LEAF)
    assert held.limit_of(LEAF, GPU) == LimitState(2 * GIB, 0, GIB)
    assert isinstance(held.allocated(LEAF, OTHER, 10 * GIB), CgroupTree)


def test_memory_comes_in_steps_after_a_context() -> None:
    """So of 2 GiB a process has 1.5 GiB, as others have measured of a limit of 2048 MiB."""
    at = limited(tree(), LEAF, 2 * GIB).started(LEAF, GPU)
    assert isinstance(at, CgroupTree)
    steps = 0
    while isinstance(after := at.allocated(LEAF, GPU, 1), CgroupTree):
        at, steps = after, steps + 1
    assert steps * STEP_BYTES == 1536 * MIB
    assert at.used_bytes(LEAF, GPU) == CONTEXT_BYTES + 1536 * MIB
    tight = limited(tree(), LEAF, CONTEXT_BYTES - MIB)
    assert tight.started(LEAF, GPU) == AllocationFailed(LEAF)


def test_the_kernels_limits_nest_and_the_drivers_own_do_not() -> None:
    def under(backend: LimitBackend) -> CgroupTree:
        return limited(limited(tree(backend), POD, GIB), LEAF, 4 * GIB)

    assert under(LimitBackend.DMEM).allocated(LEAF, GPU, 2 * GIB) == AllocationFailed(POD)
    assert isinstance(under(LimitBackend.MISC).allocated(LEAF, GPU, 2 * GIB), CgroupTree)
    assert under(LimitBackend.MISC).allocated(LEAF, GPU, 5 * GIB) == AllocationFailed(LEAF)


@pytest.mark.parametrize("backend", BOTH)
def test_a_limit_above_counts_for_all_below_and_is_shown_to_nobody(backend: LimitBackend) -> None:
    at = limited(tree(backend).made(f"{POD}/other"), POD, 3 * GIB)
    held = allocated(at, LEAF, 2 * GIB)
    assert held.allocated(f"{POD}/other", GPU, 2 * GIB) == AllocationFailed(POD)
    assert held.shown_total(LEAF, GPU, TOTAL) == TOTAL
    assert limited(held, LEAF, 2 * GIB).shown_total(LEAF, GPU, TOTAL) == 2 * GIB


def test_a_limit_below_what_is_used_evicts_nothing() -> None:
    held = limited(allocated(tree(), LEAF, 4 * GIB), LEAF, 2 * GIB)
    assert held.used_bytes(LEAF, GPU) == 4 * GIB
    assert held.allocated(LEAF, GPU, 1) == AllocationFailed(LEAF)
    assert isinstance(held.freed(LEAF, GPU).allocated(LEAF, GPU, GIB), CgroupTree)


def test_a_limit_goes_with_its_cgroup() -> None:
    held = limited(tree(), LEAF, GIB)
    again = held.removed(LEAF).made(LEAF)
    assert again.limit_of(LEAF, GPU) == LimitState(None, 0, 0)
    with pytest.raises(HardwareError, match="cannot be opened"):
        held.removed(LEAF).limit_of(LEAF, GPU)
    with pytest.raises(HardwareError, match="in use"):
        allocated(held, LEAF, GIB).removed(LEAF)


def test_a_soft_limit_that_is_not_taken_back_stays_above() -> None:
    held = limited(tree(), LEAF, 4 * GIB, 2 * GIB)
    assert held.reserved == {(POD, GPU): 2 * GIB, ("/kubepods", GPU): 2 * GIB}
    assert held.removed(LEAF).reserved == held.reserved
    assert set(limited(held, LEAF, 4 * GIB).reserved.values()) == {0}


def test_no_limit_is_all_ones() -> None:
    held = limited(limited(tree(), LEAF, GIB), LEAF, NO_LIMIT_BYTES)
    assert held.limit_of(LEAF, GPU) == LimitState(None, 0, 0)


def test_every_refusal_of_the_driver() -> None:
    at = tree()
    with pytest.raises(NotPermitted):
        at.with_limit(LEAF, GPU, GIB, total_bytes=TOTAL, root=False)
    with pytest.raises(Unsupported, match="MIG handles"):
        at.with_limit(LEAF, GPU, GIB, total_bytes=TOTAL, mig=True)
    with pytest.raises(Unsupported, match="MIG handles"):
        at.limit_of(LEAF, GPU, mig=True)
    with pytest.raises(HardwareError, match="does not accept"):
        limited(at, LEAF, TOTAL + MIB)
    with pytest.raises(HardwareError, match="does not accept"):
        limited(at, LEAF, GIB, 2 * GIB)
    with pytest.raises(HardwareError, match="cannot be opened"):
        limited(at, "/nowhere", GIB)
    with pytest.raises(Unsupported, match="does not support it"):
        limited(tree(LimitBackend.OFF), LEAF, GIB)
    assert isinstance(tree(LimitBackend.OFF).allocated(LEAF, GPU, TOTAL), CgroupTree)


def test_without_the_kernels_files_nothing_is_found() -> None:
    """The controller has to be on in every cgroup above. The driver's own counting needs no file."""
    for backend, refused in ((LimitBackend.DMEM, True), (LimitBackend.MISC, False)):
        at = CgroupTree(backend).made("/kubepods", delegated=False).made(LEAF)
        if refused:
            with pytest.raises(NotFound, match="no dmem files"):
                limited(at, LEAF, GIB)
            with pytest.raises(NotFound):
                at.limit_of(LEAF, GPU)
        else:
            assert limited(at, LEAF, GIB).limit_of(LEAF, GPU).hard_bytes == GIB
    with pytest.raises(NotFound):
        limited(tree(), "/", GIB)


# --- on a simulated node ----------------------------------------------------------------------------

CONTAINER = ContainerId("c" * 64)
MACHINE = "driver: 615.71.09\nmemory-limits: {word}\ngpus: [{{name: NVIDIA H100 80GB HBM3}}]"


def simulated(word: str, driver: str = "615.71.09") -> SimulatedHardware:
    text = MACHINE.format(word=word).replace("615.71.09", driver)
    return SimulatedHardware(read_machine(text.encode(), "m.yaml"))


async def support(hardware: SimulatedHardware) -> LimitSupport | None:
    return (await hardware.observe()).gpus[0].limits


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("dmem", LimitSupport(LimitBackend.DMEM)),
        ("misc", LimitSupport(LimitBackend.MISC)),
        ("off", LimitSupport(obstacle=LimitObstacle.MODE)),
        ("cgroup-v1", LimitSupport(obstacle=LimitObstacle.CGROUP_V1)),
        ("kernel", LimitSupport(obstacle=LimitObstacle.KERNEL)),
        ("silent", LimitSupport(obstacle=LimitObstacle.SILENT)),
    ],
)
async def test_a_machine_says_what_its_driver_can(word: str, expected: LimitSupport) -> None:
    hardware = simulated(word)
    assert await support(hardware) == expected
    machine = read_machine(MACHINE.format(word=word).encode(), "m.yaml")
    assert machine_rows(machine)["memory-limits"] == word
    assert await support(simulated(word, "595.45.04")) == LimitSupport(obstacle=LimitObstacle.DRIVER)


async def test_in_mig_mode_a_simulated_gpu_has_none() -> None:
    hardware = simulated("dmem")
    await hardware.inject(SetMig(0, ()))
    assert await support(hardware) == LimitSupport(obstacle=LimitObstacle.MIG)


async def test_what_a_process_wants_beyond_the_limit_it_does_not_get() -> None:
    hardware = simulated("misc")
    (gpu,) = (await hardware.observe()).gpus
    for pid, wanted in ((7, 12 * GIB), (8, 12 * GIB)):
        await hardware.inject(
            Occupy(0, pid=pid, memory_bytes=wanted, container=CONTAINER, limit_bytes=16 * GIB)
        )
    assert [row.used_bytes for row in (await hardware.processes()).rows] == [12 * GIB, 4 * GIB]
    (seen,) = await hardware.limits([LimitAt(CONTAINER, gpu.uuid)])
    assert seen.state == LimitState(16 * GIB, 0, 16 * GIB)


async def test_a_lost_limit_is_seen_and_set_again_and_goes_with_the_container() -> None:
    hardware = simulated("misc")
    (gpu,) = (await hardware.observe()).gpus
    at = LimitAt(CONTAINER, gpu.uuid)
    await hardware.inject(Occupy(0, pid=7, memory_bytes=GIB, container=CONTAINER, limit_bytes=16 * GIB))
    await hardware.inject(LoseLimits(0))
    (lost,) = await hardware.limits([at])
    assert lost.state == LimitState(None, 0, GIB)
    await hardware.perform(SetMemoryLimit(gpu.uuid, CONTAINER, 16 * GIB))
    (again,) = await hardware.limits([at])
    assert again.hard_bytes == 16 * GIB
    await hardware.inject(Vacate(0))
    (gone,) = await hardware.limits([at])
    assert (gone.state, gone.cgroup) == (None, "")


@pytest.mark.parametrize("name", ["71", "s5K1KKYAYG5D00"])
async def test_a_job_of_slurm_has_the_limit_on_the_cgroup_above_its_steps(name: str) -> None:
    hardware = simulated("misc")
    (gpu,) = (await hardware.observe()).gpus
    at = LimitAt(JobCgroup(ContainerId(name)), gpu.uuid)
    await hardware.inject(Occupy(0, pid=7, memory_bytes=12 * GIB, job=name, limit_bytes=8 * GIB))
    (seen,) = await hardware.limits([at])
    assert (seen.state, seen.cgroup.rpartition("/")[2].removeprefix("job_")) == (
        LimitState(8 * GIB, 0, 8 * GIB),
        name,
    )
    await hardware.inject(LoseLimits(0))
    await hardware.perform(SetMemoryLimit(gpu.uuid, at.container, 4 * GIB))
    (again,) = await hardware.limits([at])
    assert again.hard_bytes == 4 * GIB
    await hardware.inject(Vacate(0))
    (gone,) = await hardware.limits([at])
    assert (gone.state, gone.cgroup) == (None, "")


async def test_where_the_driver_refuses_the_container_does_not_start() -> None:
    hardware = simulated("off")
    with pytest.raises(InputError, match="does not start"):
        await hardware.inject(Occupy(0, pid=7, container=CONTAINER, limit_bytes=GIB))
