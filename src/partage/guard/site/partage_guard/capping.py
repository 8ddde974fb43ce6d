"""What happens when a framework is imported: its own module here caps it.

The other finders find the framework's module; it is lent a loader for the one moment of its execution. What
the module and everybody else see afterwards (``__spec__``, ``__loader__``, reload, pickling) is as it would
be without us. Our module for it may have ``before(cap)`` and ``after(module, cap)``, around the execution,
and ``already(module, cap)`` where the framework was there first.
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
    """The spec that the other finders have for this module, with our loader around theirs."""
    for other in list(sys.meta_path):
        find = None if other is finder else getattr(other, "find_spec", None)
        spec = find(name, path, target) if find is not None else None
        if spec is not None:
            if hasattr(spec.loader, "exec_module"):
                spec.loader = _Loader(spec.loader, finder, name)
            return spec
    return None


class _Loader:
    """Their loader, with a word before and after the execution; gone from the module before it begins."""

    def __init__(self, theirs: "Any", finder: "Finder", name: str) -> None:
        self._theirs, self._finder, self._name = theirs, finder, name

    def create_module(self, spec: "Any") -> "Any":
        create = getattr(self._theirs, "create_module", None)
        return None if create is None else create(spec)

    def exec_module(self, module: "Any") -> None:
        module.__spec__.loader = module.__loader__ = self._theirs
        _tell(self._finder, self._name, "before")
        self._theirs.exec_module(module)
        _tell(self._finder, self._name, "after", module)
        _forget(self._finder, self._name)

    def __getattr__(self, name: str) -> "Any":
        if name.startswith("_"):  # a copy asks before there is anything to ask
            raise AttributeError(name)
        return getattr(self._theirs, name)


def handle_imported(finder: "Finder") -> None:
    """Frameworks that were there before us: a .pth file, or the program itself, was earlier."""
    record.log("ready")
    for name in list(finder.waited_for):
        if name in sys.modules:
            _tell(finder, name, "already", sys.modules[name])
            _forget(finder, name)


def _tell(finder: "Finder", name: str, moment: str, *arguments: "Any") -> None:
    """Call what our module for this framework has for this moment, whatever comes of it."""

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
