"""A recording double of CuPy: its pool reads the limit when it is made."""

import os

set_limits = []
pool_limit = os.environ.get("CUPY_GPU_MEMORY_LIMIT")


class _Pool:
    def set_limit(self, size=None, fraction=None):
        set_limits.append((size, fraction))


def get_default_memory_pool():
    return _Pool()
