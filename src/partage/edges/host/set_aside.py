"""Keeping an unusable file for people, out of the way of the next one."""

from __future__ import annotations

from pathlib import Path

KEPT_ASIDE = 9
"""So many unusable files are kept; the last is overwritten."""


def set_aside(file: Path, *, stays: bool = False) -> str:
    """Rename it to ``<name>.corrupt-N``. Returns what was done, a clause. Never raises.

    stays: it keeps its own name, too, until it is replaced: a part of it is good.
    """
    names = [file.with_name(f"{file.name}.corrupt-{n}") for n in range(1, KEPT_ASIDE + 1)]
    aside = next((name for name in names if not name.exists()), names[-1])
    try:
        if stays:
            aside.unlink(missing_ok=True)
            aside.hardlink_to(file)
        else:
            file.replace(aside)
    except OSError as error:
        return f"it could not be set aside: {error.strerror}"
    return f"{'a copy' if stays else 'it'} was set aside as {aside.name}"
