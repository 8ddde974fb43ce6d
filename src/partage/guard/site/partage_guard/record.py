"""What the guard did: in ``PARTAGE_GUARD_APPLIED`` always, on stderr if requested."""

import os
import sys

TYPE_CHECKING = False  # typing itself costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

APPLIED = "PARTAGE_GUARD_APPLIED"

notes: "Dict[str, str]" = {}
"""The result in this process, by framework."""


class NotCapped(Exception):
    """No limit is set for a framework; the text is the reason."""


def note(framework: str, text: str) -> None:
    """``torch: cuda:0 0.2400; jax: kept XLA_CLIENT_MEM_FRACTION=.5``."""
    notes[framework] = text
    os.environ[APPLIED] = "; ".join(f"{name}: {what}" for name, what in notes.items())
    log(f"{framework}: {text}")


def log(text: str) -> None:
    """On stderr, only with ``PARTAGE_GUARD=verbose``. Errors of a closed stderr are ignored."""
    if os.environ.get("PARTAGE_GUARD", "").lower() != "verbose" or sys.stderr is None:
        return
    try:
        sys.stderr.write(f"partage guard: {text}\n")
    except (OSError, ValueError):
        pass


def guarded(framework: str, action: "Callable[..., None]", *arguments: "Any") -> None:
    """Call ``action``. The program goes on, whatever it raises.

    SystemExit is caught too, and what native extensions raise besides ``Exception``. Ctrl-C is passed on.
    """
    try:
        action(*arguments)
    except NotCapped as why:
        note(framework, str(why))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        note(framework, f"failed: {type(error).__name__}: {error}")
