"""What a cgroup has of a GPU, by two sources: what is counted for it, and the sum over its processes."""

from __future__ import annotations

from partage.edges.hardware.port import Hardware
from partage.errors import HardwareError
from partage.lab.prove.stage import CannotTry, CountedMemory
from partage.model.cgroup import parse_cgroup
from partage.model.driver_limit import LimitAt


async def counted_memory(hardware: Hardware, at: LimitAt) -> CountedMemory:
    """Asked as the agent asks for a container. Raises CannotTry where one of them cannot be had."""
    try:
        (seen,), processes = await hardware.limits([at]), await hardware.processes()
    except HardwareError as error:
        raise CannotTry(str(error)) from error
    if seen.state is None or seen.state.used_bytes is None:
        raise CannotTry(f"what is counted for {seen.cgroup or 'the cgroup'} cannot be read: {seen.why}")
    own = [
        row
        for row in processes.rows
        if row.gpu == at.gpu and parse_cgroup(row.cgroups).container == at.container
    ]
    if not own or any(row.used_bytes is None for row in own):
        raise CannotTry(processes.hidden or "the driver does not say what its processes use")
    return CountedMemory(seen.state.used_bytes, sum(row.used_bytes or 0 for row in own), len(own))
