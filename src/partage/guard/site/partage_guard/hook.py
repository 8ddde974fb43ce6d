"""Waits until a framework is imported. Every Python process runs this when it starts, so it is kept short.

What is done then is in ``capping``, which is not read before.
"""

import os
import sys

TYPE_CHECKING = False  # typing itself costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

    from .caps import Cap

WAITED_FOR = {
    "torch.cuda": "on_torch",
    "jaxlib.xla_client": "on_jax",
    "tensorflow.python.eager.context": "on_tensorflow",
    "cupy": "on_cupy",
}


class Finder:
    """First entry of ``sys.meta_path``; finds nothing itself. waited_for: a framework's module to the guard's
    module for it.
    """

    def __init__(self, cap: "Optional[Cap]" = None) -> None:
        self.waited_for = dict(WAITED_FOR)
        self.cap = cap

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name not in self.waited_for:
            return None
        from . import capping

        return capping.wrapped_spec(self, name, path, target)


def arm(cap: "Optional[Cap]" = None) -> None:
    """Wait for frameworks; only once. cap: None: the share, read when it is needed.

    From now on ``PARTAGE_GUARD_APPLIED`` is about this process, not its parent.
    """
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    os.environ["PARTAGE_GUARD_APPLIED"] = "ready"
    finder = Finder(cap)
    sys.meta_path.insert(0, finder)
    verbose = os.environ.get("PARTAGE_GUARD", "").lower() == "verbose"
    if verbose or not sys.modules.keys().isdisjoint(WAITED_FOR):
        from . import capping

        capping.handle_imported(finder)


def limit_now(cap: "Cap") -> "Dict[str, str]":
    """Apply this cap from now on, in place of an earlier one. Returns the result for each framework."""
    from . import record

    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]
    record.notes.clear()
    arm(cap)
    return dict(record.notes)
