"""Labels in a file that node-feature-discovery reads (its source ``local``): ``key=value``, one a line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from partage.edges.host.replace_file import replace_file


def features(labels: Mapping[str, str]) -> str:
    """The content of the file."""
    return "".join(f"{key}={value}\n" for key, value in labels.items())


def write_features(path: Path, labels: Mapping[str, str]) -> None:
    """Replace the file in one step: node-feature-discovery may read it at any time, as any user.

    Raises OSError; then the old one is still there.
    """
    replace_file(path, features(labels).encode(), mode=0o644, hidden=True)
