"""A recording double: the part of 0.4.33 and newer that reads the environment."""

import os


def generate_pjrt_gpu_plugin_options():
    """The options of the GPU client."""
    options = {"platform_name": "cuda", "allocator": os.getenv("XLA_PYTHON_CLIENT_ALLOCATOR", "default")}
    new, old = os.getenv("XLA_CLIENT_MEM_FRACTION", ""), os.getenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "")
    if new and old:
        raise ValueError("XLA_CLIENT_MEM_FRACTION is specified together with XLA_PYTHON_CLIENT_MEM_FRACTION")
    if new or old:
        options["memory_fraction"] = float(new or old)
    return options
