"""What the simulated control program finds on its node: a file beside it.

The program is installed into a directory of its own (``install``); its environment is that of a real one, so
there is no variable that could carry this.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROGRAM = "nvidia-cuda-mps-control"
SERVER_PROGRAM = "nvidia-cuda-mps-server"
CLIENT_PROGRAM = "mps-client"
FILE = "mps-node.json"
MOST_CLIENTS = 48


@dataclass(frozen=True, slots=True)
class MpsNode:
    """gpus: UUID (of a GPU or MIG device) to its memory in bytes, in the order of their ordinals.

    clients: how many the server of one device takes. multi_user: whether the program knows that option.
    protocol: the newest version of its language that the program speaks: 3 from driver branch 615 on.
    deaf_to_limits: it ignores limits even where they are valid: a misbehaviour for tests.
    """

    gpus: Mapping[str, int] = field(default_factory=dict)
    clients: int = MOST_CLIENTS
    multi_user: bool = True
    deaf_to_limits: bool = False
    protocol: int = 3

    def visible(self, variable: str | None) -> tuple[str, ...]:
        """The devices that CUDA_VISIBLE_DEVICES leaves, in its order; unset: all.

        As CUDA has it: the list ends at the first name that is no device; the first letters of a UUID do.
        """
        if variable is None:
            return tuple(self.gpus)
        found: list[str] = []
        for name in variable.split(","):
            device = self._named(name.strip())
            if device is None or device in found:
                break
            found.append(device)
        return tuple(found)

    def _named(self, name: str) -> str | None:
        if name.isdecimal():
            return next((uuid for index, uuid in enumerate(self.gpus) if index == int(name)), None)
        matches = [uuid for uuid in self.gpus if name.startswith(("GPU-", "MIG-")) and uuid.startswith(name)]
        return matches[0] if len(matches) == 1 else None


_MODULES = {PROGRAM: "control", SERVER_PROGRAM: "server", CLIENT_PROGRAM: "client"}


def install(directory: Path, node: MpsNode) -> Path:
    """Put the control program, its server and a client into a directory; the control program's path.

    They run on this very Python and import this very Partage, and need nothing else.
    """
    directory.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).resolve().parents[3]
    for program, module in _MODULES.items():
        path = directory / program
        path.write_text(
            f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(source)!r})\n"
            f"from partage.sim.mps.{module} import main\nsys.exit(main(sys.argv))\n",
            encoding="utf-8",
        )
        path.chmod(0o755)
    save(directory, node)
    return directory / PROGRAM


def save(directory: Path, node: MpsNode) -> None:
    """Write the node's file anew; daemons that run already do not look at it again."""
    content = {
        "gpus": dict(node.gpus),
        "clients": node.clients,
        "multi_user": node.multi_user,
        "deaf_to_limits": node.deaf_to_limits,
        "protocol": node.protocol,
    }
    (directory / FILE).write_text(json.dumps(content), encoding="utf-8")


def load(directory: Path) -> MpsNode:
    """The node of a program that is installed in ``directory``. Raises OSError, ValueError."""
    return MpsNode(**json.loads((directory / FILE).read_text(encoding="utf-8")))
