"""Sets the memory limits that PyTorch, JAX, TensorFlow and CuPy have themselves to the memory of the share.

Nothing happens before a framework is imported, and nothing here imports one. Every Python process reads
this file and ``hook`` when it starts; the other files are read when a framework is imported.

Written for Python 3.6 and newer, with the standard library only: annotations are strings, and there are no
dataclasses. The tenant's program must never fail or change its behaviour because of this code.
"""

__all__ = ["limit"]


def limit(*, fraction: "float | None" = None, bytes: "int | None" = None) -> "dict[str, str]":  # noqa: A002
    """Limit the memory of the frameworks of this process, those already imported and those imported later.

    fraction: of each GPU's memory, above 0 and at most 1. bytes: on each GPU. Give one of the two. The
    value is passed to the frameworks as it is; nothing is subtracted for the CUDA context. It replaces
    limits that the guard, the environment or an earlier call has set.

    Returns the result by framework: ``{"torch": "cuda:0 0.2500"}``; frameworks that are not imported yet
    are missing. Raises ValueError for an invalid number, TypeError for a value that is not a number.
    """
    from . import caps, hook

    return hook.limit_now(caps.RequestedLimit(fraction, bytes))
