"""Wait until a framework is imported. All that runs at the start of every Python process: kept short.

What is to be done then stands in ``capping``, and is not even read before.
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
    """At the head of ``sys.meta_path``; finds nothing itself. waited_for: a framework's module, ours for
    it."""

    def __init__(self, cap: "Optional[Cap]" = None) -> None:
        self.waited_for = dict(WAITED_FOR)
        self.cap = cap

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name not in self.waited_for:
            return None
        from . import capping

        return capping.wrapped_spec(self, name, path, target)


def arm(cap: "Optional[Cap]" = None) -> None:
    """Wait for frameworks, once. cap: None: the share, read when it is needed.

    What stands in ``PARTAGE_GUARD_APPLIED`` from now on is this process's, not its parent's.
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
