"""``partage version``: the same as ``partage --version``."""

from __future__ import annotations

from partage import __version__
from partage.answers.common_output import say
from partage.answers.verb import verb


@verb("version")
def command() -> None:
    """Print the version."""
    say(f"partage {__version__}")
