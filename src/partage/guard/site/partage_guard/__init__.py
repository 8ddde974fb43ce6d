"""Caps that PyTorch, JAX, TensorFlow and CuPy have themselves, set from the share's memory.

Nothing of it happens before a framework is imported, and nothing here imports one. The start of every Python
process reads this file and ``hook``; the rest is read when a framework comes.

Written for Python 3.6 to this day, with the standard library: annotations are strings, and there are no
dataclasses. A tenant's program must never end or change because of what stands here.
"""

__all__ = ["limit"]


def limit(*, fraction: "float | None" = None, bytes: "int | None" = None) -> "dict[str, str]":  # noqa: A002
    """Cap the frameworks of this process, those that are imported and those to come.

    fraction: of each GPU's memory, above 0 and at most 1. bytes: on each GPU. One of the two; it is the
    frameworks' own limit as it stands, nothing is taken off it for the CUDA context. It replaces what the
    guard, the environment or an earlier call has set.

    Returns what came of it, by framework: ``{"torch": "cuda:0 0.2500"}``; a framework that is not imported
    yet is missing. Raises ValueError for a wrong number, TypeError for what is no number.
    """
    from . import caps, hook

    return hook.limit_now(caps.RequestedLimit(fraction, bytes))
