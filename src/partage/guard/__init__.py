"""The guard: keeps Python frameworks in a tenant's container within the memory of the share.

It stands alone: only the standard library, no other part of Partage, Python 3.6 and newer. The directory
``SITE`` is mounted into containers and put on PYTHONPATH; nothing else is needed. ``partage.guard.limit``
can be imported from there too. It is not a security boundary (docs/explanation/guard.md).
"""

import os

from partage.guard.site.partage_guard import limit

__all__ = ["SITE", "limit"]

SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
"""The directory to mount."""
