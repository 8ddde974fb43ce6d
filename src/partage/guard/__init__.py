"""The guard: what runs inside a tenant's container and keeps Python frameworks within the share's memory.

It stands alone: the standard library, no other part of Partage, Python 3.6 and newer. ``SITE`` is the
directory that is mounted into containers; ``PYTHONPATH=<mount>`` is all that it needs there, and
``partage.guard.limit`` is importable from it, too. It is no security boundary (docs/guard.md).
"""

import os

from partage.guard.site.partage_guard import limit

__all__ = ["SITE", "limit"]

SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
"""The directory to mount, as it lies here."""
