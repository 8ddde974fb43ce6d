"""Sets the limit when a framework is imported, through a module for each framework (``on_torch`` ...).

Python's other finders find the framework's module. Its loader is replaced only while the module is
executed, so afterwards ``__spec__``, ``__loader__``, reload and pickling are as without the guard. The
guard's module may have ``before(cap)`` and ``after(module, cap)``, called around the execution, and
``already(module, cap)``, called if the framework was imported before the guard.
"""

import os
import sys

from . import record

TYPE_CHECKING = False  # typing itself costs more than all of this
if TYPE_CHECKING:
    from typing import Any

    from .caps import Cap
    from .hook import Finder


def wrapped_spec(finder: "Finder", name: str, path: "Any", target: "Any") -> "Any":
    """The module's spec from the other finders, with a loader that calls ours."""
    for other in list(sys.meta_path):
        find = None if other is finder else getattr(other, "find_spec", None)
        spec = find(name, path, target) if find is not None else None
        if spec is not None:
            if hasattr(spec.loader, "exec_module"):
                spec.loader = _Loader(spec.loader, finder, name)
            return spec
    return None


class _Loader:
    """Calls the original loader, and the guard's module before and after. Removed from the module before it
    is executed.
    """

    def __init__(self, theirs: "Any", finder: "Finder", name: str) -> None:
        self._theirs, self._finder, self._name = theirs, finder, name

    def create_module(self, spec: "Any") -> "Any":
        create = getattr(self._theirs, "create_module", None)
        return None if create is None else create(spec)

    def exec_module(self, module: "Any") -> None:
        module.__spec__.loader = module.__loader__ = self._theirs
        _call(self._finder, self._name, "before")
        self._theirs.exec_module(module)
        _call(self._finder, self._name, "after", module)
        _forget(self._finder, self._name)

    def __getattr__(self, name: str) -> "Any":
        if name.startswith("_"):  # copying asks before __init__ has run
            raise AttributeError(name)
        return getattr(self._theirs, name)


def handle_imported(finder: "Finder") -> None:
    """Set the limits of frameworks that were imported before the guard, by a .pth file or by the program."""
    record.log("ready")
    for name in list(finder.waited_for):
        if name in sys.modules:
            _call(finder, name, "already", sys.modules[name])
            _forget(finder, name)


def _call(finder: "Finder", name: str, moment: str, *arguments: "Any") -> None:
    """Call the function for this moment in the guard's module for this framework. Never raises."""

    def action() -> None:
        module = f"{__package__}.{finder.waited_for[name]}"
        __import__(module)
        function = getattr(sys.modules[module], moment, None)
        if function is not None:
            function(*arguments, _cap_of(finder))

    record.guarded(finder.waited_for[name][len("on_") :], action)


def _cap_of(finder: "Finder") -> "Cap":
    if finder.cap is None:
        from . import caps

        finder.cap = caps.share(os.environ)
    return finder.cap


def _forget(finder: "Finder", name: str) -> None:
    finder.waited_for.pop(name, None)
    if not finder.waited_for and finder in sys.meta_path:
        sys.meta_path.remove(finder)
