"""A file with a token: of this server, or for a server that is asked."""

from __future__ import annotations

from pathlib import Path

from partage.edges.host.read_file import read_regular
from partage.errors import InputError, Problem

_LARGEST_BYTES = 2**16


def read_token(path: Path) -> str:
    """Its first line that is not empty. Raises InputError if it cannot be read."""
    try:
        text = read_regular(path, _LARGEST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not text"
        raise InputError([Problem(str(path), "", "error", f"the token cannot be read: {why}")]) from error
    return text.strip().partition("\n")[0].strip()
