"""PCI addresses: one spelling for the different ones of NVML, sysfs and people."""

from __future__ import annotations

import re

_ADDRESS = re.compile(
    r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", re.ASCII | re.IGNORECASE
)


def parse_pci_address(text: str) -> str:
    """``00000000:07:00.0`` for ``0000:07:00.0``, ``07:00.0`` and ``7:0``: eight digits of domain as in NVML,
    lower case.

    Raises ValueError for other text.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:32]!r} is not a PCI address such as 0000:07:00.0")
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    if device > 0x1F:
        raise ValueError(f"{text[:32]!r} is not a PCI address: a bus has 32 devices")
    return f"{domain:08x}:{bus:02x}:{device:02x}.{function}"
