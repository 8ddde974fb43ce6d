"""The file of places at which MIG devices were made: whatever happens to it, nothing else counts as made."""

from __future__ import annotations

from pathlib import Path

import pytest

from partage.claims.files import PLACES_FILE, MadePlace, MadePlaces
from partage.errors import HardwareError
from partage.model.ids import GpuUuid

PLACES = frozenset(MadePlace(GpuUuid("GPU-1"), f"1g.10gb@{start}", "boot-1") for start in range(7))


def test_what_is_saved_is_loaded_by_the_next_agent(tmp_path: Path) -> None:
    assert MadePlaces(tmp_path).load() == (frozenset(), "")
    MadePlaces(tmp_path).save(PLACES)
    assert MadePlaces(tmp_path).load() == (PLACES, "")
    MadePlaces(tmp_path).save(())
    assert MadePlaces(tmp_path).load() == (frozenset(), "")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"version": "partage-claim-places/2", "places": []}',
        '{"version": "partage-claim-places/1", "places": [{"gpu": "GPU-1", "item": "x", "bootId": "b"}]}',
        '{"version": "partage-claim-places/1", "places": [' + "1," * (1 << 20),
    ],
)
def test_a_damaged_file_is_set_aside_and_then_nothing_was_made(tmp_path: Path, content: str) -> None:
    (tmp_path / PLACES_FILE).write_text(content)
    found, problem = MadePlaces(tmp_path).load()
    assert found == frozenset()
    assert PLACES_FILE in problem
    assert not (tmp_path / PLACES_FILE).exists()
    assert len([*tmp_path.iterdir()]) == 1
    MadePlaces(tmp_path).save(PLACES)
    assert MadePlaces(tmp_path).load() == (PLACES, "")


def test_a_file_that_cannot_be_written_is_an_error_and_the_old_one_counts(tmp_path: Path) -> None:
    MadePlaces(tmp_path).save(PLACES)
    (tmp_path / "folder").write_text("")
    with pytest.raises(HardwareError, match="where MIG devices are made"):
        MadePlaces(tmp_path / "folder").save(PLACES)
    assert MadePlaces(tmp_path).load() == (PLACES, "")
