"""Begin a helper. Imports no asyncio: the agent does this first, and imports itself while the helper does."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path


def spawn(argv: Sequence[str], socket_path: Path) -> subprocess.Popen[bytes]:
    """A new helper, in a session of its own, that ends with its standard input. Raises OSError.

    Whatever still listens at ``socket_path`` is not ours to talk to: a helper that hangs, or one of an agent
    before us. What a terminal sends to the agent's process group, or a supervisor to the agent, does not end
    the new one in the middle of a driver call; the end of its input does, which the kernel sees to however
    the agent ends.
    """
    socket_path.unlink(missing_ok=True)
    return subprocess.Popen(  # noqa: S603 - the face that made the agent says what to run
        list(argv), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
