"""``partage.guard`` in a container where Partage is not installed, from the mounted directory.

There is no ``__init__.py`` in this directory on purpose, so that an installed Partage has precedence.
"""

from partage_guard import limit  # type: ignore[import-not-found]

__all__ = ["limit"]
