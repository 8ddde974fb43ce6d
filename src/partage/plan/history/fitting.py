"""A day in a file of bounded size: what leaves first when there is too much. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from partage.codec.values import encode
from partage.model.usage_day import UsageDay

LIMIT_BYTES = 64 * 1024
"""Of a day that is over: two hundred workloads with long names, or four hundred with short ones."""
RUNNING_LIMIT_BYTES = 64 * 1024
"""So much more has the file of the day that runs, for the course of what runs."""


def fitting(day: UsageDay) -> bytes:
    """The text of the file. Where it is too long, workloads that were seen longest ago leave first, and are
    counted; then the course of the containers that run shortest. Raises CodecError.
    """
    bare = replace(day, running=())
    while len(content := encode(bare)) > LIMIT_BYTES and bare.workloads:
        gone = max(1, len(bare.workloads) // 16)
        bare = replace(bare, workloads=bare.workloads[gone:], left_out=bare.left_out + gone)
    running, room = day.running, len(content) + RUNNING_LIMIT_BYTES
    while len(content := encode(replace(bare, running=running))) > room:
        running = running[: len(running) - max(1, len(running) // 8)]
    return content
