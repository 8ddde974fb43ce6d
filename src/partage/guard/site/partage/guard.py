"""``partage.guard`` where Partage itself is not installed: in a container, from the mounted directory.

There is no ``__init__.py`` beside this file on purpose: a Partage that is installed comes first.
"""

from partage_guard import limit  # type: ignore[import-not-found]

__all__ = ["limit"]
