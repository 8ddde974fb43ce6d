"""Tensors of a third of a limit: two and a half fit, three do not, if the limit holds.

The third tensor ends exactly at the limit, and the CUDA context is in there, too. Every try is a process of
its own: one that ran out of memory is not trusted with another.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

from partage.errors import DaemonError, Unsupported
from partage.faces.bench.daemon import Daemon
from partage.faces.bench.group import group
from partage.faces.bench.model import Failure, MemoryTry, Mode, Settings
from partage.faces.bench.places import Place
from partage.faces.bench.tenant import Launch
from partage.units import MIB

THIRDS = (2.5, 3.0)


@dataclass(frozen=True, slots=True)
class Limit:
    """What a tenant may have. source: a sentence. client: its own limit variable under MPS, or empty."""

    bytes: int
    source: str
    promise: str
    client: str = ""


async def allocate(
    launch: Launch, environment: Mapping[str, str], sizes_bytes: Sequence[int], deadline_s: float
) -> Failure | None:
    """Begin a tenant, have it allocate and write these tensors, end it. None: it could."""
    async with group(launch, [environment], deadline_s) as one:
        repeat = await one.together({"job": "memory", "tensors": list(sizes_bytes)}, 1, deadline_s)
        return repeat.turns[0].failure


def tensors(limit_bytes: int, thirds: float) -> tuple[int, ...]:
    """Sizes in bytes: whole thirds of the limit, then what is left over."""
    third = limit_bytes // 3
    whole = int(thirds)
    rest = int((thirds - whole) * third)
    return (third,) * whole + ((rest,) if rest else ())


async def try_limit(
    launch: Launch, environment: Mapping[str, str], mode: Mode, limit: Limit, deadline_s: float
) -> AsyncIterator[MemoryTry]:
    """Two and a half thirds of a limit, then three: what was seen each time."""
    for thirds in THIRDS:
        failure = await allocate(launch, environment, tensors(limit.bytes, thirds), deadline_s)
        seen, message = (failure.what, failure.message) if failure else ("fits", "")
        yield MemoryTry(mode, limit.bytes, limit.source, limit.promise, thirds, seen, message)


async def try_memory(settings: Settings, place: Place, launch: Launch) -> AsyncIterator[MemoryTry]:
    """Every limit there is on this machine."""
    for mode, limit in await limits(settings, place):
        environment = place.environment(mode, limit=limit.client)
        async for one in try_limit(launch, environment, mode, limit, settings.deadline_s):
            yield one


async def limits(settings: Settings, place: Place) -> list[tuple[Mode, Limit]]:
    """What holds a tenant in each mode, by what the node says of it."""
    share = place.share_bytes
    if not share:
        return []
    if not place.on_gpu:
        return [(Mode.ALONE, Limit(share, "nothing limits a process on the CPU", "none"))]
    found = [(Mode.TIME_SLICING, Limit(share, "time-slicing has no memory limit", "none"))]
    if place.pipe is not None:
        found.append((Mode.MPS, await _mps_limit(settings, place)))
    if place.mig:
        whole = Limit(place.memory_bytes, "the MIG device's own memory", "hard")
        found.append((Mode.MIG, whole))
    if place.guard is not None:
        found.append((Mode.WITH_GUARD, Limit(share, "the guard caps the framework's allocator", "advisory")))
    return found


async def _mps_limit(settings: Settings, place: Place) -> Limit:
    """The daemon's limit; where it has none, the client's own variable.

    Outside of exclusive-process mode a tenant can drop either: it works beside the daemon.
    """
    share, promise = place.share_bytes, "guarded" if place.exclusive else "advisory"
    own = Limit(share, "the client's own variable; the daemon has no limit", "advisory", f"0={share // MIB}M")
    try:
        limit = await Daemon(place.pipe, place.driver_root).memory_limit(share)
    except (DaemonError, Unsupported) as error:
        why = error.problems[0].message
        if settings.memory_bytes is not None:
            return Limit(share, f"the daemon's by --memory; not read back: {why}", promise)
        return replace(own, source=f"the client's own variable; the daemon was not asked: {why}")
    return own if limit is None else Limit(limit, "the daemon's limit, read back", promise)
