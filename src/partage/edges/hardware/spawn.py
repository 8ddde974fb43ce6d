"""Starts a helper. Imports no asyncio: the agent does this first, and imports its modules while the helper
starts.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path


def spawn(argv: Sequence[str], socket_path: Path) -> subprocess.Popen[bytes]:
    """A new helper in its own session, which ends when its standard input is closed. Raises OSError.

    An older socket at ``socket_path`` is removed: it belongs to a helper that hangs, or to a former agent.
    Signals to the agent's process group do not reach the helper, so they cannot end it during a driver
    call. However the agent ends, the kernel closes the input of the helper.
    """
    socket_path.unlink(missing_ok=True)
    return subprocess.Popen(  # noqa: S603 - the command is chosen by the CLI
        list(argv), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
