"""A recording double: one function that reads the old variable itself."""

import os

read = []


def make_gpu_client(distributed_client=None):
    """A GPU client, which is here what was read."""
    read.append(os.getenv("XLA_PYTHON_CLIENT_MEM_FRACTION"))
    return read[-1]
