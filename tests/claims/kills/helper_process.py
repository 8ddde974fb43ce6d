"""A helper in a process of its own, whose GPUs are in another one: killed, it leaves them as a driver does.

``python -m tests.claims.kills.helper_process SOCKET GPUS``: GPUS is the socket of the simulated node.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from partage.edges.hardware.helper_client import RemoteHardware
from partage.edges.hardware.helper_server import HelperServer


async def _main(socket: Path, gpus: Path) -> None:
    node = RemoteHardware(gpus)
    node.start()
    await HelperServer(node).run(socket, asyncio.Event())


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), Path(sys.argv[2])))
