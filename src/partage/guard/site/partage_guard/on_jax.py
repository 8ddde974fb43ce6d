"""JAX: XLA's fraction of the device, set when JAX asks jaxlib for the options of its GPU client.

The environment variable for it changed its name in jaxlib 0.4.33; setting both names is an error there, and
a program may set either of them after importing JAX. So the option is added where it is missing. Older
versions read the old variable, which is set only for that moment.
"""

import os
import sys
from functools import wraps

from .record import NotCapped, guarded, note

TYPE_CHECKING = False  # typing itself costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Callable

    from .caps import Cap

_OPTIONS, _CLIENT = "generate_pjrt_gpu_plugin_options", "make_gpu_client"
_KEY, _OLD = "memory_fraction", "XLA_PYTHON_CLIENT_MEM_FRACTION"


def after(xla_client: "Any", cap: "Cap") -> None:
    """xla_client: the module jaxlib.xla_client, just executed."""
    if hasattr(xla_client, _OPTIONS):
        _replace(xla_client, _OPTIONS, cap, _with_fraction)
    elif hasattr(xla_client, _CLIENT):
        _replace(xla_client, _CLIENT, cap, _with_variable)
    else:
        raise NotCapped("this version creates its GPU client in an unknown way")
    note("jax", "waits for its GPU client")


def already(xla_client: "Any", cap: "Cap") -> None:
    """xla_client: imported before ``limit`` was called."""
    if getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None):
        raise NotCapped("too late: JAX has its devices already")
    after(xla_client, cap)


def _replace(
    module: "Any", name: str, cap: "Cap", around: "Callable[[Callable[..., Any], Cap], Callable[..., Any]]"
) -> None:
    """Replace the module's function by ``around`` it; if it was replaced already, the original is used."""
    original = getattr(module, name)
    original = getattr(original, "_partage_original", original)
    ours = wraps(original)(around(original, cap))
    ours._partage_original = original  # type: ignore[attr-defined]
    setattr(module, name, ours)


def _with_fraction(original: "Callable[..., Any]", cap: "Cap") -> "Callable[..., Any]":
    def options(*arguments: "Any", **named: "Any") -> "Any":
        given = original(*arguments, **named)
        guarded("jax", _complete, given, cap)
        return given

    return options


def _complete(options: "Any", cap: "Cap") -> None:
    if _KEY in options and not cap.explicit:
        raise NotCapped(f"kept {_KEY} {options[_KEY]}")
    options[_KEY] = fraction = _fraction(cap)
    ignored = ", which the allocator 'platform' ignores" if options.get("allocator") == "platform" else ""
    note("jax", f"{_KEY} {fraction}{ignored}")


def _with_variable(original: "Callable[..., Any]", cap: "Cap") -> "Callable[..., Any]":
    def client(*arguments: "Any", **named: "Any") -> "Any":
        users = os.environ.get(_OLD)
        guarded("jax", _lend, cap)
        try:
            return original(*arguments, **named)
        finally:
            os.environ.pop(_OLD, None)
            if users is not None:
                os.environ[_OLD] = users

    return client


def _lend(cap: "Cap") -> None:
    if os.environ.get(_OLD) and not cap.explicit:
        raise NotCapped(f"kept {_OLD}={os.environ[_OLD]}")
    os.environ[_OLD] = str(_fraction(cap))
    note("jax", f"{_OLD}={os.environ[_OLD]}")


def _fraction(cap: "Cap") -> float:
    """Four digits, rounded down."""
    return max(1, int(cap.fraction() * 10000)) / 10000
