"""Which spelling of dcgm-exporter's metrics is served beside Partage's own."""

from __future__ import annotations

from enum import StrEnum


class DcgmNames(StrEnum):
    """off: none: for a node where dcgm-exporter runs. old: of dcgm-exporter up to 4.8. new: of 4.9, with base
    units. both: for the time of a change.
    """

    OFF = "off"
    OLD = "old"
    NEW = "new"
    BOTH = "both"

    @property
    def old(self) -> bool:
        """Whether the old spelling is served."""
        return self in (DcgmNames.OLD, DcgmNames.BOTH)

    @property
    def new(self) -> bool:
        """Whether the new spelling is served."""
        return self in (DcgmNames.NEW, DcgmNames.BOTH)
