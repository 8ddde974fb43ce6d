"""Python runs this when it starts, because it is on PYTHONPATH: arm the guard, then run the next
sitecustomize.

Python runs only the first ``sitecustomize`` on ``sys.path``. That of the image (Debian's, a venv's, a
tracer's) comes after this one and must still run; whatever it does or raises has the same effect as without
the guard. The guard's own part never raises. Other Pythons, also 2.7, skip it.
"""

import os
import sys


def _arm():
    # type: () -> None
    asked = os.environ.get("PARTAGE_GUARD", "").lower()
    if asked == "off" or "PARTAGE_MEMORY_BYTES" not in os.environ or sys.version_info < (3, 6):
        return
    try:
        from partage_guard.hook import arm  # type: ignore[import-not-found]

        arm()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever it is, the tenant's program starts
        if asked == "verbose" and sys.stderr is not None:
            sys.stderr.write("partage guard: not armed: %s: %s\n" % (type(error).__name__, error))


def _rest_of_path():
    # type: () -> list[str]
    """The entries after our directory, which may be on the path twice."""
    here = os.path.dirname(os.path.abspath(__file__))
    own = [entry for entry in sys.path if os.path.abspath(entry) == here]
    after = sys.path.index(own[0]) + 1 if own else 0
    return [entry for entry in sys.path[after:] if entry not in own]


def _run_next():
    # type: () -> None
    if sys.version_info < (3, 6):
        _run_next_of_old()
        return
    try:
        from _frozen_importlib_external import PathFinder  # loaded already; importlib.machinery takes 1 ms
    except ImportError:
        from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", _rest_of_path())
    if spec is None or spec.loader is None:
        return
    # As Python does it for the first one. Afterwards ``import sitecustomize`` returns that module.
    module = type(sys)("sitecustomize")
    vars(module).update(__spec__=spec, __loader__=spec.loader, __package__=spec.parent, __file__=spec.origin)
    if spec.submodule_search_locations is not None:
        vars(module).update(__path__=spec.submodule_search_locations)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if sys.version_info < (3, 6):

    def _run_next_of_old():
        # type: () -> None
        import imp

        try:
            found = imp.find_module("sitecustomize", _rest_of_path())
        except ImportError:
            return
        del sys.modules["sitecustomize"]
        imp.load_module("sitecustomize", *found)


_myself = sys.modules.get(__name__)  # Python 2 clears a module without references
_arm()
_run_next()
