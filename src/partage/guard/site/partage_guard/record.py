"""What the guard did, for people: ``PARTAGE_GUARD_APPLIED`` always, stderr where it is asked for."""

import os
import sys

TYPE_CHECKING = False  # typing itself costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

APPLIED = "PARTAGE_GUARD_APPLIED"

notes: "Dict[str, str]" = {}
"""What came of it in this process, by framework."""


class NotCapped(Exception):
    """A framework is left as it is, for a reason that people can read."""


def note(framework: str, text: str) -> None:
    """``torch: cuda:0 0.2400; jax: kept XLA_CLIENT_MEM_FRACTION=.5``."""
    notes[framework] = text
    os.environ[APPLIED] = "; ".join(f"{name}: {what}" for name, what in notes.items())
    log(f"{framework}: {text}")


def log(text: str) -> None:
    """On stderr, with ``PARTAGE_GUARD=verbose`` only; a closed stderr is nobody's trouble."""
    if os.environ.get("PARTAGE_GUARD", "").lower() != "verbose" or sys.stderr is None:
        return
    try:
        sys.stderr.write(f"partage guard: {text}\n")
    except (OSError, ValueError):
        pass


def guarded(framework: str, action: "Callable[..., None]", *arguments: "Any") -> None:
    """Do this, and whatever happens in it, the program goes on.

    SystemExit is caught too, and what native extensions raise beside ``Exception``; Ctrl-C is the user's.
    """
    try:
        action(*arguments)
    except NotCapped as why:
        note(framework, str(why))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        note(framework, f"failed: {type(error).__name__}: {error}")
