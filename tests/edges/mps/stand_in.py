"""NVIDIA's own control program on a machine without a GPU, with what only a server answers added to it.

``install_real`` makes a driver's root with three programs:

- ``usr/local/bin/nvidia-cuda-mps-control``: NVIDIA's, as it is. It is the daemon, it starts, lists and ends
  servers, keeps the limits of those that start later, and writes ``control.log``.
- ``usr/sbin/nvidia-cuda-mps-server``: a process that lives in the server's place, so that the daemon has one.
  The two do not speak: NVIDIA's protocol is not imitated. So for the daemon the server starts for ever, and
  it answers every question about it with nothing.
- ``usr/bin/nvidia-cuda-mps-control``: the shim that Partage finds. It gives each command to NVIDIA's
  program, and prints what that prints; of ``OF_A_SERVER`` it prints what the process in the server's place
  says, if that is ready. Before ``quit`` it ends that process, as a daemon ends a server without clients.

Clients connect to the process in the server's place.
"""

from __future__ import annotations

import os
import subprocess
import sys

from partage.sim.mps.control import ask
from partage.sim.mps.wire import command_connection

# Little is imported here: the shim runs once for every single command.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from partage.sim.mps.limits import DaemonLimits
    from partage.sim.mps.node import MpsNode

CONTROL_PROGRAM = "nvidia-cuda-mps-control"
SERVER_PROGRAM = "nvidia-cuda-mps-server"
CLIENT_PROGRAM = "mps-client"

OF_A_SERVER = frozenset(
    {
        "get_server_status",
        "get_client_list",
        "get_device_client_list",
        "get_active_thread_percentage",
        "set_active_thread_percentage",
        "get_device_pinned_mem_limit",
        "set_device_pinned_mem_limit",
        "terminate_client",
        "ps",
    }
)
"""Commands whose answers are the shim's, and not NVIDIA's: docs/explanation/mps.md has the list, too."""

MODE = "mode"
"""A file beside the shim: ``busy``: the server starts for ever; ``fails``: it ends with status 1."""

_PDEATHSIG = 1


def install_real(root: Path, packages: Path, node: MpsNode) -> tuple[str, ...]:
    """A root as described above; the command line of a client. packages: NVIDIA's, of one branch."""
    from partage.sim.mps.node import save_node

    _link(packages / "usr/bin" / CONTROL_PROGRAM, root / "usr/local/bin" / CONTROL_PROGRAM)
    for name, act in ((CONTROL_PROGRAM, "shim"), (CLIENT_PROGRAM, "client")):
        _script(root / "usr/bin" / name, root, act)
    _script(root / "usr/sbin" / SERVER_PROGRAM, root, "server")
    (root / "servers").mkdir()
    (root / "servers").chmod(0o755)
    save_node(root / "usr/bin", node)
    return (str(root / "usr/bin" / CLIENT_PROGRAM),)


def set_mode(root: Path, mode: str) -> None:
    (root / MODE).write_text(mode)


