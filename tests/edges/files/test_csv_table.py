"""Tables that people or other programs wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from partage.edges.files.csv_table import read_table
from partage.errors import InputError


def test_a_file_that_is_too_large_is_refused_and_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("name\n" + 20 * "a\n")
    assert len(read_table(path, ["name"], dict, largest_bytes=45)) == 20
    with pytest.raises(InputError, match="is larger than 44 B"):
        read_table(path, ["name"], dict, largest_bytes=44)
