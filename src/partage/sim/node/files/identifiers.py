"""Numbers and names of GPUs and their parts in files. None where a problem was noted."""

from __future__ import annotations

import re

from partage.codec.fields import Field
from partage.model.ids import GpuUuid, MigUuid, PciBusId

_HIGHEST_INDEX = 1023
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9./-]{0,99}", re.ASCII)
_PCI_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", re.ASCII)


def read_index(field: Field) -> int | None:
    """An index, a minor or an id."""
    return field.integer(0, _HIGHEST_INDEX)


def gpu_uuid(field: Field) -> GpuUuid | None:
    """The UUID of a GPU as the driver writes it."""
    text = field.matching(_UUID, "a UUID")
    return None if text is None else GpuUuid(text)


def mig_uuid(field: Field) -> MigUuid | None:
    """The UUID of a MIG device as the driver writes it."""
    text = field.matching(_UUID, "a UUID")
    return None if text is None else MigUuid(text)


def read_pci_bus_id(field: Field) -> PciBusId | None:
    """A PCI address."""
    text = field.matching(_PCI_BUS_ID, "a PCI address such as 00000000:1A:00.0")
    return None if text is None else PciBusId(text)
