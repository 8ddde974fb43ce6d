"""The MIG layouts that cloud providers publish, with their names and their misprints.

The tables are in ``catalogue/providers.json`` as they were published. A row that its model cannot have
contains the layout that was meant in ``right``; every other row equals the layout that
``model.layout`` makes of its name. The tests check this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from partage.model.geometry import MigProfile, MisprintedLayout
from partage.values import Frozen

_FILE = Path(__file__).with_name("catalogue") / "providers.json"


class PublishedLayout(Frozen):
    """One layout. name: None for a layout without a name. listed: as published; right: the layout that was
    meant.
    """

    name: str | None
    listed: tuple[MigProfile, ...]
    right: tuple[MigProfile, ...]
    why: str = ""

    @property
    def wrong(self) -> bool:
        """The model cannot have the published layout."""
        return self.listed != self.right


class ProviderTable(Frozen):
    """The layouts that a provider publishes for one product. models: ids of the catalogue that it
    applies to.
    """

    provider: str
    title: str
    models: tuple[str, ...]
    source: str
    rows: tuple[PublishedLayout, ...]


@cache
def provider_tables() -> tuple[ProviderTable, ...]:
    """All tables; read once."""
    return tuple(
        ProviderTable(
            provider=table["provider"],
            title=table["title"],
            models=tuple(table["models"]),
            source=table["source"],
            rows=tuple(
                PublishedLayout(
                    name=row["name"],
                    listed=_profiles(row["listed"]),
                    right=_profiles(row.get("right", row["listed"])),
                    why=row.get("why", ""),
                )
                for row in table["rows"]
            ),
        )
        for table in json.loads(_FILE.read_text(encoding="utf-8"))
    )


def misprints_of(model_id: str) -> tuple[MisprintedLayout, ...]:
    """The wrong rows of all tables for one model."""
    return tuple(
        MisprintedLayout(f"{table.provider}'s table for the {table.title}", row.name, row.listed, row.right)
        for table in provider_tables()
        if model_id in table.models
        for row in table.rows
        if row.wrong
    )


def _profiles(counts: Mapping[str, int]) -> tuple[MigProfile, ...]:
    return tuple(MigProfile.parse(name) for name, count in counts.items() for _ in range(count))
