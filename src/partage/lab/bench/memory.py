"""Tensors of a third of a limit: two and a half fit, three do not, if the limit holds.

The third tensor ends exactly at the limit, and the CUDA context needs room, too: of a small limit fewer
thirds fit. Every try is a new process, because a process that ran out of memory once may behave differently
afterwards.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from msgspec.structs import replace

from partage.errors import DaemonError, Unsupported
from partage.lab.bench.model import BenchSettings, MemoryTry
from partage.lab.daemon import MpsDaemon
from partage.lab.place import TenantMode, TenantPlace
from partage.lab.tenant import CUDA_NEEDS_BYTES, TenantFailed, TenantFailure, TenantLaunch, start_tenant
from partage.units import MIB
from partage.values import Frozen

_MOST_THIRDS = 2.5


class MemoryLimit(Frozen):
    """What a tenant may have. source: a sentence. client: its own limit variable under MPS, or empty."""

    bytes: int
    source: str
    promise: str
    client: str = ""


async def try_allocation(
    launch: TenantLaunch, environment: Mapping[str, str], sizes_bytes: Sequence[int], deadline_s: float
) -> TenantFailure | None:
    """Start a tenant, have it allocate and write to these tensors, end it. None: it could."""
    try:
        tenant = await start_tenant(launch.argv(), environment, deadline_s)
    except TenantFailed as error:
        return error.failure
    try:
        await tenant.connected()
        for size in sizes_bytes:
            await tenant.ask(f"allocate {size}")
    except TenantFailed as error:
        return error.failure
    finally:
        await tenant.end()
    return None


def thirds_tried(limit_bytes: int, *, on_gpu: bool = True) -> tuple[float, ...]:
    """How many thirds of a limit are tried: what surely fits, in tenths, then what does not."""
    needs_bytes = CUDA_NEEDS_BYTES if on_gpu else 0
    tenths = 30 * (limit_bytes - needs_bytes) // limit_bytes
    return (min(tenths / 10, _MOST_THIRDS), 3.0) if tenths > 0 else (3.0,)


def tensor_sizes(limit_bytes: int, thirds: float) -> tuple[int, ...]:
    """Sizes in bytes: whole thirds of the limit, then the rest."""
    third = limit_bytes // 3
    whole = int(thirds)
    rest = int((thirds - whole) * third)
    return (third,) * whole + ((rest,) if rest else ())


async def try_memory(
    settings: BenchSettings, place: TenantPlace, launch: TenantLaunch
) -> AsyncIterator[MemoryTry]:
    """What surely fits, mostly two and a half thirds, then three, of every limit there is on this machine."""
    for mode, limit in await memory_limits(settings, place):
        environment = place.environment(mode, limit=limit.client)
        for thirds in thirds_tried(limit.bytes, on_gpu=place.on_gpu):
            failure = await try_allocation(
                launch, environment, tensor_sizes(limit.bytes, thirds), settings.deadline_s
            )
            seen, message = (failure.what, failure.message) if failure else ("fits", "")
            yield MemoryTry(mode, limit.bytes, limit.source, limit.promise, thirds, seen, message)


async def memory_limits(settings: BenchSettings, place: TenantPlace) -> list[tuple[TenantMode, MemoryLimit]]:
    """What limits a tenant in each mode, as the node says it."""
    share = place.share_bytes
    if not share:
        return []
    if not place.on_gpu:
        return [(TenantMode.ALONE, MemoryLimit(share, "nothing limits a process on the CPU", "none"))]
    unlimited = MemoryLimit(share, "time-slicing has no memory limit", "none")
    found = [(TenantMode.TIME_SLICING, unlimited)]
    if place.pipe is not None:
        daemon = MpsDaemon(place.pipe, place.driver_root)
        found.append((TenantMode.MPS, await _mps_limit(settings, place, daemon)))
    if place.mig:
        found.append((TenantMode.MIG, MemoryLimit(place.memory_bytes, "the MIG device's own memory", "hard")))
    if place.guard is not None:
        guarded = MemoryLimit(share, "the guard caps the framework's allocator", "advisory")
        found.append((TenantMode.WITH_GUARD, guarded))
    return found


async def _mps_limit(settings: BenchSettings, place: TenantPlace, daemon: MpsDaemon) -> MemoryLimit:
    """The daemon's limit; where it has none, the client's own variable.

    Outside of exclusive-process mode a tenant can avoid either: it works beside the daemon.
    """
    share, promise = place.share_bytes, "guarded" if place.exclusive else "advisory"
    source = "the client's own variable; the daemon has no limit"
    own = MemoryLimit(share, source, "advisory", f"0={share // MIB}M")
    try:
        limit = await daemon.memory_limit(share)
    except (DaemonError, Unsupported) as error:
        why = error.problems[0].message
        if settings.memory_bytes is not None:
            return MemoryLimit(share, f"the daemon's by --memory; not read back: {why}", promise)
        return replace(own, source=f"the client's own variable; the daemon was not asked: {why}")
    return own if limit is None else MemoryLimit(limit, "the daemon's limit, read back", promise)
