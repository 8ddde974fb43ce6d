"""What the simulated control program knows of its node: a file beside the program.

``install_programs`` puts the program into a directory of its own. Its environment is that of the real
program, so no variable can carry this.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import field

from partage.model.mps import CONTROL_PROGRAM, SERVER_PROGRAM
from partage.values import Frozen

CLIENT_PROGRAM = "mps-client"
FILE = "mps-node.json"
MOST_CLIENTS = 48


class MpsNode(Frozen):
    """gpus: UUID (of a GPU or MIG device) to its memory in bytes, in the order of their ordinals.

    clients: the most clients of one server. multi_user: whether the program has that option, as from driver
    branch 555 on. root_alone: limits are set by root, or by the user of a server; False, as in 535: by all.
    protocol: the newest version of the control interface that it has: 3 from driver branch 615 on.
    ignores_limits: it ignores valid limits too; a fault for tests.
    reads_limits: it takes limits from its environment when it starts. Without, it serves without limits until
    it is told some. has_status: it knows ``get_server_status``, which 535 does not. writes_pid: it writes
    a pid file, which 535 does not.
    """

    gpus: Mapping[str, int] = field(default_factory=dict)
    clients: int = MOST_CLIENTS
    multi_user: bool = True
    root_alone: bool = True
    ignores_limits: bool = False
    protocol: int = 3
    reads_limits: bool = True
    has_status: bool = True
    writes_pid: bool = True

    @classmethod
    def of_branch(cls, branch: int, gpus: Mapping[str, int]) -> MpsNode:
        """A node with the control program of a driver branch, as recorded of 535, 550 and 555."""
        return cls(
            gpus,
            multi_user=branch >= 555,
            root_alone=branch >= 550,
            protocol=3 if branch >= 615 else 2,
            has_status=branch >= 550,
            writes_pid=branch >= 550,
        )

    def visible(self, variable: str | None) -> tuple[str, ...]:
        """The devices that CUDA_VISIBLE_DEVICES leaves, in its order; unset: all.

        As in CUDA: the list ends at the first name that is no device; the first letters of a UUID suffice.
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


_MODULES = {CONTROL_PROGRAM: "control", SERVER_PROGRAM: "server", CLIENT_PROGRAM: "client"}


def install_programs(directory: Path, node: MpsNode) -> Path:
    """Put the control program, its server and a client into a directory; the control program's path.

    They run on this Python, import this Partage, and need nothing else.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for program, module in _MODULES.items():
        write_program(directory / program, f"partage.sim.mps.{module}")
    save_node(directory, node)
    return directory / CONTROL_PROGRAM


def write_program(path: Path, module: str, *arguments: str) -> None:
    """A program that runs the ``main`` of a module, with these arguments before its own."""
    source = Path(__file__).resolve().parents[3]
    folders = [str(source), str(Path(msgspec.__file__).parents[1])]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        # typing has what msgspec takes from typing_extensions, whose import is a fifth of a daemon's start.
        f"#!{sys.executable} -IS\nimport sys\nsys.path[:0] = {folders!r}\n"
        "sys.modules['typing_extensions'] = None\n"
        f"from {module} import main\nsys.exit(main([sys.argv[0], *{list(arguments)!r}, *sys.argv[1:]]))\n",
        encoding="utf-8",
    )
    path.chmod(0o755)


def save_node(directory: Path, node: MpsNode) -> None:
    """Write the node's file. Daemons that already run do not read it again."""
    (directory / FILE).write_bytes(msgspec.json.encode(node))


def load_node(directory: Path) -> MpsNode:
    """The node of a program that is installed in ``directory``. Raises OSError, ValueError."""
    return msgspec.json.decode((directory / FILE).read_bytes(), type=MpsNode)
