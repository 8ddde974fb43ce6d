"""The sizes of the GPUs that claims can get, from what nodes publish."""

from __future__ import annotations

from collections.abc import Iterable

from partage.admission.decide.template import ClaimableSize, ClaimableSizes
from partage.claims.decide.book import BookDevice, amount_of
from partage.claims.model.names import MEMORY, OWN_NAMES, Mode
from partage.units import MIB, parse_quantity


def sizes_of(devices: Iterable[BookDevice]) -> ClaimableSizes:
    """Of published devices; those of other drivers are left out."""
    amounts, migs = set(), set()
    for device in devices:
        if device.driver != OWN_NAMES.driver or MEMORY not in device.device.capacity:
            continue
        memory_bytes = int(amount_of(device.device, MEMORY))
        if device.text("mode") == Mode.AMOUNTS:
            amounts.add(ClaimableSize(memory_bytes, _step(device)))
        elif device.text("mode") == Mode.MIG:
            migs.add(memory_bytes)
    return ClaimableSizes(tuple(sorted(amounts)), tuple(sorted(migs)))


def _step(device: BookDevice) -> int:
    policy = device.device.capacity[MEMORY].request_policy
    if policy is None:
        return MIB
    if policy.valid_range is None or policy.valid_range.step is None:
        return int(parse_quantity(policy.default))
    return int(parse_quantity(policy.valid_range.step)) or MIB