def _link(program: Path, target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.write_bytes(program.read_bytes())
    target.chmod(0o755)


def _script(path: Path, root: Path, act: str) -> None:
    from pathlib import Path

    path.parent.mkdir(parents=True, exist_ok=True)
    paths = [str(Path(__file__).resolve().parents[3]), *(one for one in sys.path if one)]
    path.write_text(
        f"#!{sys.executable} -IS\nimport sys\nsys.path[:] = {paths!r}\n"
        f"from tests.edges.mps import stand_in\nsys.exit(stand_in.{act}({str(root)!r}, sys.argv))\n"
    )
    path.chmod(0o755)


def _place(root: str, pipe: str) -> str:
    """The directory with the socket of the process in the server's place, by the daemon's pipe directory."""
    return f"{root}/servers/{pipe.split('/')[-2]}"


# --- the shim -----------------------------------------------------------------------------------------


def shim(root: str, argv: list[str]) -> int:
    """One run of the control program: questions with answers of one line, and then one command. They go
    through one connection, so that an answer proves that the command was taken.
    """
    program = f"{root}/usr/local/bin/{CONTROL_PROGRAM}"
    if argv[1:]:
        os.execv(program, [program, *argv[1:]])
    place = _place(root, os.environ["CUDA_MPS_PIPE_DIRECTORY"])
    *questions, command = sys.stdin.read().splitlines()
    if command.startswith("quit"):
        _end_server(place, command)
    asked = "".join(f"{one}\n" for one in (*questions, command))
    real = subprocess.run([program], input=asked.encode(), stdout=subprocess.PIPE, check=False)
    lines = real.stdout.splitlines(keepends=True)
    before, said = lines[: len(questions)], b"".join(lines[len(questions) :])
    taken = not real.returncode and len(before) == len(questions)
    if taken and command.split()[0] in OF_A_SERVER and b"Unknown command" not in said:
        said = _answer(place, command, said)
    sys.stdout.buffer.write(b"".join(before) + said)
    return real.returncode


def _answer(place: str, command: str, otherwise: bytes) -> bytes:
    try:
        sock = command_connection(place)
    except OSError:
        return otherwise
    text = ask(sock, command)
    sock.close()
    return f"{text}\n".encode() if text else b""


def _end_server(place: str, command: str) -> None:
    try:
        sock = command_connection(place)
    except OSError:
        return
    ask(sock, command)
    sock.close()


# --- in the server's place ------------------------------------------------------------------------------


def server(root: str, argv: list[str]) -> int:
    """Live until told to quit, or until the daemon has ended, as a server does."""
    import ctypes
    import signal
    from pathlib import Path

    from partage.model.mps import ServerStatus
    from partage.sim.mps.clients import SimulatedServer
    from partage.sim.mps.daemon import ControlDaemon, DaemonSettings
    from partage.sim.mps.node import load_node
    from partage.sim.mps.state import MpsControlState

    del argv
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    mode = Path(root, MODE).read_text() if Path(root, MODE).exists() else ""
    if mode == "fails":
        return 1
    while mode == "busy":
        signal.pause()
    place = Path(_place(root, os.environ["CUDA_MPS_PIPE_DIRECTORY"]))
    place.mkdir(exist_ok=True)
    place.chmod(0o755)
    node = load_node(Path(root, "usr/bin"))
    devices = node.visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
    state = MpsControlState(node, devices, uid=os.geteuid(), multi_user=True)
    state.defaults = _defaults(f"{root}/usr/local/bin/{CONTROL_PROGRAM}", devices)
    state.servers.append(SimulatedServer(os.getpid(), os.geteuid(), state.defaults, ServerStatus.ACTIVE))
    settings = DaemonSettings(place, place, Path(root, "usr/bin"), node, devices, multi_user=True)
    ControlDaemon(settings, state).run()
    return 0


def _defaults(program: str, devices: tuple[str, ...]) -> DaemonLimits:
    """What the daemon gives to a server that starts, by its own answers."""
    from partage.sim.mps.limits import DaemonLimits

    questions = "get_default_active_thread_percentage\nget_default_device_pinned_mem_limit 0\n"
    said: list[str] = []
    while not said:  # it is refused without a word while somebody else gives commands
        asked = subprocess.run([program], input=questions, stdout=subprocess.PIPE, text=True, check=False)
        said = [] if asked.returncode else asked.stdout.splitlines()
    threads, *memory = said
    limits = DaemonLimits(devices).with_threads(threads)
    return limits.with_memory("0", "".join(memory))


# --- clients --------------------------------------------------------------------------------------------


def client(root: str, argv: list[str]) -> int:
    """A client of the process in the server's place."""
    from partage.sim.mps.client import main

    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = _place(root, os.environ["CUDA_MPS_PIPE_DIRECTORY"])
    return main(argv)
