"""Memory limits of a simulated node's containers: what the driver can, what it shows, and setting one."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from partage.errors import HardwareError, InputError, NotFound, Unsupported
from partage.model.cgroup import owner_of
from partage.model.driver_limit import NO_CGROUP, LimitAt, LimitObstacle, LimitSupport, SeenLimit
from partage.model.gpu import Driver, Gpu, NoDriver
from partage.model.ids import GpuUuid, cgroup_owner
from partage.model.step import SetMemoryLimit
from partage.plan.offer.driver_limits import LIMITS_SINCE
from partage.plan.offer.mps_command import branch_of
from partage.sim.node.processes import all_rows
from partage.sim.node.state import SimulatedNode, answering_gpu

_DIRECTORY = "/sys/fs/cgroup"


def support_of(state: SimulatedNode, gpu: Gpu) -> LimitSupport | None:
    """What a look at the driver finds about a GPU; None where the machine says nothing of limits."""
    return None if state.limits is None else support_with(state.limits, state.driver, gpu)


def support_with(limits: LimitSupport, driver: Driver | NoDriver, gpu: Gpu) -> LimitSupport:
    """The same, where the machine says this of limits."""
    if isinstance(driver, Driver) and branch_of(driver) < LIMITS_SINCE:
        return LimitSupport(obstacle=LimitObstacle.DRIVER)
    if gpu.mig_enabled and limits.obstacle is not LimitObstacle.CGROUP_V1:
        return LimitSupport(obstacle=LimitObstacle.MIG)
    return limits


def limits_of(state: SimulatedNode, asked: Collection[LimitAt]) -> tuple[SeenLimit, ...]:
    """What is in force in these containers."""
    return tuple(_seen(state, at) for at in asked)


def _seen(state: SimulatedNode, at: LimitAt) -> SeenLimit:
    path = state.cgroups.of_container(at.container)
    if not path:
        return SeenLimit(at, why=NO_CGROUP)
    directory = f"{_DIRECTORY}{path}"
    try:
        gpu = answering_gpu(state, at.gpu)
        _check(state, gpu)
        found = state.cgroups.limit_of(path, at.gpu, mig=gpu.mig_enabled)
        return SeenLimit(at, replace(found, used_bytes=_used_bytes(state, path, at.gpu)), directory)
    except HardwareError as error:
        return SeenLimit(at, cgroup=directory, why=str(error))


def set_memory_limit(state: SimulatedNode, step: SetMemoryLimit) -> SimulatedNode:
    """The node with the limit. Raises what ``CgroupTree.with_limit`` raises, GpuLost, NotFound."""
    gpu = answering_gpu(state, step.gpu)
    _check(state, gpu)
    path = state.cgroups.of_container(step.container)
    if not path:
        raise NotFound(f"{cgroup_owner(step.container)} has no cgroup")
    tree = state.cgroups.with_limit(
        path, step.gpu, step.limit_bytes, total_bytes=gpu.memory_bytes, mig=gpu.mig_enabled
    )
    return replace(state, cgroups=tree)


def with_container(state: SimulatedNode, gpu: GpuUuid, path: str, limit_bytes: int | None) -> SimulatedNode:
    """The node with the cgroup of a container or a job. limit_bytes: what its hook sets on the GPU; None: it
    has none.

    Raises InputError where the driver refuses: the container does not start.
    """
    if state.limits is None or path == "/":
        return state
    state = replace(state, cgroups=state.cgroups.made(path))
    if limit_bytes is None:
        return state
    try:
        return set_memory_limit(state, SetMemoryLimit(gpu, owner_of(path).limited, limit_bytes))
    except HardwareError as error:
        raise InputError(f"the container does not start: {error}") from error


def _used_bytes(state: SimulatedNode, path: str, gpu: GpuUuid) -> int:
    inside = f"0::{path}/"
    return sum(
        row.used_bytes or 0
        for row in all_rows(state)
        if row.gpu == gpu and any(f"{line}/".startswith(inside) for line in row.cgroups)
    )


def _check(state: SimulatedNode, gpu: Gpu) -> None:
    support = support_of(state, gpu)
    if support is None or support.obstacle is LimitObstacle.DRIVER:
        raise Unsupported("the driver's library is too old for this (nvmlDeviceSetMemoryLimits_v1)")
