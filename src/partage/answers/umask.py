"""Who may read and write the files that Partage makes, whatever umask it was started with.

What only Partage may read (state, journal, history, locks) is made with mode 0600. Everybody may read the
rest: the report, CDI specs, the guard, what MPS daemons have in common with their clients. And nobody else
may write any of it: with a umask of 0, every user of the node could say in ``daemon.json`` which process is
the daemon.
"""

from __future__ import annotations

import os

_NOBODY_ELSE_WRITES = 0o022


def of_a_service() -> None:
    """For the agent and the helper: a tighter one would hide the report from those who may read it."""
    os.umask(_NOBODY_ELSE_WRITES)


def of_a_command() -> None:
    """For all other verbs: a person's own umask, if it is as tight."""
    os.umask(os.umask(_NOBODY_ELSE_WRITES) | _NOBODY_ELSE_WRITES)
