"""CuPy: the limit of its default memory pool, set in an environment variable that each pool reads when it is
created.
"""

import os

from .record import NotCapped, note

TYPE_CHECKING = False  # typing itself costs more than all of this
if TYPE_CHECKING:
    from typing import Any

    from .caps import Cap

_LIMIT = "CUPY_GPU_MEMORY_LIMIT"


def before(cap: "Cap") -> None:
    """CuPy is about to be imported."""
    if os.environ.get(_LIMIT) and not cap.explicit:
        raise NotCapped(f"kept {_LIMIT}={os.environ[_LIMIT]}")
    try:
        os.environ[_LIMIT] = str(cap.anywhere())
    except NotCapped:
        if not cap.explicit:
            raise
        os.environ[_LIMIT] = f"{cap.fraction() * 100:g}%"
    note("cupy", f"{_LIMIT}={os.environ[_LIMIT]}")


def already(cupy: "Any", cap: "Cap") -> None:
    """CuPy was imported before and may have a pool for this device, so the pool's limit is set too."""
    before(cap)
    if not cap.explicit:
        return
    pool = cupy.get_default_memory_pool()
    try:
        pool.set_limit(size=cap.anywhere())
    except NotCapped:
        pool.set_limit(fraction=cap.fraction())
